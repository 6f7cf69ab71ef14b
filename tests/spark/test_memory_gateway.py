"""The gateway in memory answers as a real one does: what the unit tests of planners and lanes stand on."""

from __future__ import annotations

import pytest

from boki.api.log_calls import records_of
from boki.errors import ConnectionLost, InvalidArgument
from boki.log.ids import make_seqnum, split_seqnum
from boki.log.metalog import split_position
from boki.log.operations import Append, Read
from boki.log.view import place_book
from tests.spark.memory_gateway import MemorySystem, once, raising


def test_books_live_in_the_logs_of_each_term() -> None:
    """Seqnums name the term and the book's log, and a read goes through all terms in order."""
    system = MemorySystem(logs=3)
    gateway = system.gateway()
    seqnums = system.append("a", b"1", b"2") + system.append("b", b"3")
    system.new_term(2)
    seqnums += system.append("a", b"4")
    assert [split_seqnum(seqnum)[0] for seqnum in seqnums] == [1, 1, 1, 2]
    assert split_seqnum(seqnums[0])[1] == place_book("a", 3)
    assert [record.data for record in records_of(gateway.find(Read("a", limit=10)))] == [b"1", b"2", b"4"]
    assert gateway.tail("a") == seqnums[-1] + 1
    assert gateway.tail("b") == make_seqnum(2, place_book("b", 2), place_book("a", 2) == place_book("b", 2))


def test_positions_are_those_of_the_book_or_of_all_logs() -> None:
    """A list of books describes all logs of the term, anything else of one."""
    system = MemorySystem(logs=3)
    gateway = system.gateway()
    gateway.tail("a")
    assert set(gateway.positions) == {place_book("a", 3)}
    gateway.some_books("", 1)
    assert set(gateway.positions) == {0, 1, 2}
    assert {split_position(position)[0] for position in gateway.positions.values()} == {1}


def test_trims_and_deletions_raise_the_floor_and_the_list_forgets_books_without_records() -> None:
    """As the index has it: a book that is trimmed to its end is not listed, and its floor stays."""
    system = MemorySystem()
    gateway = system.gateway()
    _, second, third = system.append("a", b"1", b"2", b"3")
    system.append("b", b"4")
    system.append("boki:calls", b"runtime", is_runtime=True)
    system.trim("a", second)
    assert gateway.first("a", None, 0).first_seqnum == second
    assert [info.name for info in gateway.books("")] == ["a", "b"]
    assert [info.name for info in gateway.books("boki:")] == ["boki:calls"]
    system.trim("a")
    assert [info.name for info in gateway.books("")] == ["b"]
    assert gateway.first("a", None, 0).first_seqnum > third
    system.delete("b")
    assert gateway.books("") == []


def test_requests_are_held_to_the_rules_and_hooks_may_end_them() -> None:
    """Bad requests are refused as at the edge; an answer that is lost was carried out all the same."""
    system = MemorySystem()
    gateway = system.gateway()
    with pytest.raises(InvalidArgument):
        gateway.first("a/b", None, 0)
    lost = ConnectionLost("lost", outcome="unknown")
    gateway.after.append(raising([lost], lambda operation: isinstance(operation, Append)))
    gateway.before.append(once(lambda: system.append("b", b"x"), lambda operation: True))
    chunk = MemorySystem()
    chunk.append("a", b"1")
    slab = chunk.gateway().first("a", None, 0).slabs[0]
    with pytest.raises(ConnectionLost):
        gateway.append(Append("a", slab.chunk))
    assert [record.data for record in system.records("a")] == [b"1"]
    assert [record.data for record in system.records("b")] == [b"x"]
    assert gateway.append(Append("a", slab.chunk)).rejected == ()
