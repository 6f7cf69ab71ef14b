"""The metalog: entries as bytes, and positions as numbers and as text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from boki.errors import BokiError, CorruptData, InvalidArgument, VersionTooNew
from boki.log.ids import MAX_LOG, MAX_TERM, NodeId
from boki.log.metalog import (
    CloseShard,
    Cut,
    ForgetTags,
    MetalogEntry,
    OpenShard,
    Positions,
    Trim,
    decode_entry,
    encode_entry,
    format_positions,
    make_position,
    merge_positions,
    parse_positions,
    split_position,
)
from tests.log.drawn import names

GOLDEN = Path(__file__).parent / "golden"
ENTRIES: tuple[MetalogEntry, ...] = (
    Cut(1_700_000_000_000_000, ((7 << 20, 3), ((1 << 44) + 1, 1 << 33))),
    Cut(1, ()),
    Trim("orders", None, 8796093022208, False, NodeId("engine-1"), 12),
    Trim("orders", "größe", (1 << 63) - 1, False, NodeId("engine-1"), 1 << 40),
    Trim("orders", None, (1 << 63) - 1, True, NodeId("engine-1"), 13),
    OpenShard(7 << 20, NodeId("engine-1"), (NodeId("storage-1"), NodeId("storage-2"))),
    CloseShard(7 << 20),
)
ENTRIES_2 = (*ENTRIES, CloseShard(7 << 20, is_lost=True))
ENTRIES_3 = (*ENTRIES_2, Cut(1_700_000_000_000_000, ((7 << 20, 3),), is_ahead=True))
ENTRIES_4 = (*ENTRIES_3, ForgetTags("orders", ("!größe", "!b"), 8796093022208, NodeId("engine-1"), 12))

nodes = names.map(NodeId)
numbers = st.integers(0, (1 << 63) - 1)
entries = st.one_of(
    st.builds(Cut, numbers, st.lists(st.tuples(numbers, numbers), max_size=4).map(tuple), st.booleans()),
    st.builds(Trim, names, st.one_of(st.none(), names), numbers, st.booleans(), nodes, numbers),
    st.builds(ForgetTags, names, st.lists(names, max_size=3).map(tuple), numbers, nodes, numbers),
    st.builds(OpenShard, numbers, nodes, st.lists(nodes, max_size=3).map(tuple)),
    st.builds(CloseShard, numbers, st.booleans()),
)
places = st.dictionaries(
    st.integers(0, MAX_LOG),
    st.builds(make_position, st.integers(1, MAX_TERM), st.integers(0, (1 << 43) - 1)),
    max_size=5,
)


@given(entries)
def test_an_entry_comes_back_from_its_bytes(entry: MetalogEntry) -> None:
    """Every kind, with any numbers and names."""
    assert decode_entry(encode_entry(entry)) == entry


def test_what_version_1_wrote_is_read() -> None:
    """Each line of its golden file is the entry that it was made from."""
    lines = (GOLDEN / "metalog-v1.hex").read_text().split()
    assert [decode_entry(bytes.fromhex(line)) for line in lines] == list(ENTRIES)


def test_the_bytes_of_version_2_never_change() -> None:
    """Each line of the golden file is read as the entry that it was made from, and is still written so."""
    lines = (GOLDEN / "metalog-v2.hex").read_text().split()
    assert [decode_entry(bytes.fromhex(line)) for line in lines] == list(ENTRIES_2)
    assert [encode_entry(entry).hex() for entry in ENTRIES_2] == lines


def test_the_bytes_of_version_3_never_change() -> None:
    """Only a cut that ran ahead is written so: what does not is read by the version before, too."""
    lines = (GOLDEN / "metalog-v3.hex").read_text().split()
    assert [decode_entry(bytes.fromhex(line)) for line in lines] == list(ENTRIES_3)
    assert [encode_entry(entry).hex() for entry in ENTRIES_3] == lines


def test_the_bytes_of_version_4_never_change() -> None:
    """Only a tag that is forgotten is written so."""
    lines = (GOLDEN / "metalog-v4.hex").read_text().split()
    assert [decode_entry(bytes.fromhex(line)) for line in lines] == list(ENTRIES_4)
    assert [encode_entry(entry).hex() for entry in ENTRIES_4] == lines
    assert [line[:2] for line in lines] == ["02"] * len(ENTRIES_2) + ["03", "04"]


def test_an_earlier_version_takes_no_forgotten_tag_for_a_trim() -> None:
    """Neither in a message: a node that knows four kinds of entries refuses the fifth."""
    earlier = msgspec.msgpack.Decoder(Cut | Trim | OpenShard | CloseShard)
    with pytest.raises(msgspec.ValidationError):
        earlier.decode(encode_entry(ENTRIES_4[-1])[1:])


def test_a_newer_version_is_refused_by_name() -> None:
    """Not read by guess, and not called damaged."""
    with pytest.raises(VersionTooNew, match="entry version 5"):
        decode_entry(b"\x05" + encode_entry(ENTRIES[0])[1:])


@given(st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(lambda data: b"\x02" + data)))
@example(b"")
@example(b"\x00")
@example(b"\x01\x92\xa5close\xa1\xff")
def test_other_bytes_are_damage(data: bytes) -> None:
    """Whatever stands where an entry should: an entry, or an error that says so."""
    try:
        entry = decode_entry(data)
    except BokiError as error:
        assert isinstance(error, (CorruptData, VersionTooNew))
    else:
        assert isinstance(entry, MetalogEntry)


def test_a_truncated_entry_is_damage() -> None:
    """At any byte."""
    for entry in (*ENTRIES, ENTRIES_4[-1]):
        data = encode_entry(entry)
        for size in range(len(data)):
            with pytest.raises(CorruptData):
                decode_entry(data[:size])


@given(st.integers(0, MAX_TERM), st.integers(0, (1 << 43) - 1), st.integers(0, MAX_TERM), st.integers(0, (1 << 43) - 1))
def test_comparing_positions_tells_who_has_seen_more(term: int, index: int, other: int, later: int) -> None:
    """A later term has seen more than any number of entries of an earlier one."""
    assert split_position(make_position(term, index)) == (term, index)
    assert (make_position(term, index) < make_position(other, later)) == ((term, index) < (other, later))
    assert make_position(term, index) < 1 << 63


@given(places, places)
def test_merging_takes_the_later_of_each_log(mine: Positions, seen: Positions) -> None:
    """What either has seen, both together have seen."""
    merged = dict(mine)
    merge_positions(merged, seen)
    assert merged == {log: max(mine.get(log, 0), seen.get(log, 0)) for log in mine.keys() | seen.keys()}


@given(places)
def test_positions_come_back_from_their_text(positions: Positions) -> None:
    """The `Boki-Position` header, which clients hand back as they got it."""
    text = format_positions(positions)
    assert parse_positions(text) == positions
    assert format_positions(parse_positions(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "0:2",
        "0:2.7,",
        ",",
        " 0:2.7",
        "0:2.7 ",
        "0:-2.7",
        "0:+2.7",
        "0:2_0.7",
        "0:٢.7",
        "256:1.1",
        f"0:{MAX_TERM + 1}.1",
        f"0:1.{1 << 43}",
        "0:1.1,0:1.2",
        "0:1.1;1:1.1",
        "x" * 10_001,
        "0:" + "9" * 5_000 + ".1",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """It is checked before it is trusted, and the message shows what it should look like."""
    with pytest.raises(InvalidArgument) as refused:
        parse_positions(text)
    assert refused.value.field == "Boki-Position"
    assert len(str(refused.value)) < 300


def test_entries_are_told_apart_by_their_tags() -> None:
    """Two kinds with the same fields stay different, so that one can never be read as another."""
    tags = [msgspec.msgpack.decode(encode_entry(entry)[1:])[0] for entry in ENTRIES]
    assert tags == ["cut", "cut", "trim", "trim", "trim", "open", "close"]
