"""Floors: what a storage node may free is exactly what nobody can read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from boki.log.floors import Floors
from boki.log.ids import NodeId, is_system_tag
from boki.log.metalog import Trim

TAGS = ("a", "b", "!s")


def trim(tag: str | None, before: int, *, everything: bool = False) -> Trim:
    return Trim("book", tag, before, everything, NodeId("engine-1"), 1)


trims = st.lists(
    st.one_of(
        st.builds(trim, st.sampled_from((None, *TAGS)), st.integers(1, 20)),
        st.builds(trim, st.none(), st.integers(1, 20), everything=st.just(True)),
    ),
    max_size=6,
)


@given(trims, st.sets(st.sampled_from(TAGS)), st.integers(1, 20), st.integers(1, 20))
def test_a_record_is_free_when_no_row_shows_it(entries: list[Trim], tags: set[str], seqnum: int, tail: int) -> None:
    """A row shows it unless its own floor, or the book's (which spares system tags), or a deletion has passed it."""
    floors = Floors()
    for entry in entries:
        floors.apply(entry, tail)

    def passed(wanted: str | None, *, everything: bool = False) -> bool:
        return any(
            seqnum < min(entry.before, tail)
            for entry in entries
            if entry.tag == wanted and entry.everything == everything
        )

    def shows(tag: str | None) -> bool:
        by_book = passed(None) and not (tag is not None and is_system_tag(tag))
        return not (by_book or passed(tag) or passed(None, everything=True))

    assert floors.is_free("book", tuple(tags), seqnum) == (not any(shows(tag) for tag in tags or {None}))
    assert not floors.is_free("other", tuple(tags), seqnum)
    again = Floors(floors.rows())
    assert again.is_free("book", tuple(tags), seqnum) == floors.is_free("book", tuple(tags), seqnum)
    assert seqnum < floors.highest or not floors.is_free("book", tuple(tags), seqnum)


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
