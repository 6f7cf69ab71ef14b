"""Conditional appends: `when=Expect(tag, last_seqnum)` and `when=Expect(tag, count=n)`."""

from __future__ import annotations

import asyncio

from boki import MAX_SEQNUM, ConditionFailed, Expect, Trimmed
from tests.contract.scenarios.logs import Logs, data_of, error_of, forget, other, read_all


async def an_empty_tag_has_no_last_record(logs: Logs) -> None:
    """0 stands for none: it holds once."""
    await logs.logbook.append(b"other", tags=["other"])
    first = await logs.logbook.append(b"first", tags=["t"], when=Expect("t", 0))
    error = await error_of(logs.logbook.append(b"second", tags=["t"], when=Expect("t", 0)))
    assert isinstance(error, ConditionFailed)
    assert (error.outcome, error.retryable) == ("not_applied", False)
    assert (error.tag, error.expected_seqnum, error.actual_seqnum) == ("t", 0, first)
    assert await data_of(logs.logbook) == [b"other", b"first"]


async def the_last_seqnum_must_match(logs: Logs) -> None:
    """An older one does not hold, a newer one neither; the right one does, time after time."""
    last = 0
    for i in range(5):
        for wrong in {1, last - 1, last + 1} - {last}:
            if wrong >= 0:
                assert isinstance(
                    await error_of(logs.logbook.append(b"no", tags=["t"], when=Expect("t", wrong))), ConditionFailed
                )
        last = await logs.logbook.append(b"%d" % i, tags=["t"], when=[Expect("t", last)])
    assert await data_of(logs.logbook, "t") == [b"%d" % i for i in range(5)]


async def what_failed_is_nowhere(logs: Logs) -> None:
    """A record whose condition failed is seen by no read, and moves no other tag."""
    first = await logs.logbook.append(b"yes", tags=["t"])
    await error_of(logs.logbook.append(b"no", tags=["t", "u"], when=Expect("t", 0)))
    await error_of(logs.logbook.append_many([(b"no", ["u"]), b"no"], when=(Expect("t", first), Expect("t", 0))))
    last = await logs.logbook.append(b"yes", tags=["u"], when=[Expect("t", first), Expect("u", 0)])
    assert await data_of(logs.logbook) == [b"yes", b"yes"]
    assert [record.seqnum for record in await read_all(logs.logbook, "u")] == [last]
    assert await logs.logbook.read_prev("u", max_seqnum=last - 1) is None


async def all_conditions_must_hold(logs: Logs) -> None:
    """Of several, the first that fails is told."""
    a = await logs.logbook.append(b"a", tags=["a"])
    b = await logs.logbook.append(b"b", tags=["b"])
    error = await error_of(logs.logbook.append(b"x", when=[Expect("a", a), Expect("b", a), Expect("c", b)]))
    assert (error.code, error.tag, error.actual_seqnum) == ("condition_failed", "b", b)
    await logs.logbook.append(b"x", when=[Expect("a", a), Expect("b", b), Expect("c", 0)])


async def a_condition_may_speak_of_another_tag(logs: Logs) -> None:
    """A fence: writers of `data` must still hold `lock`."""
    lock = await logs.logbook.append(b"me", tags=["lock"])
    await logs.logbook.append(b"1", tags=["data"], when=Expect("lock", lock))
    await logs.logbook.append(b"2", tags=["data"], when=Expect("lock", lock))
    await logs.logbook.append(b"you", tags=["lock"], when=Expect("lock", lock))
    error = await error_of(logs.logbook.append(b"3", tags=["data"], when=Expect("lock", lock)))
    assert isinstance(error, ConditionFailed)
    assert await data_of(logs.logbook, "data") == [b"1", b"2"]


async def conditions_are_of_their_book(logs: Logs) -> None:
    """The same tag in another book counts for nothing."""
    await other(logs).append(b"x", tags=["t"])
    await logs.logbook.append(b"y", tags=["t"], when=Expect("t", 0))


async def many_are_appended_or_none(logs: Logs) -> None:
    """A condition of `append_many` is about the state before its first record, and decides for all."""
    seqnums = await logs.logbook.append_many([(b"1", ["t"]), (b"2", ["t"])], when=Expect("t", 0))
    error = await error_of(logs.logbook.append_many([(b"3", ["t"]), (b"4", ["t"])], when=Expect("t", seqnums[0])))
    assert (error.code, error.actual_seqnum) == ("condition_failed", seqnums[1])
    assert await data_of(logs.logbook) == [b"1", b"2"]


async def of_concurrent_appends_one_wins(logs: Logs) -> None:
    """However many race for a tag's next record, exactly one gets it, and the others are told which."""
    last = 0
    for n in range(5):
        tries = (logs.logbook.append(b"%d" % i, tags=["t"], when=Expect("t", last)) for i in range(20))
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        winners = [outcome for outcome in outcomes if isinstance(outcome, int)]
        losers = [outcome for outcome in outcomes if isinstance(outcome, ConditionFailed)]
        assert (len(winners), len(losers)) == (1, 19), outcomes
        last = winners[0]
        assert {loser.actual_seqnum for loser in losers} == {last}
        assert len(await read_all(logs.logbook, "t")) == n + 1


async def a_counter_counts(logs: Logs) -> None:
    """Optimistic increments by several writers, over and over: no update is lost."""

    async def increment() -> None:
        tail = await logs.logbook.check_tail("n")
        while True:
            value = int(tail.data) if tail else 0
            try:
                await logs.logbook.append(b"%d" % (value + 1), tags=["n"], when=Expect("n", tail.seqnum if tail else 0))
            except ConditionFailed as error:
                tail = await logs.logbook.get(error.actual_seqnum)
            else:
                return

    await asyncio.gather(*(increment() for _ in range(10)))
    assert await data_of(logs.logbook, "n") == [b"%d" % (i + 1) for i in range(10)]


async def a_trimmed_tag_is_empty_again(logs: Logs) -> None:
    """When all records of a tag are trimmed, 0 holds again, and the old last seqnum does not."""
    seqnum = await logs.logbook.append(b"old", tags=["t"])
    await logs.logbook.trim(seqnum + 1, tag="t")
    error = await error_of(logs.logbook.append(b"no", tags=["t"], when=Expect("t", seqnum)))
    assert (error.code, error.actual_seqnum) == ("condition_failed", 0)
    await logs.logbook.append(b"new", tags=["t"], when=Expect("t", 0))


async def a_system_tag_outlives_a_trim_of_the_book(logs: Logs) -> None:
    """What fences must outlive its zombies: a trim of the whole book leaves the last record of "!lock" in force."""
    lock = await logs.logbook.append(b"me", tags=["!lock"])
    await logs.logbook.append(b"x", tags=["data"])
    await logs.logbook.trim((1 << 63) - 1)
    await logs.logbook.append(b"1", tags=["data"], when=Expect("!lock", lock))
    error = await error_of(logs.logbook.append(b"zombie", tags=["!lock"], when=Expect("!lock", 0)))
    assert (error.code, error.actual_seqnum) == ("condition_failed", lock)


async def appends_in_flight_may_each_name_their_place(logs: Logs) -> None:
    """One writer appends several at once, each on the count before it: those that were ordered in turn stand, and no
    other; what requests that overtook each other have refused is appended again.
    """

    async def try_from(first: int) -> int:
        tries = (
            logs.logbook.append(b"%d" % i, tags=["!steps"], when=Expect("!steps", count=i)) for i in range(first, 8)
        )
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        stands = [not isinstance(outcome, ConditionFailed) for outcome in outcomes]
        assert stands == sorted(stands, reverse=True)
        return first + sum(stands)

    count = 0
    while count < 8:
        now = await try_from(count)
        assert now > count
        count = now
    seqnums = [record.seqnum for record in await read_all(logs.logbook, "!steps")]
    error = await error_of(logs.logbook.append(b"late", tags=["!steps"], when=Expect("!steps", count=7)))
    assert isinstance(error, ConditionFailed)
    assert (error.outcome, error.retryable) == ("not_applied", False)
    assert (error.tag, error.expected_count, error.actual_count) == ("!steps", 7, 8)
    assert error.actual_seqnum == seqnums[-1]
    assert await data_of(logs.logbook, "!steps") == [b"%d" % i for i in range(8)]


async def one_of_several_that_name_the_same_place_wins(logs: Logs) -> None:
    """Two executions of one workflow that race agree on each step, in one round trip."""
    for step in range(3):
        tries = (logs.logbook.append(b"%d" % i, tags=["!s"], when=Expect("!s", count=step)) for i in range(5))
        outcomes = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(not isinstance(outcome, ConditionFailed) for outcome in outcomes) == 1
    assert len(await data_of(logs.logbook, "!s")) == 3


async def a_gap_is_refused(logs: Logs) -> None:
    """What names a place beyond the next one fails, and with it what builds on it."""
    tries = (logs.logbook.append(b"x", tags=["!s"], when=Expect("!s", count=n)) for n in (1, 2, 3))
    assert all(isinstance(error, ConditionFailed) for error in await asyncio.gather(*tries, return_exceptions=True))
    assert await data_of(logs.logbook) == []


async def trims_do_not_lower_a_count(logs: Logs) -> None:
    """Neither of the tag nor of the book; records of one group count each, and a deleted book begins at 0."""
    await logs.logbook.append_many([(b"1", ["!s"]), (b"2", ["!s", "t"]), (b"3", ["t"])], when=Expect("!s", count=0))
    last = await logs.logbook.append(b"4", tags=["!s"], when=Expect("!s", count=2))
    await logs.logbook.trim(last, tag="!s")
    last = await logs.logbook.append(b"5", tags=["!s"], when=[Expect("!s", count=3), Expect("!s", last)])
    await logs.logbook.trim(last + 1)
    await logs.logbook.trim(last + 1, tag="!s")
    assert await data_of(logs.logbook, "!s") == []
    error = await error_of(logs.logbook.append(b"no", tags=["!s"], when=Expect("!s", count=0)))
    assert (error.actual_count, error.actual_seqnum) == (4, 0)
    await logs.logbook.append(b"6", tags=["!s"], when=[Expect("!s", count=4), Expect("!s", 0)])
    await logs.logbook.delete()
    await logs.logbook.append(b"again", tags=["!s"], when=Expect("!s", count=0))


async def a_forgotten_tag_counts_from_0(logs: Logs) -> None:
    """As if it had never had a record: what expects a later place is refused, and so is one that builds on that."""
    book = logs.logbook
    for count in range(3):
        last = await book.append(b"%d" % count, tags=["!s", "t"], when=Expect("!s", count=count))
    await forget(book, last, "!s")
    error = await error_of(book.append(b"no", tags=["!s"], when=Expect("!s", count=0)))
    assert (error.actual_count, error.actual_seqnum) == (3, last)
    await forget(book, last + 1, "!s")
    assert await data_of(book, "!s") == []
    assert await data_of(book, "t") == [b"0", b"1", b"2"]
    for count in (1, 3):
        error = await error_of(book.append(b"late", tags=["!s"], when=Expect("!s", count=count)))
        assert (error.actual_count, error.actual_seqnum) == (0, 0)
    again = await book.append_many([(b"3", ["!s"]), (b"4", ["!s"])], when=Expect("!s", count=0))
    await forget(book, last + 1, "!s")
    await book.trim(again[1], tag="!s")
    assert await data_of(book, "!s") == [b"4"]
    await book.append(b"5", tags=["!s"], when=Expect("!s", count=2))


async def a_tag_that_was_trimmed_is_forgotten_later(logs: Logs) -> None:
    """Until then it counts what it had. One that never was is forgotten, too, and nothing happens."""
    book = logs.logbook
    last = await book.append(b"1", tags=["!s"])
    await book.trim(last + 1, tag="!s")
    error = await error_of(book.append(b"no", tags=["!s"], when=Expect("!s", count=0)))
    assert (error.actual_count, error.actual_seqnum) == (1, 0)
    await forget(book, MAX_SEQNUM, "!never", "!s")
    await book.append(b"2", tags=["!s", "!never"], when=[Expect("!s", count=0), Expect("!never", count=0)])
    assert isinstance(await error_of(book.get(last)), Trimmed)


async def what_was_refused_does_not_count(logs: Logs) -> None:
    """A skipped record has had its place in the order, and is none of the tag's records."""
    await error_of(logs.logbook.append(b"no", tags=["!s"], when=Expect("t", 5)))
    await logs.logbook.append(b"yes", tags=["!s"], when=Expect("!s", count=0), key="k")
    await logs.logbook.append(b"yes", tags=["!s"], when=Expect("!s", count=0), key="k")
    await logs.logbook.append(b"two", tags=["!s"], when=Expect("!s", count=1))
