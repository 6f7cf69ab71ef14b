"""What holds for every test: Hypothesis draws the same examples every time, a slow machine fails nothing, and a real
ZooKeeper is at hand.
"""

from __future__ import annotations

from hypothesis import settings

from tests.zookeeper import chroot, ensemble, own_zookeeper, zookeeper

__all__ = ["chroot", "ensemble", "own_zookeeper", "zookeeper"]

settings.register_profile("boki", deadline=None, derandomize=True)
settings.load_profile("boki")
