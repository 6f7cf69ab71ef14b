"""Chunks: what goes in comes out, however it is asked for; what is damaged or made up is found."""

from __future__ import annotations

from pathlib import Path
from struct import pack_into
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boki.errors import BokiError, CorruptData, VersionTooNew
from boki.log.chunk import FREED, JOINED, KEYED, VERSION, Chunk, Group, Span, encode_chunk
from boki.log.ids import KEY_TAG_PREFIX
from boki.log.record import Expect, Record
from tests.log.drawn import many_groups, names

GOLDEN = Path(__file__).parent / "golden" / "chunk-v1.bin"
GOLDEN_GROUPS = [
    Group([(b"hello", ["greetings", "user:ada"]), (b"", [])]),
    Group(
        [(b"\x00\xff" * 3, ["greetings", "größe"])], [Expect("greetings", 8796093022208), Expect("none", 0)], "key 1"
    ),
]
GOLDEN_COUNTED = Path(__file__).parent / "golden" / "chunk-v2.bin"
COUNTED_GROUPS = [
    Group([(b"one", ["!steps"])], (Expect("!steps", count=0),)),
    Group([(b"two", ["!steps"])], (Expect("!steps", count=1), Expect("lock", 7))),
]
CRC_AT = 4
COLUMNS_AT = 8


def flatten(groups: list[Group]) -> list[tuple[bytes, tuple[str, ...], str | None]]:
    return [(data, tuple(tags), group.key) for group in groups for data, tags in group.records]


def seqnums_of(chunk: Chunk) -> range:
    return range(100, 100 + chunk.count)


def read_everything(chunk: Chunk) -> list[object]:
    """Call every method that reads."""
    indexes = range(chunk.count)
    return [
        chunk.book,
        chunk.records(seqnums_of(chunk), 7),
        [(chunk.payload(i), chunk.tags(i), chunk.is_freed(i)) for i in indexes],
        chunk.groups(),
        chunk.outer_conditions(),
        {tag: list(row) for tag, row in chunk.tag_rows().items()},
        chunk.tag_counts(),
        chunk.payload_sizes(),
        chunk.payload_bytes,
        chunk.has_freed,
        Chunk(chunk.select(indexes[::2])).records(seqnums_of(chunk)[::2], 7),
        chunk.drop_payloads(indexes[::2]),
    ]


@given(names, many_groups, st.binary(max_size=9))
def test_what_goes_in_comes_out(book: str, groups: list[Group], before: bytes) -> None:
    """Records, tags, groups, keys and conditions, also when the chunk stands in the middle of other bytes."""
    data = encode_chunk(book, groups)
    chunk = Chunk(before + data + b"after", len(before))
    records = flatten(groups)
    assert (chunk.book, chunk.count, chunk.size, chunk.data) == (book, len(records), len(data), data)
    assert chunk.records(seqnums_of(chunk), 7, {100: b"aux"}) == [
        Record(seqnum, tags, payload, b"aux" if seqnum == 100 else None, 7)
        for seqnum, (payload, tags, _) in zip(seqnums_of(chunk), records, strict=True)
    ]
    assert [(chunk.payload(i), chunk.tags(i)) for i in range(chunk.count)] == [row[:2] for row in records]
    assert chunk.payload_sizes() == [len(payload) for payload, _, _ in records]
    assert chunk.payload_bytes == sum(chunk.payload_sizes())
    start = 0
    spans = []
    for group in groups:
        stop = start + len(group.records)
        spans.append(Span(start, stop, tuple(group.when), None if group.key is None else KEY_TAG_PREFIX + group.key))
        start = stop
    assert chunk.groups() == spans
    outer = chunk.outer_conditions()
    own_tags = {tag for group in groups for _, tags in group.records for tag in tags}
    asked = {expect for group in groups for expect in group.when}
    decides = any(group.key is not None for group in groups) or not own_tags.isdisjoint(one.tag for one in asked)
    assert (None if outer is None else (set(outer), len(outer))) == (None if decides else (asked, len(asked)))
    assert not chunk.has_freed
    chunk.verify_payloads()
    chunk.verify_columns()


@given(many_groups)
def test_tag_rows_say_which_records_carry_a_tag(groups: list[Group]) -> None:
    """In ascending order, key tags included; the counts are how often each record occurs in them."""
    chunk = Chunk(encode_chunk("book", groups))
    expected: dict[str, list[int]] = {}
    for i, (_, tags, key) in enumerate(flatten(groups)):
        for tag in (*([] if key is None else [KEY_TAG_PREFIX + key]), *tags):
            expected.setdefault(tag, []).append(i)
    rows = {tag: list(row) for tag, row in chunk.tag_rows().items()}
    assert rows == expected
    assert chunk.tag_counts() == [sum(i in row for row in rows.values()) for i in range(chunk.count)]


@given(st.lists(names, max_size=3, unique=True), st.integers(1, 20))
def test_tag_rows_of_records_that_are_alike_are_ranges(tags: list[str], count: int) -> None:
    """The common case of a bulk append costs the same for any number of records."""
    chunk = Chunk(encode_chunk("book", [Group([(b"x", tags)]) for _ in range(count)]))
    assert chunk.tag_rows() == {tag: range(count) for tag in tags}


@given(names, many_groups, st.sets(st.integers(0, 15)))
def test_a_selection_has_the_same_records_and_nothing_else(book: str, groups: list[Group], wanted: set[int]) -> None:
    """What readers get: the records asked for, without keys and conditions; all of them is the chunk itself."""
    chunk = Chunk(encode_chunk(book, groups))
    indexes = [i for i in range(chunk.count) if i in wanted] or [0]
    data = chunk.select(indexes)
    selected = Chunk(data)
    assert selected.book == book
    assert [(selected.payload(i), selected.tags(i)) for i in range(selected.count)] == [
        (chunk.payload(i), chunk.tags(i)) for i in indexes
    ]
    if len(indexes) == chunk.count:
        assert data == chunk.data
    else:
        assert selected.outer_conditions() == []
    selected.verify_payloads()


@given(st.integers(1, 400), st.integers(1, 3), st.data())
def test_a_selection_of_a_big_chunk_is_as_large_as_its_records(count: int, tags: int, data: st.DataObject) -> None:
    """A reader of one object of many that were written together is not sent the names of all others."""
    chunk = Chunk(
        encode_chunk("book", [Group([(b"x" * 20, [f"!o:{i}:{n}" for n in range(tags)])]) for i in range(count)])
    )
    start = data.draw(st.integers(0, count - 1))
    stop = data.draw(st.integers(start + 1, count))
    for indexes in (range(start, stop), range(start, stop, 2)):
        alone = encode_chunk("book", [Group([(chunk.payload(i), chunk.tags(i))]) for i in indexes])
        assert len(chunk.select(indexes)) <= 4 * len(alone)


@given(names, many_groups, st.sets(st.integers(0, 15)), st.sets(st.integers(0, 15)))
def test_freeing_takes_payloads_and_nothing_else(
    book: str, groups: list[Group], first: set[int], second: set[int]
) -> None:
    """Tags, groups, verdicts and numbers stay, so that an index can still go through it; freeing again adds to it."""
    chunk = Chunk(encode_chunk(book, groups))
    freed = Chunk(Chunk(chunk.drop_payloads(first)).drop_payloads(second))
    gone = {i for i in first | second if i < chunk.count}
    assert freed.book == book
    assert freed.has_freed == bool(gone)
    for i in range(chunk.count):
        assert freed.is_freed(i) == (i in gone)
        assert freed.payload(i) == (b"" if i in gone else chunk.payload(i))
        assert freed.tags(i) == chunk.tags(i)
    assert freed.groups() == chunk.groups()
    assert freed.tag_rows() == chunk.tag_rows()
    freed.verify_payloads()
    freed.verify_columns()


def test_the_layout_of_version_1_never_changes() -> None:
    """The golden file is read as what it was made from, and the encoder still writes it, byte for byte."""
    golden = GOLDEN.read_bytes()
    chunk = Chunk(golden)
    chunk.verify_payloads()
    assert chunk.book == "golden"
    assert [(chunk.payload(i), chunk.tags(i)) for i in range(3)] == [row[:2] for row in flatten(GOLDEN_GROUPS)]
    assert chunk.groups() == [
        Span(0, 2, (), None),
        Span(2, 3, (Expect("greetings", 8796093022208), Expect("none", 0)), KEY_TAG_PREFIX + "key 1"),
    ]
    assert encode_chunk("golden", GOLDEN_GROUPS) == golden


def test_the_layout_of_version_2_never_changes() -> None:
    """A chunk whose conditions name a count says so by its version; all others stay readable for older engines."""
    golden = GOLDEN_COUNTED.read_bytes()
    chunk = Chunk(golden)
    chunk.verify_columns()
    assert (golden[2], GOLDEN.read_bytes()[2]) == (2, 1)
    assert chunk.groups() == [Span(0, 1, COUNTED_GROUPS[0].when, None), Span(1, 2, COUNTED_GROUPS[1].when, None)]
    assert {tag for _, tag, number in chunk.conditions() if number < 0} == {"!steps"}
    assert encode_chunk("golden", COUNTED_GROUPS) == golden


def test_a_count_in_a_chunk_of_version_1_is_damage() -> None:
    """What an older writer cannot have meant is not judged."""
    data = bytearray(GOLDEN_COUNTED.read_bytes())
    data[2] = 1
    with pytest.raises(CorruptData, match="expects the seqnum -1"):
        Chunk(bytes(data)).verify_columns()


def test_a_newer_version_is_refused_by_name() -> None:
    """Not read by guess, and not called damaged."""
    data = bytearray(GOLDEN.read_bytes())
    data[2] = VERSION + 1
    with pytest.raises(VersionTooNew, match=f"chunk version {VERSION + 1}"):
        Chunk(bytes(data))


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_found(bits: int) -> None:
    """Damage anywhere raises: nothing that was not written is ever read."""
    golden = GOLDEN.read_bytes()
    for at in range(len(golden)):
        damaged = bytes((*golden[:at], golden[at] ^ bits, *golden[at + 1 :]))
        with pytest.raises((CorruptData, VersionTooNew)):
            Chunk(damaged).verify_payloads()


@given(st.integers(0, 40), st.integers(1, 30), st.data())
def test_payloads_of_one_size_are_found_damaged_as_all_others_are(size: int, count: int, data: st.DataObject) -> None:
    """They are checked at once: sound ones pass, and of damaged ones the first is named."""
    payloads = [data.draw(st.binary(min_size=size, max_size=size)) for _ in range(count)]
    sound = encode_chunk("book", [Group([(payload, ["t"]) for payload in payloads])])
    Chunk(sound).verify_payloads()
    if size:
        at = data.draw(st.integers(0, size * count - 1))
        damaged = bytearray(sound)
        damaged[len(sound) - size * count + at] ^= data.draw(st.integers(1, 255))
        with pytest.raises(CorruptData, match=f"record {at // size} of"):
            Chunk(bytes(damaged)).verify_payloads()


def test_every_truncated_chunk_is_found() -> None:
    """A torn write is damage."""
    golden = GOLDEN.read_bytes()
    for size in range(len(golden)):
        with pytest.raises(CorruptData):
            Chunk(golden[:size])


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=6, max_size=6))
def test_sizes_that_are_made_up_are_refused_before_anything_is_allocated(sizes: list[int]) -> None:
    """A header may claim four billion records; it is compared with the bytes that came."""
    data = bytearray(GOLDEN.read_bytes())
    pack_into("<6I", data, COLUMNS_AT, *sizes)
    if bytes(data) != GOLDEN.read_bytes():
        with pytest.raises(CorruptData):
            Chunk(bytes(data))


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(COLUMNS_AT, 400), st.integers(0, 255)), min_size=1, max_size=3))
def test_columns_that_are_made_up_are_found_or_harmless(changes: list[tuple[int, int]]) -> None:
    """With a right checksum over wrong numbers: `verify_columns` finds them, or every method can read them."""
    data = bytearray(GOLDEN.read_bytes())
    columns_size = len(data) - sum(len(payload) for payload, _, _ in flatten(GOLDEN_GROUPS))
    for at, value in changes:
        data[max(at % columns_size, COLUMNS_AT)] = value
    try:
        # the sizes may have moved the end of the columns; then the checksum is wrong, which is fine
        pack_into("<I", data, CRC_AT, crc32(data[COLUMNS_AT:columns_size]))
        chunk = Chunk(bytes(data))
        flags = chunk.verify_columns()
    except CorruptData:
        return
    assert not flags & ~(JOINED | KEYED | FREED)
    read_everything(chunk)


@settings(max_examples=300)
@given(st.binary(max_size=200), st.integers(0, 50))
def test_any_bytes_are_a_chunk_or_an_error_of_ours(data: bytes, offset: int) -> None:
    """A stranger's bytes raise nothing but what the decoder says that it raises."""
    for candidate in (data, b"BC\x01\x00" + data):
        try:
            Chunk(candidate, offset)
        except BokiError as error:
            assert isinstance(error, (CorruptData, VersionTooNew))
