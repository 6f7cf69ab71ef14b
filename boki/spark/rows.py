"""Rows as chunks: what Spark hands over as Arrow batches becomes chunks of the log, column by column.

Each chunk has a digest of its rows, by which it is seen whether they are the same when a task runs again. Where chunks
begin and end is up to whoever writes them: a task that runs again cuts where the one before it has cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final
from zlib import crc32

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from boki.errors import InvalidArgument, TooLarge
from boki.log.checks import check_book, check_writable
from boki.log.chunk import JOINED, assemble_chunk, pack_condition
from boki.log.ids import check_tag
from boki.log.limits import DEFAULT_LIMITS
from boki.spark.columns import LEDGER, SINK_TAG_PREFIX, UNTAGGED, is_of_sink

CHUNK_ROWS: Final = 8192
CHUNK_BYTES: Final = 1 << 20
"""A chunk ends with the row whose data crosses this."""
_MOST_BYTES: Final = DEFAULT_LIMITS.request_bytes - 1024
"""With tags and all, and without those of the sink and the name of the book, a chunk has no more."""
_ROW_BYTES: Final = 16
_NUMBER_BYTES: Final = 4
_LENGTH_BYTES: Final = 2
_MOST_BOOKS: Final = 256
"""Books that one task writes at once: of each it holds back rows for a chunk."""
_MOST_TAGS: Final = DEFAULT_LIMITS.tags_per_record - 2
_encode_json: Final = msgspec.json.Encoder(decimal_format="number").encode


class Rows(msgspec.Struct, frozen=True):
    """The rows of one chunk: their data (Arrow binary) and, flat, their tags."""

    data: Any
    tag_names: tuple[str, ...]
    """The tags that occur."""
    tag_numbers: Any
    """Numbers of `tag_names`, row by row."""
    tag_ends: Any
    """Where in `tag_numbers` each row's tags end."""

    @property
    def encoded_bytes(self) -> int:
        """What they take in a request."""
        names = sum(len(name.encode()) + _LENGTH_BYTES for name in self.tag_names)
        return len(_content(self.data)) + _ROW_BYTES * len(self.data) + _NUMBER_BYTES * len(self.tag_numbers) + names

    @property
    def digest(self) -> str:
        """The same for the same rows; for others another one, for all purposes."""
        seen = blake2b(digest_size=16)
        for column in (self.tag_numbers, self.tag_ends, _lengths(self.data)):
            seen.update(len(column).to_bytes(8, "little"))
            seen.update(np.ascontiguousarray(column).tobytes())
        seen.update("\0".join(self.tag_names).encode())
        seen.update(_content(self.data))
        return seen.hexdigest()

    def chunk(self, book: str, first_tag: str, last_tag: str, last_seqnum: int) -> bytes:
        """The rows, with a tag more on the first and on the last of them, on condition that `last_seqnum` is the last
        record of the latter. These rows outlive those tags: see `UNTAGGED`.
        """
        count = len(self.data)
        payloads = _content(self.data)
        entries = np.zeros((count, 4), "<u4")
        ends = np.cumsum(_lengths(self.data))
        starts = [0, *ends.tolist()]
        entries[:, 0] = ends
        tag_counts = np.diff(self.tag_ends, prepend=0)
        numbers: dict[str, int] = {}  # a tag may be called as the book is
        for text in (book, first_tag, last_tag, UNTAGGED, *self.tag_names):
            numbers.setdefault(text, len(numbers))
        first = [first_tag] if tag_counts[0] else [first_tag, UNTAGGED]
        last = [last_tag] if tag_counts[-1] or count == 1 else [UNTAGGED, last_tag]
        own = np.array([numbers[name] for name in self.tag_names], np.int64)[self.tag_numbers]
        tags = np.concatenate(([numbers[tag] for tag in first], own, [numbers[tag] for tag in last])).astype("<u4")
        entries[:, 1] = self.tag_ends + len(first)
        entries[-1, 1] += len(last)
        entries[:, 2] = [crc32(payloads[start:end]) for start, end in pairwise(starts)]
        entries[1:, 3] = JOINED
        condition = pack_condition(0, numbers[last_tag], last_seqnum)
        return assemble_chunk(list(numbers), count, entries.tobytes(), tags.tobytes(), condition, bytes(payloads))


def _lengths(data: Any) -> Any:
    if not len(data):
        return np.zeros(0, np.int64)
    offsets = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]
    return np.diff(offsets).astype(np.int64)


def _content(data: Any) -> memoryview:
    offsets = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]
    content = data.buffers()[2]
    return memoryview(content)[int(offsets[0]) : int(offsets[-1])] if content is not None else memoryview(b"")


class Held:
    """Rows of one book that are not written yet."""

    def __init__(self) -> None:
        self._data = pa.array([], pa.binary())
        self._tags = pa.array([], pa.list_(pa.string()))

    def __len__(self) -> int:
        return len(self._data)

    def add(self, data: Any, tags: Any) -> None:
        """Take rows in, behind those that are here."""
        self._data = pa.concat_arrays([self._data, data])
        self._tags = pa.concat_arrays([self._tags, tags])

    def peek(self, count: int | None = None, most: int | None = None, *, is_last: bool = False) -> Rows | None:
        """The next chunk: of `count` rows, else a full one, or (if no rows come any more) the rest. None: not yet.

        No chunk but one of `count` rows has more than `most`, if that is said.
        """
        if count is not None:
            return self._first(count) if count <= len(self) else None
        ends = np.cumsum(_lengths(self._data))
        size = min(CHUNK_ROWS, int(np.searchsorted(ends, CHUNK_BYTES)) + 1, most or CHUNK_ROWS)
        if is_last:
            size = min(size, len(self))
        if not 0 < size <= len(self):
            return None
        rows = self._first(size)
        while size > 1 and rows.encoded_bytes > _MOST_BYTES:
            size //= 2
            rows = self._first(size)
        return rows

    def _first(self, count: int) -> Rows:
        return rows_of(self._data[:count], self._tags[:count])

    def drop(self, count: int) -> None:
        """The first rows have been written."""
        self._data, self._tags = self._data[count:], self._tags[count:]


class Sorter:
    """Rows of one partition, as they come, sorted by their books."""

    def __init__(self, book: str | None, *, is_json: bool) -> None:
        self._book = book
        self._is_json = is_json
        self.held: dict[str, Held] = {}

    def add(self, batch: Any) -> list[str]:
        """Take in a batch; the books that have got rows."""
        if not batch.num_rows:
            return []
        data = _data_of(batch, is_json=self._is_json)
        tags = _tags_of(batch)
        books: list[str] = []
        for book, rows in self._by_book(batch):
            books.append(book)
            held = self.held.setdefault(book, Held())
            held.add(*((data, tags) if rows is None else (data.filter(rows), tags.filter(rows))))
            if len(self.held) > _MOST_BOOKS:
                raise TooLarge(
                    f"one task may write to {_MOST_BOOKS} books at most: repartition by the column book, into as many "
                    "partitions as it takes",
                    field="book",
                    limit=_MOST_BOOKS,
                )
        return books

    def _by_book(self, batch: Any) -> Iterator[tuple[str, Any]]:
        if self._book is not None:
            yield self._book, None
            return
        column = batch.column("book")
        if column.null_count:
            raise InvalidArgument("a row has no book: the column book is null", field="book")
        for name in column.unique().to_pylist():
            check_target(name)
            yield name, pc.equal(column, name)


def check_target(book: str) -> None:
    """Refuse a name that no book may have, and books that rows are not for."""
    check_writable(check_book(book))
    if book == LEDGER:
        raise InvalidArgument(f"book {book!r} is the sinks' own ledger: write to another one", field="book")


def _data_of(batch: Any, *, is_json: bool) -> Any:
    if is_json:
        members = [name for name in batch.schema.names if name not in {"book", "tags"}]
        selected = _in_utc(batch.select(members))
        has_maps = "map<" in str(selected.schema.types)  # without any, Arrow is four times as quick
        try:
            rows = selected.to_pylist(maps_as_pydicts="strict" if has_maps else None)
        except OverflowError:
            raise InvalidArgument(
                "a row has a date or a time that is not of the years 1 to 9999: JSON has no form for it"
            ) from None
        data = pa.array([_encode_json(row) for row in rows], pa.binary())
    else:
        data = batch.column("data")
        if data.null_count:
            raise InvalidArgument("a row has no data: the column data is null", field="data")
        data = data.cast(pa.binary())
    largest = int(_lengths(data).max(initial=0))
    if largest > DEFAULT_LIMITS.record_bytes:
        raise TooLarge(
            f"a row has {largest:,} bytes of data, and a record may have {DEFAULT_LIMITS.record_bytes:,}: split it",
            field="data",
            limit=DEFAULT_LIMITS.record_bytes,
        )
    return data


def _in_utc(batch: Any) -> Any:
    """The same times, said in UTC: else the same rows would be others in a session of another time zone."""
    kinds = [_kind_in_utc(kind) for kind in batch.schema.types]
    if kinds == batch.schema.types:
        return batch
    columns = [
        column if column.type == kind else column.cast(kind) for column, kind in zip(batch.columns, kinds, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, batch.schema.names)


def _kind_in_utc(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC") if kind.tz else kind
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_kind_in_utc(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _kind_in_utc(kind.item_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_kind_in_utc(kind.value_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_kind_in_utc(kind.value_type)))
    return kind


def _tags_of(batch: Any) -> Any:
    kind = pa.list_(pa.string())
    if "tags" not in batch.schema.names:
        return pa.array([[]], kind).take(pa.array(np.zeros(batch.num_rows, np.int32)))
    tags = batch.column("tags").cast(kind)
    if tags.null_count:
        tags = pc.coalesce(tags, pa.scalar([], kind))
    _check_tags(rows_of(batch.column(0), tags))
    return tags


def _check_tags(rows: Rows) -> None:
    """`InvalidArgument` or `TooLarge` if the tags are not such as records may have."""
    for name in rows.tag_names:
        check_tag(name, DEFAULT_LIMITS.tag_bytes)
        if is_of_sink(name):
            raise InvalidArgument(
                f"tags that start with {SINK_TAG_PREFIX} are the sink's own, and so is {UNTAGGED}: not {name!r}",
                field="tags",
            )
    counts = np.diff(rows.tag_ends, prepend=0)
    if len(counts) and counts.max() > _MOST_TAGS:
        raise TooLarge(
            f"a row has {counts.max()} tags, and may have {_MOST_TAGS}: two of a record's are the sink's",
            field="tags",
            limit=_MOST_TAGS,
        )
    places = np.repeat(np.arange(len(counts)), counts) * (len(rows.tag_names) + 1) + rows.tag_numbers
    if len(np.unique(places)) != len(places):
        raise InvalidArgument("a row carries a tag twice, and a record each tag once", field="tags")


def rows_of(data: Any, tags: Any) -> Rows:
    """Arrow columns as rows."""
    values = tags.flatten()
    if values.null_count:
        raise InvalidArgument("a tag is null", field="tags")
    encoded = values.dictionary_encode()
    counts = pc.list_value_length(tags).to_numpy(zero_copy_only=False).astype(np.int64)
    numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return Rows(data, tuple(encoded.dictionary.to_pylist()), numbers, np.cumsum(counts))


def fold(before: str, digest: str) -> str:
    """The digest of chunks in a row.

    >>> fold(fold("", "a"), "b") != fold(fold("", "b"), "a")
    True
    """
    return blake2b(f"{before}/{digest}".encode(), digest_size=16).hexdigest()
