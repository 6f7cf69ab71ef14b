"""JSON payloads as columns of a schema: whole batches at once by Arrow's parser, and what does not fit by itself.

A batch is parsed in one go, which costs no object per record. If that fails, each record is looked at, and those that
seem not to fit (`_guess_of`) are set apart. What seems to fit is parsed in runs, as long as they can be, and so are the
others, until those that do not fit are alone: one parser decides about all, and a wrong guess costs time only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

_NEWLINE: Final = 10
_SPACE: Final = " \t\r\n"
_OPEN, _CLOSE = ord("{"), ord("}")
_NO_OBJECT: Final = "the record is not a JSON object: it must begin with { and end with }"
_SHORTER: Final = 8
"""A run that fails is tried again this many times shorter; behind one that goes well comes one that is twice as
long.
"""
_REASON_CHARACTERS: Final = 500
"""A reason is cut there: the parser repeats what it cannot parse, were it a megabyte."""
_MOST_DIGITS: Final = 38
"""Of a decimal of Spark's. A text of this many, moved by this many places, is a number of 256 bits."""
_REFUSALS: Final = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)


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
    errors: dict[int, str] = {}
    try:
        table = _table(data, schema)
    except _REFUSALS:
        table = _in_runs(data.to_pylist(), schema, errors)
    columns = {name: table.column(name).combine_chunks() for name in schema.names}
    if not errors:
        return Parsed(columns, pa.nulls(len(data), pa.string()), None)
    first = min(errors)
    return Parsed(columns, pa.array(map(errors.get, range(len(data))), pa.string()), (first, errors[first]))


def _table(data: Any, schema: Any) -> Any:
    """All of them at once, if all fit."""
    starts, ends, content = _places(data)
    if not _are_objects(starts, ends, content):
        starts, ends, content = _places(pc.ascii_trim(data.cast(pa.string()), characters=_SPACE))
        if not _are_objects(starts, ends, content):
            raise pa.ArrowInvalid(_NO_OBJECT)
    return _parsed(np.insert(content, ends, np.uint8(_NEWLINE)), len(data), schema)


def _parsed(lines: Any, count: int, schema: Any) -> Any:
    """This many objects, with a newline behind each, by the one parser that there is."""
    written = _written(schema)
    table = arrow_json.read_json(
        pa.BufferReader(pa.py_buffer(lines)),
        read_options=arrow_json.ReadOptions(use_threads=False, block_size=max(len(lines) + 1, 64)),
        parse_options=arrow_json.ParseOptions(explicit_schema=written, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != count:
        raise pa.ArrowInvalid("the record is not one JSON object")
    table = table.select(schema.names)
    table.validate(full=True)  # the parser takes strings that are no UTF-8, and decimals of any size
    return table if written is schema else table.cast(schema)


@lru_cache(maxsize=16)
def _written(schema: Any) -> Any:
    """The schema as the parser is to read it. Of dates it knows numbers of days only, so they are strings first; and
    it moves the point of decimals without checking whether digits get lost, so they have room for any that may.
    """
    written = pa.schema([field.with_type(_as_written(field.type)) for field in schema])
    return schema if written == schema else written


def _as_written(kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_written(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_as_written(kind.value_type)))
    if pa.types.is_decimal(kind):
        return pa.decimal256(_MOST_DIGITS, kind.scale)
    return pa.string() if pa.types.is_date(kind) else kind


def _in_runs(payloads: Sequence[bytes], schema: Any, errors: dict[int, str]) -> Any:
    """The records whose batch was refused, each as if it were alone; `errors` gets the reasons by their places."""
    guess = _guess_of(schema)
    good: list[tuple[int, bytes]] = []
    doubtful: list[tuple[int, bytes]] = []
    for at, payload in enumerate(payloads):
        text = payload.strip(_SPACE.encode())
        if not (text.startswith(b"{") and text.endswith(b"}")):
            errors[at] = _NO_OBJECT
        else:
            (good if guess(text) else doubtful).append((at, text))
    pieces = [
        *_runs(good, len(good), schema, errors),
        *_runs(doubtful, 1, schema, errors),
        (list(errors), pa.table([pa.nulls(len(errors), field.type) for field in schema], schema=schema)),
    ]
    places = np.concatenate([np.array(at, np.int64) for at, _ in pieces])
    return pa.concat_tables([table for _, table in pieces]).combine_chunks().take(pa.array(np.argsort(places)))


def _runs(
    records: Sequence[tuple[int, bytes]], size: int, schema: Any, errors: dict[int, str]
) -> Iterator[tuple[list[int], Any]]:
    """The places and rows of the records that fit, run by run."""
    at = 0
    while at < len(records):
        run = records[at : at + size]
        try:
            table = _parsed(b"\n".join([*(text for _, text in run), b""]), len(run), schema)
        except _REFUSALS as error:
            if len(run) > 1:
                size = max(1, len(run) // _SHORTER)
                continue
            errors[run[0][0]] = str(error)[:_REASON_CHARACTERS]
        else:
            yield [place for place, _ in run], table
            size *= 2
        at += len(run)


@lru_cache(maxsize=16)
def _guess_of(schema: Any) -> Callable[[bytes], bool]:
    """Whether a record seems to fit, in a microsecond or two, by a parser that knows nearly the same types."""
    try:
        decode = msgspec.json.Decoder(_kind_of(pa.struct(list(schema)))).decode
    except ValueError:  # no such parser has members of these names
        decode = msgspec.json.Decoder().decode

    def guess(text: bytes) -> bool:
        try:
            decode(text.decode())  # else it would not see what is no UTF-8
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False
        return True

    return guess


def _kind_of(kind: Any) -> Any:
    """The type of the other parser for one of Arrow's, of those that `boki.spark.schemas` lets pass."""
    if pa.types.is_struct(kind):
        fields = [(f"f{number}", _kind_of(field.type), None) for number, field in enumerate(kind)]
        names = {f"f{number}": field.name for number, field in enumerate(kind)}
        return msgspec.defstruct("Members", fields, rename=names) | None
    if pa.types.is_list(kind):
        return list[_kind_of(kind.value_type)] | None  # type: ignore[misc]
    if pa.types.is_integer(kind):
        bound = 1 << (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-bound, le=bound - 1)] | None
    if pa.types.is_timestamp(kind):
        return datetime | None
    if pa.types.is_date(kind):
        return date | None
    if pa.types.is_decimal(kind):
        return Decimal | None
    return (float if pa.types.is_floating(kind) else bool if pa.types.is_boolean(kind) else str) | None


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
