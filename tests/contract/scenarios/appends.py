"""Appends: one order, nothing lost, nothing changed, neighbours stay neighbours."""

from __future__ import annotations

import asyncio
import json

from boki import NewRecord
from tests.contract.scenarios.logs import Logs, data_of, other, read_all

MIB = 1 << 20


async def seqnums_grow(logs: Logs) -> None:
    """An append that is called after another has returned gets a larger seqnum."""
    seqnums = [await logs.logbook.append(b"x") for _ in range(20)]
    assert seqnums == sorted(set(seqnums))
    assert seqnums[0] > 0
    assert seqnums[-1] < 1 << 63


async def a_record_comes_back_as_it_was_written(logs: Logs) -> None:
    """Data, tags in their order, seqnum, time; no auxiliary data that nobody set."""
    seqnum = await logs.logbook.append(b"\x00data\xff", tags=["b", "a", "c"])
    record = await logs.logbook.get(seqnum)
    assert record.seqnum == seqnum
    assert record.next_seqnum == seqnum + 1
    assert record.data == b"\x00data\xff"
    assert record.tags == ("b", "a", "c")
    assert record.auxdata is None
    assert record.time > 1_500_000_000_000_000, "microseconds since the epoch"


async def any_bytes_are_data(logs: Logs) -> None:
    """Nothing, every byte value, bytes-like objects."""
    given = [b"", bytes(range(256)), bytearray(b"array"), memoryview(b"view")]
    for data in given:
        await logs.logbook.append(data)  # type: ignore[arg-type]
    assert await data_of(logs.logbook) == [bytes(data) for data in given]


async def data_may_be_json(logs: Logs) -> None:
    """What was written as JSON is read as JSON."""
    value = {"ü": [1, 2.5, None, True, "日本"], "nested": {"a": []}}
    seqnum = await logs.logbook.append(json.dumps(value).encode())
    assert (await logs.logbook.get(seqnum)).json() == value


async def tags_come_in_any_collection(logs: Logs) -> None:
    """A list, a tuple, a set, a frozenset; or none at all."""
    for tags in (["a", "b"], ("a", "b"), {"a", "b"}, frozenset(["a", "b"])):
        await logs.logbook.append(b"x", tags=tags)
    await logs.logbook.append(b"y")
    records = await read_all(logs.logbook)
    assert [set(record.tags) for record in records] == [{"a", "b"}] * 4 + [set()]
    assert len(await read_all(logs.logbook, "a")) == len(await read_all(logs.logbook, "b")) == 4


async def tags_are_any_short_text(logs: Logs) -> None:
    """Unicode, spaces, the longest in bytes, the book's own name, what looks like a system's: each is its own tag."""
    tags = ["ü", "u", "日本語", "🦆", " ", "a b", "é" * 127, "x" * 255, "!", "!lock", "None", "0", logs.logbook.name]
    for tag in tags:
        await logs.logbook.append(tag.encode(), tags=[tag])
    for tag in tags:
        assert await data_of(logs.logbook, tag) == [tag.encode()]
        record = await logs.logbook.check_tail(tag)
        assert record is not None
        assert record.tags == (tag,)


async def equal_looking_tags_differ(logs: Logs) -> None:
    """Tags are compared as written: composed and decomposed, upper and lower case are not the same."""
    for tag in ("é", "e\u0301", "A", "a"):
        await logs.logbook.append(tag.encode(), tags=[tag])
    for tag in ("é", "e\u0301", "A", "a"):
        assert await data_of(logs.logbook, tag) == [tag.encode()]


async def sixteen_tags_fit(logs: Logs) -> None:
    """The most tags of the greatest length; the record is found by each."""
    tags = [f"{i:02}" + "ß" * 126 for i in range(16)]
    seqnum = await logs.logbook.append(b"x", tags=tags)
    for tag in tags:
        record = await logs.logbook.read_next(tag)
        assert record is not None
        assert (record.seqnum, record.tags) == (seqnum, tuple(tags))


async def a_record_of_one_mib_fits(logs: Logs) -> None:
    """The largest record, between small ones."""
    large = bytes(range(256)) * (MIB // 256)
    given = [b"before", large, b"after"]
    seqnums = [await logs.logbook.append(data, tags=["t"]) for data in given]
    assert (await logs.logbook.get(seqnums[1])).data == large
    assert await data_of(logs.logbook, "t") == given


async def many_records_are_neighbours(logs: Logs) -> None:
    """`append_many` takes bytes, pairs and `NewRecord`s, and keeps their order."""
    seqnums = await logs.logbook.append_many(
        [b"0", (b"1", ["a"]), NewRecord(b"2", ("a", "b")), (b"3", ()), NewRecord(b"4")]
    )
    assert seqnums == sorted(set(seqnums))
    records = await read_all(logs.logbook)
    assert [record.seqnum for record in records] == seqnums
    assert [record.data for record in records] == [b"0", b"1", b"2", b"3", b"4"]
    assert [record.tags for record in records] == [(), ("a",), ("a", "b"), (), ()]
    assert await logs.logbook.append_many(iter([b"one"])) == [(await logs.logbook.check_tail()).seqnum]  # type: ignore[union-attr]


async def many_large_records_fit_in_one_append(logs: Logs) -> None:
    """Three records of 1 MiB are one request."""
    records = [bytes([n]) * MIB for n in range(3)]
    assert len(await logs.logbook.append_many(records)) == 3
    assert await data_of(logs.logbook) == records


async def groups_do_not_interleave(logs: Logs) -> None:
    """Records of concurrent `append_many`s stand together, whatever is appended beside them."""
    groups = [[f"{g}.{i}".encode() for i in range(10)] for g in range(10)]
    await asyncio.gather(
        *(logs.logbook.append_many(group) for group in groups), *(logs.logbook.append(b"lone") for _ in range(20))
    )
    found = await data_of(logs.logbook)
    assert len(found) == 120
    for group in groups:
        first = found.index(group[0])
        assert found[first : first + 10] == group


async def concurrent_appends_are_all_there_once(logs: Logs) -> None:
    """200 appends at once, over two books: each has a seqnum of its own, under which its data stands."""
    both = [logs.logbook, other(logs)]
    given = [f"{i}".encode() for i in range(200)]
    seqnums = await asyncio.gather(*(both[i % 2].append(data, tags=["t"]) for i, data in enumerate(given)))
    for n, book in enumerate(both):
        records = await read_all(book, "t")
        assert {record.seqnum: record.data for record in records} == dict(zip(seqnums[n::2], given[n::2], strict=True))


async def each_appender_keeps_its_order(logs: Logs) -> None:
    """Appenders that wait for each append find theirs in the order in which they made them."""

    async def appender(name: str) -> None:
        for i in range(10):
            await logs.logbook.append(f"{name}{i}".encode(), tags=[name])

    await asyncio.gather(*(appender(name) for name in "abcdefgh"))
    for name in "abcdefgh":
        assert await data_of(logs.logbook, name) == [f"{name}{i}".encode() for i in range(10)]


async def an_append_is_read_at_once(logs: Logs) -> None:
    """Read your writes: what an append has returned is seen by the next read, of any kind."""
    for i in range(20):
        seqnum = await logs.logbook.append(b"%d" % i, tags=["t", f"t{i}"])
        assert (await logs.logbook.get(seqnum)).data == b"%d" % i
        for tag in (None, "t", f"t{i}"):
            tail = await logs.logbook.check_tail(tag)
            assert tail is not None
            assert tail.seqnum == seqnum


async def time_never_goes_back(logs: Logs) -> None:
    """The log's own time grows along the order."""
    await asyncio.gather(*(logs.logbook.append(b"x") for _ in range(50)))
    for _ in range(10):
        await logs.logbook.append(b"y")
    times = [record.time for record in await read_all(logs.logbook)]
    assert times == sorted(times)


async def books_are_independent(logs: Logs) -> None:
    """The same tag in another book is another tag, and a seqnum of another book is not found."""
    mine, theirs = logs.logbook, other(logs)
    seqnum = await mine.append(b"mine", tags=["t"])
    await theirs.append(b"theirs", tags=["t"])
    assert await data_of(mine, "t") == [b"mine"]
    assert await data_of(theirs, "t") == [b"theirs"]
    assert seqnum not in [record.seqnum for record in await read_all(theirs)]
