"""Idempotency keys of appends: the same key within 24 hours returns the first seqnum and appends nothing."""

from __future__ import annotations

import asyncio

from boki import MAX_SEQNUM, ConditionFailed, Expect
from tests.contract.scenarios.logs import Logs, data_of, error_of, other, read_all


async def a_key_appends_once(logs: Logs) -> None:
    """Repeated, the append returns what the first one returned."""
    first = await logs.logbook.append(b"x", tags=["t"], key="k")
    await logs.logbook.append(b"between")
    assert await logs.logbook.append(b"x", tags=["t"], key="k") == first
    assert await logs.logbook.append(b"x", tags=["t"], key="k2") > first
    assert await data_of(logs.logbook) == [b"x", b"between", b"x"]


async def other_data_under_a_key_is_not_looked_at(logs: Logs) -> None:
    """The key alone decides: other data, other tags, one or many."""
    first = await logs.logbook.append(b"first", tags=["a"], key="k")
    assert await logs.logbook.append(b"second", tags=["b"], key="k") == first
    assert await logs.logbook.append_many([b"1", b"2"], key="k") == [first]
    assert await data_of(logs.logbook) == [b"first"]
    assert await read_all(logs.logbook, "b") == []


async def a_key_is_of_its_book(logs: Logs) -> None:
    """The same key in another book is another key."""
    await logs.logbook.append(b"here", key="k")
    await other(logs).append(b"there", key="k")
    assert await data_of(other(logs)) == [b"there"]


async def of_concurrent_repetitions_one_is_appended(logs: Logs) -> None:
    """All of them get the seqnum of the one record that there is."""
    for n in range(5):
        tries = (logs.logbook.append(b"%d" % i, key=f"k{n}") for i in range(20))
        seqnums = set(await asyncio.gather(*tries))
        assert len(seqnums) == 1
        records = await read_all(logs.logbook)
        assert len(records) == n + 1
        assert seqnums == {records[-1].seqnum}


async def many_under_a_key_are_appended_once(logs: Logs) -> None:
    """`append_many` returns all first seqnums again, also for other records, also concurrently."""
    first = await logs.logbook.append_many([b"1", b"2", b"3"], key="k")
    assert await logs.logbook.append_many([b"1", b"2", b"3"], key="k") == first
    assert await logs.logbook.append_many([b"4"], key="k") == first
    assert await logs.logbook.append(b"5", key="k") == first[0]
    tries = (logs.logbook.append_many([b"%d.%d" % (n, i) for i in range(3)], key="k2") for n in range(5))
    both = await asyncio.gather(*tries)
    assert all(seqnums == both[0] for seqnums in both)
    records = await read_all(logs.logbook)
    assert [record.seqnum for record in records] == first + both[0]
    assert len({record.data.partition(b".")[0] for record in records[3:]}) == 1


async def a_key_is_no_tag(logs: Logs) -> None:
    """Readers see no trace of a key, and sixteen tags fit beside it."""
    tags = tuple(f"t{i}" for i in range(16))
    seqnum = await logs.logbook.append(b"x", tags=tags, key="k")
    assert (await logs.logbook.get(seqnum)).tags == tags
    assert (await logs.logbook.append_many([(b"y", ["t0"]), b"z"], key="l")) == [
        record.seqnum for record in (await read_all(logs.logbook))[1:]
    ]
    assert [record.tags for record in await read_all(logs.logbook)] == [tags, ("t0",), ()]
    assert await logs.logbook.check_tail("k") is None


async def any_tag_may_be_a_key(logs: Logs) -> None:
    """Unicode, the longest; each its own key."""
    keys = ["ü", "日本", "k" * 255, "é" * 127, "!", " ", "a b"]
    seqnums = [await logs.logbook.append(b"x", key=key) for key in keys]
    assert len(set(seqnums)) == len(keys)
    assert [await logs.logbook.append(b"x", key=key) for key in keys] == seqnums


async def a_repetition_succeeds_although_it_changed_its_condition(logs: Logs) -> None:
    """The key is looked at first: a retry after a lost answer is not told that its own record is in the way."""
    first = await logs.logbook.append(b"x", tags=["t"], when=Expect("t", 0), key="k")
    assert await logs.logbook.append(b"x", tags=["t"], when=Expect("t", 0), key="k") == first
    assert isinstance(await error_of(logs.logbook.append(b"y", when=Expect("t", 0), key="l")), ConditionFailed)


async def a_failed_condition_does_not_use_the_key_up(logs: Logs) -> None:
    """What was not appended may be tried again under the same key."""
    last = await logs.logbook.append(b"x", tags=["t"])
    await error_of(logs.logbook.append(b"y", tags=["t"], when=Expect("t", 0), key="k"))
    assert await logs.logbook.append(b"y", tags=["t"], when=Expect("t", last), key="k") > last
    assert await data_of(logs.logbook) == [b"x", b"y"]


async def keys_outlive_a_trim_of_the_book(logs: Logs) -> None:
    """A repetition after its record was trimmed still appends nothing."""
    first = await logs.logbook.append(b"x", tags=["t"], key="k")
    await logs.logbook.trim(MAX_SEQNUM)
    assert await logs.logbook.append(b"x", tags=["t"], key="k") == first
    assert await data_of(logs.logbook) == []


async def deleting_a_book_forgets_its_keys(logs: Logs) -> None:
    """The book begins again."""
    first = await logs.logbook.append(b"x", key="k")
    await logs.logbook.delete()
    assert await logs.logbook.append(b"x", key="k") > first
    assert await data_of(logs.logbook) == [b"x"]
