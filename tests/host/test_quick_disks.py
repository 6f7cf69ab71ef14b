"""Who syncs: the event loop, if the disk is quick, else the thread of the disk."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import boki.host.disk
from boki.errors import StoreFailed
from boki.host.disk import Disk
from boki.host.rocksdb import RocksDb
from boki.protocol.effects import Put, Store
from tests.host.test_disk import THEN, in_loop


class CountedDb(RocksDb):
    """A RocksDB that says which thread syncs it, and for how long on the test's clock."""

    threads: list[str]
    takes_s: float = 0.0
    now_s: float = 0.0
    error: Exception | None = None

    def sync(self) -> None:
        cls = type(self)
        cls.threads.append(threading.current_thread().name)
        cls.now_s += cls.takes_s
        if cls.error is not None:
            raise cls.error
        super().sync()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[CountedDb]:
    CountedDb.threads, CountedDb.takes_s, CountedDb.now_s, CountedDb.error = [], 0.0, 0.0, None
    monkeypatch.setattr(boki.host.disk, "RocksDb", CountedDb)
    monkeypatch.setattr(boki.host.disk, "monotonic", lambda: CountedDb.now_s)
    return CountedDb


async def stored(disk: Disk, count: int = 1) -> None:
    """Store that many times in one turn of the loop, and wait until all is durable."""
    done: asyncio.Queue[int] = asyncio.Queue()
    for number in range(count):
        disk.store(Store([Put(b"%d" % number, b"")], THEN), lambda _, number=number: done.put_nowait(number))
    assert [await done.get() for _ in range(count)] == list(range(count))


def test_a_quick_disk_is_synced_by_the_event_loop_and_a_slow_one_by_a_thread(
    tmp_path: Path, counted: type[CountedDb]
) -> None:
    """Two wake-ups less, once many syncs were quick; what one turn of the loop stores is one sync all the same."""

    async def body() -> None:
        disk = Disk(tmp_path / "d", asyncio.get_running_loop(), on_failure=pytest.fail)
        trusted = boki.host.disk._TRUSTED
        for _ in range(trusted):
            await stored(disk)
        assert set(counted.threads) == {"commit d"}
        counted.threads.clear()
        await stored(disk, 3)
        assert counted.threads == ["MainThread"]
        counted.takes_s = 2 * boki.host.disk._SLOW_S
        await stored(disk)
        counted.takes_s = 0.0
        await stored(disk)
        assert counted.threads[1:] == ["MainThread", "commit d"]
        disk.close()

    in_loop(body())


def test_a_disk_whose_syncs_are_steadily_not_quick_is_synced_by_the_thread(
    tmp_path: Path, counted: type[CountedDb]
) -> None:
    """None of them is slow, but each would hold up the loop, and all that this node serves. One now and then may."""

    async def body() -> None:
        disk = Disk(tmp_path / "d", asyncio.get_running_loop(), on_failure=pytest.fail)
        between_s = (boki.host.disk._QUICK_S + boki.host.disk._SLOW_S) / 2
        trusted = boki.host.disk._TRUSTED
        for _ in range(2 * trusted):
            await stored(disk)
        counted.threads.clear()
        for _ in range(4):
            counted.takes_s = between_s
            await stored(disk)
            counted.takes_s = 0.0
            for _ in range(trusted // 2):
                await stored(disk)
        assert set(counted.threads) == {"MainThread"}
        counted.threads.clear()
        counted.takes_s = between_s
        for _ in range(100):
            await stored(disk)
        assert 0 < counted.threads.count("MainThread") <= trusted // boki.host.disk._LOSS + 1
        assert set(counted.threads[-90:]) == {"commit d"}
        counted.takes_s = 0.0
        for _ in range(trusted):  # and it has to show that it is quick again
            await stored(disk)
        counted.threads.clear()
        await stored(disk)
        assert counted.threads == ["MainThread"]
        disk.close()

    in_loop(body())


def test_a_failed_sync_in_the_event_loop_is_never_repeated(tmp_path: Path, counted: type[CountedDb]) -> None:
    """As in the thread: nothing is acknowledged after it, and closing does not sync either."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[StoreFailed] = loop.create_future()
        disk = Disk(tmp_path / "d", loop, on_failure=failed.set_result)
        for _ in range(boki.host.disk._TRUSTED):
            await stored(disk)
        counted.threads.clear()
        counted.error = OSError("EIO")
        acknowledged: list[object] = []
        disk.store(Store([Put(b"a", b"")], THEN), acknowledged.append)
        assert "EIO" in str(await failed)
        counted.error = None
        disk.store(Store([Put(b"b", b"")], THEN), acknowledged.append)
        await asyncio.sleep(0)
        disk.close()
        assert (acknowledged, counted.threads) == ([], ["MainThread"])

    in_loop(body())
