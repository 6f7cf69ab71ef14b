"""Bad days of a disk, on the real log in one process: full, damaged, failing."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import boki.host.disk
from boki import BokiError, CorruptData, DiskFull, LogBook
from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller
from boki.api.logbook import LogSession
from boki.config.loading import DevConfig
from boki.engine.server.port import EnginePort
from boki.host.rocksdb import AMPLE, Memory, RocksDb
from boki.node.local_log import LocalLog
from boki.protocol.effects import Put

MARGIN_BYTES = 2 << 30
"""Others write to the file system of this machine, too; never so much in one test."""


def book_of(port: EnginePort, name: str = "book") -> LogBook:
    return LogSession(port, AppendGatherer(port), Caller()).logbook(name)


def in_loop(body: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(body, 100))


async def until_full(book: LogBook) -> DiskFull:
    while True:
        try:
            await book.append(b"more")
        except DiskFull as error:
            return error


async def until_room(book: LogBook) -> int:
    while True:
        try:
            return await book.append(b"room again")
        except DiskFull:
            await book.sync()


def test_a_full_disk_refuses_appends_until_there_is_room(tmp_path: Path) -> None:
    """A real file takes the space: appends are refused for certain, reads and trims continue, and appends resume."""
    stat = os.statvfs(tmp_path)
    reserve = stat.f_bavail * stat.f_frsize - MARGIN_BYTES

    async def body() -> None:
        log = await LocalLog.start(DevConfig(data=tmp_path / "data", disk_reserve_bytes=reserve))
        book = book_of(log.port)
        first = await book.append(b"before")
        ballast = tmp_path / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 2 * MARGIN_BYTES)  # far less than the reserve
        error = await until_full(book)
        assert (error.outcome, error.retryable) == ("not_applied", True)
        assert (await book.get(first)).data == b"before"
        await book.trim(first + 1)
        ballast.unlink()
        seqnum = await until_room(book)
        assert (await book.get(seqnum)).data == b"room again"
        await log.stop()

    in_loop(body())


def test_a_corrupt_batch_is_never_returned_and_the_error_names_it(tmp_path: Path) -> None:
    """Records beside it are read; the damaged one is an error that says which batch of which node."""

    async def write() -> tuple[int, int]:
        log = await LocalLog.start(DevConfig(data=tmp_path / "data"))
        book = book_of(log.port)
        seqnums = await book.append(b"damaged"), await book.append(b"whole")
        await log.stop()
        return seqnums

    async def read(damaged: int, whole: int) -> None:
        log = await LocalLog.start(DevConfig(data=tmp_path / "data"))
        book = book_of(log.port)
        assert (await book.get(whole)).data == b"whole"
        with pytest.raises(CorruptData, match=r"storage-1: batch 0 of shard \d+, term 1, log 0") as caught:
            await book.get(damaged)
        assert "fails its checksum" in str(caught.value)
        await log.stop()

    damaged, whole = uvloop.run(write())
    database = RocksDb(tmp_path / "data" / "storage-1")
    key, value = next(iter(database.scan(b"b", b"c")))
    database.write([Put(key, value[:-1] + bytes([value[-1] ^ 1]))])
    database.sync()
    database.close()
    in_loop(read(damaged, whole))


def test_a_failed_sync_stops_the_node_and_nothing_is_acknowledged_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append that met the failure is unknown, and with one replica no other is acknowledged."""

    class FailingDb(RocksDb):
        fails = False

        def __init__(self, path: Path, memory: Memory = AMPLE) -> None:
            super().__init__(path, memory)
            self.path = path

        def sync(self) -> None:
            if FailingDb.fails and self.path.name == "storage-1":
                raise OSError("Input/output error")
            super().sync()

    monkeypatch.setattr(boki.host.disk, "RocksDb", FailingDb)

    async def body() -> None:
        failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        log = await LocalLog.start(
            DevConfig(data=tmp_path / "data"), lambda node, _error: failed.done() or failed.set_result(node)
        )
        book = book_of(log.port)
        seqnum = await book.append(b"before")
        FailingDb.fails = True
        with pytest.raises(BokiError) as caught:
            await book.append(b"during", timeout_s=0.5)
        assert caught.value.outcome == "unknown"
        assert await failed == "storage-1"
        assert (await book.get(seqnum)).data == b"before"
        FailingDb.fails = False
        with pytest.raises(BokiError):
            await book.append(b"after", timeout_s=0.5)
        log.close()

    in_loop(body())


def test_with_three_replicas_one_failing_disk_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node stops, the quorum continues."""

    class FailingDb(RocksDb):
        fails = False

        def __init__(self, path: Path, memory: Memory = AMPLE) -> None:
            super().__init__(path, memory)
            self.path = path

        def sync(self) -> None:
            if FailingDb.fails and self.path.name == "storage-2":
                raise OSError("Input/output error")
            super().sync()

    monkeypatch.setattr(boki.host.disk, "RocksDb", FailingDb)

    async def body() -> None:
        log = await LocalLog.start(DevConfig(data=tmp_path / "data", replicas=3))
        book = book_of(log.port)
        FailingDb.fails = True
        for number in range(20):
            await book.append(b"%d" % number, timeout_s=5)
        assert log.status()["nodes"]["storage-2"] == "stopped"
        assert len((await book.read()).records) == 20
        await log.stop()

    in_loop(body())
