"""The lag of a pipeline is what is missing in its Parquet, book by book."""

from __future__ import annotations

import pytest

from boki.errors import NotFound
from boki.log.operations import Read
from boki.spark import lag as lag_module
from boki.spark.claim import Claim, Run
from boki.spark.lag import Lag, lags_at
from boki.spark.offsets import Offset
from boki.spark.pipeline import Pipeline
from boki.spark.progress import Batch, BookProgress, Progress, note
from tests.spark.memory_gateway import MemorySystem


def pipeline(book: str = "b*", tag: str = "", start: str = "earliest") -> Pipeline:
    return Pipeline(name="p", book=book, schema="n int", output="lake", tag=tag, start=start)


def lags(system: MemorySystem, **values: str) -> dict[str, tuple[int, int, int, float]]:
    found = lags_at(pipeline(**values), system.gateway())
    return {lag.book: (lag.records, lag.dead, lag.behind, lag.behind_s) for lag in found}


def ingest(system: MemorySystem, end: Offset, **books: BookProgress) -> None:
    """Note that a batch which ends there is in the Parquet."""
    claim = Claim(system.gateway(), "ingest:p", "p", Run.new())
    claim.take()
    batch = Batch(query="q", number=0, end="", position=end.to_json())
    note(claim, Progress(), batch, books)
    claim.end(claim.gateway)


def tail(system: MemorySystem) -> Offset:
    return Offset(tuple(system.tails))


def test_of_a_known_backlog() -> None:
    """Before anything is read all of it is missing, for as long as it spans; then what came behind the last batch, of
    each book for itself; in the end nothing.
    """
    system = MemorySystem(logs=2)
    for turn in range(4):
        system.append("b1", b"{}", b"{}")  # a second passes with each append
        if turn < 3:
            system.append("b2", b"{}")
    system.append("other", b"{}")
    assert lags(system) == {"b1": (0, 0, 8, 6.0), "b2": (0, 0, 3, 4.0)}
    last_us = system.now_us - 1_000_000
    last = system.records("b1")[-1]
    assert last.time == last_us
    done = {
        "b1": BookProgress(records=8, dead=1, last_seqnum=last.seqnum, last_time_us=last_us),
        "b2": BookProgress(records=3, last_seqnum=system.records("b2")[-1].seqnum, last_time_us=last_us),
    }
    ingest(system, tail(system), **done)
    assert lags(system) == {"b1": (8, 1, 0, 0.0), "b2": (3, 0, 0, 0.0)}
    system.append("b3", b"{}")
    system.append("b1", b"{}", b"{}", b"{}")
    found = lags(system)
    assert {name: lag[:3] for name, lag in found.items()} == {"b1": (8, 1, 3), "b2": (3, 0, 0), "b3": (0, 0, 1)}
    assert found["b1"][3] == (system.now_us - last_us) / 1e6


def test_what_a_pipeline_does_not_read_is_not_missing() -> None:
    """Records before `start`, without its tag, or behind where its batches have gone on, are nobody's backlog."""
    system = MemorySystem()
    seqnums = system.append("b1", b"{}", b"{}", b"{}")
    system.append("b2", b"{}", tags=["t"])
    assert lags(system, start=str(seqnums[2])) == {"b1": (0, 0, 1, 0.0), "b2": (0, 0, 1, 0.0)}
    assert lags(system, tag="t") == {"b1": (0, 0, 0, 0.0), "b2": (0, 0, 1, 0.0)}
    assert lags(system, start="latest") == {"b1": (0, 0, 0, 0.0), "b2": (0, 0, 0, 0.0)}, "it would begin now"
    ingest(system, tail(system))  # it began here: what is below was never to be read
    system.append("b2", b"{}")
    assert lags(system, start="latest") == {"b1": (0, 0, 0, 0.0), "b2": (0, 0, 1, 0.0)}
    assert lags(system, start="2039-01-01") == {"b1": (0, 0, 0, 0.0), "b2": (0, 0, 0, 0.0)}


def test_across_terms_and_trims() -> None:
    """A backlog that spans several terms of the log is counted, and what was trimmed is not there to be missed."""
    system = MemorySystem(logs=1)
    system.append("b1", b"{}", b"{}")
    system.new_term(3)
    system.append("b1", b"{}")
    system.new_term(2)
    system.append("b1", b"{}")
    assert lags(system) == {"b1": (0, 0, 4, 2.0)}
    system.trim("b1", system.records("b1")[1].seqnum)
    assert lags(system) == {"b1": (0, 0, 3, 2.0)}


def test_of_a_backlog_that_is_too_long_to_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count ends, and the time is that of the last record all the same. All of a book, and less than the limit, are
    counted; the former costs no reading, be the book named or one of a prefix.
    """
    monkeypatch.setattr(lag_module, "MOST_COUNTED", 1500)
    system = MemorySystem()
    for _ in range(4):
        seqnums = system.append("b1", *[b"{}"] * 1000, tags=["t"])
    found = lags_at(pipeline(start=str(seqnums[0] - 2500)), system.gateway())
    assert found == [Lag(book="b1", records=0, dead=0, behind=2000, has_more=True, behind_s=3.0)]
    assert lags_at(pipeline(tag="t"), system.gateway()) == found
    assert lags_at(pipeline(start=str(seqnums[0] - 100)), system.gateway())[0].behind == 1100
    for book in ("b*", "b1"):
        gateway = system.gateway()
        (found_all,) = lags_at(pipeline(book), gateway)
        assert found_all == Lag(book="b1", records=0, dead=0, behind=4000, behind_s=3.0)
        assert all(read.limit == 1 for read in gateway.asked if isinstance(read, Read))


def test_of_a_book_that_is_not_there() -> None:
    """Named, it is told to be none, with those that are; a prefix waits for its books. One that has been read, and was
    deleted since, is not missing anything.
    """
    system = MemorySystem()
    system.append("flights", b"{}")
    with pytest.raises(NotFound, match="there is no book 'flight': there are flights"):
        lags(system, book="flight")
    assert lags(system, book="flight.*") == {}
    ingest(system, tail(system), flights=BookProgress(records=1, last_seqnum=system.records("flights")[0].seqnum))
    system.delete("flights")
    assert lags(system, book="flights") == {"flights": (1, 0, 0, 0.0)}


def test_its_own_progress_is_no_backlog() -> None:
    """A pipeline over all books is done when it is done."""
    system = MemorySystem()
    system.append("b1", b"{}")
    last = system.records("b1")[-1]
    done = BookProgress(records=1, last_seqnum=last.seqnum, last_time_us=system.now_us)
    ingest(system, tail(system), b1=done)
    assert lags(system, book="*") == {"b1": (1, 0, 0, 0.0)}
