"""JSON payloads as columns of a schema: whole batches at once by Arrow's parser, and what does not fit by itself.

A batch is parsed in one go. If that fails, it is halved until the records that do not fit are alone: so one parser
decides about all of them, and a batch without bad records costs no object per record.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import json as arrow_json

_NEWLINE: Final = 10
_OPEN, _CLOSE = ord("{"), ord("}")


class Parsed(msgspec.Struct, frozen=True):
    """Columns by name, and for each record why it does not fit (null if it does: then its columns may be trusted)."""

    columns: dict[str, Any]
    errors: Any
    first_error: tuple[int, str] | None
    """Which record is the first that does not fit, and why."""


def parse(data: Any, schema: Any) -> Parsed:
    """The payloads (an Arrow array of binary) as rows of the schema. Members that the schema lacks are left out;
    those that a record lacks are null.
    """
    pieces: list[Any] = []
    errors: list[tuple[int, str]] = []
    _parse(data, 0, schema, pieces, errors)
    table = pa.concat_tables(pieces) if len(pieces) > 1 else pieces[0]
    columns = {name: table.column(name).combine_chunks() for name in schema.names}
    texts = pa.nulls(len(data), pa.string())
    if errors:
        found: list[str | None] = [None] * len(data)
        for at, text in errors:
            found[at] = text
        texts = pa.array(found, pa.string())
    return Parsed(columns, texts, errors[0] if errors else None)


def _parse(data: Any, offset: int, schema: Any, pieces: list[Any], errors: list[tuple[int, str]]) -> None:
    count = len(data)
    try:
        pieces.append(_table(data, schema))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        if count == 1:
            errors.append((offset, str(error)))
            pieces.append(pa.table({field.name: pa.nulls(1, field.type) for field in schema}, schema=schema))
            return
        half = count // 2
        _parse(data[:half], offset, schema, pieces, errors)
        _parse(data[half:], offset + half, schema, pieces, errors)


def _table(data: Any, schema: Any) -> Any:
    lines, size_bytes = _as_lines(data)
    table = arrow_json.read_json(
        pa.BufferReader(lines),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(size_bytes + 1, 64)),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(data):
        raise pa.ArrowInvalid("the record is not one JSON object")
    return table.select(schema.names)


def _as_lines(data: Any) -> tuple[Any, int]:
    """The payloads with a newline behind each. `ArrowInvalid` if one is no object or spans lines: only records that
    begin and end with braces and hold no newline come out as many rows as there are records.
    """
    offsets = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    content = np.frombuffer(data.buffers()[2], np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
    ends = offsets[1:] - first
    starts = offsets[:-1] - first
    if (ends <= starts).any() or (content[starts] != _OPEN).any() or (content[ends - 1] != _CLOSE).any():
        raise pa.ArrowInvalid("the record is not a JSON object: it must begin with { and end with }")
    if (content == _NEWLINE).any():
        if len(data) > 1:
            raise pa.ArrowInvalid("a record spans several lines")
        content = content.copy()
        content[content == _NEWLINE] = ord(" ")  # inside strings JSON has no newlines, so this only moves white space
        ends = np.array([len(content)])
    lines = np.insert(content, ends, np.uint8(_NEWLINE))
    return pa.py_buffer(lines), len(lines)
