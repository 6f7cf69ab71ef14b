"""Views: what cannot work is refused at once, books find their log, and views form a chain."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.errors import ConfigError
from boki.log.ids import NodeId
from boki.log.view import View, ViewChain, place_book
from tests.members import view

BOOKS = [f"book-{n}" for n in range(3_000)]


@pytest.mark.parametrize("log_count", [1, 2, 3, 7, 16])
def test_another_log_takes_over_only_its_share_of_the_books(log_count: int) -> None:
    """About one book in n moves, and only to the new log: so a new term moves as little as it can."""
    before = {book: place_book(book, log_count) for book in BOOKS}
    after = {book: place_book(book, log_count + 1) for book in BOOKS}
    moved = {book for book in BOOKS if before[book] != after[book]}
    assert {after[book] for book in moved} == {log_count}
    share = len(BOOKS) / (log_count + 1)
    assert 0.7 * share < len(moved) < 1.3 * share


@pytest.mark.parametrize("log_count", [2, 5])
def test_books_are_spread_evenly(log_count: int) -> None:
    """No log gets much more than its share."""
    counts = Counter(place_book(book, log_count) for book in BOOKS)
    assert set(counts) == set(range(log_count))
    assert max(counts.values()) < 1.3 * len(BOOKS) / log_count


def test_books_stay_where_older_versions_put_them() -> None:
    """The placement is part of the stored format: another hash would lose every book."""
    assert [place_book(book, 4) for book in ("flights", "orders", "boki:calls", "a", "b", "c")] == [2, 2, 3, 0, 3, 3]
    assert view(log_count=4, primaries=(NodeId("sequencer-1"),) * 4).log_of("flights") == 2


def test_a_view_that_cannot_work_lists_all_that_is_wrong() -> None:
    """So that one start shows every mistake."""
    with pytest.raises(ConfigError) as refused:
        View(
            term=0,
            log_count=2,
            sequencers=(NodeId("sequencer-1"), NodeId("sequencer-1")),
            primaries=(NodeId("stranger"),),
            incarnations={},
            storage=(NodeId("storage-1"), NodeId("storage-1")),
            replicas=3,
            write_quorum=4,
        )
    message = str(refused.value)
    for problem in (
        "a term is at least 1",
        "2 logs need as many primaries",
        "every primary must be one of the sequencers",
        "the sequencers must be different",
        "the storage nodes must be different",
        "every sequencer needs its incarnation",
        "write_quorum 4 must be in 1..replicas",
        "3 replicas need as many storage nodes",
    ):
        assert problem in message


@pytest.mark.parametrize("sequencers", [1, 2, 3, 4, 5])
def test_the_majority_of_a_view(sequencers: int) -> None:
    """More than half of its sequencers."""
    assert view(sequencers=sequencers).sequencer_majority == sequencers // 2 + 1


@given(st.integers(1, 6))
def test_a_chain_tells_how_each_term_ended(count: int) -> None:
    """The next view names it; of the current term nobody knows."""
    views = [view(term, previous_ends=(10 * term,) if term > 1 else ()) for term in range(1, count + 1)]
    chain = ViewChain(tuple(views[:1]))
    assert all(chain.add(each) for each in views[1:])
    assert not any(chain.add(each) for each in views)
    assert list(chain) == views
    assert chain.current is views[-1]
    assert chain.first_term == 1
    assert [chain.end_of(term, 0) for term in range(1, count)] == [10 * (term + 1) for term in range(1, count)]
    assert chain.end_of(count, 0) is None
    assert count in chain
    assert count + 1 not in chain
    assert chain[count] is views[-1]


def test_a_chain_has_no_gaps_and_no_second_truth() -> None:
    """A view that is missing, or that differs from the one that is known, is a bug of the caller."""
    chain = ViewChain((view(1),))
    with pytest.raises(ValueError, match="term 3 came after that of term 1"):
        chain.add(view(3))
    with pytest.raises(AssertionError, match="installed once"):
        chain.add(view(1, sequencers=1))
    assert not ViewChain()
    assert chain
