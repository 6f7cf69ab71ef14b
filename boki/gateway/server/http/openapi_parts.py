"""What the OpenAPI document says whatever functions there are: schemas, headers, and the fixed paths.

Data, and small functions that spare it repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final, get_args

import msgspec

from boki.api.http import exchange as http_exchange
from boki.api.http.exchange import BUNDLE_CONTENT_TYPE, MAX_WAIT_S
from boki.protocol.calls import MAX_CALLS_PAGE, CallStatus

Json = dict[str, Any]

SEQNUM: Final[Json] = {"type": "string", "pattern": "^[0-9]{1,19}$", "description": "A seqnum: 63 bits, as digits"}
TIME: Final[Json] = {"type": "integer", "description": "Microseconds since the epoch, by the log's time"}
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


_COMPONENTS: Final = {
    f"{name}Body": name for name in ("Append", "AppendMany", "Book", "Data", "Expect", "NewRecord", "Page", "Record")
}
"""Structs of `boki.gateway.server.http.records` that the document has once, by name."""


_INSTEAD: Final = "x-instead"


def instead(schema: Json) -> Json:
    """For `Meta(extra_json_schema=...)`: the schema of a type that has another form in JSON than msgspec says."""
    return {_INSTEAD: schema}


def schema_of(kind: Any) -> Json:
    """The JSON schema of a type, without references but to schemas of the whole document."""
    whole = msgspec.json.schema(kind)
    schema: Json = _inlined(whole, whole.pop("$defs", {}))
    return schema


def definition_of(kind: type[msgspec.Struct]) -> Json:
    """The schema of a struct that stands in the document by name. What may be left out is not null."""
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


SCHEMAS: Final[dict[str, Json]] = {
    "Error": object_of(
        {
            "code": TEXT | {"description": "A stable name for programs"},
            "message": TEXT,
            "outcome": {
                "enum": ["not_applied", "unknown", "failed"],
                "description": "It did not happen and never will; it may have happened; the function ran and raised",
            },
            "retryable": {"type": "boolean", "description": "Whether the very same request may succeed later"},
            "details": {"type": "object", "description": "Facts behind the message, such as the field that is wrong"},
        }
    ),
    "Invocation": object_of(
        {
            "id": TEXT,
            "function": TEXT,
            "book": TEXT,
            "state": {"enum": list(get_args(CallStatus))},
            "attempts": {"type": "integer", "description": "Runs so far, those included that were cut off"},
        },
        {
            "name": TEXT | {"description": "What people call it, as the id of a workflow"},
            "accepted_us": TIME,
            "due_us": TIME,
            "started_us": TIME | {"description": "When the first run began"},
            "last_started_us": TIME | {"description": "When the last run began"},
            "next_us": TIME
            | {"description": "When the next run is due, if the state is retrying, or suspended until a time"},
            "finished_us": TIME,
            "errors": {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "description": "How many runs ended with which error",
            },
            "last_error": component("Error"),
            "wakes": {
                "type": "array",
                "items": object_of({"book": TEXT, "tag": TEXT, "min_seqnum": {"type": "integer"}}),
                "description": "Records that a suspended call waits for: of any of these tags, at or above min_seqnum",
            },
            "note": TEXT | {"description": "Why a suspended call waits"},
            "result": {"description": "The result of a function that returns JSON or text"},
            "result_base64": TEXT | {"contentEncoding": "base64", "description": "The result, if it is bytes"},
            "response": {"type": "object", "description": "Status, headers and result of a function's Response"},
            "error": component("Error"),
        },
    ),
}

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
_TAG: Final = query_parameter("tag", "Only records with this tag; without it, all of the book")
WAIT: Final = query_parameter("wait_s", "Seconds to wait if there is nothing yet", SECONDS | {"maximum": MAX_WAIT_S})

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


NOTHING: Final[Json] = {"type": "object"}
BYTES: Final[Json] = {"application/octet-stream": {}}


def _page(name: str, summary: str, content: Json, *, is_open: bool = False) -> Json:
    operation = {
        "operationId": name,
        "tags": ["System"],
        "summary": summary,
        "responses": {"200": {"description": "Done", "content": content}, **errors(401)},
    }
    if is_open:
        operation |= {"security": []}
    return {"get": operation}


_ID: Final = path_parameter("id", "The invocation's id")


def _change(name: str, summary: str) -> Json:
    return {"post": operation_of(name, summary, [_ID], json_of(component("Invocation")), tag="Invocations")}


FIXED_PATHS: Final[dict[str, Json]] = {
    "/invocation": {
        "get": operation_of(
            "listInvocations",
            "Logged calls, those whose state changed last first. A page may be short, also empty, and not be the last",
            [
                query_parameter("function", "Only calls of this function"),
                query_parameter(
                    "state", "Only calls in this state; may be repeated", {"enum": list(get_args(CallStatus))}
                ),
                query_parameter("since_us", "Only calls that changed at this time or later", TIME),
                query_parameter("until_us", "Only calls that changed before this time", TIME),
                query_parameter("before", "Go on after a page: its `before`", SEQNUM),
                query_parameter(
                    "limit", "Maximum number of calls", {"type": "integer", "minimum": 1, "maximum": MAX_CALLS_PAGE}
                ),
            ],
            json_of(
                object_of(
                    {"calls": array_of(component("Invocation"))},
                    {"before": SEQNUM | {"description": "Where the next page begins; missing: this is the last"}},
                )
            ),
            tag="Invocations",
        )
    },
    "/invocation/{id}/cancel": _change("cancel", "End a logged call; one that has not begun never runs"),
    "/invocation/{id}/retry": _change("retry", "Run a logged call again that has failed or was cancelled"),
    "/invocation/{id}": {
        "get": operation_of(
            "invocation",
            "The state of a logged call, and its result",
            [_ID, WAIT],
            json_of(component("Invocation")),
            tag="Invocations",
        )
    },
    "/logbook": {
        "post": operation_of(
            "carryOut",
            "One log operation as msgpack, for boki.Client",
            [],
            {http_exchange.LOG_CONTENT_TYPE: {}},
            body={http_exchange.LOG_CONTENT_TYPE: {}},
        )
    },
    "/logbook/{book}/subscribe": {
        "get": operation_of(
            "subscribe",
            "Records and those to come, as server-sent events: id is the seqnum, data a Record. An event `trimmed` or "
            "`error` carries an Error and is the last one",
            [
                BOOK,
                _TAG,
                query_parameter("start", "A seqnum, or now"),
                query_parameter("on_trimmed", "What to do about records trimmed unread", {"enum": ["raise", "skip"]}),
                _header("Last-Event-ID", "Continue after this seqnum", SEQNUM),
                POSITION,
            ],
            {"text/event-stream": {"schema": TEXT}},
        )
    },
    "/healthz": _page("healthz", "The process answers", json_of(NOTHING), is_open=True),
    "/readyz": _page("readyz", "Calls would be carried out; 503 if not", json_of(NOTHING), is_open=True),
    "/metrics": _page("metrics", "Everything that is counted, for Prometheus", {"text/plain": {"schema": TEXT}}),
    "/status": _page("status", "What an operator wants to know", json_of(NOTHING)),
    "/functions": _page("functions", "The registered functions and the modules, the broken ones too", json_of(NOTHING)),
    "/functions/versions": {
        "get": operation_of(
            "versions", "The deployed versions of the functions, the newest first", [], json_of(NOTHING), tag="System"
        ),
        "post": operation_of(
            "deploy",
            "Run the functions of a bundle, which boki deploy makes of a folder, from now on",
            [query_parameter("force", "Also if some of its modules cannot be loaded", {"type": "boolean"})],
            json_of(NOTHING),
            body={BUNDLE_CONTENT_TYPE: {"schema": {}}},
            tag="System",
        ),
    },
    "/functions/versions/{version}/use": {
        "post": operation_of(
            "useVersion",
            "Run a version again",
            [path_parameter("version", "Its number, or previous for the one that ran before")],
            json_of(NOTHING),
            tag="System",
        )
    },
    "/openapi.json": _page("openapi", "This document", json_of(NOTHING)),
}
