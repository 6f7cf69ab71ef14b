"""Floors: what trims have taken away, and what is remembered of it."""

from __future__ import annotations

from boki.log.floors import Floors
from boki.log.ids import NodeId
from boki.log.metalog import Trim


def trim(tag: str | None, before: int, *, everything: bool = False) -> Trim:
    return Trim("book", tag, before, everything, NodeId("engine-1"), 1)


def test_floors_never_go_back_and_never_pass_the_tail() -> None:
    """`trim(MAX)` stops at its own place in the order; a smaller trim later changes nothing."""
    floors = Floors()
    assert floors.apply(trim("a", 100), 10)
    assert not floors.apply(trim("a", 7), 10)
    assert floors.rows() == [("book", "a", 10)]


def test_a_dropped_floor_is_gone_unless_it_has_moved_on() -> None:
    """Dropping speaks of the floor as it was: one that rose meanwhile still hides something."""
    floors = Floors()
    floors.apply(trim("a", 5), 10)
    stale = floors.rows()
    floors.apply(trim("a", 8), 10)
    floors.drop(stale)
    assert floors.rows() == [("book", "a", 8)]
    floors.drop(floors.rows())
    assert floors.rows() == []
    assert not floors.touches("book")


def test_floors_of_another_node_raise_and_never_lower() -> None:
    """A node that takes over what a peer knows keeps what it knows better."""
    floors = Floors([("book", None, 10), ("book", "tag", 5)])
    floors.merge([("book", None, 7), ("book", "tag", 8), ("other", None, 3)])
    assert sorted(floors.rows(), key=str) == sorted(
        [("book", None, 10), ("book", "tag", 8), ("other", None, 3)], key=str
    )
