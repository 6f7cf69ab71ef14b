"""What may come in over a wire: chunks and operations of strangers."""

from __future__ import annotations

from struct import pack, pack_into, unpack_from
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.errors import BokiError, InvalidArgument, TooLarge
from boki.log.checks import check_append, check_key, check_operation, check_request, check_seconds
from boki.log.chunk import FREED, JOINED, KEYED, Chunk, Group, encode_chunk
from boki.log.ids import MAX_SEQNUM
from boki.log.limits import Limits
from boki.log.operations import (
    Append,
    Compare,
    Get,
    ListBooks,
    Read,
    SetAuxdata,
    SetRetention,
    Sync,
    TrimBook,
)
from boki.log.record import Expect

LIMITS = Limits(record_bytes=100, request_bytes=2000, tags_per_record=3, tag_bytes=10, page_records=50, aux_bytes=10)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), float("-inf")])
def test_seconds_are_finite(value: float) -> None:
    """The message says so, and not that infinity should be above 0."""
    with pytest.raises(InvalidArgument, match="timeout_s must be finite"):
        check_seconds(value, "timeout_s", positive=True)


def test_an_empty_key_is_told_as_one() -> None:
    """With what to do instead."""
    with pytest.raises(InvalidArgument, match="a key must not be empty: leave it out"):
        check_key("", LIMITS)


tags = st.lists(st.text("abü!", min_size=1, max_size=5), max_size=3, unique=True)
groups = st.builds(
    Group,
    st.lists(st.tuples(st.binary(max_size=20), tags), min_size=1, max_size=3),
    st.lists(st.builds(Expect, st.text("ab", min_size=1, max_size=3), st.integers(0, MAX_SEQNUM)), max_size=2),
    st.none() | st.text("kü", min_size=1, max_size=5),
)


def sealed(data: bytearray) -> bytes:
    """The chunk with the checksum that its columns have now."""
    _, count, strings, strings_size, tags, conditions = unpack_from("<IIIIII", data, 8)
    payload = 32 + 2 * strings + strings_size + 16 * count + 4 * tags + 16 * conditions
    pack_into("<I", data, 4, crc32(memoryview(data)[8:payload]))
    return bytes(data)


def made(
    strings: list[bytes],
    entries: list[tuple[int, int, int]],
    tags: list[int],
    payload: bytes = b"",
    conditions: list[tuple[int, int, int]] | None = None,
) -> Chunk:
    """A chunk with whatever numbers in it. `entries`: payload end, tag end, flags."""
    conditions = conditions or []
    start, column = 0, b""
    for data_end, tag_end, flags in entries:
        column += pack("<IIIBxxx", data_end, tag_end, crc32(payload[start:data_end]), flags)
        start = data_end
    columns = pack(f"<{len(strings)}H", *map(len, strings)) + b"".join(strings) + column
    columns += pack(f"<{len(tags)}I", *tags) + b"".join(pack("<IIq", *condition) for condition in conditions)
    sizes = (32 + len(columns) + len(payload), len(entries), len(strings), sum(map(len, strings)), len(tags))
    rest = pack("<IIIIII", *sizes, len(conditions)) + columns
    return Chunk(pack("<2sHI", b"BC", 1, crc32(rest)) + rest + payload)


@given(st.lists(groups, min_size=1, max_size=4))
def test_what_is_encoded_is_taken(made_groups: list[Group]) -> None:
    """A chunk of valid appends passes, conditions, keys and all."""
    check_append(Chunk(encode_chunk("b", made_groups)), "b", LIMITS)


@given(st.lists(groups, min_size=1, max_size=3), st.integers(8, 400), st.integers(0, 255), st.booleans())
def test_what_passes_can_be_read(made_groups: list[Group], at: int, value: int, is_sealed: bool) -> None:
    """One changed byte is refused with an error of ours, or every accessor still works: no other exception, ever."""
    data = bytearray(encode_chunk("b", made_groups))
    data[at % len(data)] = value
    try:
        chunk = Chunk(sealed(data) if is_sealed else bytes(data))
        check_append(chunk, "b", LIMITS)
    except BokiError:
        return
    assert len(chunk.records(range(chunk.count), 0)) == chunk.count
    assert sum(span.stop - span.start for span in chunk.groups()) == chunk.count
    assert set(chunk.tag_rows()) <= set(chunk.strings)
    assert [len(chunk.payload(i)) for i in range(chunk.count)] == chunk.payload_sizes()


ONE = [(0, 0, 0)]
HOSTILE: dict[str, tuple[Chunk, str]] = {
    "no record": (made([b"b"], [], []), "at least one record"),
    "another book": (made([b"c"], ONE, []), "is of book 'c'"),
    "tag number beyond the table": (made([b"b"], [(0, 1, 0)], [1]), "beyond the string table"),
    "tag end beyond the column": (made([b"b"], [(0, 2, 0)], [0]), "beyond the column"),
    "tag end goes back": (made([b"b", b"t"], [(0, 1, 0), (0, 0, 0)], [1]), "ends before it starts"),
    "tags left over": (made([b"b", b"t"], ONE, [1]), "do not add up"),
    "payload end beyond the block": (made([b"b"], [(5, 0, 0)], [], b"123"), "do not add up"),
    "payload end goes back": (made([b"b"], [(3, 0, 0), (1, 0, 0)], [], b"123"), "ends before it starts"),
    "payload left over": (made([b"b"], [(1, 0, 0)], [], b"123"), "do not add up"),
    "a tag twice": (made([b"b", b"t"], [(0, 2, 0)], [1, 1]), "carries a tag twice"),
    "a string twice": (made([b"b", b"t", b"t"], [(0, 2, 0)], [1, 2]), "a string twice"),
    "not UTF-8": (made([b"b", b"\xff"], [(0, 1, 0)], [1]), "not UTF-8"),
    "empty tag": (made([b"b", b""], [(0, 1, 0)], [1]), "must not be empty"),
    "control character": (made([b"b", b"a\n"], [(0, 1, 0)], [1]), "control characters"),
    "bad string that no record carries": (made([b"b", b"a\n"], ONE, []), "control characters"),
    "long tag": (made([b"b", b"t" * 11], [(0, 1, 0)], [1]), "at most 10 bytes"),
    "many tags": (made([b"b", b"1", b"2", b"3", b"4"], [(0, 4, 0)], [1, 2, 3, 4]), "has 4 tags"),
    "large record": (made([b"b"], [(101, 0, 0)], [], bytes(101)), "has 101 bytes of data, and the limit is 100"),
    "large request": (made([b"b"], [(i * 90, 0, 0) for i in range(30)], [], bytes(29 * 90)), "at most 2,000 bytes"),
    "claims to be trimmed": (made([b"b"], [(0, 0, FREED)], []), "been trimmed"),
    "unknown flag": (made([b"b"], [(0, 0, 64)], []), "unknown"),
    "joins nothing": (made([b"b"], [(0, 0, JOINED)], []), "joins a group"),
    "key without a tag": (made([b"b"], [(0, 0, KEYED)], []), "has none"),
    "key that is a tag": (made([b"b", b"t"], [(0, 1, KEYED)], [1]), "has none"),
    "key tag without a key": (made([b"b", b"\x01kx"], [(0, 1, 0)], [1]), "among its own"),
    "key tag behind a key": (
        made([b"b", b"\x01kx", b"\x01ky"], [(0, 2, KEYED)], [1, 2]),
        "among its own",
    ),
    "two keys in a group": (
        made([b"b", b"\x01kx", b"\x01ky"], [(0, 1, KEYED), (0, 2, KEYED | JOINED)], [1, 2]),
        "another key",
    ),
    "a group that loses its key": (made([b"b", b"\x01kx"], [(0, 1, KEYED), (0, 1, JOINED)], [1]), "another key"),
    "a group that gets a key": (made([b"b", b"\x01kx"], [(0, 0, 0), (0, 1, KEYED | JOINED)], [1]), "another key"),
    "empty key": (made([b"b", b"\x01k"], [(0, 1, KEYED)], [1]), "a key must not be empty"),
    "long key": (made([b"b", b"\x01k" + b"k" * 11], [(0, 1, KEYED)], [1]), "a key may have at most 10 bytes"),
    "condition beyond the records": (made([b"b", b"t"], ONE, [], conditions=[(1, 1, 0)]), "stands where none may"),
    "condition inside a group": (
        made([b"b", b"t"], [(0, 0, 0), (0, 0, JOINED)], [], conditions=[(1, 1, 0)]),
        "stands where none may",
    ),
    "condition on no string": (made([b"b"], ONE, [], conditions=[(0, 1, 0)]), "stands where none may"),
    "condition on a key": (made([b"b", b"\x01kx"], ONE, [], conditions=[(0, 1, 0)]), "stands where none may"),
    "condition on a negative seqnum": (made([b"b", b"t"], ONE, [], conditions=[(0, 1, -1)]), "expects the seqnum -1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_chunk_is_refused(name: str) -> None:
    """Every number in a chunk from a stranger is doubted; the error says which was wrong, and nothing happened."""
    chunk, words = HOSTILE[name]
    with pytest.raises(InvalidArgument) as caught:
        check_append(chunk, "b", LIMITS)
    assert words in caught.value.message
    assert caught.value.outcome == "not_applied"
    assert caught.value.field


def test_bytes_after_the_chunk_are_refused() -> None:
    """A request holds one chunk."""
    data = encode_chunk("b", [Group([(b"x", ())])])
    with pytest.raises(InvalidArgument, match="one chunk a request"):
        check_append(Chunk(data + b"more"), "b", LIMITS)


def test_a_damaged_payload_is_refused() -> None:
    """A checksum that fails is the request's fault, not the log's."""
    data = encode_chunk("b", [Group([(b"good", ())])])
    with pytest.raises(InvalidArgument, match="record 0 of a chunk of book 'b' fails its checksum"):
        check_append(Chunk(data[:-1] + b"x"), "b", LIMITS)


@pytest.mark.parametrize("data", [b"", b"no chunk", b"BC\xff\xff" + bytes(40), bytes(100)])
def test_what_is_no_chunk_is_refused(data: bytes) -> None:
    """Too short, of another format, of a version to come: the request's fault."""
    with pytest.raises(InvalidArgument, match="cannot be read"):
        check_request(Append("b", data), LIMITS)
    check_request(Append("b", encode_chunk("b", [Group([(b"x", ["t"])])])), LIMITS)
    check_request(Sync("b"), LIMITS)


VALID = [
    Append("b", b"x" * 2000),
    Read("b", "t", 0, MAX_SEQNUM, 50, wait_us=10**12),
    Read("boki:calls", None, MAX_SEQNUM, 0, 1, backward=True, fresh=True),
    Get("b", MAX_SEQNUM),
    Compare("b", ("t", "!o:x"), (0, MAX_SEQNUM)),
    TrimBook("b", MAX_SEQNUM, "!t"),
    TrimBook("b", MAX_SEQNUM, None, everything=True),
    TrimBook("b", MAX_SEQNUM, "!t", forgets=("!t", "!u")),
    SetAuxdata("b", 1, b"x" * 10),
    Sync("boki:calls"),
    ListBooks(limit=1),
    ListBooks("a:b", "a:c", 50),
    SetRetention("b"),
    SetRetention("b", 0.5, 1),
]
odd: Any = 1.5
REFUSED: list[tuple[Any, str]] = [
    (Append("", b""), "book"),
    (Append("boki:calls", b""), "book"),
    (Append("b", b"x" * 2001), "records"),
    (Read("ü"), "book"),
    (Read("b", ""), "tags"),
    (Read("b", "\x01kk"), "tags"),
    (Read("b", start=-1), "start"),
    (Read("b", stop=MAX_SEQNUM + 1), "stop"),
    (Read("b", start=odd), "start"),
    (Read("b", limit=0), "limit"),
    (Read("b", limit=51), "limit"),
    (Read("b", limit=odd), "limit"),
    (Read("b", wait_us=-1), "wait_us"),
    (Read("b", wait_us=1, backward=True), "wait_us"),
    (Read("b", start_time_us=-1), "start_time_us"),
    (Get("b", -1), "seqnum"),
    (TrimBook("b", -1), "before"),
    (TrimBook("boki:calls", 1), "book"),
    (TrimBook("b", MAX_SEQNUM, "t", everything=True), "tag"),
    (TrimBook("b", 1, everything=True), "before"),
    (TrimBook("b", 1, forgets=("!t",)), "tag"),
    (TrimBook("b", 1, "!u", forgets=("!t", "!u")), "tag"),
    (TrimBook("b", 1, "!t", forgets=("!t", "")), "tags"),
    (TrimBook("b", 1, ""), "tags"),
    (SetAuxdata("b", 1, b"x" * 11), "auxdata"),
    (SetAuxdata("b", -1, b""), "seqnum"),
    (Sync("b" * 129), "book"),
    (ListBooks("a b"), "prefix"),
    (ListBooks("", "ü"), "after"),
    (ListBooks(limit=0), "limit"),
    (SetRetention("b", 0), "age_s"),
    (SetRetention("b", float("nan")), "age_s"),
    (SetRetention("b", None, 0), "size_bytes"),
    (SetRetention("b", None, MAX_SEQNUM + 1), "size_bytes"),
    (SetRetention("boki:calls", 1), "book"),
    (Compare("b", ("t",), ()), "lasts"),
    (Compare("b", ("t",), (-1,)), "lasts"),
    (Compare("b", (), ()), "limit"),
]


@pytest.mark.parametrize("operation", VALID, ids=repr)
def test_a_valid_operation_is_taken(operation: Any) -> None:
    """Also at the very limits."""
    check_operation(operation, LIMITS)


@pytest.mark.parametrize(("operation", "field"), REFUSED, ids=lambda value: repr(value)[:60])
def test_a_bad_operation_is_refused(operation: Any, field: str) -> None:
    """The error names the field."""
    with pytest.raises(InvalidArgument) as caught:
        check_operation(operation, LIMITS)
    assert caught.value.field == field


def test_over_a_limit_is_told_apart() -> None:
    """What is too large is `TooLarge` and carries the limit."""
    with pytest.raises(TooLarge) as caught:
        check_operation(Read("b", limit=51), LIMITS)
    assert caught.value.limit == 50
    with pytest.raises(TooLarge) as caught:
        check_operation(Compare("b", ("t",) * 51, (0,) * 51), LIMITS)
    assert caught.value.limit == 50


def test_the_conditions_of_each_append_in_a_chunk_are_bounded() -> None:
    """Of a worker or a stranger, which need not have looked: 1,024 an append, whatever else the chunk holds."""
    limits = Limits()
    most = [Expect("t", number) for number in range(1_024)]
    check_append(Chunk(encode_chunk("b", [Group([(b"x", [])], most), Group([(b"y", [])], most)])), "b", limits)
    with pytest.raises(TooLarge, match="at most 1,024 conditions, not 1,025"):
        more = Group([(b"y", [])], [*most, Expect("u", 1)])
        check_append(Chunk(encode_chunk("b", [Group([(b"x", [])]), more])), "b", limits)
