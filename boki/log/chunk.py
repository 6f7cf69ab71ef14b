"""Chunks: the records of one or several appends to one book, column by column.

A chunk is encoded once, where the append was called (in the worker, in the client), and travels as it is: engines
splice chunks into batches, storage nodes keep the bytes, readers get them back. Nobody on the way touches a record::

    header       magic, version, checksum of all columns but the payloads, sizes
    string table lengths (u16), then UTF-8; string 0 is the book, the others are tags
    entries      per record: payload end, tag end, CRC-32 of the payload, flags
    tag column   string numbers (u32)
    conditions   (record, string, last seqnum or -1 - count) of `when=`
    payloads     one block

Records that one call appends are a **group**: all of them are ordered, or skipped, together. The flag ``JOINED`` marks
a record that belongs to the group of the one before it. ``KEYED`` says that the record's first tag is the system tag of
its idempotency key; readers never see it. ``FREED`` says that trimming has taken the payload away.

All integers are little-endian. The version is 1, or 2 if a condition names a count, so that an engine which cannot
judge it refuses the chunk by name. Golden files pin both.
"""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from struct import error as StructError
from typing import Final, NamedTuple
from zlib import crc32

from boki.errors import CorruptData, VersionTooNew
from boki.log import checksums
from boki.log.ids import KEY_TAG_PREFIX
from boki.log.record import Expect, Record

VERSION: Final = 2
MAGIC: Final = b"BC"
JOINED: Final = 1
KEYED: Final = 2
FREED: Final = 4

_HEADER: Final = Struct("<2sHIIIIIII")
_CRC_FROM: Final = 8  # the checksum covers everything after itself
_ENTRY: Final = Struct("<IIIBxxx")
MIN_RECORD_BYTES: Final = _ENTRY.size
"""What a record takes in a chunk that has neither data nor tags."""
_OBJECT_BYTES: Final = 500
_STRING_BYTES: Final = 64
_PAYLOAD_END: Final = 0
_TAG_END: Final = 1
_SUMS_AT: Final = 8
_CONDITION: Final = Struct("<IIq")


class Group(NamedTuple):
    """The records of one append call: (data, tags) each, its conditions and its key."""

    records: Sequence[tuple[bytes, Sequence[str]]]
    when: Sequence[Expect] = ()
    key: str | None = None


class Span(NamedTuple):
    """Where a group stands in its chunk: records `start` until `stop`, and what it depends on."""

    start: int
    stop: int
    when: tuple[Expect, ...]
    key_tag: str | None


def encode_chunk(book: str, groups: Iterable[Group]) -> bytes:
    """Lay out the groups' records column by column. The caller has checked names and limits."""
    numbers: dict[str, int] = {book: 0}
    entries: list[bytes] = []
    tags: list[int] = []
    conditions: list[bytes] = []
    payloads: list[bytes] = []
    end = 0
    for group in groups:
        for expect in group.when:
            conditions.append(_CONDITION.pack(len(entries), _number(numbers, expect.tag), expect.number))
        keys = [] if group.key is None else [_number(numbers, KEY_TAG_PREFIX + group.key)]
        flags, own, last = KEYED if keys else 0, keys, None
        for data, names in group.records:
            if names is not last:  # records of one journal share theirs
                last, own = names, keys + [_number(numbers, name) for name in names]
            tags += own
            end += len(data)
            payloads.append(data)
            entries.append(_ENTRY.pack(end, len(tags), crc32(data), flags))
            flags |= JOINED
    return _assemble(list(numbers), entries, tags, conditions, payloads)


def _number(numbers: dict[str, int], name: str) -> int:
    return numbers.setdefault(name, len(numbers))


def _assemble(
    strings: list[str], entries: list[bytes], tags: list[int], conditions: list[bytes], payloads: list[bytes]
) -> bytes:
    return assemble_chunk(
        strings,
        len(entries),
        b"".join(entries),
        pack(f"<{len(tags)}I", *tags),
        b"".join(conditions),
        b"".join(payloads),
    )


def pack_condition(record: int, tag_number: int, last_seqnum: int) -> bytes:
    """A condition of the group that begins with that record, as it stands in its column."""
    return _CONDITION.pack(record, tag_number, last_seqnum)


def assemble_chunk(
    strings: list[str], record_count: int, entries: bytes, tags: bytes, conditions: bytes, payloads: bytes
) -> bytes:
    """A chunk of columns that have been laid out by somebody else: see `RawColumns` for their forms."""
    encoded = [text.encode() for text in strings]
    columns = b"".join((pack(f"<{len(encoded)}H", *map(len, encoded)), *encoded, entries, tags, conditions))
    sizes = (
        _HEADER.size + len(columns) + len(payloads),
        record_count,
        len(encoded),
        sum(map(len, encoded)),
        len(tags) // 4,
        len(conditions) // _CONDITION.size,
    )
    version = VERSION if any(number < 0 for _, _, number in _CONDITION.iter_unpack(conditions)) else 1
    header = _HEADER.pack(MAGIC, version, 0, *sizes)
    checksum = crc32(columns, crc32(header[_CRC_FROM:]))
    return b"".join((_HEADER.pack(MAGIC, version, checksum, *sizes), columns, payloads))


class RawColumns(NamedTuple):
    """The columns of a chunk as they lie in its buffer, for whoever reads them all at once (`boki.spark`)."""

    entries: memoryview
    """Per record 16 bytes: payload end (u32), tag end (u32), CRC-32 (u32), flags (u8, three spare)."""
    tags: memoryview
    """Numbers of the string table (u32), one tag after the other."""
    payloads: memoryview


class Chunk:
    """A chunk inside a buffer, decoded column by column when asked. `is_checked`: in this process, by an earlier one.

    Raises `CorruptData` if the columns fail their checksum, `VersionTooNew` if a newer Boki wrote them. Payloads are
    checked by `verify_payloads`, which whoever reads them from a disk or from a stranger calls.
    """

    __slots__ = ("_columns", "_occurring", "_strings", "_version", "buffer", "count", "offset", "size")

    def __init__(self, buffer: bytes, offset: int = 0, *, is_checked: bool = False) -> None:
        try:
            magic, version, checksum, *sizes = _HEADER.unpack_from(buffer, offset)
        except StructError:
            raise CorruptData(f"a chunk of {len(buffer) - offset} bytes is shorter than its header") from None
        if magic != MAGIC or not version:
            raise CorruptData(f"a chunk starts with {magic!r} instead of {MAGIC!r}, or has version 0")
        if version > VERSION:
            raise VersionTooNew(f"chunk version {version} is newer than this Boki's {VERSION}: upgrade this node")
        self._version = version
        self.size, self.count, string_count, strings_size, tag_count, condition_count = sizes
        self.buffer = buffer
        self.offset = offset
        lengths = offset + _HEADER.size
        strings = lengths + 2 * string_count
        entries = strings + strings_size
        tags = entries + _ENTRY.size * self.count
        conditions = tags + 4 * tag_count
        payload = conditions + _CONDITION.size * condition_count
        if payload > offset + self.size or offset + self.size > len(buffer) or not string_count:
            raise CorruptData(f"a chunk of {self.size} bytes claims columns that do not fit in it")
        # one pass over the columns; a view, so that nothing is copied
        if not is_checked and crc32(memoryview(buffer)[offset + _CRC_FROM : payload]) != checksum:
            raise CorruptData(f"a chunk of {self.count} records fails its checksum")
        self._columns = (lengths, string_count, strings, entries, tags, conditions, payload)
        self._strings: list[str] | None = None
        self._occurring: frozenset[int] | None = None

    @property
    def raw(self) -> RawColumns:
        """The columns without a copy; only what came from a node that has checked them is sound in every number."""
        _, _, _, entries, tags, conditions, payloads = self._columns
        view = memoryview(self.buffer)
        return RawColumns(view[entries:tags], view[tags:conditions], view[payloads : self.offset + self.size])

    @property
    def data(self) -> bytes:
        """The chunk's own bytes."""
        if self.offset == 0 and self.size == len(self.buffer):
            return self.buffer
        return self.buffer[self.offset : self.offset + self.size]

    @property
    def strings(self) -> list[str]:
        """The string table: the book, then the tags."""
        if self._strings is None:
            lengths, count, start, *_ = self._columns
            ends = list(accumulate(unpack_from(f"<{count}H", self.buffer, lengths), initial=start))
            try:
                self._strings = [self.buffer[a:b].decode() for a, b in pairwise(ends)]
            except UnicodeDecodeError as error:
                raise CorruptData(f"a chunk's string table is not UTF-8: {error}") from None
        return self._strings

    @property
    def decoded_bytes(self) -> int:
        """Memory that it holds beside its buffer once its strings have been decoded, about."""
        _, string_count, strings, entries, *_ = self._columns
        held_bytes: int = _OBJECT_BYTES + _STRING_BYTES * string_count + entries - strings
        return held_bytes

    @property
    def book(self) -> str:
        """The book that all its records belong to."""
        return self.strings[0]

    def _entry(self, i: int) -> tuple[int, int, int, int]:
        """(payload end, tag end, crc, flags) of record `i`."""
        return _ENTRY.unpack_from(self.buffer, self._columns[3] + _ENTRY.size * i)

    def _entries(self) -> Iterator[tuple[int, int, int, int]]:
        """(payload end, tag end, crc, flags) of every record."""
        start = self._columns[3]
        return _ENTRY.iter_unpack(memoryview(self.buffer)[start : start + _ENTRY.size * self.count])

    def _tag_column(self) -> tuple[int, ...]:
        _, _, _, _, tags, conditions, _ = self._columns
        return unpack_from(f"<{(conditions - tags) // 4}I", self.buffer, tags)

    def payload(self, i: int) -> bytes:
        """The data of record `i` (empty if freed)."""
        base = self._columns[6]
        start = self._entry(i - 1)[0] if i else 0
        return self.buffer[base + start : base + self._entry(i)[0]]

    def tags(self, i: int) -> tuple[str, ...]:
        """The tags of record `i` as its writer gave them."""
        _, stop, _, flags = self._entry(i)
        start = self._entry(i - 1)[1] if i else 0
        strings = self.strings
        numbers = unpack_from(f"<{stop - start}I", self.buffer, self._columns[4] + 4 * start)
        return tuple([strings[n] for n in (numbers[1:] if flags & KEYED else numbers)])

    def is_freed(self, i: int) -> bool:
        """Whether trimming has taken the payload of record `i` away."""
        return bool(self._entry(i)[3] & FREED)

    def _flags(self) -> frozenset[int]:
        """The flags that occur, by one strided slice: they stand in the 13th byte of each entry."""
        if self._occurring is None:
            start = self._columns[3]
            self._occurring = frozenset(self.buffer[start + 12 : start + _ENTRY.size * self.count : _ENTRY.size])
        return self._occurring

    @property
    def has_freed(self) -> bool:
        """Whether any payload has been taken away."""
        return any(flags & FREED for flags in self._flags())

    def tag_rows(self) -> dict[str, Sequence[int]]:
        """Which records carry each tag, key tags included: what an index adds to its rows."""
        strings = self.strings
        tags = self._tag_column()
        if not tags:
            return {}
        ends = self._ends(_TAG_END)
        width = len(tags) // self.count
        if tags == tags[:width] * self.count and ends == array("I", range(width, len(tags) + 1, width)):
            return {strings[n]: range(self.count) for n in tags[:width]}
        rows: defaultdict[int, list[int]] = defaultdict(list)
        start = 0
        for i, stop in enumerate(ends):
            for n in tags[start:stop]:
                rows[n].append(i)
            start = stop
        return {strings[n]: row for n, row in rows.items()}

    def _ends(self, field: int) -> array[int]:
        """Of every record, where its payload or its tags end: a column of the entries."""
        start = self._columns[3]
        numbers = array("I")
        numbers.frombytes(memoryview(self.buffer)[start : start + _ENTRY.size * self.count])
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers[field :: _ENTRY.size // 4]

    def tag_counts(self) -> list[int]:
        """How many tags each record carries, key tags included."""
        return [b - a for a, b in pairwise((0, *self._ends(_TAG_END)))]

    @property
    def payload_bytes(self) -> int:
        """How many bytes of data all records have together."""
        size_bytes: int = self.offset + self.size - self._columns[6]
        return size_bytes

    def payload_sizes(self) -> list[int]:
        """How many bytes of data each record has."""
        return [self.payload_bytes] if self.count == 1 else [b - a for a, b in pairwise((0, *self._ends(_PAYLOAD_END)))]

    def outer_conditions(self) -> list[Expect] | None:
        """What its groups depend on, if nothing in this chunk decides about it: then all groups are kept or refused by
        what was there before. None if a group has a key, or a condition's tag is that of a record here.
        """
        *_, conditions, payloads = self._columns
        if any(flags & KEYED for flags in self._flags()):
            return None
        found = {(n, number) for _, n, number in _CONDITION.iter_unpack(self.buffer[conditions:payloads])}
        strings = self.strings
        if found and not {strings[n] for n, _ in found}.isdisjoint([strings[n] for n in set(self._tag_column())]):
            return None
        return [Expect.of(strings[n], number) for n, number in sorted(found)]

    def conditions(self) -> Iterator[tuple[int, str, int]]:
        """The first record of the group, the tag and the number (see `Expect.number`) of each condition."""
        rows = _CONDITION.iter_unpack(self.buffer[self._columns[5] : self._columns[6]])
        return ((i, self.strings[n], number) for i, n, number in rows)

    def groups(self) -> list[Span]:
        """The groups in order, with what each depends on."""
        strings = self.strings
        when: dict[int, list[Expect]] = {}
        for i, n, number in _CONDITION.iter_unpack(self.buffer[self._columns[5] : self._columns[6]]):
            when.setdefault(i, []).append(Expect.of(strings[n], number))
        starts: list[tuple[int, str | None]] = []
        tags = self._tag_column()
        tag_start = 0
        for i, (_, tag_stop, _, flags) in enumerate(self._entries()):
            if not flags & JOINED:
                starts.append((i, strings[tags[tag_start]] if flags & KEYED else None))
            tag_start = tag_stop
        stops = [start for start, _ in starts[1:]] + [self.count][: len(starts)]
        return [
            Span(start, stop, tuple(when.get(start, ())), key_tag)
            for (start, key_tag), stop in zip(starts, stops, strict=True)
        ]

    def records(self, seqnums: Sequence[int], time: int, aux: dict[int, bytes] | None = None) -> list[Record]:
        """All records, as a reader sees them; `seqnums[i]` is the seqnum of record `i`."""
        strings = self.strings
        tags = self._tag_column()
        buffer = self.buffer
        base = self._columns[6]
        found: list[Record] = []
        data_start = tag_start = 0
        aux = aux or {}
        for seqnum, (data_stop, tag_stop, _, flags) in zip(seqnums, self._entries(), strict=True):
            first_tag = tag_start + 1 if flags & KEYED else tag_start
            found.append(
                Record(
                    seqnum,
                    tuple([strings[n] for n in tags[first_tag:tag_stop]]),
                    buffer[base + data_start : base + data_stop],
                    aux.get(seqnum),
                    time,
                )
            )
            data_start, tag_start = data_stop, tag_stop
        return found

    def select(self, indexes: Sequence[int]) -> bytes:
        """A chunk of only these records (ascending), for a reader: conditions and keys are left out."""
        if len(indexes) == self.count:
            return self.data
        is_run = bool(indexes) and indexes[-1] - indexes[0] + 1 == len(indexes)
        is_run &= self._columns[1] <= 8 + 12 * len(indexes)  # a run brings all strings: 1 of 250 records 35 us, not 6
        if is_run and not any(flags & (KEYED | FREED) for flags in self._flags()):
            return self._select_run(indexes[0], indexes[-1] + 1)
        return encode_chunk(self.book, [Group([(self.payload(i), self.tags(i))]) for i in indexes])

    def _select_run(self, start: int, stop: int) -> bytes:
        """Neighbours, by slices of the columns: pages of bulk readers begin and end inside of chunks."""
        data_start, tag_start = self._entry(start - 1)[:2] if start else (0, 0)
        data_stop, tag_stop = self._entry(stop - 1)[:2]
        _, _, _, entries, tags, _, payload = self._columns
        numbers = array("I")
        numbers.frombytes(memoryview(self.buffer)[entries + _ENTRY.size * start : entries + _ENTRY.size * stop])
        if sys.byteorder == "big":
            numbers.byteswap()
        for field, base in ((_PAYLOAD_END, data_start), (_TAG_END, tag_start)):
            if base:
                numbers[field::4] = array("I", [end - base for end in numbers[field::4]])
        numbers[3::4] = array("I", bytes(4 * (stop - start)))  # each a group of its own
        if sys.byteorder == "big":
            numbers.byteswap()
        return assemble_chunk(
            self.strings,
            stop - start,
            numbers.tobytes(),
            self.buffer[tags + 4 * tag_start : tags + 4 * tag_stop],
            b"",
            self.buffer[payload + data_start : payload + data_stop],
        )

    def drop_payloads(self, indexes: Iterable[int]) -> bytes:
        """The same chunk with the payloads of these records freed; everything else, and every number, stays."""
        freed = set(indexes)
        payload = self._columns[6]
        entries: list[bytes] = []
        payloads: list[bytes] = []
        end = start = 0
        for i, (stop, tag_end, checksum, flags) in enumerate(self._entries()):
            data = b"" if i in freed else self.buffer[payload + start : payload + stop]
            start = stop
            end += len(data)
            payloads.append(data)
            if i in freed:
                checksum, flags = crc32(b""), flags | FREED
            entries.append(_ENTRY.pack(end, tag_end, checksum, flags))
        conditions = self.buffer[self._columns[5] : payload]
        return _assemble(self.strings, entries, list(self._tag_column()), [conditions], payloads)

    def verify_columns(self) -> int:
        """Check every number in the columns, as is due to a chunk from a stranger; the flags that occur, or-ed.

        After this, no other method can fail but for a payload's checksum. `CorruptData` says what is wrong.
        """
        strings = self._verify_strings()
        tags = self._tag_column()
        if tags and max(tags) >= len(strings):
            raise CorruptData(f"tag number {max(tags)} is beyond the string table of {len(strings)}")
        flags_seen = data_start = tag_start = 0
        joined: set[int] = set()
        for i, (data_stop, tag_stop, _, flags) in enumerate(self._entries()):
            if data_stop < data_start or not tag_start <= tag_stop <= len(tags):
                raise CorruptData(f"record {i} ends before it starts, or beyond the column")
            if tag_stop - tag_start > 1 and len(set(tags[tag_start:tag_stop])) != tag_stop - tag_start:
                raise CorruptData(f"record {i} carries a tag twice")
            if flags & JOINED:
                joined.add(i)
            flags_seen |= flags
            data_start, tag_start = data_stop, tag_stop
        if tag_start != len(tags) or self._columns[6] + data_start != self.offset + self.size:
            raise CorruptData("the records do not add up to the columns")
        if flags_seen & ~(JOINED | KEYED | FREED) or 0 in joined:
            raise CorruptData(f"flags {flags_seen:#x} are unknown, or the first record joins a group before it")
        keys = {n for n, name in enumerate(strings) if name.startswith(KEY_TAG_PREFIX)}
        if keys or flags_seen & KEYED:
            self._verify_keys(keys, tags)
        for i, n, number in _CONDITION.iter_unpack(self.buffer[self._columns[5] : self._columns[6]]):
            if i >= self.count or i in joined or n >= len(strings) or n in keys:
                raise CorruptData(f"a condition on record {i} and string {n} stands where none may")
            if number < 0 and self._version == 1:
                raise CorruptData(f"a condition expects the seqnum {number}")
        return flags_seen

    def _verify_strings(self) -> list[str]:
        lengths, count, start, entries, *_ = self._columns
        if sum(unpack_from(f"<{count}H", self.buffer, lengths)) != entries - start:
            raise CorruptData("the string table does not fill its column")
        strings = self.strings
        if len(set(strings)) != count:
            raise CorruptData("the string table holds a string twice")
        return strings

    def _verify_keys(self, keys: set[int], tags: tuple[int, ...]) -> None:
        """A key tag is the first tag of every record of its group, and nowhere else."""
        start = expected = 0
        for i, (_, stop, _, flags) in enumerate(self._entries()):
            first = tags[start] if flags & KEYED and stop > start else -1
            if flags & JOINED and first != expected:
                raise CorruptData(f"record {i} has another key than the group that it joins")
            if flags & KEYED and first not in keys:
                raise CorruptData(f"record {i} says that it has a key, and has none")
            if keys and not keys.isdisjoint(tags[start + (1 if flags & KEYED else 0) : stop]):
                raise CorruptData(f"record {i} carries a key tag among its own")
            start, expected = stop, first

    def verify_payloads(self) -> None:
        """Check every payload against its checksum; `CorruptData` names the first record that fails."""
        if self.count > 3 and self._are_alike_and_sound():
            return
        base, view = self._columns[6], memoryview(self.buffer)
        start = 0
        for i, (stop, _, checksum, _) in enumerate(self._entries()):
            if stop < start or base + stop > self.offset + self.size:
                raise CorruptData(f"record {i} of a chunk of book {self.book!r} claims bytes outside the chunk")
            if crc32(view[base + start : base + stop]) != checksum:
                raise CorruptData(f"record {i} of a chunk of book {self.book!r} fails its checksum")
            start = stop

    def _are_alike_and_sound(self) -> bool:
        """Whether all payloads have the same size, a small one, and fit their checksums."""
        entries, _, payloads = self.raw
        size_bytes = len(payloads) // self.count if self.count else 0
        if not checksums.LEAST_BYTES <= size_bytes <= checksums.MOST_BYTES:
            return False
        if self._ends(_PAYLOAD_END) != array("I", range(size_bytes, size_bytes * self.count + 1, size_bytes)):
            return False
        sums = [entries[place :: _ENTRY.size] for place in range(_SUMS_AT, _SUMS_AT + 4)]
        return len(payloads) == size_bytes * self.count and checksums.match(payloads, size_bytes, sums)
