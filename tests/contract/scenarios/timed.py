"""What depends on the log's time. Only where a test can move it: none of this waits for a real clock."""

from __future__ import annotations

import asyncio

from boki import MAX_SEQNUM, Trimmed
from tests.contract.scenarios.logs import TimedLogs, data_of, error_of, read_all

HOUR_S = 3600


async def a_key_is_remembered_for_a_day(logs: TimedLogs) -> None:
    """Up to 24 hours after its first use; then it is as new, and remembered again."""
    first = await logs.logbook.append(b"1", key="k")
    await logs.clock.advance(23.9 * HOUR_S)
    assert await logs.logbook.append(b"2", key="k") == first
    await logs.clock.advance(0.2 * HOUR_S)
    second = await logs.logbook.append(b"3", key="k")
    assert second > first
    await logs.clock.advance(23.9 * HOUR_S)
    assert await logs.logbook.append(b"4", key="k") == second
    assert await data_of(logs.logbook) == [b"1", b"3"]


async def records_carry_the_time_of_their_order(logs: TimedLogs) -> None:
    """In microseconds."""
    for _ in range(3):
        await logs.logbook.append(b"x")
        await logs.clock.advance(1.5)
    a, b, c = [record.time for record in await read_all(logs.logbook)]
    assert (b - a, c - b) == (1_500_000, 1_500_000)


async def a_wait_takes_as_long_as_it_says(logs: TimedLogs) -> None:
    """Also when it is longer than one request may be held; and it ends with the record, not later."""
    start = (await logs.logbook.get(await logs.logbook.append(b"x"))).time
    assert await logs.logbook.read_next("t", wait_s=HOUR_S) is None
    end = (await logs.logbook.get(await logs.logbook.append(b"x"))).time
    assert HOUR_S * 1_000_000 <= end - start < (HOUR_S + 1) * 1_000_000

    async def append_after_a_minute() -> int:
        await logs.logbook.read_next("never", wait_s=60)
        return await logs.logbook.append(b"y", tags=["t"])

    record, seqnum = await asyncio.gather(logs.logbook.read_next("t", wait_s=HOUR_S), append_after_a_minute())
    assert record is not None
    assert record.seqnum == seqnum
    assert record.time - end < 61_000_000


async def old_records_go(logs: TimedLogs) -> None:
    """A retention by age trims what is older; what has a system tag is still found by it."""
    old = await logs.logbook.append(b"old", tags=["t", "!s"])
    await logs.logbook.set_retention(age_s=HOUR_S)
    await logs.clock.advance(0.9 * HOUR_S)
    await logs.logbook.append(b"new", tags=["t"])
    assert await data_of(logs.logbook) == [b"old", b"new"]
    await logs.clock.advance(0.2 * HOUR_S)
    assert await data_of(logs.logbook) == [b"new"]
    assert await data_of(logs.logbook, "!s") == [b"old"]
    assert isinstance(await error_of(logs.logbook.get(old)), Trimmed)
    await logs.clock.advance(HOUR_S)
    assert await data_of(logs.logbook) == []


async def large_books_are_trimmed(logs: TimedLogs) -> None:
    """A retention by size keeps the newest records that fit in it."""
    await logs.logbook.set_retention(size_bytes=1000)
    seqnums = [await logs.logbook.append(bytes(300)) for _ in range(5)]
    assert [record.seqnum for record in await read_all(logs.logbook)] == seqnums[-3:]
    assert isinstance(await error_of(logs.logbook.get(seqnums[0])), Trimmed)


async def a_subscription_waits_for_ever(logs: TimedLogs) -> None:
    """It outlasts any poll, and idle years."""
    subscription = aiter(logs.logbook.subscribe("t"))
    following = asyncio.ensure_future(anext(subscription))
    await logs.clock.advance(365 * 24 * HOUR_S)
    await logs.logbook.trim(MAX_SEQNUM)
    assert not following.done()
    await logs.logbook.append(b"x", tags=["t"])
    assert (await following).data == b"x"
