"""The disk: effects leave after the sync, writes gather while one runs, a failure is final."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import boki.host.disk
from boki.errors import ConfigError, DataDirectoryInUse, StoreFailed, VersionTooNew
from boki.host.data_directory import DataDirectory
from boki.host.disk import _MAX_UNHURRIED, Disk
from boki.host.host import Host
from boki.host.links import Links
from boki.host.rocksdb import AMPLE, Memory, RocksDb
from boki.log.ids import NodeId
from boki.protocol.effects import Delete, DiskRoom, Load, Loaded, Note, Put, Send, Store
from boki.protocol.messages import IndexBatch

THEN = (Send(NodeId("somebody"), "stored"),)


class GatedDb(RocksDb):
    """A real RocksDB whose sync waits until the test lets it go."""

    gate: threading.Event
    entered: threading.Event
    error: Exception | None = None
    written: list[int]

    def __init__(self, path: Path, memory: Memory = AMPLE) -> None:
        super().__init__(path, memory)
        type(self).gate, type(self).entered, type(self).written = threading.Event(), threading.Event(), []
        type(self).error = None

    def write(self, writes: Iterable[Put | Delete]) -> None:
        writes = list(writes)
        self.written.append(len(writes))
        super().write(writes)

    def sync(self) -> None:
        self.entered.set()
        assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        super().sync()


def in_loop(body: Any) -> None:
    asyncio.run(asyncio.wait_for(body, 60))


@pytest.fixture
def gated(monkeypatch: pytest.MonkeyPatch) -> type[GatedDb]:
    monkeypatch.setattr(boki.host.disk, "RocksDb", GatedDb)
    return GatedDb


def test_effects_leave_only_after_the_sync_and_in_order(tmp_path: Path, gated: type[GatedDb]) -> None:
    """While the sync runs nothing is acknowledged; what gathers meanwhile is one group."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        disk = Disk(tmp_path / "d", loop, on_failure=pytest.fail)
        done: asyncio.Queue[int] = asyncio.Queue()
        disk.store(Store([Put(b"0", b"")], THEN), lambda _: done.put_nowait(0))
        await asyncio.to_thread(gated.entered.wait, 30)
        for number in range(1, 4):
            disk.store(Store([Put(b"%d" % number, b"")], THEN), lambda _, number=number: done.put_nowait(number))
        assert done.empty()
        gated.gate.set()
        assert [await done.get() for _ in range(4)] == [0, 1, 2, 3]
        assert gated.written == [1, 3]
        disk.close()

    in_loop(body())


class Writes(list[Put | Delete]):
    """Writes whose end can be seen."""


def test_a_disk_that_waits_holds_nothing_of_its_last_writes(tmp_path: Path, gated: type[GatedDb]) -> None:
    """Those of a checkpoint of the index are megabytes, and the next write may come much later."""

    async def body() -> None:
        disk = Disk(tmp_path / "d", asyncio.get_running_loop(), on_failure=pytest.fail)
        gone, done = asyncio.Event(), asyncio.Event()
        writes = Writes([Put(b"a", b"")])
        loop = asyncio.get_running_loop()
        weakref.finalize(writes, loop.call_soon_threadsafe, gone.set)
        gated.gate.set()
        disk.store(Store(writes, THEN), lambda _: done.set())
        del writes
        async with asyncio.timeout(30):
            await done.wait()
            await gone.wait()
        disk.close()

    in_loop(body())


def test_a_failed_sync_is_never_repeated_and_nothing_is_acknowledged_after_it(
    tmp_path: Path, gated: type[GatedDb]
) -> None:
    """After a failed fsync the kernel may call lost pages clean, so the node stops (hazard H20)."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[StoreFailed] = loop.create_future()
        disk = Disk(tmp_path / "d", loop, on_failure=failed.set_result)
        acknowledged: list[object] = []
        gated.error = OSError("EIO")
        disk.store(Store([Put(b"a", b"")], THEN), acknowledged.append)
        gated.gate.set()
        error = await failed
        assert "EIO" in str(error)
        assert error.outcome == "unknown"
        gated.error = None
        disk.store(Store([Put(b"b", b"")], THEN), acknowledged.append)
        disk.close()
        await asyncio.sleep(0)
        assert acknowledged == []

    in_loop(body())


def test_what_nobody_waits_for_is_synced_with_what_somebody_does(tmp_path: Path) -> None:
    """In the order of storing; a stop makes it durable, too."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        disk = Disk(tmp_path / "d", loop, on_failure=pytest.fail)
        done: asyncio.Queue[int] = asyncio.Queue()
        for number in range(3):
            disk.store(Store([Put(b"a", b"%d" % number)], THEN), lambda _, n=number: done.put_nowait(n), can_wait=True)
        looked = asyncio.Event()
        # behind a commit of this turn, if there were one, and then behind its sync
        loop.call_soon(disk.log.run_in_thread, partial(disk.log.tell, looked.set))
        await looked.wait()
        assert disk.sync_count == 0
        disk.store(Store([Put(b"a", b"last")], THEN), lambda _: done.put_nowait(3))
        assert [await done.get() for _ in range(4)] == [0, 1, 2, 3]
        assert disk.sync_count == 1
        assert disk.get(b"a") == b"last"
        disk.store(Store([Put(b"b", b"")], THEN), lambda _: done.put_nowait(4), can_wait=True)
        disk.close()
        again = Disk(tmp_path / "d", loop, on_failure=pytest.fail)
        assert again.get(b"b") is not None
        for number in range(_MAX_UNHURRIED):  # and no more than that is held back
            again.store(Store([Put(b"c", b"")], THEN), lambda _, n=number: done.put_nowait(n), can_wait=True)
        while await done.get() != _MAX_UNHURRIED - 1:
            pass
        again.close()

    in_loop(body())


def test_reading_what_was_written(tmp_path: Path) -> None:
    """Scans go both ways and end before `stop`; a load begins at the key that covers the one asked for."""

    async def body() -> None:
        disk = Disk(tmp_path / "d", asyncio.get_running_loop(), on_failure=pytest.fail)
        disk.store_now([Put(b"b%02d" % n, b"%d" % n) for n in range(0, 50, 10)])
        assert [key for key, _ in disk.scan(b"b10", b"b30")] == [b"b10", b"b20"]
        assert [key for key, _ in disk.scan(b"b10", b"b30", backward=True)] == [b"b20", b"b10"]
        loaded: list[Loaded] = []
        disk.load(Load("t", b"b25", b"b00", b"b41", 1 << 20), loaded.append)
        assert [key for key, _ in loaded[-1].rows] == [b"b20", b"b30", b"b40"]
        disk.load(Load("t", b"b25", b"b21", b"b41", 1), loaded.append)
        assert [key for key, _ in loaded[-1].rows] == [b"b30"]
        disk.store_now([Delete(b"b10", b"b40")])
        assert [key for key, _ in disk.scan(b"a", b"c")] == [b"b00", b"b40"]
        assert disk.get(b"b40") == b"40"
        assert disk.get(b"b10") is None
        disk.close()

    in_loop(body())


def test_a_block_that_rotted_is_told_whoever_reads_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A load answers with the error, since others may have the rows; what a core cannot do without stops its node."""

    class Reading:
        HEARS = frozenset({str})
        disk: Disk

        def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Any]:
            self.disk.get(b"5")
            return ()

        def settle(self, now_us: int) -> Iterable[Any]:
            return ()

        tick = settle

    async def body() -> None:
        loop = asyncio.get_running_loop()
        has_raised = asyncio.Event()
        loop.set_exception_handler(lambda _loop, _context: has_raised.set())
        path = tmp_path / "d"
        disk = Disk(path, loop, on_failure=pytest.fail)
        disk.store_now([Put(b"%d" % number, b"value" * 1000) for number in range(10)])
        disk.close()
        Disk(path, loop, on_failure=pytest.fail).close()  # what is recovered goes into a table
        (table,) = path.glob("*.sst")
        rows = bytearray(table.read_bytes())
        for at in range(0, len(rows) // 2, 100):
            rows[at] ^= 1
        table.write_bytes(rows)
        disk = Disk(path, loop, on_failure=pytest.fail)
        answers: asyncio.Queue[Loaded] = asyncio.Queue()
        disk.load(Load("token", b"0", b"0", b":", 1 << 20), answers.put_nowait)
        assert "Corruption" in (await answers.get()).error
        core = Reading()
        core.disk = disk
        host = Host(NodeId("node"), core, Links(), loop, disk=disk)
        host.deliver(NodeId("x"), "read it")
        await has_raised.wait()
        assert host.stopped
        disk.close()

    in_loop(body())
    assert "its disk cannot be read" in caplog.text


def test_a_large_load_lets_the_loop_go_on_and_later_ones_wait_for_their_turn(tmp_path: Path) -> None:
    """Whoever reads much holds up nobody for long, and answers keep the order of the questions."""

    async def body() -> None:
        disk = Disk(tmp_path / "d", asyncio.get_running_loop(), on_failure=pytest.fail)
        value = bytes(100_000)
        disk.store_now([Put(b"b%02d" % n, value) for n in range(20)])
        done: asyncio.Queue[Loaded] = asyncio.Queue()
        disk.load(Load("all", b"b", b"b", b"c", 1 << 30), done.put_nowait)
        disk.load(Load("some", b"b05", b"b05", b"c", 450_000), done.put_nowait)
        disk.load(Load("one", b"b05", b"b05", b"c", 1), done.put_nowait)
        turns = 0
        while done.qsize() < 3:
            await asyncio.sleep(0)
            turns += 1
        answers = [done.get_nowait() for _ in range(3)]
        assert [(answer.token, len(answer.rows)) for answer in answers] == [("all", 20), ("some", 5), ("one", 1)]
        assert turns >= 6
        disk.close()

    in_loop(body())


def test_a_disk_has_room_while_more_than_its_reserve_is_free(tmp_path: Path) -> None:
    """The reserve decides, and it is compared with what the file system really has."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        disk = Disk(tmp_path / "d", loop, on_failure=pytest.fail, reserve_bytes=1)
        full = Disk(tmp_path / "f", loop, on_failure=pytest.fail, reserve_bytes=1 << 60)
        assert disk.find_room() == DiskRoom(True, reserve_bytes=1)
        assert full.find_room() == DiskRoom(False, may_store=False, reserve_bytes=1 << 60)
        disk.close()
        full.close()

    in_loop(body())


def test_a_disk_whose_reserve_was_touched_has_room_again_a_little_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is appended in the next moment would touch it again."""

    async def body() -> None:
        disk = Disk(tmp_path / "d", asyncio.get_running_loop(), on_failure=pytest.fail, reserve_bytes=800)
        found = [True]
        for free_bytes in (801, 800, 801, 900, 901, 801):
            monkeypatch.setattr(Disk, "free_bytes", property(lambda _disk, free=free_bytes: free))
            found.append(disk.find_room(had_room=found[-1]).has_room)
        assert found[1:] == [True, False, False, False, True, True]
        disk.close()

    in_loop(body())


def test_a_stopped_host_does_nothing_not_even_what_waited_for_its_disk(tmp_path: Path, gated: type[GatedDb]) -> None:
    """A node that was switched off sends no acknowledgement afterwards."""

    class Storing:
        HEARS = frozenset({str})

        def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Any]:
            return (Store([Put(b"k", b"v")], THEN),)

        def settle(self, now_us: int) -> Iterable[Any]:
            return ()

        tick = settle

    async def body() -> None:
        loop = asyncio.get_running_loop()
        links = Links()
        heard: list[object] = []
        links.attach(NodeId("somebody"), lambda _sender, message: heard.append(message))
        disk = Disk(tmp_path / "d", loop, on_failure=pytest.fail)
        host = Host(NodeId("node"), Storing(), links, loop, disk=disk)
        host.deliver(NodeId("x"), "store this")
        await asyncio.to_thread(gated.entered.wait, 30)
        host.stop()
        gated.gate.set()
        disk.close()
        await asyncio.sleep(0)
        assert heard == []

    in_loop(body())


def test_a_data_directory_belongs_to_one_process_at_a_time(tmp_path: Path) -> None:
    """The second owner is refused by name, and may have it when the first is gone."""
    first = DataDirectory(tmp_path / "data")
    with pytest.raises(DataDirectoryInUse, match=r"in use by process \d+.*--data"):
        DataDirectory(tmp_path / "data")
    first.close()
    DataDirectory(tmp_path / "data").close()


def test_a_data_directory_of_another_version_or_kind_is_refused(tmp_path: Path) -> None:
    """What is newer is refused by name; a folder with other things in it is not taken over, and left as it was."""
    DataDirectory(tmp_path / "data").close()
    (tmp_path / "data" / "version").write_text("99\n")
    with pytest.raises(VersionTooNew, match="data version 99"):
        DataDirectory(tmp_path / "data")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"letter\.txt"):
        DataDirectory(tmp_path / "home")
    assert [entry.name for entry in (tmp_path / "home").iterdir()] == ["letter.txt"]
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "version").write_text("v2 beta")
    (tmp_path / "app" / "lock").write_text("mine")
    with pytest.raises(ConfigError, match="v2 beta"):
        DataDirectory(tmp_path / "app")
    assert (tmp_path / "app" / "lock").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--data"):
        DataDirectory(tmp_path / "file")


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_first_start_that_a_full_disk_ended_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_durable: bool
) -> None:
    """An empty version, beside which there is nothing, is written again; one beside other things is no version."""

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync" if is_durable else "pwrite", full)
        with pytest.raises(OSError, match="No space left"):
            DataDirectory(tmp_path)
    if is_durable:
        (tmp_path / "version").write_text("")
    DataDirectory(tmp_path).close()
    assert (tmp_path / "version").read_text() == "1\n"
    (tmp_path / "version").write_text("")
    (tmp_path / "nodes").mkdir()
    with pytest.raises(ConfigError, match="holds nodes and an empty version file"):
        DataDirectory(tmp_path)


def test_a_scan_sees_the_disk_as_it_was_at_its_first_look(tmp_path: Path) -> None:
    """Checkpoints are mirrored from such scans while the index continues: one that saw later rows would be a
    mixture.
    """

    async def scenario() -> None:
        disk = Disk(tmp_path / "db", asyncio.get_running_loop(), on_failure=lambda error: None)
        disk.store_now([Put(key, b"value") for key in (b"b1", b"b3", b"b5")])
        before = list(disk.scan(b"b", b"c"))
        rows = iter(disk.scan(b"b", b"c"))
        seen = [next(rows)]
        disk.store_now([Put(b"b3", b"new"), Put(b"b4", b"new"), Delete(b"b5", b"b6")])
        assert [*seen, *rows] == before
        disk.close()

    in_loop(scenario())


def test_a_full_file_system_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that does not open for want of room asks for room, not for a backup or an empty directory."""

    def open_it(_path: Path, _memory: Memory) -> RocksDb:
        raise Exception("IO error: No space left on device: While appending to file: MANIFEST-000013")

    async def body() -> None:
        monkeypatch.setattr(boki.host.disk, "RocksDb", open_it)
        with pytest.raises(StoreFailed, match="file system is full: nothing is lost; free some space") as caught:
            Disk(tmp_path / "db", asyncio.get_running_loop(), on_failure=pytest.fail)
        assert caught.value.outcome == "not_applied"

    in_loop(body())


@dataclass(frozen=True, slots=True)
class Remark(Note):
    """A note to itself that may wait, or not."""

    may_wait: bool


@pytest.mark.parametrize("idle", [Remark(may_wait=True), IndexBatch(b"batch")], ids=["note", "favour"])
def test_what_may_wait_wakes_nobody_and_is_taken_in_order(idle: Remark | IndexBatch) -> None:
    """The next message takes it along, in front of itself; without any the next tick does."""
    taken: list[object] = []
    settled: asyncio.Queue[int] = asyncio.Queue()

    class Hearing:
        HEARS = frozenset({str, Remark, IndexBatch})

        def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Any]:
            taken.append(message)
            return ()

        def settle(self, now_us: int) -> Iterable[Any]:
            settled.put_nowait(len(taken))
            return ()

        def tick(self, now_us: int) -> Iterable[Any]:
            return ()

    async def body() -> None:
        host = Host(me := NodeId("node"), Hearing(), Links(), asyncio.get_running_loop())
        urgent = Remark(may_wait=False)
        host.deliver(me, idle)
        assert not host.take_in()
        host.deliver(NodeId("x"), "something")
        assert await settled.get() == 2
        host.deliver(me, urgent)
        assert await settled.get() == 3
        host.deliver(me, idle)
        assert await settled.get() == 4, "the tick takes it"
        assert taken == [idle, "something", urgent, idle]
        host.stop()

    in_loop(body())
