"""Reads that wait over a MemoryLog, and the way to it from threads."""

from __future__ import annotations

import asyncio

import pytest

import boki.testing
from boki.errors import DeadlineExceeded, InvalidArgument, NotFound, Unavailable
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import MAX_SEQNUM
from boki.log.memory import MemoryLog
from boki.log.metalog import Positions
from boki.log.operations import Append, Found, Get, Read, Sync, TrimBook
from boki.testing.memory_port import BlockingMemoryPort, MemoryPort


def append(data: bytes = b"x", book: str = "b") -> Append:
    return Append(book, encode_chunk(book, [Group([(data, ["t"])])]))


def test_what_waits_gets_a_record_that_is_trimmed_at_once() -> None:
    """It is answered in the moment of the append: a trim right behind it takes nothing from it."""

    async def scenario() -> None:
        port = MemoryPort()
        waiting = asyncio.ensure_future(port.request(Read("b", wait_us=10**9), {}, 30))
        await port.request(Sync("b"), {}, 30)
        await asyncio.gather(port.request(append(), {}, 30), port.request(TrimBook("b", MAX_SEQNUM), {}, 30))
        found = await waiting
        assert isinstance(found, Found)
        assert len(found.slabs) == 1
        assert found.first_seqnum == 0, "as it was when the wait began"

    asyncio.run(scenario())


def test_a_wait_longer_than_the_deadline_ends_in_an_error() -> None:
    """At the deadline, in virtual time."""

    async def scenario() -> None:
        port = MemoryPort()
        start_us = port.clock.now_us
        with pytest.raises(DeadlineExceeded):
            await port.request(Read("b", wait_us=10_000_000), {}, 5)
        assert port.clock.now_us - start_us == 5_000_000

    asyncio.run(scenario())


def test_a_wait_that_is_given_up_leaves_nothing_behind() -> None:
    """Neither a timer that moves the clock nor a reader that is answered."""

    async def scenario() -> None:
        port = MemoryPort()
        start_us = port.clock.now_us
        waiting = asyncio.ensure_future(port.request(Read("b", wait_us=10_000_000), {}, 30))
        await port.request(Sync("b"), {}, 30)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        found = await port.request(Read("c", wait_us=60_000_000), {}, 90)
        assert isinstance(found, Found)
        assert port.clock.now_us - start_us == 60_000_000

    asyncio.run(scenario())


def test_operations_are_held_to_the_limits() -> None:
    """As those of strangers are; errors of the log come as they are."""

    async def scenario() -> None:
        port = MemoryPort()
        for bad in (Append("b", b"no chunk"), Append("c", append().chunk), Read("b", limit=0), Read("")):
            with pytest.raises(InvalidArgument):
                await port.request(bad, {}, 30)
        with pytest.raises(NotFound):
            await port.request(Get("b", 1), {}, 30)

    asyncio.run(scenario())


def test_positions_grow_with_what_happened() -> None:
    """Every answer raises them to the log's."""

    async def scenario() -> None:
        port = MemoryPort()
        positions: Positions = {0: 0}
        seen = []
        for operation in (append(), Read("b"), append()):
            await port.request(operation, positions, 30)
            seen.append(positions[0])
        assert seen[0] == seen[1] < seen[2]

    asyncio.run(scenario())


def test_a_closed_log_answers_nobody() -> None:
    """Whoever waits and whoever comes."""

    async def scenario() -> None:
        port = MemoryPort()
        waiting = asyncio.ensure_future(port.request(Read("b", wait_us=10**9), {}, 30))
        await port.request(Sync("b"), {}, 30)
        port.close()
        for request in (waiting, port.request(append(), {}, 30)):
            with pytest.raises(Unavailable):
                await request

    asyncio.run(scenario())


def test_threads_reach_the_log() -> None:
    """Their results and errors come back to the loop."""

    async def scenario() -> None:
        port = MemoryPort()
        blocking = BlockingMemoryPort(port)

        def work(count: int) -> int:
            for _ in range(count):
                blocking.request(append(), {}, 30)
            found = blocking.request(Read("b", limit=1000), {}, 30)
            assert isinstance(found, Found)
            return len(found.slabs)

        counts = await asyncio.gather(*(port.run_in_thread(work, 5) for _ in range(4)))
        assert max(counts) <= 20
        assert await port.run_in_thread(work, 0) >= 1
        with pytest.raises(NotFound):
            await port.run_in_thread(blocking.request, Get("b", 1), {}, 30)

    asyncio.run(scenario())


@pytest.mark.parametrize("reads_at_the_end", [True, False])
def test_time_continues_where_the_context_before_left_it(reads_at_the_end: bool) -> None:
    """A key is forgotten 24 hours after its use, in whichever context they pass."""

    async def scenario() -> None:
        log = MemoryLog()
        async with boki.testing.context(log=log) as ctx:
            await ctx.logbook.append(b"first", key="k")
            await ctx.clock.advance(23 * 3600)
            if reads_at_the_end:
                assert await ctx.logbook.check_tail() is not None
        async with boki.testing.context(log=log) as ctx:
            await ctx.clock.advance(2 * 3600)
            await ctx.logbook.append(b"second", key="k")
            first, second = (await ctx.logbook.read()).records
            assert (first.data, second.data) == (b"first", b"second")
            assert second.time - first.time == 25 * 3600 * 10**6

    asyncio.run(scenario())
