"""What holds for every test: Hypothesis draws the same examples every time, a slow machine fails nothing, a real
ZooKeeper is at hand, processes that tests start keep what they compile, and what stays is not collected over and over.
"""

from __future__ import annotations

import gc
import os

from hypothesis import settings

from tests.zookeeper import chroot, ensemble, own_zookeeper, zookeeper

__all__ = ["chroot", "ensemble", "own_zookeeper", "zookeeper"]

settings.register_profile("boki", deadline=None, derandomize=True)
settings.load_profile("boki")

# Hundreds of processes are started: each would compile all of Boki again, which takes longer than to run it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_finish() -> None:
    """The thousands of tests that were collected stay to the end: each full collection would go through them again."""
    gc.collect()
    gc.freeze()
