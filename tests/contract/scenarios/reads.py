"""Reads: single records, pages, long polls, auxiliary data, sync."""

from __future__ import annotations

import asyncio

from boki import MAX_SEQNUM, InvalidArgument, NotFound, Trimmed
from tests.contract.scenarios.logs import Logs, data_of, error_of, other, read_all

MIB = 1 << 20


async def an_empty_book_holds_nothing(logs: Logs) -> None:
    """No read of a book that nobody has written fails, but `get`."""
    book = logs.logbook
    for tag in (None, "t"):
        assert await book.read_next(tag) is None
        assert await book.read_prev(tag) is None
        assert await book.check_tail(tag) is None
        assert await book.check_tail(tag, fresh=True) is None
        assert (await book.read(tag)).records == []
    for seqnum in (0, 1, 8796093022208, MAX_SEQNUM):
        assert type(await error_of(book.get(seqnum))) is NotFound


async def read_next_finds_the_first_at_or_after(logs: Logs) -> None:
    """`min_seqnum` belongs to the range."""
    a, b, c = [await logs.logbook.append(data) for data in (b"a", b"b", b"c")]
    expected = {0: a, a: a, a + 1: b, b: b, b + 1: c, c: c, c + 1: None, MAX_SEQNUM: None}
    for min_seqnum, seqnum in expected.items():
        record = await logs.logbook.read_next(min_seqnum=min_seqnum)
        assert (record and record.seqnum) == seqnum


async def read_prev_finds_the_last_at_or_before(logs: Logs) -> None:
    """`max_seqnum` belongs to the range."""
    a, b, c = [await logs.logbook.append(data) for data in (b"a", b"b", b"c")]
    expected = {0: None, a - 1: None, a: a, b - 1: a, b: b, c - 1: b, c: c, c + 1: c, MAX_SEQNUM: c}
    for max_seqnum, seqnum in expected.items():
        record = await logs.logbook.read_prev(max_seqnum=max_seqnum)
        assert (record and record.seqnum) == seqnum


async def a_page_waits_for_its_first_record(logs: Logs) -> None:
    """`read(wait_s=)` ends with the record, has all that is there, and gives an empty page if none comes."""
    assert (await logs.logbook.read("t", wait_s=0.01)).records == []
    reading = asyncio.ensure_future(logs.logbook.read("t", wait_s=20))
    await asyncio.sleep(0)
    seqnum = await logs.logbook.append(b"x", tags=["t"])
    assert [record.seqnum for record in (await reading).records] == [seqnum]
    await logs.logbook.append(b"y", tags=["t"])
    assert [record.data for record in (await logs.logbook.read("t", wait_s=20)).records] == [b"x", b"y"]


async def a_page_tells_what_was_trimmed(logs: Logs) -> None:
    """`first_seqnum` is above where a reader stood if it has missed records."""
    seqnums = await logs.logbook.append_many([(data, ["t"]) for data in (b"a", b"b", b"c")])
    assert (await logs.logbook.read("t")).first_seqnum <= seqnums[0]
    await logs.logbook.trim(seqnums[2], tag="t")
    page = await logs.logbook.read("t", start=seqnums[1])
    assert page.first_seqnum == seqnums[2]
    assert [record.data for record in page.records] == [b"c"]


async def walking_meets_every_record_of_a_tag(logs: Logs) -> None:
    """Forward by `next_seqnum`, backward by `seqnum - 1`: each record once, other tags and books passed over."""
    for i in range(30):
        await logs.logbook.append(b"%d" % i, tags=[f"mod{i % 3}"])
        await other(logs).append(b"%d" % i, tags=["mod0"])
    expected = [b"%d" % i for i in range(1, 30, 3)]
    forward, record = [], await logs.logbook.read_next("mod1")
    while record:
        forward.append(record.data)
        record = await logs.logbook.read_next("mod1", min_seqnum=record.next_seqnum)
    backward, record = [], await logs.logbook.check_tail("mod1")
    while record:
        backward.append(record.data)
        record = await logs.logbook.read_prev("mod1", max_seqnum=record.seqnum - 1)
    assert forward == backward[::-1] == expected


async def the_tail_is_the_last_record(logs: Logs) -> None:
    """Of the book, of a tag, fresh or not."""
    await logs.logbook.append(b"1", tags=["a"])
    await logs.logbook.append(b"2", tags=["b"])
    for fresh in (False, True):
        for tag, data in ((None, b"2"), ("a", b"1"), ("b", b"2")):
            record = await logs.logbook.check_tail(tag, fresh=fresh)
            assert record is not None
            assert record.data == data
        assert await logs.logbook.check_tail("c", fresh=fresh) is None


async def pages_hold_a_range(logs: Logs) -> None:
    """`start` belongs to it and `stop` does not, also where no record stands."""
    seqnums = [await logs.logbook.append(b"x", tags=["even"] if i % 2 == 0 else ()) for i in range(10)]
    page = await logs.logbook.read(start=seqnums[2], stop=seqnums[5])
    assert [record.seqnum for record in page.records] == seqnums[2:5]
    assert seqnums[4] < page.next_start <= seqnums[5]
    page = await logs.logbook.read("even", start=seqnums[1], stop=seqnums[8])
    assert [record.seqnum for record in page.records] == [seqnums[2], seqnums[4], seqnums[6]]
    for start, stop in ((seqnums[3], seqnums[3]), (seqnums[5], seqnums[3]), (seqnums[-1] + 1, None), (0, seqnums[0])):
        assert (await logs.logbook.read(start=start, stop=stop)).records == []


async def a_page_that_ends_says_how_far_it_has_looked(logs: Logs) -> None:
    """To the end of the log, also behind records of other tags: nothing that is there now comes later. A range that is
    bounded, or a page that is full, ends where it was told to.
    """
    seqnums = [await logs.logbook.append(b"x", tags=[tag]) for tag in ("a", "b", "a", "b")]
    page = await logs.logbook.read("a")
    assert [record.seqnum for record in page.records] == seqnums[::2]
    assert page.is_end
    assert page.next_start > seqnums[3]
    later = await logs.logbook.append(b"x", tags=["a"])
    assert [record.seqnum for record in (await logs.logbook.read("a", start=page.next_start)).records] == [later]
    full = await logs.logbook.read("a", limit=2)
    assert (full.is_end, full.next_start) == (False, seqnums[2] + 1)
    bounded = await logs.logbook.read("a", stop=seqnums[3])
    assert (bounded.is_end, bounded.next_start) == (True, seqnums[3])


async def pages_begin_at_a_time(logs: Logs) -> None:
    """At the first record that the log ordered then or later."""
    for number in range(3):
        await logs.logbook.append(b"%d" % number)
    records = (await logs.logbook.read()).records
    for record in records:
        page = await logs.logbook.read(start_time_s=record.time / 1e6)
        assert page.records == [each for each in records if each.time >= record.time]
    assert (await logs.logbook.read(start_time_s=records[-1].time / 1e6 + 3600)).records == []
    assert type(await error_of(logs.logbook.read(start_time_s=-1))) is InvalidArgument


async def pages_chain(logs: Logs) -> None:
    """Pages of any size, one after the other, are the whole book; from the last one, later records are found."""
    seqnums = await logs.logbook.append_many([(b"%d" % i, [f"mod{i % 2}"]) for i in range(23)])
    for limit in (1, 2, 7, 23, 24, 10_000):
        assert [record.seqnum for record in await read_all(logs.logbook, limit=limit)] == seqnums
        assert [record.seqnum for record in await read_all(logs.logbook, "mod1", limit=limit)] == seqnums[1::2]
    page = await logs.logbook.read()
    end = await logs.logbook.read(start=page.next_start)
    assert end.records == []
    later = await logs.logbook.append(b"later")
    for start in (page.next_start, end.next_start):
        assert [record.seqnum for record in (await logs.logbook.read(start=start)).records] == [later]


async def pages_run_across_many_appends(logs: Logs) -> None:
    """2,500 records of many appends and several books come back as they were, in order."""
    given = []
    for n in range(25):
        records = [(f"{n}.{i}".encode(), [f"n{n % 5}", "all"]) for i in range(100)]
        await asyncio.gather(logs.logbook.append_many(records), other(logs).append(b"elsewhere", tags=["all"]))
        given += records
    assert await data_of(logs.logbook) == [data for data, _ in given]
    assert await data_of(logs.logbook, "all") == [data for data, _ in given]
    assert await data_of(logs.logbook, "n3") == [data for data, tags in given if "n3" in tags]


async def a_page_of_large_records_is_shorter(logs: Logs) -> None:
    """A page ends with the record that crosses its limit in bytes, and the next one continues."""
    given = [bytes([n]) * MIB for n in range(6)]
    for data in given:
        await logs.logbook.append(data)
    page = await logs.logbook.read()
    assert 1 <= len(page.records) < 6
    assert await data_of(logs.logbook) == given


async def get_wants_exactly_that_record(logs: Logs) -> None:
    """A seqnum of another book, or one that was not given out, is not found."""
    mine = await logs.logbook.append(b"mine")
    theirs = await other(logs).append(b"theirs")
    assert (await logs.logbook.get(mine)).data == b"mine"
    for seqnum in (theirs, mine + 1_000_000, MAX_SEQNUM):
        error = await error_of(logs.logbook.get(seqnum))
        assert isinstance(error, NotFound)
        assert not isinstance(error, Trimmed)
        assert error.outcome == "not_applied"


async def what_is_not_json_says_so(logs: Logs) -> None:
    """`record.json()` of other data is an error that names the record."""
    seqnum = await logs.logbook.append(b"{not json")
    record = await logs.logbook.get(seqnum)
    try:
        record.json()
    except InvalidArgument as error:
        assert str(seqnum) in error.message
    else:
        raise AssertionError("no error")


async def a_wait_ends_when_the_record_comes(logs: Logs) -> None:
    """A long poll is answered by the append that it waits for, whichever comes first."""
    for i in range(10):
        tail = await logs.logbook.check_tail("t")
        start = tail.next_seqnum if tail else 0
        record, seqnum = await asyncio.gather(
            logs.logbook.read_next("t", min_seqnum=start, wait_s=30), logs.logbook.append(b"%d" % i, tags=["t"])
        )
        assert record is not None
        assert record.seqnum == seqnum


async def a_wait_is_for_its_own_tag(logs: Logs) -> None:
    """Records of other tags, other books, and below the start do not end it."""

    async def disturb() -> int:
        for _ in range(5):
            await logs.logbook.append(b"no", tags=["other"])
            await other(logs).append(b"no", tags=["t"])
        return await logs.logbook.append(b"yes", tags=["t"])

    early = await logs.logbook.append(b"no", tags=["t"])
    record, seqnum = await asyncio.gather(logs.logbook.read_next("t", min_seqnum=early + 1, wait_s=30), disturb())
    assert record is not None
    assert (record.seqnum, record.data) == (seqnum, b"yes")


async def a_wait_runs_out(logs: Logs) -> None:
    """Nothing came: None, and no error."""
    assert await logs.logbook.read_next("t", wait_s=0.05) is None
    await logs.logbook.append(b"x", tags=["other"])
    assert await logs.logbook.read_next("t", wait_s=0.05) is None


async def a_wait_does_not_wait_for_what_is_there(logs: Logs) -> None:
    """A record that exists is returned at once."""
    seqnum = await logs.logbook.append(b"x", tags=["t"])
    record = await logs.logbook.read_next("t", wait_s=3600)
    assert record is not None
    assert record.seqnum == seqnum


async def everybody_who_waits_is_answered(logs: Logs) -> None:
    """One append ends all waits for it."""
    waits = (logs.logbook.read_next(tag, wait_s=30) for tag in (None, "a", "b") for _ in range(5))
    *records, seqnum = await asyncio.gather(*waits, logs.logbook.append(b"x", tags=["a", "b"]))
    assert {record.seqnum for record in records if record} == {seqnum}  # type: ignore[union-attr]
    assert None not in records


async def auxdata_is_a_cache_beside_the_record(logs: Logs) -> None:
    """A later read may carry what was set last, or nothing; never something else, and never another record's."""
    a, b = [await logs.logbook.append(data, tags=["t"]) for data in (b"a", b"b")]
    await logs.logbook.set_auxdata(a, b"first")
    assert (await logs.logbook.get(a)).auxdata in (None, b"first")
    await logs.logbook.set_auxdata(a, b"\x00second")
    for record in [await logs.logbook.get(a), await logs.logbook.read_next("t"), (await read_all(logs.logbook))[0]]:
        assert record is not None
        assert (record.seqnum, record.data) == (a, b"a")
        assert record.auxdata in (None, b"\x00second")
    assert (await logs.logbook.get(b)).auxdata is None
    await logs.logbook.set_auxdata(b, b"x" * 65_536)
    assert (await logs.logbook.get(b)).data == b"b"


async def a_comparison_tells_of_news(logs: Logs) -> None:
    """Of each tag whether it ends with the record that the caller knows, as far as the answer says: appends, trims and
    the deletion of the book are news, records of other tags and books are none.
    """
    book = logs.logbook
    a, b = [await book.append(data, tags=[tag]) for data, tag in ((b"1", "a"), (b"2", "b"))]
    known = [("a", a), ("b", b), ("!none", 0)]
    same = await book.session.compare(book.name, known)
    assert same is not None
    assert (same.changed, same.next_start > b) == ((), True)
    assert not (await book.read("a", start=a + 1, stop=same.next_start)).records
    last = await book.append(b"3", tags=["b", "c"])
    later = await book.session.compare(book.name, known)
    assert later is not None
    assert (later.changed, later.next_start > last) == ((1,), True)
    await book.trim(a + 1, tag="a")
    trimmed = await book.session.compare(book.name, [("a", a), ("b", last)])
    assert trimmed is not None
    assert trimmed.changed == (0,)
    await book.delete()
    deleted = await book.session.compare(book.name, [("!none", 0), ("b", last)])
    assert deleted is not None
    assert deleted.changed == (1,)


async def sync_catches_up(logs: Logs) -> None:
    """It returns, on any book, and reads continue from there."""
    await logs.logbook.sync()
    seqnum = await logs.logbook.append(b"x")
    await logs.logbook.sync()
    await other(logs, "never-written").sync()
    tail = await logs.logbook.check_tail()
    assert tail is not None
    assert tail.seqnum == seqnum
