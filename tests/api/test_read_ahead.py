"""`read_next` in a loop: what is read ahead, and that nobody can tell by the records."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import boki.testing
from boki import LogBook, Record
from boki.log.operations import Operation, Read

TAGS = ("a", "b")


class Watched:
    """A port that remembers how many records each read asked for."""

    def __init__(self, port: Any) -> None:
        self._port = port
        self.sizes: list[int] = []

    async def request(self, operation: Operation, positions: Any, timeout_s: float) -> Any:
        if isinstance(operation, Read):
            self.sizes.append(operation.limit)
        return await self._port.request(operation, positions, timeout_s)


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[Any, LogBook, Watched]]:
    async with boki.testing.context() as ctx:
        session = ctx.logbook.session
        port = session.port = Watched(session.port)
        yield ctx, ctx.logbook, port


async def read_all(book: LogBook, tag: str | None) -> list[Record]:
    records: list[Record] = []
    while (record := await book.read_next(tag, min_seqnum=records[-1].next_seqnum if records else 0)) is not None:
        records.append(record)
    return records


def test_a_loop_asks_for_twice_as_many_each_time() -> None:
    """One record for who reads one; 64 at most."""

    async def look() -> None:
        async with opened() as (_, book, port):
            await book.append_many([(b"%d" % number, ["a"]) for number in range(200)])
            assert [record.data for record in await read_all(book, "a")] == [b"%d" % number for number in range(200)]
            assert port.sizes == [1, 2, 4, 8, 16, 32, 64, 64, 64, 64]

    asyncio.run(look())


def test_who_moves_on_reads_what_is_there_now() -> None:
    """An append, a trim and data beside a record, of one's own, are seen at once; a trim of others after a second."""

    async def look() -> None:
        async with opened() as (ctx, book, port):
            seqnums = await book.append_many([(b"%d" % number, ["a"]) for number in range(40)])

            reader = book

            async def read(number: int) -> Record:
                record = await reader.read_next("a", min_seqnum=seqnums[number])
                assert record is not None
                return record

            async def read_four(first: int) -> None:
                """Of these the last one was read ahead, and so is what comes next."""
                nonlocal reader
                reader = book.session.logbook(book.name)
                for number in range(first, first + 4):
                    assert (await read(number)).seqnum == seqnums[number]
                assert port.sizes[-2:] == [2, 4]

            await read_four(0)
            await book.trim(seqnums[6], tag="a")
            assert (await read(4)).seqnum == seqnums[6]
            await read_four(10)
            await reader.set_auxdata(seqnums[14], b"beside")
            assert (await read(14)).auxdata == b"beside"
            await read_four(20)
            await book.append(b"of this caller", ["b"])
            await book.session.logbook(book.name, detached=True).trim(seqnums[26], tag="a")
            assert (await read(24)).seqnum == seqnums[26]
            await read_four(30)
            await book.session.logbook(book.name, detached=True).trim(seqnums[36], tag="a")
            await ctx.clock.advance(1.0)
            assert (await read(34)).seqnum == seqnums[36]

    asyncio.run(look())


def test_an_answer_of_before_a_trim_does_not_count_behind_it() -> None:
    """A task trims while the read of another one is under way: what came with that read is not handed out later."""

    async def look() -> None:
        async with opened() as (_, book, port):
            await book.append_many([(b"%d" % number, ["a"]) for number in range(40)])
            start = 0
            for _ in range(3):
                record = await book.read_next("a", min_seqnum=start)
                assert record is not None
                start = record.next_seqnum
            answered, go = asyncio.Event(), asyncio.Event()
            plain = port.request

            async def held(operation: Operation, positions: Any, timeout_s: float) -> Any:
                answer = await plain(operation, positions, timeout_s)
                if isinstance(operation, Read):
                    answered.set()
                    await go.wait()
                return answer

            port.request = held  # type: ignore[method-assign]
            reading = asyncio.create_task(book.read_next("a", min_seqnum=start))
            await answered.wait()
            await book.trim(start + 3, tag="a")
            go.set()
            read = await reading
            assert read is not None
            record = await book.read_next("a", min_seqnum=read.next_seqnum)
            assert record is not None
            assert record.seqnum >= start + 3

    asyncio.run(look())


def test_who_appends_between_two_reads_is_given_little_that_it_does_not_use() -> None:
    """Each append ends what was read ahead: the ordinary loop of a consumer must not read everything many times."""

    async def look() -> None:
        async with opened() as (_, book, port):
            await book.append_many([(b"%d" % number, ["a"]) for number in range(300)])
            start = 0
            for _ in range(300):
                record = await book.read_next("a", min_seqnum=start)
                assert record is not None
                await book.append(b"done", ["b"])
                start = record.next_seqnum
            assert sum(port.sizes) < 1.2 * 300

    asyncio.run(look())


def test_threads_share_a_blocking_logbook() -> None:
    """Nothing is read ahead there: it would be taken by whoever asks first."""
    with boki.testing.blocking_context() as ctx:
        ctx.logbook.append_many([(b"%d" % number, ["a"]) for number in range(50)])
        found: list[list[int]] = [[] for _ in range(4)]

        def read_all_here(seqnums: list[int]) -> None:
            start = 0
            while (record := ctx.logbook.read_next("a", min_seqnum=start)) is not None:
                seqnums.append(record.seqnum)
                start = record.next_seqnum

        threads = [threading.Thread(target=read_all_here, args=(seqnums,)) for seqnums in found]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(seqnums == found[0] for seqnums in found)
        assert len(found[0]) == 50


@pytest.mark.parametrize("seed", range(20))
def test_nobody_can_tell(seed: int) -> None:
    """Two readers of one handle, appends and trims in any order: each read answers as `read` of one record does."""

    async def look() -> None:
        rng = random.Random(seed)
        async with opened() as (_, book, port):
            starts = {"a": 0, "b": 0, None: 0}
            for _ in range(400):
                match rng.choices(("next", "append", "trim", "back"), (30, 3, 1, 1))[0]:
                    case "append":
                        records = [(b"%d" % rng.randrange(99), [rng.choice(TAGS)]) for _ in range(rng.randrange(1, 9))]
                        await book.append_many(records)
                    case "trim":
                        tag = rng.choice((*TAGS, None))
                        await book.trim(starts[tag] + rng.randrange(4), tag=tag)
                    case "back":
                        starts[rng.choice((*TAGS, None))] = 0
                    case _:
                        tag = rng.choices((*TAGS, None), (8, 1, 1))[0]
                        expected = (await book.read(tag, start=starts[tag], limit=1)).records
                        found = await book.read_next(tag, min_seqnum=starts[tag])
                        assert [found] == (expected or [None])
                        starts[tag] = found.next_seqnum if found else starts[tag]
            assert max(port.sizes) > 2

    asyncio.run(look())
