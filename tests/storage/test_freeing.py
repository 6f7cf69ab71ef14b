"""What a storage node may free is exactly what nobody can read."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from boki.log.chunk import Chunk, Group, encode_chunk
from boki.log.floors import DELETED, Floors
from boki.log.ids import NodeId, is_system_tag
from boki.log.metalog import Trim
from boki.storage.freeing import freeing

TAGS = ("a", "b", "!s", "book")
FIRST = 5


def trim(tag: str | None, before: int, *, everything: bool = False) -> Trim:
    return Trim("book", tag, before, everything, NodeId("engine-1"), 1)


trims = st.lists(
    st.one_of(
        st.builds(trim, st.sampled_from((None, *TAGS)), st.integers(1, 20)),
        st.builds(trim, st.none(), st.integers(1, 20), everything=st.just(True)),
    ),
    max_size=6,
)
groups = st.lists(
    st.tuples(st.lists(st.sampled_from(TAGS), unique=True), st.sampled_from([None, "k"])), min_size=1, max_size=10
)


@settings(max_examples=300)
@given(trims, groups, st.sets(st.integers(0, 9)), st.integers(1, 20))
def test_a_record_is_free_when_no_row_shows_it(
    entries: list[Trim], drawn: list[tuple[list[str], str | None]], gone: set[int], tail: int
) -> None:
    """A row shows it unless its own floor, or the book's (which spares system tags), or a deletion has passed it.

    A floor stands while it is above a record whose payload is there; what was freed before is free, and costs nothing.
    """
    floors = Floors()
    for entry in entries:
        floors.apply(entry, tail)
    gone = {i for i in gone if i < len(drawn)}
    chunk = Chunk(encode_chunk("book", [Group([(b"data", tags)], (), key) for tags, key in drawn]))
    chunk = Chunk(chunk.drop_payloads(gone))
    found = freeing(chunk, FIRST, floors.of("book"))

    def passed(seqnum: int, wanted: str | None, *, everything: bool = False) -> bool:
        return any(
            seqnum < min(entry.before, tail)
            for entry in entries
            if entry.tag == wanted and entry.everything == everything
        )

    def shows(seqnum: int, tag: str | None) -> bool:
        by_book = passed(seqnum, None) and not (tag is not None and is_system_tag(tag))
        return not (by_book or passed(seqnum, tag) or passed(seqnum, None, everything=True))

    free = {i for i, (tags, _) in enumerate(drawn) if not any(shows(FIRST + i, tag) for tag in tags or [None])}
    assert found.free == sorted(free | gone)
    assert found.payload_bytes == 4 * len(free - gone)
    standing = {
        tag
        for i, (tags, _) in enumerate(drawn)
        if i not in gone
        for tag in (None, DELETED, *tags)
        if FIRST + i < floors.of("book").get(tag, 0)
    }
    assert found.standing == standing
    assert freeing(chunk, FIRST, floors.of("other")).free == sorted(gone)
    far = {f"far-{number}": 1 for number in range(100)}
    assert freeing(chunk, FIRST, {**far, **floors.of("book")}) == found, "floors of other tags change nothing"
