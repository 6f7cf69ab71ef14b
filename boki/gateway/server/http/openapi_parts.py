"""Parts of the OpenAPI document: schemas of types, parameters, headers, operations."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from boki.api.http import exchange as http_exchange

Json = dict[str, Any]

SEQNUM: Final[Json] = {"type": "string", "pattern": "^[0-9]{1,19}$", "description": "A seqnum: 63 bits, as digits"}
TIME: Final[Json] = {"type": "integer", "description": "Microseconds since the epoch, by the log's time"}
Seqnum = Annotated[str, Meta(extra_json_schema=SEQNUM)]
Time = Annotated[int, Meta(extra_json_schema=TIME)]
TEXT: Final[Json] = {"type": "string"}
SECONDS: Final[Json] = {"type": "number", "minimum": 0}


def object_of(required: Json, optional: Json | None = None, description: str = "") -> Json:
    """An object with these fields."""
    body: Json = {"type": "object", "required": list(required), "properties": required | (optional or {})}
    return body | ({"description": description} if description else {})


def array_of(items: Json) -> Json:
    """A list of these."""
    return {"type": "array", "items": items}


def component(name: str) -> Json:
    """A schema of the whole document."""
    return {"$ref": f"#/components/schemas/{name}"}


def json_of(schema: Json) -> Json:
    """A body that is JSON of that schema."""
    return {"application/json": {"schema": schema}}


_NAMED: Final = ("Append", "AppendMany", "Book", "Data", "Expect", "Invocation", "NewRecord", "Page", "Record")
_COMPONENTS: Final = {"ErrorAnswer": "Error"} | {f"{name}Body": name for name in _NAMED}
"""Structs of `answers` and `records` that the document has once, by name."""


_INSTEAD: Final = "x-instead"


def instead(schema: Json) -> Json:
    """For `Meta(extra_json_schema=...)`: the schema of a type that has another form in JSON than msgspec says."""
    return {_INSTEAD: schema}


def schema_of(kind: Any) -> Json:
    """The JSON schema of a type, without references but to schemas of the whole document."""
    whole = msgspec.json.schema(kind)
    schema: Json = _inlined(whole, whole.pop("$defs", {}))
    return schema


def definitions_of(*kinds: type[msgspec.Struct]) -> dict[str, Json]:
    """The schemas of structs that stand in the document by name."""
    return {_COMPONENTS[kind.__name__]: _definition_of(kind) for kind in kinds}


def _definition_of(kind: type[msgspec.Struct]) -> Json:
    """What may be left out is not null."""
    defined = msgspec.json.schema(kind)["$defs"]
    schema = defined[kind.__name__]
    fields = {
        name: without_null(field) if field.get("default", ...) is None else field
        for name, field in schema["properties"].items()
    }
    found: Json = _inlined(schema | {"properties": fields}, defined)
    return found


def _inlined(value: Any, defined: Mapping[str, Any]) -> Any:
    if isinstance(value, dict):
        if _INSTEAD in value:
            told = ("description",) if "description" in value else ()
            return value[_INSTEAD] | {name: value[name] for name in told}
        name = str(value.get("$ref", "")).rpartition("/")[2]
        if name in _COMPONENTS:
            return component(_COMPONENTS[name])
        if name in defined:  # else it is one of the whole document
            return _inlined(defined[name], defined)
        return {name: _inlined(inner, defined) for name, inner in value.items() if name not in {"title", "default"}}
    return [_inlined(inner, defined) for inner in value] if isinstance(value, list) else value


def without_null(schema: Json) -> Json:
    """The schema of what may be left out: in a query null cannot be sent, and elsewhere it says the same."""
    kinds = schema.get("anyOf", ())
    found = [one for one in kinds if one != {"type": "null"}]
    if len(found) != 1 or len(found) == len(kinds):
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **found[0]}


SECURITY_SCHEMES: Final[Json] = {"token": {"type": "http", "scheme": "bearer"}}


def _header(name: str, description: str, schema: Json = TEXT) -> Json:
    return {"name": name, "in": "header", "description": description, "schema": schema}


def query_parameter(name: str, description: str, schema: Json = TEXT) -> Json:
    """A query parameter that may be left out."""
    return {"name": name, "in": "query", "description": description, "schema": schema}


def path_parameter(name: str, description: str, schema: Json = TEXT) -> Json:
    """A variable part of a path."""
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}


POSITION: Final = _header(http_exchange.POSITION, "What the caller has seen: the Boki-Position of an earlier answer")
TIMEOUT: Final = _header(http_exchange.TIMEOUT, "Seconds until the answer is of no use", SECONDS)
KEY: Final = _header(http_exchange.KEY, "The same key within 24 hours gives the first answer and does nothing")
BOOK: Final = path_parameter("book", "The LogBook's name")
CALL_HEADERS: Final[list[Json]] = [
    _header(http_exchange.BOOK, "The call's LogBook; without it, the function's own"),
    POSITION,
    TIMEOUT,
    KEY,
    _header(
        http_exchange.RETRY,
        "When a logged call runs again if it fails: the fields of boki.Retry as a JSON object. It stands in for the "
        "function's own policy",
    ),
    _header(http_exchange.TRACEPARENT, "W3C trace context"),
]

ACCEPTED: Final[Json] = {
    "description": "The call is in the log and will run",
    "content": json_of(object_of({"id": TEXT | {"description": "See /invocation/{id}"}})),
}


def errors(*statuses: int) -> Json:
    """Answers that carry an error."""
    return {
        str(status): {"description": HTTPStatus(status).phrase, "content": json_of(component("Error"))}
        for status in statuses
    }


def operation_of(
    name: str, summary: str, parameters: list[Json], answer: Json, *, body: Json | None = None, tag: str = "LogBook"
) -> Json:
    """What one method of a path takes and answers.

    `answer` and `body` are contents, such as `json_of(schema)`.
    """
    operation: Json = {
        "operationId": name,
        "tags": [tag],
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done", "content": answer},
            **errors(400, 401, 404, 409, 410, 413, 429, 503, 504),
        },
    }
    return operation if body is None else operation | {"requestBody": {"required": True, "content": body}}


JSON_OBJECT: Final = json_of({"type": "object"})
BYTES: Final[Json] = {"application/octet-stream": {}}


def page_of(name: str, summary: str, content: Json, *, is_open: bool = False) -> Json:
    """A page of the system, which takes no parameters; one that `is_open` needs no token."""
    operation = {
        "operationId": name,
        "tags": ["System"],
        "summary": summary,
        "responses": {"200": {"description": "Done", "content": content}, **errors(401)},
    }
    return {"get": operation | ({"security": []} if is_open else {})}
