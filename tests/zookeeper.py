"""ZooKeepers for tests: one server for a whole test run's process, each test with a folder (chroot) of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from boki.launch.zookeeper.parts import find_parts
from boki.launch.zookeeper.server import Ensemble

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running ZooKeeper that all tests of this process share: nobody stops it."""
    servers = Ensemble(find_parts(), tmp_path_factory.mktemp("zookeeper"))
    try:
        servers.start()
        yield servers.hosts
    finally:
        servers.stop()


@pytest.fixture
def chroot() -> str:
    """A folder in ZooKeeper that no other test has."""
    return f"/test-{next(_numbers)}"


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[Ensemble]:
    """A single server of the test's own, to be stopped and killed."""
    servers = Ensemble(find_parts(), tmp_path)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    """Three servers of the test's own."""
    servers = Ensemble(find_parts(), tmp_path, size=3)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()
