"""What the OpenAPI document says whatever functions there are: schemas, headers, and the fixed paths.

Data, and small functions that spare it repetition.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final, get_args

from boki.api.http import exchange as http_exchange
from boki.api.http.exchange import BUNDLE_CONTENT_TYPE, MAX_WAIT_S
from boki.log.limits import MAX_CONDITIONS
from boki.protocol.calls import MAX_CALLS_PAGE, CallStatus

Json = dict[str, Any]

_SEQNUM: Final[Json] = {"type": "string", "pattern": "^[0-9]{1,19}$", "description": "A seqnum: 63 bits, as digits"}
_TIME: Final[Json] = {"type": "integer", "description": "Microseconds since the epoch, by the log's time"}
TEXT: Final[Json] = {"type": "string"}
SECONDS: Final[Json] = {"type": "number", "minimum": 0}


def object_of(required: Json, optional: Json | None = None, description: str = "") -> Json:
    """An object with these fields."""
    body: Json = {"type": "object", "required": list(required), "properties": required | (optional or {})}
    return body | ({"description": description} if description else {})


def array_of(items: Json) -> Json:
    """A list of these."""
    return {"type": "array", "items": items}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def json_of(schema: Json) -> Json:
    """A body that is JSON of that schema."""
    return {"application/json": {"schema": schema}}


_DATA: Final[Json] = {
    "text": TEXT | {"description": "The data, if it is valid UTF-8"},
    "base64": TEXT | {"contentEncoding": "base64", "description": "The data, if it is not valid UTF-8"},
}
_NEW_DATA: Final[Json] = {
    "text": TEXT | {"description": "The data as text, stored as UTF-8"},
    "data": TEXT | {"description": "The same as text"},
    "json": {"description": "The data as a JSON value, stored as it is written here"},
    "base64": TEXT | {"contentEncoding": "base64", "description": "The data as bytes"},
}
_TAGS: Final[Json] = array_of(TEXT)
_WHEN: Final[Json] = {"anyOf": [_ref("Expect"), array_of(_ref("Expect")) | {"maxItems": MAX_CONDITIONS}]}
_NULL_OR_SECONDS: Final[Json] = {"type": ["number", "null"], "exclusiveMinimum": 0}
_NULL_OR_BYTES: Final[Json] = {"type": ["integer", "null"], "exclusiveMinimum": 0}

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
    "Data": {"type": "object", "properties": _DATA, "minProperties": 1, "maxProperties": 1},
    "Record": object_of(
        {"seqnum": _SEQNUM, "tags": _TAGS, "time_us": _TIME},
        _DATA | {"auxdata": _ref("Data")},
        "A record. Its data stands in `text` if it is valid UTF-8, else in `base64`.",
    ),
    "Page": object_of(
        {
            "records": array_of(_ref("Record")),
            "next_start": _SEQNUM | {"description": "Where the next page starts"},
            "first_seqnum": _SEQNUM | {"description": "Records below this have been trimmed"},
            "is_end": {"type": "boolean", "description": "Whether there was nothing more in the range"},
        }
    ),
    "Expect": object_of(
        {"tag": TEXT},
        {
            "last_seqnum": _SEQNUM | {"description": "Holds if the tag's last record is this one; 0: none"},
            "count": {
                "type": "integer",
                "minimum": 0,
                "description": "Holds if this many records of the tag have ever been appended; the tag begins with `!`",
            },
        },
        "A condition of an append, with one of last_seqnum and count; with neither, the tag has no record.",
    ),
    "NewRecord": object_of(
        {}, _NEW_DATA | {"tags": _TAGS}, "A record to append: exactly one of text, data, json, base64."
    ),
    "Append": object_of(
        {},
        _NEW_DATA | {"tags": _TAGS, "when": _WHEN, "key": TEXT},
        "A record to append: exactly one of text, data, json, base64.",
    ),
    "AppendMany": object_of({"records": array_of(_ref("NewRecord"))}, {"when": _WHEN, "key": TEXT}),
    "Book": object_of(
        {
            "name": TEXT,
            "record_count": {"type": "integer"},
            "first_seqnum": _SEQNUM,
            "last_seqnum": _SEQNUM,
            "last_time_us": _TIME,
            "size_bytes": {"type": "integer"},
            "retention_age_s": {"type": ["number", "null"]},
            "retention_size_bytes": {"type": ["integer", "null"]},
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
            "accepted_us": _TIME,
            "due_us": _TIME,
            "started_us": _TIME | {"description": "When the first run began"},
            "last_started_us": _TIME | {"description": "When the last run began"},
            "next_us": _TIME
            | {"description": "When the next run is due, if the state is retrying, or suspended until a time"},
            "finished_us": _TIME,
            "errors": {
                "type": "object",
                "additionalProperties": {"type": "integer"},
                "description": "How many runs ended with which error",
            },
            "last_error": _ref("Error"),
            "wakes": {
                "type": "array",
                "items": object_of({"book": TEXT, "tag": TEXT, "min_seqnum": _SEQNUM}),
                "description": "Records that a suspended call waits for: of any of these tags, at or above min_seqnum",
            },
            "note": TEXT | {"description": "Why a suspended call waits"},
            "result": {"description": "The result of a function that returns JSON or text"},
            "result_base64": TEXT | {"contentEncoding": "base64", "description": "The result, if it is bytes"},
            "error": _ref("Error"),
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
_FRESH: Final = query_parameter(
    "fresh", "Linearizable: not older than anything acknowledged before", {"type": "boolean"}
)
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
        str(status): {"description": HTTPStatus(status).phrase, "content": json_of(_ref("Error"))}
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


def _log(name: str, summary: str, parameters: list[Json], answer: Json, *, body: Json | None = None) -> Json:
    return operation_of(name, summary, [*parameters, POSITION, TIMEOUT], json_of(answer), body=body)


_SEQNUM_IN_PATH: Final = path_parameter("seqnum", "The record's seqnum", _SEQNUM)
_ONE: Final = object_of({"record": {"anyOf": [_ref("Record"), {"type": "null"}]}})
NOTHING: Final[Json] = {"type": "object"}
BYTES: Final[Json] = {"application/octet-stream": {}}

_BOOKS: Final[Json] = {
    "get": _log(
        "listBooks",
        "LogBooks by name",
        [
            query_parameter("prefix", "Only names that start with this"),
            query_parameter("after", "Only names that come after this one: the last name of the page before"),
            query_parameter("limit", "Maximum number", {"type": "integer", "minimum": 1}),
        ],
        object_of({"books": array_of(_ref("Book"))}),
    ),
    "post": operation_of(
        "carryOut",
        "One log operation as msgpack, for boki.Client",
        [],
        {http_exchange.LOG_CONTENT_TYPE: {}},
        body={http_exchange.LOG_CONTENT_TYPE: {}},
    ),
}

_READS: Final[Json] = {
    "/logbook/{book}/records/{seqnum}": {
        "get": _log("getRecord", "Exactly that record", [BOOK, _SEQNUM_IN_PATH], _ref("Record"))
    },
    "/logbook/{book}/read": {
        "get": _log(
            "read",
            "A page of records, ascending. It may be shorter than the limit, and is empty only at the end",
            [
                BOOK,
                _TAG,
                query_parameter("start", "From this seqnum on", _SEQNUM),
                query_parameter("stop", "Below this seqnum", _SEQNUM),
                query_parameter("limit", "Maximum number", {"type": "integer", "minimum": 1}),
                query_parameter("backward", "The last ones in the range", {"type": "boolean"}),
                WAIT,
                query_parameter("start_time_us", "From this time on", _TIME),
                _FRESH,
            ],
            _ref("Page"),
        )
    },
    "/logbook/{book}/read_next": {
        "get": _log(
            "readNext",
            "The first record from a seqnum on",
            [BOOK, _TAG, query_parameter("min_seqnum", "From this seqnum on", _SEQNUM), WAIT],
            _ONE,
        )
    },
    "/logbook/{book}/read_prev": {
        "get": _log(
            "readPrev",
            "The last record up to a seqnum",
            [BOOK, _TAG, query_parameter("max_seqnum", "Up to this seqnum", _SEQNUM)],
            _ONE,
        )
    },
    "/logbook/{book}/check_tail": {"get": _log("checkTail", "The last record", [BOOK, _TAG, _FRESH], _ONE)},
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
                _header("Last-Event-ID", "Continue after this seqnum", _SEQNUM),
                POSITION,
            ],
            {"text/event-stream": {"schema": TEXT}},
        )
    },
}

_WRITES: Final[Json] = {
    "/logbook/{book}/append": {
        "post": _log(
            "append",
            "Append a record: durable and ordered when this answers. A body that is not JSON is the data itself",
            [BOOK, query_parameter("tag", "Tags of a raw body; may be repeated", _TAGS), KEY],
            object_of({"seqnum": _SEQNUM}),
            body=json_of(_ref("Append")) | BYTES,
        )
    },
    "/logbook/{book}/append_many": {
        "post": _log(
            "appendMany",
            "Append all records or none, as neighbours",
            [BOOK, KEY],
            object_of({"seqnums": array_of(_SEQNUM)}),
            body=json_of(_ref("AppendMany")),
        )
    },
    "/logbook/{book}/records/{seqnum}/auxdata": {
        "put": _log("setAuxdata", "Cache bytes beside a record", [BOOK, _SEQNUM_IN_PATH], NOTHING, body=BYTES)
    },
    "/logbook/{book}/trim": {
        "post": _log(
            "trim",
            "Records below a seqnum are gone",
            [BOOK],
            NOTHING,
            body=json_of(object_of({"before": _SEQNUM}, {"tag": TEXT})),
        )
    },
    "/logbook/{book}/sync": {"post": _log("sync", "Catch up with all that is acknowledged", [BOOK], NOTHING)},
    "/logbook/{book}/retention": {
        "put": _log(
            "setRetention",
            "Have the book trimmed by age and size",
            [BOOK],
            NOTHING,
            body=json_of(object_of({}, {"age_s": _NULL_OR_SECONDS, "size_bytes": _NULL_OR_BYTES})),
        )
    },
    "/logbook/{book}": {"delete": _log("deleteBook", "Delete the book", [BOOK], NOTHING)},
}


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
    return {"post": operation_of(name, summary, [_ID], json_of(_ref("Invocation")), tag="Invocations")}


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
                query_parameter("since_us", "Only calls that changed at this time or later", _TIME),
                query_parameter("until_us", "Only calls that changed before this time", _TIME),
                query_parameter("before", "Go on after a page: its `before`", _SEQNUM),
                query_parameter(
                    "limit", "Maximum number of calls", {"type": "integer", "minimum": 1, "maximum": MAX_CALLS_PAGE}
                ),
            ],
            json_of(
                object_of(
                    {"calls": array_of(_ref("Invocation"))},
                    {"before": _SEQNUM | {"description": "Where the next page begins; missing: this is the last"}},
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
            json_of(_ref("Invocation")),
            tag="Invocations",
        )
    },
    "/logbook": _BOOKS,
    **_READS,
    **_WRITES,
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
