"""Which columns a read has, and whether the schema that a user asks for fits them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from boki.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

SCHEMA: Final = "seqnum bigint, book string, time timestamp_ltz, tags array<string>, data binary"
"""As Spark is to parse it: what a plain timestamp is there, a setting decides."""
ERROR_COLUMN: Final = "_error"
"""Why a record's JSON does not fit the schema; in a schema that has it, such records are rows of nulls."""
JSON_TYPES: Final = frozenset(
    {"bigint", "int", "smallint", "tinyint", "double", "float", "decimal", "string", "boolean", "timestamp", "date"}
)
"""What members of the JSON may be, and arrays and structs of these."""
_OWN: Final = {
    "seqnum": "bigint",
    "book": "string",
    "time": "timestamp",
    "tags": "array<string>",
    "data": "binary",
    ERROR_COLUMN: "string",
}


class Layout(msgspec.Struct, frozen=True):
    """The columns of a read in order: the record's own, and those of its JSON."""

    names: tuple[str, ...]
    json_names: tuple[str, ...]
    arrow: Any
    """The Arrow schema of all of them."""
    json_schema: Any
    """The Arrow schema of those of the JSON."""
    has_error: bool


def layout(schema: StructType, *, is_json: bool) -> Layout:
    """The layout that fits the schema. `InvalidArgument` says which column does not, and what would."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    json_names: list[str] = []
    _check_once("", schema)
    for field in schema.fields:
        if (own_name := field.name.lower()) in _OWN and own_name != field.name:
            raise InvalidArgument(
                f"the schema names {field.name}, which differs from the record's own column {own_name} by capitals "
                f"only: write {own_name}, or leave it out",
                field=field.name,
            )
        kind = field.dataType.simpleString()
        own = _OWN.get(field.name) if field.name != ERROR_COLUMN or is_json else None
        if own is not None:
            if kind != own:
                raise InvalidArgument(
                    f"the column {field.name} is of type {own}, not {kind}{_hint(kind)}", field=field.name
                )
            if field.name == ERROR_COLUMN:
                _check_nullable(field.name, is_nullable=field.nullable)
        elif not is_json:
            raise InvalidArgument(
                f"a LogBook has no column {field.name}: there are {SCHEMA}. With the option json=true, other columns "
                "are the members of each record's JSON",
                field=field.name,
            )
        else:
            _check_json_type(field.name, field.dataType, is_nullable=field.nullable)
            json_names.append(field.name)
    if is_json and not json_names:
        raise InvalidArgument("with json=true, give a schema that names members of the JSON: .schema('a int, …')")
    arrow = to_arrow_schema(schema, timezone="UTC")
    return Layout(
        tuple(schema.fieldNames()),
        tuple(json_names),
        arrow,
        pa.schema([arrow.field(name) for name in json_names]),
        ERROR_COLUMN in schema.fieldNames(),
    )


def _check_json_type(name: str, kind: DataType, *, is_nullable: bool) -> None:
    from pyspark.sql.types import ArrayType, StructType

    _check_nullable(name, is_nullable=is_nullable)
    if isinstance(kind, ArrayType):
        _check_json_type(f"{name}[]", kind.elementType, is_nullable=kind.containsNull)
    elif isinstance(kind, StructType):
        if not kind.fields:
            raise InvalidArgument(
                f"the column {name} is a struct of nothing: name a member, or leave it out", field=name
            )
        _check_once(f"{name}.", kind)
        for field in kind.fields:
            _check_json_type(f"{name}.{field.name}", field.dataType, is_nullable=field.nullable)
    elif kind.simpleString().partition("(")[0] not in JSON_TYPES:
        raise InvalidArgument(
            f"the column {name} cannot be of type {kind.simpleString()}: members of JSON are read as "
            f"{', '.join(sorted(JSON_TYPES))}, and arrays and structs of these{_hint(kind.simpleString())}",
            field=name,
        )


def _check_once(around: str, kind: StructType) -> None:
    """Spark cannot take two columns or members of one name."""
    names = kind.fieldNames()
    if twice := sorted({f"{around}{name}" for name in names if names.count(name) > 1}):
        raise InvalidArgument(f"the schema names {', '.join(twice)} twice: leave one out", field=twice[0])


def _hint(kind: str) -> str:
    """What to write instead of a type that Spark may have chosen by itself."""
    return "; spark.sql.timestampType makes timestamp mean that: write timestamp_ltz" if kind == "timestamp_ntz" else ""


def _check_nullable(name: str, *, is_nullable: bool) -> None:
    """A record may lack any member, and Spark does not look for nulls where a schema promises that there are none."""
    if not is_nullable:
        raise InvalidArgument(
            f"the column {name} cannot be NOT NULL: what a record lacks is null. Leave NOT NULL out, and filter",
            field=name,
        )
