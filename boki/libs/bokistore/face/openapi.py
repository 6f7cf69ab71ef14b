"""What the OpenAPI document says of objects."""

from __future__ import annotations

from typing import Final

from boki.gateway.server.http.openapi_parts import (
    BOOK,
    KEY,
    POSITION,
    TEXT,
    TIMEOUT,
    Json,
    array_of,
    json_of,
    object_of,
    operation_of,
    path_parameter,
    query_parameter,
)

_OBJECT: Final = path_parameter("object", "The object's name")
_PATH: Final = query_parameter("path", "A value within it, such as cart.items.0; without it, the whole object")
_LIMIT: Final = query_parameter("limit", "At most so many", {"type": "integer", "minimum": 1})
_PLACE: Final[Json] = {"anyOf": [TEXT, array_of({"type": ["string", "integer"]})]}
_VERSION: Final = TEXT | {"description": "The seqnum of the record that made it what it is, as digits; also the ETag"}
_NUMBER: Final[Json] = {"type": "integer"}
_IF_MATCH: Final[Json] = {
    "name": "If-Match",
    "in": "header",
    "schema": TEXT,
    "description": "Change it only if this is its version, or * if it exists; else 412",
}
_IF_NONE: Final[Json] = {
    "name": "If-None-Match",
    "in": "header",
    "schema": {"const": "*"},
    "description": "Change it only if it does not exist; else 412",
}
_CHANGE: Final[Json] = {
    "update": {"enum": ["set", "delete", "increment", "append", "insert", "pop", "merge"]},
}
_CHANGE_OPTIONS: Final[Json] = {
    "path": _PLACE,
    "value": {"description": "What is put, inserted or merged"},
    "values": array_of({}) | {"description": "What is appended"},
    "by": {"type": "number"},
    "limit": {"type": "integer", "minimum": 0},
    "index": {"enum": [-1, 0]},
}
_SHOWN_VERSION: Final = object_of(
    {
        "seqnum": TEXT,
        "time_s": {"type": "number"},
        "value": {},
        "exists": {"type": "boolean"},
        "function": TEXT,
        "invocation": TEXT,
        "step": TEXT,
        "is_transaction": {"type": "boolean"},
        "objects": array_of(TEXT),
    }
)


def _of(name: str, summary: str, answer: Json, *more: Json, body: Json | None = None, one: bool = True) -> Json:
    place = [BOOK, _OBJECT] if one else [BOOK]
    return operation_of(name, summary, [*place, *more, POSITION, TIMEOUT], json_of(answer), body=body, tag="Objects")


_CHANGED: Final = object_of({"version": _VERSION})
_ONE: Final = "/store/{book}/{object}"

STORE_PATHS: Final[dict[str, Json]] = {
    "/store/{book}": {
        "get": _of(
            "listObjects",
            "The names of the objects that exist, or of the maps, in order",
            object_of({}, {"objects": array_of(TEXT), "maps": array_of(TEXT)}),
            query_parameter("prefix", "Names that begin so"),
            query_parameter("after", "Above this name: the last one of the page before"),
            query_parameter("kind", "What is listed", {"enum": ["objects", "maps"], "default": "objects"}),
            _LIMIT,
            one=False,
        )
    },
    "/store/{book}/transactions": {
        "post": _of(
            "transact",
            "Read, test and update any objects, all or none; 409 if a test does not hold",
            object_of({"seqnum": TEXT, "reads": array_of({}), "results": array_of({})}),
            KEY,
            body=json_of(
                object_of(
                    {},
                    {
                        "reads": array_of(object_of({"object": TEXT}, {"path": _PLACE})),
                        "tests": array_of(object_of({"object": TEXT, "value": {}}, {"path": _PLACE})),
                        "updates": array_of(object_of({"object": TEXT, **_CHANGE}, _CHANGE_OPTIONS)),
                    },
                )
            ),
            one=False,
        )
    },
    "/store/{book}/views": {
        "post": _of(
            "lookAtObjects",
            "Answer questions of many objects as of one moment, for boki.Client",
            object_of({"seqnum": _NUMBER, "answers": array_of(array_of({})), "objects": array_of({})}),
            body=json_of(
                object_of({}, {"questions": array_of(array_of({})), "objects": array_of(TEXT), "at": _NUMBER})
            ),
            one=False,
        )
    },
    "/store/{book}/forks": {
        "post": _of(
            "forkStore",
            "Make another book a copy of all objects, as they are or as of a seqnum",
            object_of({"book": TEXT}),
            body=json_of(object_of({"name": TEXT}, {"at": TEXT})),
            one=False,
        )
    },
    _ONE: {
        "get": _of(
            "getObject",
            "The object, or a value of it; its version is the ETag",
            {},
            _PATH,
            query_parameter("at", "As of this seqnum"),
            query_parameter("time_s", "As of this time, in seconds since the epoch", {"type": "number"}),
        ),
        "put": _of("putObject", "Put the body", _CHANGED, _PATH, _IF_MATCH, _IF_NONE, KEY, body=json_of({})),
        "patch": _of(
            "patchObject",
            "Merge the body (RFC 7396), or apply it as a JSON Patch (RFC 6902)",
            _CHANGED,
            _PATH,
            _IF_MATCH,
            KEY,
            body=json_of({}) | {"application/json-patch+json": {"schema": array_of({"type": "object"})}},
        ),
        "delete": _of("deleteObject", "Take it away", _CHANGED, _PATH, _IF_MATCH, KEY),
        "post": _of(
            "updateObject",
            "One update by its name, such as increment; what it returns",
            object_of({"result": {}}),
            KEY,
            body=json_of(object_of(_CHANGE, _CHANGE_OPTIONS)),
        ),
    },
    f"{_ONE}/history": {
        "get": _of(
            "objectHistory",
            "Its versions, with what wrote them",
            object_of({"versions": array_of(_SHOWN_VERSION)}),
            query_parameter("start", "From this seqnum on"),
            _LIMIT,
        )
    },
    f"{_ONE}/watch": {
        "get": operation_of(
            "watchObject",
            "It, and each version that comes, as server-sent events",
            [BOOK, _OBJECT, POSITION, TIMEOUT],
            {"text/event-stream": {"schema": TEXT}},
            tag="Objects",
        )
    },
    f"{_ONE}/items": {
        "get": _of(
            "scanMap",
            "Items of a map, in the order of their keys",
            object_of({"items": array_of(object_of({"key": TEXT, "value": {}}))}),
            query_parameter("prefix", "Keys that begin so"),
            query_parameter("start", "From this key on"),
            query_parameter("stop", "Below this key"),
            query_parameter("after", "Above this key: the last one of the page before"),
            _LIMIT,
        )
    },
}
