"""MemoryLog is the oracle: what is said of it here is said of every log. (The API's rules are in `tests/contract`.)"""

from __future__ import annotations

from struct import unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.errors import NotFound, Trimmed
from boki.log.chunk import Chunk, Group, encode_chunk
from boki.log.ids import MAX_SEQNUM, is_system_tag
from boki.log.memory import MemoryLog
from boki.log.operations import (
    Append,
    Appended,
    Found,
    Get,
    Operation,
    Read,
    Rejected,
    SetAuxdata,
    TrimBook,
)
from boki.log.record import Expect, Record

FIRST = 1 << 43
BOOKS = ("x", "y")
TAGS = ("a", "b", "!s")

some_tags = st.lists(st.sampled_from(TAGS), max_size=2, unique=True)
some_group = st.builds(
    Group,
    st.lists(st.tuples(st.binary(max_size=3), some_tags), min_size=1, max_size=3),
    st.lists(st.builds(Expect, st.sampled_from(TAGS), st.integers(FIRST - 1, FIRST + 30) | st.just(0)), max_size=1),
    st.none() | st.sampled_from(["k", "l"]),
)
some_append = st.builds(
    lambda book, groups: Append(book, encode_chunk(book, groups)),
    st.sampled_from(BOOKS),
    st.lists(some_group, min_size=1, max_size=3),
)
some_trim = st.builds(
    TrimBook,
    st.sampled_from(BOOKS),
    st.integers(FIRST, FIRST + 40) | st.just(MAX_SEQNUM),
    st.none() | st.sampled_from(TAGS),
)
histories = st.lists(some_append | some_append | some_trim, max_size=15)


def append(book: str, *groups: Group) -> Append:
    return Append(book, encode_chunk(book, groups))


def one(data: bytes, *tags: str) -> Group:
    return Group([(data, tags)])


def records(log: MemoryLog, operation: Operation) -> list[Record]:
    found = log.answer(operation, 0)
    assert isinstance(found, Found)
    taken: list[Record] = []
    for slab in found.slabs:
        chunk = Chunk(slab.chunk)
        taken += chunk.records(unpack(f"<{chunk.count}q", slab.seqnums), slab.time_us, slab.aux)
    return taken


def row(log: MemoryLog, book: str, tag: str | None) -> list[Record]:
    return records(log, Read(book, tag, limit=10_000))


@given(histories)
def test_all_ways_of_reading_agree(history: list[Operation]) -> None:
    """A row read at once, page by page, record by record in both directions and one by one is the same row."""
    log = MemoryLog()
    for operation in history:
        log.answer(operation, 0)
    for book in BOOKS:
        for tag in (None, *TAGS):
            whole = row(log, book, tag)
            assert whole == sorted(whole, key=lambda record: record.seqnum)
            for limit in (1, 2):
                paged: list[Record] = []
                start, is_end = 0, False
                while not is_end:
                    found = log.answer(Read(book, tag, start, limit=limit), 0)
                    assert isinstance(found, Found)
                    paged += records(log, Read(book, tag, start, limit=limit))
                    start, is_end = found.next_start, found.is_end
                assert paged == whole
            backward: list[Record] = []
            while last := records(
                log, Read(book, tag, stop=backward[-1].seqnum if backward else MAX_SEQNUM, backward=True)
            ):
                backward += last
            assert backward[::-1] == whole
            assert all(tag is None or tag in record.tags for record in whole)
        for record in row(log, book, None):
            assert records(log, Get(book, record.seqnum)) == [record]


@given(histories)
def test_what_was_read_stays_until_it_is_trimmed(history: list[Operation]) -> None:
    """Nothing changes and nothing comes back: after every operation a row is part of what it was, then new ones."""
    log = MemoryLog()
    before = {(book, tag): list[Record]() for book in BOOKS for tag in (None, *TAGS)}
    for operation in history:
        tail = log.next_seqnum
        log.answer(operation, 0)
        for (book, tag), old in before.items():
            now = row(log, book, tag)
            kept = [record for record in now if record.seqnum < tail]
            assert [record for record in old if record in kept] == kept
            if isinstance(operation, Append):
                assert kept == old
            elif isinstance(operation, TrimBook):
                lost = [record for record in old if record not in kept]
                assert operation.book == book or not lost
                assert all(record.seqnum < operation.before for record in lost)
            before[book, tag] = now


@given(histories)
def test_a_record_is_found_by_every_tag_that_was_not_trimmed(history: list[Operation]) -> None:
    """A whole-book trim hides a record from the book and from its own tags, and from no system tag."""
    log = MemoryLog()
    floors: dict[tuple[str, str | None], int] = {}
    everything: dict[int, tuple[str, Record]] = {}
    for operation in history:
        tail = log.next_seqnum
        log.answer(operation, 0)
        if isinstance(operation, TrimBook):
            place = (operation.book, operation.tag)
            floors[place] = max(floors.get(place, 0), min(operation.before, tail))
        for book in BOOKS:
            for tag in (None, *TAGS):
                everything |= {record.seqnum: (book, record) for record in row(log, book, tag)}
    for seqnum, (book, record) in everything.items():
        for tag in record.tags:
            floor = max(floors.get((book, tag), 0), 0 if is_system_tag(tag) else floors.get((book, None), 0))
            assert (record in row(log, book, tag)) == (seqnum >= floor)


@given(histories)
def test_get_tells_what_is_gone_from_what_never_was(history: list[Operation]) -> None:
    """Every seqnum of the log is one of: found, trimmed with a place to continue, not found."""
    log = MemoryLog()
    seen: dict[int, str] = {}
    for operation in history:
        log.answer(operation, 0)
        for book in BOOKS:
            seen |= {record.seqnum: book for record in row(log, book, None)}
    for seqnum in range(FIRST, log.next_seqnum + 2):
        for book in BOOKS:
            try:
                (record,) = records(log, Get(book, seqnum))
            except Trimmed as error:
                assert seqnum < error.next_seqnum <= log.next_seqnum
            except NotFound:
                assert seen.get(seqnum) != book
            else:
                assert record.seqnum == seqnum


def test_groups_of_one_chunk_stand_in_order() -> None:
    """A later group sees what an earlier one has done; one that is rejected leaves its place empty."""
    log = MemoryLog()
    answer = log.answer(
        append(
            "x",
            Group([(b"1", ["a"])], [Expect("a", 0)]),
            Group([(b"2", ["a"]), (b"3", ["a"])], [Expect("a", 0)]),
            Group([(b"4", ["a"])], [Expect("a", FIRST)]),
            Group([(b"5", [])], (), "k"),
            Group([(b"6", [])], (), "k"),
        ),
        7,
    )
    assert answer == Appended(FIRST, (Rejected(1, "a", 0, FIRST), Rejected(4, "", 0, 0, (FIRST + 4,))))
    assert [(record.seqnum, record.data) for record in row(log, "x", None)] == [
        (FIRST, b"1"),
        (FIRST + 3, b"4"),
        (FIRST + 4, b"5"),
    ]
    assert log.next_seqnum == FIRST + 6


def test_time_does_not_go_back() -> None:
    """A clock that does leaves the log's time where it is."""
    log = MemoryLog()
    for now_us in (5, 3, 9):
        log.answer(append("x", one(b"")), now_us)
    assert [record.time for record in row(log, "x", None)] == [5, 5, 9]


def test_a_read_can_start_at_a_time() -> None:
    """The first record at or after it."""
    log = MemoryLog()
    for now_us in (10, 20, 20, 30):
        log.answer(append("x", one(b"")), now_us)
    for time_us, count in ((0, 4), (10, 4), (11, 3), (20, 3), (21, 1), (31, 0)):
        assert len(records(log, Read("x", limit=10, start_time_us=time_us))) == count


def test_the_end_of_a_row_is_the_end_of_the_log() -> None:
    """A reader that has all continues behind everything, so that no trim of other rows can seem to overtake it."""
    log = MemoryLog()
    log.answer(append("x", one(b"", "a")), 0)
    log.answer(append("y", one(b"")), 0)
    found = log.answer(Read("x", "a", limit=5), 0)
    assert isinstance(found, Found)
    assert (found.next_start, found.is_end) == (FIRST + 2, True)
    found = log.answer(Read("x", "a", 0, FIRST + 1, limit=5), 0)
    assert isinstance(found, Found)
    assert found.next_start == FIRST + 1


def test_auxdata_is_of_one_record_of_one_book() -> None:
    """Set under another book's name, it does not appear."""
    log = MemoryLog()
    log.answer(append("x", one(b"")), 0)
    log.answer(SetAuxdata("y", FIRST, b"theirs"), 0)
    assert row(log, "x", None)[0].auxdata is None
    log.answer(SetAuxdata("x", FIRST, b"mine"), 0)
    assert row(log, "x", None)[0].auxdata == b"mine"


def test_a_missing_record_is_not_found() -> None:
    """In a book that has none."""
    with pytest.raises(NotFound):
        MemoryLog().answer(Get("x", FIRST), 0)
