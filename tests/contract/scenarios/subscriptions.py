"""Subscriptions: everything from a place on, in order, without gaps; told of what a trim has taken."""

from __future__ import annotations

import asyncio

from boki import MAX_SEQNUM, Trimmed
from tests.contract.scenarios.logs import Logs, other, read_all, take, take_pages


async def it_begins_with_what_is_there_and_goes_on(logs: Logs) -> None:
    """Records of before and after its start come in one order, none twice."""
    before = [await logs.logbook.append(b"%d" % i) for i in range(5)]

    async def append_more() -> list[int]:
        return [await logs.logbook.append(b"%d" % i) for i in range(5, 25)]

    records, after = await asyncio.gather(take(aiter(logs.logbook.subscribe()), 25), append_more())
    assert [record.seqnum for record in records] == before + after
    assert [record.data for record in records] == [b"%d" % i for i in range(25)]


async def it_waits_for_the_first_record(logs: Logs) -> None:
    """An empty book is no end."""
    records, seqnum = await asyncio.gather(
        take(aiter(logs.logbook.subscribe("t")), 1), logs.logbook.append(b"x", tags=["t"])
    )
    assert records[0].seqnum == seqnum


async def it_keeps_to_its_tag_and_start(logs: Logs) -> None:
    """Other tags and books, and what is below the start, do not come."""
    seqnums = []
    for i in range(12):
        seqnums.append(await logs.logbook.append(b"%d" % i, tags=[f"mod{i % 2}"]))
        await other(logs).append(b"%d" % i, tags=["mod0"])
    records = await take(aiter(logs.logbook.subscribe("mod0", start=seqnums[4])), 4)
    assert [record.seqnum for record in records] == seqnums[4::2]


async def from_now_on_comes_only_what_is_new(logs: Logs) -> None:
    """ "now" passes over all that was appended before, in a book that has records and in one that has none."""
    for book in (logs.logbook, other(logs)):
        if book is logs.logbook:
            await book.append(b"old", tags=["t"])
        tail = await book.check_tail()
        subscription = aiter(book.subscribe("t", start="now"))
        first = asyncio.ensure_future(take(subscription, 1))
        number = 0
        while not first.done():  # until one comes that was appended after the subscription had begun
            number += 1
            await asyncio.wait([first], timeout=0)
            await book.append(b"%d" % number, tags=["t"])
        (record,) = await first
        assert record.data != b"old"
        assert tail is None or record.seqnum > tail.seqnum


async def what_is_appended_after_it_has_begun_comes(logs: Logs) -> None:
    """`begin` says where "now" is before anything is read: nothing that is appended after it is missed."""
    for book in (logs.logbook, other(logs)):
        await logs.logbook.append(b"old", tags=["t"])
        subscription = book.subscribe("t", start="now")
        await subscription.begin()
        seqnums = [await book.append(b"new", tags=["t"]) for _ in range(2)]
        assert [record.seqnum for record in await take(aiter(subscription), 2)] == seqnums


async def pages_are_never_empty(logs: Logs) -> None:
    """`batches()` hands out what exists, in bulk."""
    given = [b"%d" % i for i in range(2500)]

    async def append_all() -> None:
        for start in range(0, 2500, 250):
            await logs.logbook.append_many(given[start : start + 250])

    records, _ = await asyncio.gather(take_pages(logs.logbook.subscribe().batches(), 2500), append_all())
    assert [record.data for record in records] == given


async def all_subscribers_see_one_order(logs: Logs) -> None:
    """However many append and read at once, everybody sees the same."""

    async def appender(name: int) -> None:
        for i in range(10):
            await logs.logbook.append(b"%d.%d" % (name, i))

    *seen, _ = await asyncio.gather(
        *(take(aiter(logs.logbook.subscribe()), 50) for _ in range(4)),
        asyncio.gather(*(appender(name) for name in range(5))),
    )
    assert all(records == seen[0] for records in seen)
    assert seen[0] == await read_all(logs.logbook)


async def a_trim_that_overtakes_is_told(logs: Logs) -> None:
    """Records that were trimmed before they were read raise `Trimmed`, which says where to continue."""
    seqnums = [await logs.logbook.append(b"%d" % i) for i in range(10)]
    await logs.logbook.trim(seqnums[6])
    try:
        await take(aiter(logs.logbook.subscribe(start=seqnums[2])), 1)
    except Trimmed as error:
        assert seqnums[2] < error.next_seqnum <= seqnums[6]
        assert error.outcome == "not_applied"
        records = await take(aiter(logs.logbook.subscribe(start=error.next_seqnum)), 4)
    else:
        raise AssertionError("no error")
    assert [record.seqnum for record in records] == seqnums[6:]


async def a_trim_that_left_nothing_is_told(logs: Logs) -> None:
    """Who waits for what comes next learns, too, that records were trimmed before it asked."""
    seqnums = [await logs.logbook.append(b"%d" % i, tags=["t"]) for i in range(4)]
    await logs.logbook.trim(seqnums[3] + 1, tag="t")
    waiting = asyncio.ensure_future(take(aiter(logs.logbook.subscribe("t", start=seqnums[2])), 1))
    await asyncio.sleep(0)
    last = await logs.logbook.append(b"last", tags=["t"])
    try:
        await waiting
    except Trimmed as error:
        assert seqnums[3] < error.next_seqnum <= last
        records = await take(aiter(logs.logbook.subscribe("t", start=error.next_seqnum)), 1)
    else:
        raise AssertionError("no error")
    assert [record.seqnum for record in records] == [last]


async def a_trim_that_overtakes_can_be_passed_over(logs: Logs) -> None:
    """With `on_trimmed="skip"` what is left comes."""
    seqnums = [await logs.logbook.append(b"%d" % i, tags=["t"]) for i in range(10)]
    await logs.logbook.trim(seqnums[6], tag="t")
    records = await take(aiter(logs.logbook.subscribe("t", start=seqnums[2], on_trimmed="skip")), 4)
    assert [record.seqnum for record in records] == seqnums[6:]


async def the_beginning_is_the_earliest_record_there_is(logs: Logs) -> None:
    """`start=0` does not mind what was trimmed before."""
    seqnums = [await logs.logbook.append(b"%d" % i) for i in range(10)]
    await logs.logbook.trim(seqnums[6])
    records = await take(aiter(logs.logbook.subscribe()), 4)
    assert [record.seqnum for record in records] == seqnums[6:]


async def a_trim_in_the_middle_of_reading_is_told(logs: Logs) -> None:
    """A subscriber that is between two pages when a trim passes it learns of it, and only once."""
    await logs.logbook.append_many([b"x"] * 1500)
    pages = logs.logbook.subscribe().batches()
    first = await anext(pages)
    assert len(first.records) < 1500
    last = await logs.logbook.append(b"last")
    await logs.logbook.trim(last)
    try:
        await anext(pages)
    except Trimmed as error:
        next_seqnum = error.next_seqnum
    else:
        raise AssertionError("no error")
    records = await take(aiter(logs.logbook.subscribe(start=next_seqnum)), 1)
    assert [record.seqnum for record in records] == [last]


async def a_trim_of_what_was_read_does_not_disturb(logs: Logs) -> None:
    """A consumer that trims behind itself continues."""
    for _ in range(3):
        await logs.logbook.append(b"x", tags=["t"])
    subscription = aiter(logs.logbook.subscribe("t"))
    for _ in range(5):
        record = await anext(subscription)
        await logs.logbook.trim(record.next_seqnum, tag="t")
        await logs.logbook.append(b"x", tags=["t"])


async def a_trim_of_others_does_not_disturb(logs: Logs) -> None:
    """Whoever has read all of a quiet tag has lost nothing when the whole book is trimmed beyond it."""
    await logs.logbook.append(b"1", tags=["quiet"])
    subscription = aiter(logs.logbook.subscribe("quiet"))
    assert (await anext(subscription)).data == b"1"
    following = asyncio.ensure_future(anext(subscription))
    for _ in range(20):  # the subscription waits in the log long before these are done
        await logs.logbook.append(b"noise", tags=["loud"])
    await logs.logbook.trim(MAX_SEQNUM)
    await logs.logbook.append(b"2", tags=["quiet"])
    assert (await following).data == b"2"


async def a_deleted_book_goes_on(logs: Logs) -> None:
    """A subscriber of a book that is deleted and written again gets the new records."""
    await logs.logbook.append(b"old")
    await logs.logbook.delete()
    seqnum = await logs.logbook.append(b"new")
    records = await take(aiter(logs.logbook.subscribe()), 1)
    assert [record.seqnum for record in records] == [seqnum]
