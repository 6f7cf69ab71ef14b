"""What holds for every test: Hypothesis draws the same examples every time, a slow machine fails nothing, a real
ZooKeeper is at hand, processes that tests start keep what they compile and end with the run, and what stays is not
collected over and over.

The longest matrices (seeds, ablations, classes of faults) have a sample in the ordinary run, and all with `--whole`; so
have tests that are marked so.
"""

from __future__ import annotations

import gc
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings

from tests.zookeeper import chroot, ensemble, own_zookeeper, zookeeper

__all__ = ["chroot", "ensemble", "own_zookeeper", "zookeeper"]

_RUN = "PYTEST_RUN_OF_BOKI"
"""In the environment of every process that a run starts: the process id of the run."""

settings.register_profile("boki", deadline=None, derandomize=True)
settings.load_profile("boki")

# Hundreds of processes are started: each would compile all of Boki again, which takes longer than to run it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare `--whole`, and the part of it that is about workflows."""
    parser.addoption(
        "--whole", action="store_true", help="all of the longest matrices, of which a sample runs otherwise"
    )
    parser.addoption(
        "--flow-modes",
        choices=("sample", "all"),
        default="sample",
        help="every case of the workflows' suite in each of its modes, and the longest workloads",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, without `--whole`."""
    if not config.getoption("whole"):
        left = [item for item in items if item.get_closest_marker("whole") is not None]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item.get_closest_marker("whole") is None]


def pytest_configure() -> None:
    """Mark all that this run starts; SIGTERM interrupts it as Ctrl-C does."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        os.environ[_RUN] = str(os.getpid())
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: tearing down is not to be interrupted
    raise KeyboardInterrupt


def pytest_unconfigure() -> None:
    """End every process that is left of this run.

    An interrupted run gives its workers ten seconds to tear down, and SIGKILL after that: the clusters and ZooKeepers
    of a fixture that takes longer would run forever.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    mark = f"{_RUN}={os.getpid()}".encode()
    for file in Path("/proc").glob("[0-9]*/environ"):  # none where the system does not tell (not on Linux)
        with suppress(OSError):
            if mark in file.read_bytes().split(b"\0"):
                os.kill(int(file.parent.name), signal.SIGKILL)


def pytest_collection_finish() -> None:
    """The thousands of tests that were collected stay to the end: each full collection would go through them again."""
    gc.collect()
    gc.freeze()
