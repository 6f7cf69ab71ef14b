"""The fold of a row, and what a process keeps of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki import NewRecord, Page, Record, VersionTooNew
from boki.libs.bokistore.json_values import MISSING, encode
from boki.libs.bokistore.machines import MACHINES_KEPT, Machines, ReplicatedObject
from boki.libs.bokistore.memory import READERS_BYTES, READERS_KEPT, Memory
from boki.libs.bokistore.records import UNKNOWN_AUTHOR, Checkpoint, Write, codec, row_tag, write_records
from boki.libs.bokistore.refusals import WrongShape
from boki.libs.bokistore.updates import Append, Increment, Set, Update
from boki.libs.bokistore.views import ROWS_BYTES, VIEWS_KEPT, Row, Rows, View, checkpoint_of, step, view_in, view_of
from tests.libs.bokistore.test_updates import updates


def record(seqnum: int, data: bytes) -> Record:
    return Record(seqnum, (row_tag("x"),), data, None, 0)


def write(seqnum: int, *some: Update, name: str = "x", more: int = 0, nonce: bytes = b"") -> Record:
    return record(seqnum, codec.encode(Write([(name, list(some))], nonce, more)))


def folded(view: View, records: list[Record]) -> View:
    for each in records:
        view, _, _ = step(view, "x", each)
    return view


@given(st.lists(st.lists(updates, max_size=3), max_size=8), st.data())
def test_a_fold_goes_on_from_any_checkpoint(history: list[list[Update]], data: st.DataObject) -> None:
    """What is saved and read back, and what comes after, is what the whole row comes to."""
    records = [write(10 + number, *some) for number, some in enumerate(history)]
    cut = data.draw(st.integers(0, len(records)))
    saved = checkpoint_of("x", folded(View(), records[:cut]))
    read_back = view_of(msgspec.msgpack.decode(msgspec.msgpack.encode(saved), type=Checkpoint))
    assert read_back is not None
    assert folded(read_back, records[cut:]) == folded(View(), records)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        b"\x01\x90",
        codec.encode(Checkpoint("x", 1, 1, 1, b"5")),
        codec.encode(Write([("x", [Set((), b"not json")])])),
        codec.encode(Write([("x", [Set((), b"1e999")])])),
        codec.encode(Write([("x", [Set((), b"12345678901234567890")])])),
        codec.encode(Write([("x", [Set((), b"[" * 33 + b"]" * 33)])])),
        codec.encode(Write([("x", [Set((), b"[" * 900 + b"]" * 900)])])),
        codec.encode(Write([("x", [Set(("a",) * 33, b"1")])])),
        codec.encode(Write([("x", [Append((), b"5")])])),
        codec.encode(Write([("x", [Increment((), float("nan"))])])),
        codec.encode(Write([("x", [Set((), b"1")])], more=-1)),
        codec.encode(Write([("x", [Set((), b"1")])], more=1 << 40)),
    ],
)
def test_records_of_strangers_change_nothing(data: bytes) -> None:
    """Whatever stands under the tag of an object: the fold continues behind it."""
    before = folded(View(), [write(5, Set((), b"1"))])
    after = folded(before, [record(7, data)])
    assert (after.value, after.version, after.last) == (1, 5, 7)


def test_a_write_of_another_object_changes_nothing() -> None:
    """It may stand under this tag because a transaction wrote both."""
    view = folded(View(), [write(5, Set((), b"1"), name="y")])
    assert view.value is MISSING


def test_records_of_a_newer_version_are_refused_by_name() -> None:
    """To pass them by would mean to disagree with those who know them."""
    with pytest.raises(VersionTooNew, match="a store"):
        step(View(), "x", record(5, bytes((2,)) + codec.encode(Write([]))[1:]))


def test_a_write_that_does_not_fit_is_told_and_changes_nothing() -> None:
    """None of its updates, also those before the one that does not fit."""
    view, _, outcome = step(View(), "x", write(5, Set(("a",), b"1"), Set(("a", "b"), b"1")))
    assert view.value is MISSING
    assert isinstance(outcome.error, WrongShape)


def test_writes_of_a_transaction_hold_from_its_last_record_on() -> None:
    """So that no seqnum lies between two of its records."""
    row = Row("x", View(), 0)
    row.take(Page([write(10, Set((), b"1")), write(20, Set((), b"2"), more=3)], 30, is_end=True))
    assert [row.at(seqnum).value for seqnum in (9, 10, 22, 23, 29)] == [MISSING, 1, 1, 2, 2]  # type: ignore[union-attr]
    assert row.at(30) is None


def test_a_row_keeps_a_few_views() -> None:
    """What is older must be read again."""
    row = Row("x", View(), 0)
    row.take(Page([write(seqnum, Increment((), 1)) for seqnum in range(1, 30)], 30, is_end=True))
    assert row.newest.value == 29
    assert row.at(29 - VIEWS_KEPT + 1) is not None
    assert row.at(29 - VIEWS_KEPT) is None


def test_pages_that_overlap_are_counted_once() -> None:
    """Two readers of one row may read the same records at the same time."""
    records = [write(seqnum, Increment((), 1)) for seqnum in (3, 5, 8)]
    row = Row("x", View(), 0)
    row.take(Page(records[:2], 6))
    row.take(Page(records, 9, is_end=True))
    row.take(Page(records[:1], 4))
    assert (row.newest.value, row.known_to) == (3, 9)


def test_what_a_process_has_written_itself_is_learned_once() -> None:
    """If nothing else came in between; the reading comes to the same."""
    row = Row("x", View(), 0)
    row.take(Page([write(3, Set((), b"1"))], 4, is_end=True))
    row.learn(3, View(2, 1, 9, 9, 9), 1)
    row.take(Page([write(9, Increment((), 1))], 12, is_end=True))
    assert (row.newest.value, row.newest.last, row.known_to) == (2, 9, 12)
    row.learn(3, View(7, 1, 15, 15, 15), 1)
    assert row.newest.value == 2


def test_all_views_of_a_row_are_counted() -> None:
    """They share nothing where each has another value."""
    row, data = Row("x", View(), 0), b'"' + b"x" * 900_000 + b'"'
    row.take(Page([write(seqnum, Set((), data)) for seqnum in range(1, 9)], 9, is_end=True))
    assert row.size_bytes >= 8 * 900_000


def test_what_views_share_is_not_counted_again() -> None:
    """Eight small changes of a large object count less than two of it, whoever has made them."""
    data = b'{"text": "' + b"x" * 900_000 + b'", "n": 0}'
    for is_learned in (False, True):
        row = Row("x", View(), 0)
        row.take(Page([write(1, Set((), data))], 2, is_end=True))
        for seqnum in range(2, 20):
            news = write(seqnum, Increment(("n",), 1))
            if is_learned:
                after, _, _ = step(row.newest, "x", news)
                row.learn(seqnum - 1, after, len(news.data))
            else:
                row.take(Page([news], seqnum + 1, is_end=True))
        assert len(row.views) == VIEWS_KEPT
        assert 900_000 < row.size_bytes < 2 * 900_000


def test_a_process_remembers_large_objects_of_several_books() -> None:
    """One book that has all that is kept of one does not have the others forgotten."""
    memory = Memory()
    for number in range(8):
        memory.reader(f"book-{number}").rows.put(Row("x", View("", ROWS_BYTES - 1_000, 1, 1, 1), 2))
    memory.reader("book-7")
    assert len(memory.readers) == READERS_BYTES // ROWS_BYTES


def test_a_process_remembers_a_bounded_number_of_books() -> None:
    """Whoever names them; also of replicated objects. What a caller still uses stays the same."""
    memory, machines = Memory(), Machines()
    used = memory.reader("used")
    for number in range(10_000):
        memory.reader(f"book-{number}").rows.put(Row("x", View(), 0))
        machines.find(f"book-{number}", "x", ReplicatedObject)
    assert memory.reader("used") is used
    assert len(memory.readers) == len(list(memory.readers)) == READERS_KEPT
    assert len(machines) == MACHINES_KEPT


def test_rows_are_forgotten_when_there_are_too_many_bytes() -> None:
    """Those first that were used longest ago."""
    rows = Rows(most_bytes=5_000)
    for name in "abcdef":
        rows.put(Row(name, View("x" * 400, 402, 1, 1, 1), 2))
        rows.find("a")
    assert rows.find("a") is not None
    assert rows.find("b") is None
    assert len(rows) == 4


def test_auxiliary_data_counts_only_for_its_own_record() -> None:
    """It is a cache that anybody may set: what is not a view of this object as of this record is not used."""
    view = View({"a": 1}, 7, 5, 5, 5)
    data = codec.encode(checkpoint_of("x", view))
    assert view_in(data, "x", 5) == view
    assert view_in(data, "y", 5) is None
    assert view_in(data, "x", 6) is None
    for broken in (b"", b"x", data[:-1], bytes((9,)) + data[1:]):
        assert view_in(broken, "x", 5) is None


def test_a_transaction_is_one_record_until_it_has_too_many_tags_or_bytes() -> None:
    """Each record stands under the tags of all objects that it changes, and says how many follow."""

    def made(updates_of: list[tuple[str, list[Update]]]) -> list[NewRecord]:
        return write_records(updates_of, b"n", UNKNOWN_AUTHOR, is_transaction=True)

    assert made([]) == []
    [one] = made([("a", [Set((), b"1")]), ("b", [Set((), b"2")])])
    assert one.tags == (row_tag("a"), row_tag("b"))
    many = made([(f"o{number}", [Set((), b"1")]) for number in range(40)])
    assert [len(each.tags) for each in many] == [16, 16, 8]
    assert [codec.decode(each.data).more for each in many] == [2, 1, 0]  # type: ignore[union-attr]
    large = made([("a", [Set(("x",), encode("x" * 600_000)), Set(("x",), encode("y" * 600_000))])])
    assert [each.tags for each in large] == [(row_tag("a"),)] * 2
