"""Trims: by tag, of the whole book, and its deletion."""

from __future__ import annotations

import asyncio

from boki import MAX_SEQNUM, Trimmed
from tests.contract.scenarios.logs import Logs, data_of, error_of, other, read_all


async def what_is_below_is_gone(logs: Logs) -> None:
    """A trim of the book takes all records below, for every read; those at and above stay."""
    seqnums = [await logs.logbook.append(b"%d" % i, tags=["t"]) for i in range(10)]
    await logs.logbook.trim(seqnums[4])
    for tag in (None, "t"):
        assert await data_of(logs.logbook, tag) == [b"%d" % i for i in range(4, 10)]
        record = await logs.logbook.read_next(tag)
        assert record is not None
        assert record.seqnum == seqnums[4]
        assert await logs.logbook.read_prev(tag, max_seqnum=seqnums[3]) is None
    assert (await logs.logbook.get(seqnums[4])).data == b"4"


async def a_trimmed_record_is_told_from_one_that_never_was(logs: Logs) -> None:
    """`get` says `Trimmed`, and where reading may continue."""
    seqnums = [await logs.logbook.append(b"%d" % i) for i in range(10)]
    await logs.logbook.trim(seqnums[4])
    for seqnum in seqnums[:4]:
        error = await error_of(logs.logbook.get(seqnum))
        assert isinstance(error, Trimmed)
        assert seqnum < error.next_seqnum <= seqnums[4]
        record = await logs.logbook.read_next(min_seqnum=error.next_seqnum)
        assert record is not None
        assert record.seqnum == seqnums[4]


async def a_trim_of_a_tag_takes_the_tag(logs: Logs) -> None:
    """By the trimmed tag the records are gone; those that have another tag are found by it, and in the book."""
    only = await logs.logbook.append(b"only a", tags=["a"])
    both = await logs.logbook.append(b"a and b", tags=["a", "b"])
    await logs.logbook.append(b"only b", tags=["b"])
    await logs.logbook.append(b"none")
    last = await logs.logbook.append(b"last a", tags=["a"])
    await logs.logbook.trim(last, tag="a")
    assert await data_of(logs.logbook, "a") == [b"last a"]
    assert await data_of(logs.logbook, "b") == [b"a and b", b"only b"]
    assert await data_of(logs.logbook) == [b"a and b", b"only b", b"none", b"last a"]
    assert (await logs.logbook.get(both)).data == b"a and b"
    assert isinstance(await error_of(logs.logbook.get(only)), Trimmed)


async def a_record_goes_with_its_last_tag(logs: Logs) -> None:
    """Trimmed by one tag after the other, it is gone when no tag is left."""
    seqnum = await logs.logbook.append(b"x", tags=["a", "b"])
    await logs.logbook.trim(seqnum + 1, tag="a")
    assert (await logs.logbook.get(seqnum)).data == b"x"
    await logs.logbook.trim(seqnum + 1, tag="b")
    assert isinstance(await error_of(logs.logbook.get(seqnum)), Trimmed)
    assert await data_of(logs.logbook) == []


async def a_trim_never_takes_what_comes_later(logs: Logs) -> None:
    """Clamped to the tail at its own place in the order: trimming at MAX is not forever."""
    for tag in (None, "t"):
        await logs.logbook.append(b"before", tags=["t"])
        await logs.logbook.trim(MAX_SEQNUM, tag=tag)
        assert await data_of(logs.logbook, "t") == []
        seqnum = await logs.logbook.append(b"after", tags=["t"])
        assert (await logs.logbook.get(seqnum)).data == b"after"
        assert await data_of(logs.logbook, "t") == [b"after"]
        assert await data_of(logs.logbook) == [b"after"]


async def a_trim_never_goes_back(logs: Logs) -> None:
    """A lower trim after a higher one changes nothing, nor does the same one again."""
    seqnums = [await logs.logbook.append(b"%d" % i) for i in range(6)]
    for before in (seqnums[3], seqnums[1], seqnums[3], 0):
        await logs.logbook.trim(before)
        assert await data_of(logs.logbook) == [b"3", b"4", b"5"]


async def trims_keep_to_their_book(logs: Logs) -> None:
    """Another book is not touched; a book and a tag that do not exist may be trimmed."""
    await logs.logbook.append(b"mine", tags=["t"])
    await other(logs).append(b"theirs", tags=["t"])
    await logs.logbook.trim(MAX_SEQNUM)
    await logs.logbook.trim(MAX_SEQNUM, tag="no such tag")
    await other(logs, "never-written").trim(MAX_SEQNUM)
    assert await data_of(other(logs), "t") == [b"theirs"]
    assert await data_of(logs.logbook) == []


async def system_tags_are_spared(logs: Logs) -> None:
    """A trim of the whole book leaves records to be found by their tags that start with "!", and by these alone."""
    seqnum = await logs.logbook.append(b"x", tags=["t", "!s"])
    await logs.logbook.append(b"y", tags=["t"])
    await logs.logbook.trim(MAX_SEQNUM)
    assert await data_of(logs.logbook) == []
    assert await data_of(logs.logbook, "t") == []
    assert await data_of(logs.logbook, "!s") == [b"x"]
    assert isinstance(await error_of(logs.logbook.get(seqnum)), Trimmed)
    record = await logs.logbook.check_tail("!s")
    assert record is not None
    assert (record.seqnum, record.data, record.tags) == (seqnum, b"x", ("t", "!s"))
    await logs.logbook.trim(MAX_SEQNUM, tag="!s")
    assert await data_of(logs.logbook, "!s") == []
    assert isinstance(await error_of(logs.logbook.get(seqnum)), Trimmed)


async def a_deletion_spares_nothing(logs: Logs) -> None:
    """The book is gone with its system tags and from the list; appends begin it again, with larger seqnums."""
    old = await logs.logbook.append(b"old", tags=["t", "!s"])
    await logs.logbook.delete()
    for tag in (None, "t", "!s"):
        assert await data_of(logs.logbook, tag) == []
    assert logs.logbook.name not in [book.name for book in await logs.books(logs.logbook.name)]
    new = await logs.logbook.append(b"new", tags=["!s"])
    assert new > old
    assert await data_of(logs.logbook, "!s") == [b"new"]
    assert await data_of(logs.logbook) == [b"new"]


async def appends_beside_trims_are_whole(logs: Logs) -> None:
    """Trims at MAX and appends at once: what is acknowledged after the last trim has returned is there."""

    async def trim() -> None:
        for _ in range(10):
            await logs.logbook.trim(MAX_SEQNUM)

    async def append(name: int) -> None:
        for i in range(10):
            await logs.logbook.append(b"%d.%d" % (name, i), tags=["t"])

    await asyncio.gather(trim(), trim(), append(0), append(1))
    await logs.logbook.trim(MAX_SEQNUM)
    given = [await logs.logbook.append(b"%d" % i, tags=["t"]) for i in range(10)]
    assert [record.seqnum for record in await read_all(logs.logbook, "t")] == given
