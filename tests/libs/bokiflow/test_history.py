"""Which records of a journal count, where executions of one run overlap."""

from __future__ import annotations

from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.records import Entry, Fired, encode_entry

OLD, NEW = 7, 8


def folded(*entries: Entry) -> list[int]:
    """The numbers of the timers that count."""
    history = History()
    for seqnum, entry in enumerate(entries, 1):
        history.fold(encode_entry(entry), seqnum)
    assert history.place == len(entries)
    return [entry.fact.n for entry in history.entries if isinstance(entry.fact, Fired)]


def entry(writer: int, base: int, n: int) -> Entry:
    """A record of that writer, which began at the place `base`."""
    return Entry(writer, base, 0, 0, Fired(n), began_us=0 if n else 1)


def test_what_an_execution_had_in_flight_when_it_was_overtaken_does_not_count() -> None:
    """It lost place 1 to another execution; its record for place 2 found two records in front of it all the same."""
    assert folded(entry(OLD, 0, 0), entry(NEW, 1, 1), entry(OLD, 0, 2)) == [0, 1]


def test_an_execution_goes_on_behind_a_record_that_does_not_count() -> None:
    """The newer one has read what was in its way, and begins behind it."""
    found = folded(entry(OLD, 0, 0), entry(NEW, 1, 1), entry(OLD, 0, 2), entry(NEW, 3, 3), entry(NEW, 3, 4))
    assert found == [0, 1, 3, 4]


def test_what_follows_a_record_that_was_refused_does_not_count() -> None:
    """An execution had several in flight, and one that was overtaken took the places of the first of them: those that
    found their places free would be a history with a gap (seed 100992).
    """
    late = entry(OLD, 0, 3), entry(OLD, 0, 4)
    assert folded(entry(OLD, 0, 0), entry(NEW, 1, 1), *late, entry(NEW, 1, 4)) == [0, 1]
    assert folded(entry(OLD, 0, 0), entry(NEW, 1, 1), *late, entry(NEW, 1, 4), entry(9, 5, 5)) == [0, 1, 5]


def test_records_of_one_execution_count_in_a_row() -> None:
    """They were in flight together, each for its own place."""
    assert folded(entry(OLD, 0, 0), entry(OLD, 0, 1), entry(OLD, 0, 2)) == [0, 1, 2]
