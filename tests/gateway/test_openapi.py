"""The OpenAPI document: valid in its structure, complete, and with the functions' own schemas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec
import pydantic
import pytest

from boki.gateway.server.http.openapi import document
from boki.protocol.calls import FunctionInfo
from tests.gateway.fake_backend import FUNCTIONS, run, serving

METHODS = {"get", "put", "post", "delete", "patch"}


@dataclass
class Point:
    """A place."""

    x: int
    y: int
    next: "Point | None" = None  # noqa: UP037 - it is not defined yet


class Model(pydantic.BaseModel):
    points: list[Point]


def info(name: str, **settings: Any) -> FunctionInfo:
    return FunctionInfo(name=name, module="app", is_async=True, **settings)


def with_schemas() -> dict[str, FunctionInfo]:
    """Functions whose schemas refer to others: of msgspec, of pydantic, and recursive."""
    schema = msgspec.json.schema(list[Point])
    model = pydantic.TypeAdapter(Model).json_schema()
    infos = [
        info("plain", payload_schema=msgspec.json.schema(dict[str, int]), result_schema={}),
        info("points", payload_schema=schema, result_schema=schema, doc="Moves points."),
        info("model", payload_schema=model, result_schema=model),
        info("odd.name:1", payload_encoding="bytes", result_encoding="text"),
    ]
    return {one.name: one for one in infos}


DOCUMENT = document(with_schemas())


def nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Every object in the document."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def operations(of: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in of["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def test_it_names_its_version_and_survives_json() -> None:
    """OpenAPI 3.1, and nothing in it that is not JSON."""
    assert DOCUMENT["openapi"] == "3.1.0"
    assert {"title", "version"} <= set(DOCUMENT["info"])
    assert msgspec.json.decode(msgspec.json.encode(DOCUMENT)) == DOCUMENT
    assert re.fullmatch(r"\d+\.\d+.*", DOCUMENT["info"]["version"])


def test_every_reference_leads_somewhere() -> None:
    """Also those of the functions' schemas, which had them elsewhere."""
    references = {node["$ref"] for node in nodes(DOCUMENT) if isinstance(node.get("$ref"), str)}
    assert any("Point" in reference for reference in references)
    for reference in references:
        prefix, _, name = reference.rpartition("/")
        assert prefix == "#/components/schemas"
        assert name in DOCUMENT["components"]["schemas"], reference
    assert not any({"$defs", "x-instead"} & node.keys() for node in nodes(DOCUMENT))


def test_names_of_components_are_allowed_ones() -> None:
    """Whatever functions and types are called."""
    for name in DOCUMENT["components"]["schemas"]:
        assert re.fullmatch(r"[a-zA-Z0-9._-]+", name)


def test_operations_are_well_formed() -> None:
    """Unique ids, described responses with known codes, parameters that are declared once and completely."""
    ids = [operation["operationId"] for _, _, operation in operations(DOCUMENT)]
    assert len(set(ids)) == len(ids)
    for path, method, operation in operations(DOCUMENT):
        assert method in METHODS
        assert operation["summary"]
        assert operation["responses"]
        for status, response in operation["responses"].items():
            assert HTTPStatus(int(status))
            assert response["description"]
        parameters = operation.get("parameters", [])
        places = [(parameter["name"], parameter["in"]) for parameter in parameters]
        assert len(set(places)) == len(places)
        for parameter in parameters:
            assert parameter["in"] in {"path", "query", "header"}
            assert isinstance(parameter["schema"], dict)
        in_path = {parameter["name"] for parameter in parameters if parameter["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", path))
        assert all(parameter["required"] for parameter in parameters if parameter["in"] == "path")


def test_schemas_are_json_schemas() -> None:
    """Every `type` is one that JSON Schema has, every `required` name a property."""
    types = {"object", "array", "string", "number", "integer", "boolean", "null"}
    for node in nodes(DOCUMENT["components"]["schemas"]):
        kind = node.get("type", [])
        if isinstance(kind, str | list):
            assert set([kind] if isinstance(kind, str) else kind) <= types
        if isinstance(node.get("required"), list) and "properties" in node:
            assert set(node["required"]) <= set(node["properties"])


def test_a_functions_own_schema_is_there() -> None:
    """Payload and result, in their content types, with the docstring."""
    call = DOCUMENT["paths"]["/function/points"]["post"]
    schema = call["requestBody"]["content"]["application/json"]["schema"]
    assert schema == {"type": "array", "items": {"$ref": "#/components/schemas/points.payload.Point"}}
    point = DOCUMENT["components"]["schemas"]["points.payload.Point"]
    assert point["properties"]["x"] == {"type": "integer"}
    assert call["description"] == "Moves points."
    odd = DOCUMENT["paths"]["/function/odd.name:1"]["post"]
    assert list(odd["requestBody"]["content"]) == ["application/octet-stream"]
    assert list(odd["responses"]["200"]["content"]) == ["text/plain"]
    assert "202" in DOCUMENT["paths"]["/asyncFunction/points"]["post"]["responses"]


def test_it_describes_exactly_the_paths_that_there_are() -> None:
    """No route is missing, and none is described that is not there."""

    async def scenario() -> None:
        async with serving() as (gateway, _backend, http), http.get("/openapi.json") as response:
            described = {(method, path) for path, method, _ in operations(await response.json())}
            names = [one.name for one in FUNCTIONS]
            routes = set()
            for route in gateway._routes.all:
                for path in {route.template.replace("{name}", name) for name in names}:
                    routes.add((route.method.lower(), path))
            assert described == routes

    run(scenario())


def test_what_needs_no_token_is_said_so() -> None:
    """The probes, and nothing else."""
    is_open = {path for path, _, operation in operations(DOCUMENT) if operation.get("security") == []}
    assert is_open == {"/healthz", "/readyz"}
    assert DOCUMENT["components"]["securitySchemes"]["token"]["scheme"] == "bearer"


@pytest.mark.parametrize("name", ["x", "X.y:z-1_0"])
def test_any_function_name_gives_a_path(name: str) -> None:
    """Names are those that a path may hold as they are."""
    assert f"/function/{name}" in document({name: info(name)})["paths"]
