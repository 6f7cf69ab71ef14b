"""One process drops metalog entries that no start will need again."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from boki import Expect, LogBook
from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller
from boki.api.logbook import LogSession
from boki.config.loading import DevConfig
from boki.engine.server.log_service import LogService
from boki.node import local_entries
from boki.node.local_log import ENGINE, LocalLog
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore

PATIENCE_S = 30


@pytest.fixture(autouse=True)
def few_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a few were many."""
    monkeypatch.setattr(local_entries, "_EVERY", 5)


@asynccontextmanager
async def opened(folder: Path, replicas: int, sequencers: int) -> AsyncIterator[tuple[LocalLog, LogBook]]:
    log = await LocalLog.start(DevConfig(data=folder / "data", replicas=replicas, sequencers=sequencers))
    service = LogService(log.port, log.engine)
    await service.start()
    try:
        yield log, LogSession(service, AppendGatherer(service), Caller()).logbook("book")
    finally:
        await service.stop()
        await log.stop()


def bases(log: LocalLog) -> list[int]:
    """How many entries of the newest term each sequencer has dropped."""
    cores = [host.core for host in log.hosts.values()]
    return [
        store.base
        for core in cores
        if isinstance(core, SequencerCore)
        for (term, _), store in core._stores.items()
        if term == core.chain.current.term
    ]


async def drop(log: LocalLog, at_least: int) -> None:
    """Save the index until entries are dropped: the space must have been given back before."""
    async with asyncio.timeout(PATIENCE_S):
        while not all(base >= at_least for base in bases(log)):
            await log._save_index(log.hosts[ENGINE])


@pytest.mark.parametrize(("replicas", "sequencers"), [(1, 1), (2, 3)])
async def test_entries_go_once_something_was_freed(tmp_path: Path, replicas: int, sequencers: int) -> None:
    """And the next start needs none of them: records, counts and what comes next are as they were."""
    async with opened(tmp_path, replicas, sequencers) as (log, book):
        seqnums = [await book.append(b"%d" % number, tags=["!t"]) for number in range(20)]
        for _ in range(3):
            await log._save_index(log.hosts[ENGINE])
        assert not any(bases(log)), "a lost index could still be read from the log"
        await book.trim(seqnums[10], tag="!t")
        await drop(log, 20)
        last = await book.append(b"last", tags=["!t"], when=Expect("!t", count=20))
    async with opened(tmp_path, replicas, sequencers) as (log, book):
        assert await data_of(book) == [*(b"%d" % number for number in range(10, 20)), b"last"]
        assert await book.append(b"new", tags=["!t"], when=[Expect("!t", count=21), Expect("!t", last)]) > last


async def data_of(book: LogBook) -> list[bytes]:
    return [record.data for record in (await book.read("!t")).records]


@pytest.mark.parametrize("lost", ["storage-2", "sequencer-2"])
async def test_a_node_that_comes_back_empty_takes_from_others_what_the_entries_said(tmp_path: Path, lost: str) -> None:
    """It is filled, and then the others may go."""
    async with opened(tmp_path, 3, 3) as (log, book):
        seqnums = [await book.append(b"%d" % number, tags=["!t"]) for number in range(20)]
        await book.trim(seqnums[10], tag="!t")
        await drop(log, 20)
    shutil.rmtree(tmp_path / "data" / lost)
    async with opened(tmp_path, 3, 3) as (log, book):
        assert await data_of(book) == [b"%d" % number for number in range(10, 20)]
        async with asyncio.timeout(PATIENCE_S):
            while not is_filled(log):
                await book.append(b"more")
        log.stop_node(lost.replace("2", "3"))
        assert await book.append(b"last", tags=["!t"], when=Expect("!t", count=20))


def is_filled(log: LocalLog) -> bool:
    cores = [host.core for host in log.hosts.values() if isinstance(host.core, StorageCore)]
    return all(core.follower.is_caught_up() and core.applied.keys() == {0} for core in cores)
