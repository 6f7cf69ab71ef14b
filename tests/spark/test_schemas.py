"""Schemas and JSON without Spark: what fits comes out as the schema has it, and what does not says why."""

from __future__ import annotations

import random
from datetime import date
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import json as arrow_json
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from boki.errors import InvalidArgument
from boki.spark.json_rows import parse
from boki.spark.schemas import layout

ARROW = pa.schema(
    [
        ("n", pa.int32()),
        ("s", pa.string()),
        ("list", pa.list_(pa.int64())),
        ("inner", pa.struct([("x", pa.int64())])),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


def parsed(*payloads: bytes) -> tuple[list[dict[str, Any]], list[str | None]]:
    """What each record has that is not null, and why it does not fit."""
    found = parse(pa.array(payloads, pa.binary()), ARROW)
    columns = {name: column.to_pylist() for name, column in found.columns.items()}
    rows = [
        {name: column[i] for name, column in columns.items() if column[i] is not None} for i in range(len(payloads))
    ]
    errors = found.errors.to_pylist()
    firsts = [at for at, error in enumerate(errors) if error is not None][:1]
    assert ([] if found.first_error is None else [found.first_error[0]]) == firsts
    return rows, errors


def fields(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


FITS = [
    (b'{"n": 1, "s": "a", "other": [1, {}]}', {"n": 1, "s": "a"}),
    (b"{}", {}),
    (b'{"n": null, "list": [1, null], "inner": {"x": 3, "y": 4}}', {"list": [1, None], "inner": {"x": 3}}),
    (b' \r\n{"n": 2}\n', {"n": 2}),
    (b'{\n  "n": 3,\n  "s": "b"\n}', {"n": 3, "s": "b"}),
    ('{"s": "ü\\u0000\\n"}'.encode(), {"s": "ü\0\n"}),
]
DOES_NOT = [
    (b"", "not a JSON object"),
    (b"  ", "not a JSON object"),
    (b"[1]", "not a JSON object"),
    (b"7", "not a JSON object"),
    (b'{"n": 1', "not a JSON object"),
    (b'{"n": "1"}', "changed from number to string"),
    (b'{"n": 1.5}', "couldn't parse:1.5"),
    (b'{"n": 3000000000}', "couldn't parse:3000000000"),
    (b'{"n": 1}{"n": 2}', "not one JSON object"),
    (b'{"n": 1}\n{"n": 2}', "not one JSON object"),
    (b'{"n": 1, "n": 2}', "specified twice"),
    (b'{"s": "a\nb"}', "Invalid encoding in string"),
    (b'{"s": "\xff"}', "UTF8"),
    (b'{"at": "soon"}', "couldn't parse:soon"),
]


def test_records_are_judged_alike_alone_and_among_others() -> None:
    """A batch is parsed at once: whatever stands beside a record changes nothing about it."""
    for payload, row in FITS:
        assert parsed(payload) == ([row], [None]), payload
    for payload, why in DOES_NOT:
        rows, (error,) = parsed(payload)
        assert rows == [{}]
        assert why in str(error), payload
    everything = [*FITS, *DOES_NOT] * 3 + FITS
    rows, errors = parsed(*(payload for payload, _ in everything))
    for row, error, (payload, expected) in zip(rows, errors, everything, strict=True):
        if isinstance(expected, dict):
            assert (row, error) == (expected, None), payload
        else:
            assert str(expected) in str(error), payload


@pytest.mark.parametrize(("bad", "most_calls"), [(b"no JSON", 4), (b'{"n": "1"}', 510), (b'{"s": "\xff"}', 510)])
def test_records_that_do_not_fit_cost_a_call_each_at_most(
    monkeypatch: pytest.MonkeyPatch, bad: bytes, most_calls: int
) -> None:
    """However many they are, and wherever they stand: what fits is not parsed over and over for their sake."""
    calls: list[int] = []
    read_json = arrow_json.read_json

    def counted(*given: Any, **named: Any) -> Any:
        calls.append(1)
        return read_json(*given, **named)

    monkeypatch.setattr(arrow_json, "read_json", counted)
    draw = random.Random(3)
    records = draw.sample([bad] * 500 + [b'{"n": 1}'] * 500, 1000)
    rows, errors = parsed(*records)
    assert [bool(row) for row in rows] == [error is None for error in errors] == [record != bad for record in records]
    assert len(calls) <= most_calls


def test_a_guess_that_is_wrong_costs_time_only() -> None:
    """What only looks as if it fitted, and what only looks as if it did not, in runs of all lengths; names of members
    that no other parser knows.
    """
    draw = random.Random(4)
    schema = pa.schema([("at", pa.timestamp("us", tz="UTC")), ("a.b", pa.int32()), ('"\\', pa.int64())])
    day, twice, fits = (
        b'{"at": "2026-01-02"}',
        b'{"a.b": 1, "a.b": 2}',
        b'{"a.b": 7, "x": [' + b"[" * 3000 + b"]" * 3001 + b"}",
    )
    for _ in range(20):
        records = [
            draw.choice((day, twice, fits)) for _ in range(draw.randrange(1, 60)) for _ in range(draw.choice((1, 9)))
        ]
        found = parse(pa.array(records, pa.binary()), schema)
        assert [error is None for error in found.errors.to_pylist()] == [record != twice for record in records]
        assert found.columns["a.b"].to_pylist() == [7 if record == fits else None for record in records]
        assert [at is not None for at in found.columns["at"].to_pylist()] == [record == day for record in records]


def test_a_number_of_any_length() -> None:
    """More digits than Python's integers may have: a reason that is shorter than the record, or none of our numbers."""
    long = b"1" * 5000
    rows, errors = parsed(b'{"n": 1}', b'{"n": %b}' % long, b'{"other": %b}' % long, b'{"s": "%b"}' % long)
    assert [len(row) for row in rows] == [1, 0, 0, 1]
    assert "couldn't parse:1111" in str(errors[1]) and len(str(errors[1])) == 500
    assert errors[0] is errors[2] is errors[3] is None


DAYS = pa.schema(
    [
        ("day", pa.date32()),
        ("deep", pa.list_(pa.struct([("day", pa.date32()), ("sum", pa.decimal128(4, 1))]))),
    ]
)


def test_dates_are_strings_and_nothing_but_days() -> None:
    """At any depth. What has a time of day, or is a number, does not fit, and spoils none of its neighbours."""
    good = b'{"day": "2026-01-31", "deep": [{"day": "0001-01-01", "sum": 1.5}, null, {}]}'
    bad = [b"20000", b'"2026-1-2"', b'"2026-02-30"', b'"2026-01-02T00:00:00Z"', b'""']
    records = [good, *(b'{"day": %b}' % text for text in bad), b'{"deep": [{"day": 1}]}', b"{}", good]
    found = parse(pa.array(records, pa.binary()), DAYS)
    day = date(2026, 1, 31)
    assert found.columns["day"].to_pylist() == [day, *[None] * 7, day]
    deep = [{"day": date(1, 1, 1), "sum": Decimal("1.5")}, None, {"day": None, "sum": None}]
    assert found.columns["deep"].to_pylist() == [deep, *[None] * 7, deep]
    assert [error is None for error in found.errors.to_pylist()] == [True, *[False] * 6, True, True]


def test_decimals_are_exact_or_do_not_fit() -> None:
    """Numbers and strings of any length, with exponents: to the last digit as decimals are, and never another one."""
    draw = random.Random(5)
    exact = Context(prec=200)
    kept = 0
    for precision, scale in [(38, 0), (38, 10), (38, 19), (38, 38), (18, 2), (9, 9), (1, 0)] * 8:
        texts = [_number(draw) for _ in range(40)]
        texts += [f'"{text}"' for text in texts]
        records = [b'{"n": %b}' % text.encode() for text in texts]
        found = parse(pa.array(records, pa.binary()), pa.schema([("n", pa.decimal128(precision, scale))]))
        for text, value, error in zip(texts, found.columns["n"].to_pylist(), found.errors.to_pylist(), strict=True):
            number = Decimal(text.strip('"'))
            assert (value is None) == (error is not None), text
            if value is not None:
                assert value == number, text
                kept += 1
            elif abs(number.adjusted()) < 38 and len(number.as_tuple().digits) <= 38 and number:
                units = number.scaleb(scale, exact)
                assert units != units.to_integral_value() or abs(units) >= 10**precision, text
    assert kept > 500


def _number(draw: random.Random) -> str:
    whole = str(draw.randrange(10 ** draw.randrange(1, 41)))
    part = f".{draw.randrange(10 ** draw.randrange(1, 30))}" if draw.random() < 0.5 else ""
    exponent = f"e{draw.randrange(-80, 80)}" if draw.random() < 0.3 else ""
    return f"{draw.choice(('', '-'))}{whole}{part}{exponent}"


def test_parts_of_a_column_are_parsed_as_they_are() -> None:
    """Arrow hands slices around, whose bytes begin anywhere."""
    data = pa.array([b'{"n": 1}', b"x", b'{"n": 2}', b'{"n": 3}'], pa.binary())
    found = parse(data[2:], ARROW)
    assert found.columns["n"].to_pylist() == [2, 3]
    assert found.first_error is None


GOOD = [
    (fields(seqnum=LongType(), tags=ArrayType(StringType()), time=TimestampType()), False),
    (fields(n=IntegerType(), _error=StringType(), data=BinaryType()), True),
    (fields(inner=fields(x=ArrayType(fields(y=ByteType())))), True),
    (fields(n=DecimalType(10, 2), l=ArrayType(fields(day=DateType()))), True),
]
BAD = [
    (fields(seqnum=StringType()), False, "the column seqnum is of type bigint, not string"),
    (fields(data=StringType()), False, "the column data is of type binary, not string"),
    (fields(carrier=StringType()), False, "a LogBook has no column carrier.*json=true"),
    (fields(_error=StringType()), False, "a LogBook has no column _error"),
    (fields(seqnum=LongType(), _error=StringType()), True, "give a schema that names members"),
    (fields(n=IntegerType(), _error=IntegerType()), True, "the column _error is of type string, not int"),
    (fields(n=BinaryType()), True, "the column n cannot be of type binary: members of JSON are read as"),
    (fields(n=MapType(StringType(), IntegerType())), True, "n cannot be of type map"),
    (fields(n=ArrayType(fields(x=BinaryType()))), True, r"the column n\[\]\.x cannot be of type binary"),
    (StructType([StructField("n", DoubleType(), nullable=False)]), True, "the column n cannot be NOT NULL"),
    (fields(n=ArrayType(LongType(), containsNull=False)), True, r"the column n\[\] cannot be NOT NULL"),
    (
        StructType([StructField("n", LongType()), StructField("_error", StringType(), nullable=False)]),
        True,
        "the column _error cannot be NOT NULL",
    ),
    (StructType([StructField("n", LongType()), StructField("n", LongType())]), True, "the schema names n twice"),
    (
        fields(Seqnum=LongType(), n=LongType()),
        True,
        "names Seqnum, which differs .* own column seqnum by capitals only",
    ),
    (fields(n=LongType(), _Error=StringType()), True, "names _Error, which differs .*: write _error, or leave it out"),
    (fields(TIME=TimestampType()), False, "names TIME, which differs"),
    (StructType([StructField("seqnum", LongType())] * 2), False, "the schema names seqnum twice"),
    (fields(n=ArrayType(StructType([StructField("x", LongType())] * 2))), True, r"the schema names n\[\]\.x twice"),
    (fields(n=ArrayType(StructType([]))), True, r"the column n\[\] is a struct of nothing"),
    (fields(time=TimestampNTZType()), False, "time is of type timestamp, not timestamp_ntz;.* write timestamp_ltz"),
    (fields(n=TimestampNTZType()), True, "n cannot be of type timestamp_ntz: .* write timestamp_ltz"),
]


def test_schemas_that_fit_have_their_columns_in_order() -> None:
    """The record's own columns and those of its JSON, as the schema has them."""
    for schema, is_json in GOOD:
        found = layout(schema, is_json=is_json)
        assert found.names == tuple(schema.fieldNames()) == tuple(found.arrow.names)
        assert set(found.json_names) == set(found.json_schema.names)
        assert found.has_error == ("_error" in found.names)


@pytest.mark.parametrize(("schema", "is_json", "message"), BAD, ids=range(len(BAD)))
def test_a_schema_that_does_not_fit_is_refused_by_the_column(schema: StructType, is_json: bool, message: str) -> None:
    """When the query is defined, by the name of the column and what would fit."""
    with pytest.raises(InvalidArgument, match=message):
        layout(schema, is_json=is_json)
