"""JSON payloads as columns of a schema: whole batches at once by Arrow's parser, and what does not fit by itself.

A batch is parsed in one go. If that fails, it is halved until the records that do not fit are alone: so one parser
decides about all of them, and a batch without bad records costs no object per record.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

_NEWLINE: Final = 10
_SPACE: Final = " \t\r\n"
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
    starts, ends, content = _places(data)
    if not _are_objects(starts, ends, content):
        starts, ends, content = _places(pc.ascii_trim(data.cast(pa.string()), characters=_SPACE))
        if not _are_objects(starts, ends, content):
            raise pa.ArrowInvalid("the record is not a JSON object: it must begin with { and end with }")
    lines = np.insert(content, ends, np.uint8(_NEWLINE))
    table = arrow_json.read_json(
        pa.BufferReader(pa.py_buffer(lines)),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(len(lines) + 1, 64)),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(data):
        raise pa.ArrowInvalid("the record is not one JSON object")
    table = table.select(schema.names)
    table.validate(full=True)  # the parser takes strings that are no UTF-8
    return table


def _places(data: Any) -> tuple[Any, Any, Any]:
    """Where each payload starts and ends in the bytes of all of them."""
    offsets = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    content = np.frombuffer(data.buffers()[2], np.uint8)[first:last] if last > first else np.zeros(0, np.uint8)
    return offsets[:-1] - first, offsets[1:] - first, content


def _are_objects(starts: Any, ends: Any, content: Any) -> bool:
    """Whether all begin and end with braces: then each comes out as one row at least, and none together with the next,
    because no JSON has a closing brace before an opening one, or a newline in a string.
    """
    if (ends <= starts).any():
        return False
    return bool((content[starts] == _OPEN).all() and (content[ends - 1] == _CLOSE).all())
