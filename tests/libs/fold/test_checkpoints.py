"""Checkpoints: of two writers one gives up, a reader finds the newest that is whole, and trims leave what is needed."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import boki.testing
from boki import ConnectionLost, CorruptData, LogBook
from boki.libs.fold import checkpoints as module
from boki.libs.fold.checkpoints import PLAIN, Checkpoints, End
from boki.libs.fold.steps import Append, Steps, Trim, run
from tests.libs.bokiqueue.running import asynchronous

STREAM, TAG = "!s", "!sc"


def valid(data: bytes, end: End) -> bytes | None:
    return None if b"damaged" in data else data


def points() -> Checkpoints[bytes]:
    return Checkpoints(STREAM, TAG, valid)


async def saved(logbook: LogBook, data: bytes, covers: int, floor: int = 0) -> End | None:
    return await run(points().save(data, covers, floor, [STREAM]), logbook)


async def newest(logbook: LogBook) -> bytes | None:
    loaded = await run(points().newest(), logbook)
    return None if loaded is None else loaded.state


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 10)


@asynchronous
async def test_what_was_saved_is_found_again_and_its_end_stands_in_the_stream() -> None:
    """In one part, in many, and empty; the newest one counts."""
    async with boki.testing.context() as ctx:
        assert await newest(ctx.logbook) is None
        for number, data in enumerate((b"", b"short", b"of more than one part")):
            at = await ctx.logbook.append(b"", [STREAM])
            assert await saved(ctx.logbook, data, at) is not None
            assert await newest(ctx.logbook) == data
            assert len((await ctx.logbook.read(STREAM)).records) == 2 * (number + 1)


@asynchronous
async def test_an_older_state_is_not_saved_after_a_newer_one() -> None:
    """What the newer one drops, the older one may need."""
    async with boki.testing.context() as ctx:
        at = await ctx.logbook.append(b"", [STREAM])
        assert await saved(ctx.logbook, b"first", at) is not None
        assert await saved(ctx.logbook, b"late", at) is None
        assert await newest(ctx.logbook) == b"first"


@asynchronous
async def test_a_torn_or_damaged_checkpoint_is_passed_by_for_the_one_before() -> None:
    """And so are strangers' records under its tag."""
    async with boki.testing.context() as ctx:
        at = await ctx.logbook.append(b"", [STREAM])
        await saved(ctx.logbook, b"a state that is whole", at)
        at = await ctx.logbook.append(b"", [STREAM])
        await saved(ctx.logbook, b"a state that is damaged", at)
        await ctx.logbook.append(PLAIN.part(b"torn"), [TAG])
        await ctx.logbook.append(b"a stranger's", [TAG])
        assert await newest(ctx.logbook) == b"a state that is whole"


@asynchronous
async def test_an_end_that_lies_about_its_place_is_no_end() -> None:
    """It would be trimmed by, or believed to cover what nobody has read."""
    async with boki.testing.context() as ctx:
        at = await ctx.logbook.append(b"", [STREAM])
        await saved(ctx.logbook, b"true", at)
        for covers, first in ((1 << 60, 1), (1, 1 << 60), (-1, 1), (1, -1)):
            await ctx.logbook.append(PLAIN.end(End(covers, first, 0)), [TAG])
        assert await newest(ctx.logbook) == b"true"


@asynchronous
async def test_only_a_damaged_checkpoint_and_a_trimmed_stream_is_an_error() -> None:
    """With the stream still there it is read from the beginning."""
    async with boki.testing.context() as ctx:
        at = await ctx.logbook.append(b"", [STREAM])
        await saved(ctx.logbook, b"damaged", at)
        assert await newest(ctx.logbook) is None
        await ctx.logbook.trim(at + 1, tag=STREAM)
        with pytest.raises(CorruptData, match="cannot be read, there is none before it"):
            await newest(ctx.logbook)


@asynchronous
async def test_trims_leave_the_newest_checkpoint_and_what_it_needs() -> None:
    """The stream below the floor goes, and all checkpoints before."""
    async with boki.testing.context() as ctx:
        first = await ctx.logbook.append(b"", [STREAM])
        await saved(ctx.logbook, b"old", first)
        seqnums = [first, *[await ctx.logbook.append(b"", [STREAM]) for _ in range(3)]]
        end = await saved(ctx.logbook, b"a new one", seqnums[3], floor=seqnums[2])
        assert end is not None
        for _ in range(2):
            await run(points().trim(end, seqnums[3]), ctx.logbook)
            assert (await ctx.logbook.read(STREAM)).records[0].seqnum == seqnums[2]
            assert (await ctx.logbook.read(TAG)).records[0].seqnum == end.first
            assert await newest(ctx.logbook) == b"a new one"


@pytest.mark.parametrize("first_steps", range(7))
@asynchronous
async def test_of_two_writers_one_gives_up_wherever_they_meet(first_steps: int) -> None:
    """Their parts never mix: what is found is the whole state of one of them."""
    async with boki.testing.context() as ctx:
        at = await ctx.logbook.append(b"", [STREAM])
        work = points().save(b"a" * 25, at, 0, [STREAM])
        answer: Any = None
        for _ in range(first_steps):
            try:
                operation = work.send(answer)
            except StopIteration:
                break

            def once(operation: Any = operation) -> Steps[Any]:
                return (yield operation)

            answer = await run(once(), ctx.logbook)
        assert await saved(ctx.logbook, b"b" * 25, at) is not None or first_steps >= 5
        found = await newest(ctx.logbook)
        assert found in (b"a" * 25, b"b" * 25)
        numbers = [record.seqnum for record in (await ctx.logbook.read(TAG)).records]
        assert all(before < after for before, after in pairwise(numbers))


def test_a_lost_answer_ends_the_writing_and_leaves_nothing_that_is_believed() -> None:
    """The error goes to the caller; a checkpoint without an end is no checkpoint."""
    work = points().save(b"state", 1, 0, [STREAM])
    operation = next(work)
    while not isinstance(operation, Append):
        operation = work.send(None)
    with pytest.raises(ConnectionLost):
        work.throw(ConnectionLost("lost"))


def test_trimming_touches_the_stream_and_the_checkpoints_only() -> None:
    """By their tags: never the whole book."""
    assert list(points().trim(End(9, 4, 7), 5)) == [Trim(5, STREAM), Trim(4, TAG)]
