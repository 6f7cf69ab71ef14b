"""Two databases over one write-ahead log: one sync for both, one order, one end; and each opens alone after a stop."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import boki.host.disk
from boki.errors import StoreFailed
from boki.host import redo
from boki.host.disk import Disk
from boki.host.host import Host
from boki.host.links import Links
from boki.host.rocksdb import AMPLE, Memory, RocksDb
from boki.log.ids import NodeId
from boki.protocol.effects import Delete, DiskUnreadable, Effect, Put, Send, Store
from boki.protocol.messages import EntriesStored, Ping, Pong, ShardProgress
from tests.forgetful import ForgetfulDb
from tests.world import EVERY_MESSAGE

STORAGE, SEQUENCER, ENGINE = NodeId("storage-1"), NodeId("sequencer-1"), NodeId("engine-1")


def in_loop(body: Any) -> None:
    asyncio.run(asyncio.wait_for(body, 60))


class Storage:
    """Writes a record for each message, and reports it."""

    HEARS = EVERY_MESSAGE | {str}
    count = 0

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:
        self.count += 1
        report = Send(SEQUENCER, ShardProgress(1, 0, 0, 1, self.count, True))
        return (Store([Put(b"b%04d" % self.count, b"record")], then=(report,)),)

    def settle(self, now_us: int) -> Iterable[Effect]:
        return ()

    tick = settle


class Sequencer:
    """Writes a cut for each report, and tells the engine when it hears that the cut is stored."""

    HEARS = EVERY_MESSAGE

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:
        match message:
            case ShardProgress():
                stored = EntriesStored(1, 0, 1, message.stored_until)
                return (Store([Put(b"e%04d" % message.stored_until, b"cut")], then=(Send(SEQUENCER, stored),)),)
            case EntriesStored():
                return (Send(ENGINE, message.stored_until),)
            case Ping(number):
                return (Send(ENGINE, Pong(number, 1, 1)),)
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:
        return ()

    tick = settle


class Pair:
    """Both roles over one log, and what they tell an engine."""

    def __init__(self, folder: Path, *, shares_log: bool = True) -> None:
        loop = asyncio.get_running_loop()
        self.failures: asyncio.Queue[StoreFailed] = asyncio.Queue()
        self.told: asyncio.Queue[Any] = asyncio.Queue()
        links = Links()
        links.attach(ENGINE, lambda _sender, message: self.told.put_nowait(message))
        fail = self.failures.put_nowait
        self.storage = Disk(folder / STORAGE, loop, on_failure=fail, has_guests=True)
        self.sequencer = Disk(folder / SEQUENCER, loop, on_failure=fail, beside=self.storage, shares_log=shares_log)
        self.hosts = {
            STORAGE: Host(STORAGE, Storage(), links, loop, disk=self.storage),
            SEQUENCER: Host(SEQUENCER, Sequencer(), links, loop, disk=self.sequencer),
        }
        for host in self.hosts.values():
            host.share_log(self.hosts, runs_ahead=True)

    async def append(self, count: int = 1) -> None:
        """One after the other, until the engine is told of each."""
        for _ in range(count):
            self.hosts[STORAGE].deliver(ENGINE, "append")
            await self.told.get()

    def rows(self) -> int:
        """How many rows the redo log has."""
        return len(list(self.storage.scan(redo._ROW, redo._AFTER_ROWS)))

    def close(self) -> None:
        for host in self.hosts.values():
            host.stop()
        self.storage.close()
        self.sequencer.close()


class NotedDb(RocksDb):
    """A RocksDB that notes what is done with it."""

    notes: list[tuple[str, str, int]]
    error: Exception | None = None

    def __init__(self, path: Path, memory: Memory = AMPLE) -> None:
        super().__init__(path, memory)
        self._name = path.name

    def write(self, writes: Iterable[Put | Delete]) -> None:
        writes = list(writes)
        super().write(writes)
        self.notes.append((self._name, "write", len(writes)))

    def sync(self) -> None:
        if self.error is not None:
            raise self.error
        super().sync()
        self.notes.append((self._name, "sync", 0))


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> type[NotedDb]:
    NotedDb.notes, NotedDb.error = [], None
    monkeypatch.setattr(boki.host.disk, "RocksDb", NotedDb)
    return NotedDb


def test_a_record_and_its_cut_are_one_write_and_one_sync(tmp_path: Path, noted: type[NotedDb]) -> None:
    """The cut stands behind its record, the engine hears of it after the sync, and the guest's own write can wait."""

    async def body() -> None:
        pair = Pair(tmp_path)
        await pair.append()
        for _ in range(2):
            noted.notes.clear()
            await pair.append()
            assert noted.notes == [(STORAGE, "write", 2), (STORAGE, "sync", 0)]
            await pair.append(2 * boki.host.disk._TRUSTED)  # from here on the event loop may sync itself
        pair.close()

    in_loop(body())


def test_nothing_leaves_before_the_sync_but_signs_of_life(tmp_path: Path, noted: type[NotedDb]) -> None:
    """A failed sync stops both roles, and the engine has heard of nothing but the answer to a ping."""

    async def body() -> None:
        pair = Pair(tmp_path)
        await pair.append()
        noted.error = OSError("EIO")
        pair.hosts[STORAGE].deliver(ENGINE, "append")
        pair.hosts[SEQUENCER].deliver(ENGINE, Ping(7))
        assert await pair.told.get() == Pong(7, 1, 1)
        for host in pair.hosts.values():
            host.fail(await pair.failures.get())
        noted.error = None
        await asyncio.sleep(0)
        assert pair.told.empty()
        pair.close()

    in_loop(body())


def test_after_a_power_cut_no_cut_is_there_without_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Databases that forget what no returned sync had covered, at any moment: what was told is there, in both."""
    monkeypatch.setattr(boki.host.disk, "RocksDb", ForgetfulDb)
    monkeypatch.setattr(redo, "ROWS", 7)
    rng = Random(1)

    async def body() -> None:
        told = 0
        for _ in range(6):
            pair = Pair(tmp_path / "data")
            records = [key[1:] for key, _ in pair.storage.scan(b"b", b"c")]
            cuts = [key[1:] for key, _ in pair.sequencer.scan(b"e", b"f")]
            assert cuts == records[: len(cuts)]
            assert len(cuts) >= told
            core = pair.hosts[STORAGE].core
            assert isinstance(core, Storage)
            core.count = told = len(records)
            for _ in range(rng.randrange(1, 30)):
                pair.hosts[STORAGE].deliver(ENGINE, "append")
                if rng.random() < 0.6:
                    told = await pair.told.get()
            for host in pair.hosts.values():
                host.stop()
            shutil.copytree(tmp_path / "data", tmp_path / "image")  # a kill at this moment
            pair.close()
            shutil.rmtree(tmp_path / "data")
            (tmp_path / "image").rename(tmp_path / "data")

    in_loop(body())


def test_the_redo_log_stays_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in this many writes the guest syncs its own database, and the rows go."""
    monkeypatch.setattr(redo, "ROWS", 10)
    monkeypatch.setattr(redo, "TOGETHER", 3)

    async def body() -> None:
        pair = Pair(tmp_path)
        most = 0
        for _ in range(100):
            await pair.append()
            most = max(most, pair.rows())
        assert pair.sequencer.sync_count > 1
        assert most < 60
        pair.close()

    in_loop(body())


def test_a_reader_sees_what_was_not_carried_out_yet(tmp_path: Path, noted: type[NotedDb]) -> None:
    """The guest's durable writes are carried out together, or before its database is read."""

    async def body() -> None:
        pair = Pair(tmp_path)
        await pair.append(3)
        noted.notes.clear()
        assert [key for key, _ in pair.sequencer.scan(b"e", b"f")] == [b"e0001", b"e0002", b"e0003"]
        assert noted.notes == [(SEQUENCER, "write", 3)]
        assert pair.sequencer.get(b"e0001") == b"cut"
        await pair.append(redo.TOGETHER)
        assert noted.notes.count((SEQUENCER, "write", redo.TOGETHER)) == 1
        pair.close()

    in_loop(body())


def test_each_database_is_complete_after_a_clean_stop(tmp_path: Path) -> None:
    """The roles may be two processes from then on, and one again."""

    async def body() -> None:
        for shares_log in (True, False, True):
            pair = Pair(tmp_path, shares_log=shares_log)
            await pair.append(3)
            pair.close()
            for name, kind in ((STORAGE, b"b"), (SEQUENCER, b"e")):
                disk = Disk(tmp_path / name, asyncio.get_running_loop(), on_failure=pytest.fail)
                assert [key for key, _ in disk.scan(kind, kind + b"\xff")] == [kind + b"%04d" % n for n in (1, 2, 3)]
                disk.close()

    in_loop(body())


def test_after_a_kill_a_guest_opens_only_beside_its_host(tmp_path: Path) -> None:
    """Alone, or beside another one, it would lack its newest writes; beside its host it may continue by itself."""
    live, image = tmp_path / "live", tmp_path / "image"

    async def body() -> None:
        loop = asyncio.get_running_loop()
        pair = Pair(live)
        await pair.append(3)
        shutil.copytree(live, image)
        pair.close()
        with pytest.raises(DiskUnreadable, match="newest writes are in the log of the storage node"):
            Disk(image / SEQUENCER, loop, on_failure=pytest.fail)
        other = Disk(tmp_path / "other", loop, on_failure=pytest.fail, has_guests=True)
        with pytest.raises(DiskUnreadable, match="start both in one process once"):
            Disk(image / SEQUENCER, loop, on_failure=pytest.fail, beside=other)
        other.close()
        pair = Pair(image, shares_log=False)
        assert len(list(pair.sequencer.scan(b"e", b"f"))) == 3
        pair.close()
        Disk(image / SEQUENCER, loop, on_failure=pytest.fail).close()

    in_loop(body())


def test_a_guest_that_was_given_an_empty_disk_gets_nothing_of_the_former_one(tmp_path: Path) -> None:
    """Its word under the new incarnation must not include what the old disk said."""

    async def body() -> None:
        pair = Pair(tmp_path / "live")
        await pair.append(3)
        shutil.copytree(tmp_path / "live", tmp_path / "image")
        pair.close()
        shutil.rmtree(tmp_path / "image" / SEQUENCER)
        pair = Pair(tmp_path / "image")
        assert list(pair.sequencer.scan(b"e", b"f")) == []
        await pair.append()
        assert pair.rows() == 1
        pair.close()

    in_loop(body())
