"""Queues over the real log in one process: RocksDB, fsync, storage nodes, sequencers, an engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import Trimmed
from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller
from boki.api.logbook import LogBook, LogSession
from boki.api.port import LogPort
from boki.libs.bokiqueue import Queue, QueueFull
from boki.libs.bokiqueue.following import Queues
from tests.contract.live import local_log


def logbook(port: LogPort) -> LogBook:
    """As a process of its own has it: it shares nothing with others."""
    return LogSession(port, AppendGatherer(port), Caller()).logbook("b")


def test_every_acknowledged_push_is_taken_once_and_acked_once() -> None:
    """Several processes of several consumers, shards, leases, effects to a second queue; in the order of each key."""
    with local_log(replicas=3) as (loop, port):
        loop.run(_flow(port))


async def _flow(port: LogPort) -> None:
    source: Queue[int] = Queue(logbook(port), "source")
    await source.create(shards=4)
    target: Queue[Any] = Queue(logbook(port), "target")
    await target.create()
    pushed: list[int] = []

    async def produce(start: int) -> None:
        handle: Queue[int] = Queue(logbook(port), "source")
        for value in range(start, start + 60):
            await handle.push(value, group_key=f"producer-{start}")
            pushed.append(value)

    async def consume() -> None:
        book = logbook(port)
        handle: Queue[int] = Queue(book, "source")
        onward: Queue[int] = Queue(book, "target")
        await onward.create()

        async def one_after_the_other() -> None:
            while (message := await handle.lease(60, wait_s=2)) is not None:
                async with handle.process(message) as out:
                    out.push(onward, message.value)

        await asyncio.gather(*(one_after_the_other() for _ in range(4)))

    await asyncio.gather(*(produce(start) for start in (0, 100, 200)), *(consume() for _ in range(3)))
    arrived = [message.value for message in await target.pop_many(1_000)]
    assert sorted(arrived) == sorted(pushed)
    for start in (0, 100, 200):
        own = [value for value in arrived if start <= value < start + 100]
        assert own == sorted(own)
    stats = await source.stats()
    assert (stats.depth, stats.groups[0].done) == (0, len(pushed))


def test_an_idle_consumer_is_woken_by_the_push() -> None:
    """It waits on the log, and nothing else wakes it."""
    with local_log() as (loop, port):

        async def wake() -> None:
            queue: Queue[str] = Queue(logbook(port), "q")
            await queue.create()
            waiting = asyncio.ensure_future(queue.pop(wait_s=60))
            other: Queue[str] = Queue(logbook(port), "q")
            await other.push("now")
            message = await waiting
            assert message is not None
            assert message.value == "now"

        loop.run(wake())


def test_a_full_queue_in_a_trimmed_book_knows_its_keys_and_bodies() -> None:
    """By its own tags and keys, which a trim of the whole book spares."""
    with local_log() as (loop, port):
        loop.run(_trimmed(port))


async def _trimmed(port: LogPort) -> None:
    book = logbook(port)
    book.session.shared(Queues).bodies.budget_bytes = 0
    queue: Queue[Any] = Queue(book, "q")
    await queue.create(max_length=2)
    first = await queue.push("popped", key="k")
    await queue.push("leased")
    await book.trim(await book.append(b"an end"))
    with pytest.raises(Trimmed):
        await book.get(int(first.split("-")[0]))
    assert await queue.push("popped", key="k") == first
    with pytest.raises(QueueFull):
        await queue.push("third", key="l")
    popped, leased = await queue.pop(), await queue.lease()
    assert popped is not None
    assert leased is not None
    assert [popped.value, leased.value] == ["popped", "leased"]
