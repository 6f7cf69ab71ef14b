"""Steps: one body over the async log, the blocking log, and a driver that loses answers."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki import ConditionFailed, ConnectionLost, Expect, NewRecord, Page, Record
from boki.libs.fold.steps import (
    PAGE_RECORDS,
    Append,
    Pause,
    ReadPage,
    Steps,
    Sync,
    again,
    append,
    drive,
    get,
    page,
    read_all,
    run,
    run_blocking,
    tail,
    trim,
)
from boki.retry import Backoff
from tests.libs.bokiqueue.running import asynchronous

BACKOFF = Backoff(first_s=1, longest_s=4, jitter=0, tries=5)


def count_up(tag: str, book: str = "") -> Steps[int]:
    """Add one to a counter, however often an answer is lost or another is faster."""
    tries = 0
    while True:
        last = yield from tail(tag, fresh=True, book=book)
        number = 1 if last is None else int(last.data) + 1
        record = NewRecord(b"%d" % number, [tag])
        try:
            yield from append([record], [Expect(tag, last.seqnum if last else 0)], book=book)
        except (ConditionFailed, ConnectionLost):
            tries += 1
            yield from again(tries, BACKOFF, "it could not be counted")
        else:
            return number


def everything(book: str = "") -> Steps[dict[str, Any]]:
    """Each operation once."""
    seqnums = yield from append([NewRecord(b"a", ["t"]), NewRecord(b"b", ["t"])], key="k", book=book)
    yield Sync(book)
    first = yield from get(seqnums[0], book)
    previous = yield from tail("t", max_seqnum=seqnums[1] - 1, book=book)
    one = yield from page(ReadPage("t", limit=1, book=book))
    found = yield from read_all("t", book=book)
    yield from trim(seqnums[1], "t", book)
    yield (Append([NewRecord(b"c", ["t"])], book=book), Pause(0))
    left = yield from read_all("t", book=book)
    return {"first": first, "previous": previous, "page": one, "all": found, "left": left}


def check_everything(found: dict[str, Any]) -> None:
    """Every operation has answered as the LogBook's method does."""
    assert isinstance(found["first"], Record)
    assert found["first"] == found["previous"] == found["all"][0]
    assert isinstance(found["page"], Page)
    assert len(found["page"].records) == 1
    assert [record.data for record in found["all"]] == [b"a", b"b"]
    assert [record.data for record in found["left"]] == [b"b", b"c"]


@asynchronous
async def test_async_functions_run_steps() -> None:
    """On their LogBook, and on others of the same session; errors arrive in the body."""
    async with boki.testing.context() as ctx:
        check_everything(await run(everything(), ctx.logbook))
        check_everything(await run(everything("other"), ctx.logbook))
        assert [await run(count_up("n"), ctx.logbook) for _ in range(3)] == [1, 2, 3]
        assert await ctx.logbook_named("other").check_tail("n") is None


def test_plain_functions_run_the_same_steps() -> None:
    """Without an event loop of their own."""
    with boki.testing.blocking_context() as ctx:
        check_everything(run_blocking(everything(), ctx.logbook))
        check_everything(run_blocking(everything("other"), ctx.logbook))
        assert [run_blocking(count_up("n"), ctx.logbook) for _ in range(3)] == [1, 2, 3]


@asynchronous
async def test_a_page_at_a_time_until_the_end() -> None:
    """`read_all` continues behind each page."""
    async with boki.testing.context() as ctx:
        first, *_ = await ctx.logbook.append_many([(b"", ["t"])] * (PAGE_RECORDS + 5))
        assert len(await run(read_all("t"), ctx.logbook)) == PAGE_RECORDS + 5
        assert len(await run(read_all("t", start=first + 3, stop=first + 7), ctx.logbook)) == 4


def test_lost_answers_are_thrown_into_the_body_and_waiting_has_an_end() -> None:
    """The body pauses longer each time, and says in the end what could not be done."""
    pauses: list[float] = []

    def carry_out(step: Any) -> Any:
        if isinstance(step, Pause):
            return pauses.append(step.seconds)
        if isinstance(step, Append):
            raise ConnectionLost("lost")
        return None

    with pytest.raises(ConnectionLost, match="it could not be counted"):
        drive(count_up("n"), carry_out)
    assert pauses == [1, 2, 4, 4]
