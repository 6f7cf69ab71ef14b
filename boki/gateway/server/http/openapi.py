"""The OpenAPI 3.1 document: the paths of functions with their schemas, and the paths of LogBooks and of the system.

Built again for every request, because functions come and go. What does not change is described where its handlers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any, Final

from aiohttp.web import BaseRequest, Response

from boki.api.http.response import CONTENT_TYPES
from boki.faces import Route
from boki.faces.installed import all_faces
from boki.gateway.backend import Backend
from boki.gateway.server.http import binary, books, deployments, invocations, records, subscriptions, system
from boki.gateway.server.http.answers import ErrorAnswer, InvocationBody, json_answer
from boki.gateway.server.http.openapi_parts import (
    ACCEPTED,
    CALL_HEADERS,
    JSON_OBJECT,
    SECURITY_SCHEMES,
    definitions_of,
    errors,
    page_of,
)
from boki.protocol.calls import Encoding, FunctionInfo
from boki.protocol.routes import HttpRoute, parse_routes

_PATH: Final = "/openapi.json"
_PAGES: Final = system.PATHS | {_PATH: page_of("openapi", "This document", JSON_OBJECT)}
_TABLES: Final = (invocations.ENDPOINTS, books.ENDPOINTS, subscriptions.ENDPOINTS, deployments.ENDPOINTS)


def route(backend: Backend) -> Route:
    """The route that serves it."""

    async def answer(_request: BaseRequest) -> Response:
        return json_answer(document(backend.functions))

    return Route("GET", _PATH, answer)


def document(functions: Mapping[str, FunctionInfo]) -> dict[str, Any]:
    """The whole document, as JSON values."""
    schemas = definitions_of(ErrorAnswer, InvocationBody) | records.components()
    paths: dict[str, Any] = {}
    for name in sorted(functions):
        info = functions[name]
        paths[f"/function/{name}"] = {"post": _call(info, schemas)}
        paths[f"/asyncFunction/{name}"] = {"post": _call_later(info, schemas)}
        for route in parse_routes(info.http):
            paths.setdefault("/" + "/".join(route.parts), {})[route.method.lower()] = _call_by(route, info, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Boki",
            "version": version("boki"),
            "summary": "Serverless functions over a replicated, totally ordered shared log",
        },
        "security": [{}, {"token": []}],
        "paths": _merged(paths, *(table.paths() for table in _TABLES), binary.PATHS, _PAGES, _paths_of_libraries()),
        "components": {"schemas": schemas, "securitySchemes": SECURITY_SCHEMES},
    }


def _merged(*all_paths: Mapping[str, Any]) -> dict[str, Any]:
    """All paths: what two say of one path are its methods."""
    merged: dict[str, Any] = {}
    for paths in all_paths:
        for path, item in paths.items():
            merged[path] = merged.get(path, {}) | item
    return merged


def _paths_of_libraries() -> dict[str, Any]:
    return {path: item for face in all_faces() if face.openapi is not None for path, item in face.openapi().items()}


def _call(info: FunctionInfo, schemas: dict[str, Any]) -> dict[str, Any]:
    encoding: Encoding = "response" if info.streams else info.result_encoding
    result = _content(info.result_schema, encoding, f"{info.name}.result", schemas)
    return {
        "operationId": f"call.{info.name}",
        "tags": [info.module],
        "summary": f"Call {info.name} and wait for its result",
        **_description(info),
        "parameters": CALL_HEADERS,
        "requestBody": _request_body(info, schemas),
        "responses": {
            "200": {"description": "The function's result", "content": result},
            **errors(400, 401, 404, 409, 413, 422, 429, 500, 503, 504),
        },
    }


def _call_by(route: HttpRoute, info: FunctionInfo, schemas: dict[str, Any]) -> dict[str, Any]:
    """A call by the function's own route: fields of its payload stand in the path, in the query, or in a JSON body."""
    whole = info.payload_schema or {}
    inner = whole.get("$defs", {}).get(whole.get("$ref", "").rpartition("/")[2], whole)
    fields = {name: _moved(schema, f"{info.name}.payload") for name, schema in inner.get("properties", {}).items()}
    required = inner.get("required", ())
    in_path = [
        {"name": name, "in": "path", "required": True, "schema": fields.pop(name, {"type": "string"})}
        for name in route.variables
    ]
    takes_body = route.method in {"POST", "PUT", "PATCH"}
    in_query = [
        {"name": name, "in": "query", "schema": schema}
        | ({"required": True} if name in required and not takes_body else {})
        for name, schema in fields.items()
    ]
    described = _call(info, schemas)
    described |= {
        "operationId": f"{route.method.lower()}./{'/'.join(route.parts)}",
        "summary": f"Call {info.name} by its own route",
        "parameters": [*in_path, *in_query],
    }
    if not takes_body:
        del described["requestBody"]
    return described


def _call_later(info: FunctionInfo, schemas: dict[str, Any]) -> dict[str, Any]:
    delay = {
        "name": "delay_s",
        "in": "query",
        "description": "Run it this many seconds from now, by the log's time; at most a year",
        "schema": {"type": "number", "minimum": 0},
    }
    return {
        "operationId": f"callLater.{info.name}",
        "tags": [info.module],
        "summary": f"Put a call of {info.name} into the log, and do not wait for it",
        **_description(info),
        "parameters": [*CALL_HEADERS, delay],
        "requestBody": _request_body(info, schemas),
        "responses": {"202": ACCEPTED, **errors(400, 401, 404, 409, 413, 429, 503, 504)},
    }


def _description(info: FunctionInfo) -> dict[str, str]:
    return {"description": info.doc} if info.doc else {}


def _request_body(info: FunctionInfo, schemas: dict[str, Any]) -> dict[str, Any]:
    return {"content": _content(info.payload_schema, info.payload_encoding, f"{info.name}.payload", schemas)}


def _content(schema: dict[str, Any] | None, encoding: Encoding, name: str, schemas: dict[str, Any]) -> dict[str, Any]:
    """A body of this encoding. What its schema defines becomes components, whose names start with `name`."""
    if encoding == "response":
        return {"*/*": {}}
    content_type = CONTENT_TYPES[encoding].partition(";")[0]
    if schema is None:
        return {content_type: {"schema": {"type": "string"} if encoding == "text" else {}}}
    definitions = schema.get("$defs", {})
    for inner, definition in definitions.items():
        schemas[_component(name, inner)] = _moved(definition, name)
    rest = {key: value for key, value in schema.items() if key != "$defs"}
    return {content_type: {"schema": _moved(rest, name)}}


_REFERENCE = "#/$defs/"


def _moved(value: Any, name: str) -> Any:
    """The schema with its references pointing at components."""
    if isinstance(value, dict):
        return {
            key: f"#/components/schemas/{_component(name, inner[len(_REFERENCE) :])}"
            if key == "$ref" and isinstance(inner, str) and inner.startswith(_REFERENCE)
            else _moved(inner, name)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_moved(inner, name) for inner in value]
    return value


def _component(name: str, inner: str) -> str:
    """A component's name: only letters, digits, dot, dash and underscore are allowed.

    >>> _component("greet.payload", "List[int]")
    'greet.payload.List_int_'
    """
    return "".join(_allowed(f"{name}.{inner}"))


def _allowed(text: str) -> Iterable[str]:
    return (
        character if character.isascii() and (character.isalnum() or character in "._-") else "_" for character in text
    )
