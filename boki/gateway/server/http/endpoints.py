"""Endpoints: what a route takes, does and answers, said once. The routes and the OpenAPI document are made of it.

An endpoint is a function. Its keyword parameters, with their types and defaults, are the fields of its query or of its
JSON body: they decode the request, and the document describes them::

    things = Endpoints("Things", {"book": "The LogBook's name"})

    @things("GET", "/things/{book}", "listThings", "The things of a book", answer={"things": list[str]})
    async def names(asked: Asked, prefix: Annotated[str, Meta(description="Only names that begin so")] = "") -> object:
        return {"things": [...]}
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from inspect import Parameter, signature
from typing import Any, Final, Literal, TypeVar, get_type_hints

import msgspec
from aiohttp.web import BaseRequest, Response
from msgspec import inspect

from boki.api.http.exchange import MAX_WAIT_S
from boki.api.logbook import LogSession
from boki.faces import GatewayPort, Route
from boki.gateway.server.http import arguments
from boki.gateway.server.http.answers import json_answer
from boki.gateway.server.http.openapi_parts import (
    BYTES,
    KEY,
    POSITION,
    TIMEOUT,
    Json,
    json_of,
    operation_of,
    path_parameter,
    query_parameter,
)
from boki.log.ids import MAX_SEQNUM

BODY_BYTES: Final = 64 * 1024
"""Maximum size of a JSON body, unless an endpoint says otherwise."""

Act = TypeVar("Act", bound=Callable[..., Awaitable[object]])


@dataclass(slots=True)
class Asked:
    """One request."""

    request: BaseRequest
    session: LogSession
    parts: tuple[str, ...]
    """The variable parts of the path."""
    body: bytes = b""
    """The raw body of an endpoint that reads one."""

    @property
    def key(self) -> str | None:
        """The idempotency key, if there is one."""
        return arguments.key(self.request.headers)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    """One method of one path. For the options see `Endpoints.__call__`."""

    method: str
    path: str
    name: str
    summary: str
    act: Callable[..., Awaitable[object]]
    fields: type[msgspec.Struct]
    reads: str
    answer: Any
    has_key: bool
    max_bytes: int | None
    answer_bytes: Callable[[Any], int]
    lasts: bool
    is_polled: bool


class Endpoints:
    """The endpoints of one library. `tag` heads them in the document; `places` describes variable parts of paths."""

    def __init__(self, tag: str, places: dict[str, str]) -> None:
        self._tag = tag
        self._places = places
        self._all: list[_Endpoint] = []

    def __call__(
        self,
        method: str,
        path: str,
        name: str,
        summary: str,
        *,
        reads: Literal["query", "body", "raw"] = "query",
        answer: Any = None,
        has_key: bool = False,
        max_bytes: int | None = BODY_BYTES,
        answer_bytes: Callable[[Any], int] = lambda _: 0,
        lasts: bool = False,
        is_polled: bool = False,
    ) -> Callable[[Act], Act]:
        """Add the decorated function, which takes an `Asked` and its fields.

        `reads`: fields come from the query or from a JSON body; "raw": from the query, and the body is `Asked.body`.
        `answer`: a type, or the fields of a JSON object with their types. `max_bytes`: of the body; None: what the
        gateway takes of any request. `answer_bytes`: about how large an answer is, by the fields; so much of the
        gateway's budget it takes. `lasts`: it finishes what it has begun while the gateway drains. `is_polled`: it
        waits for `wait_s`, until its client disconnects or the gateway drains; any other ends with its client only.
        """

        def add(act: Act) -> Act:
            hints = get_type_hints(act, include_extras=True)
            own = list(signature(act).parameters.values())[1:]
            fields = [
                (one.name, hints[one.name], *(() if one.default is Parameter.empty else (one.default,))) for one in own
            ]
            kind = msgspec.defstruct(name, fields, frozen=True, forbid_unknown_fields=True, kw_only=True)
            self._all.append(
                _Endpoint(
                    *(method, path, name, summary, act, kind, reads, answer),
                    *(has_key, max_bytes, answer_bytes, lasts, is_polled),
                )
            )
            return act

        return add

    def routes(self, gateway: GatewayPort) -> list[Route]:
        """The routes, at that gateway."""
        return [Route(one.method, one.path, partial(_serve, one, gateway)) for one in self._all]

    def paths(self) -> dict[str, Json]:
        """What the OpenAPI document says."""
        found: dict[str, Json] = {}
        for one in self._all:
            found.setdefault(one.path, {})[one.method.lower()] = self._operation(one)
        return found

    def _operation(self, one: _Endpoint) -> Json:
        names = [part[1:-1] for part in one.path.split("/") if part.startswith("{")]
        parameters = [path_parameter(name, self._places[name]) for name in names]
        schema = schema_of(one.fields)
        body = json_of(schema) if one.reads == "body" else json_of({}) | BYTES if one.reads == "raw" else None
        for name, kind in schema["properties"].items() if one.reads != "body" else ():
            parameters.append(query_parameter(name, kind.pop("description", name), kind))
        parameters += [*([KEY] if one.has_key else []), POSITION, TIMEOUT]
        kind = msgspec.defstruct("Answer", list(one.answer.items())) if isinstance(one.answer, dict) else one.answer
        answer = json_of({"type": "object"} if kind is None else schema_of(kind))
        return operation_of(one.name, one.summary, parameters, answer, body=body, tag=self._tag)


def _default(parameter: Parameter) -> tuple[Any, ...]:
    return () if parameter.default is Parameter.empty else (parameter.default,)


def schema_of(kind: Any) -> Json:
    """The JSON schema of a type, without references."""
    whole = msgspec.json.schema(kind)
    defined = whole.pop("$defs", {})

    def inlined(value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                return inlined(defined[value["$ref"].rpartition("/")[2]])
            return {name: inlined(inner) for name, inner in value.items() if name not in {"title", "default"}}
        return [inlined(inner) for inner in value] if isinstance(value, list) else value

    schema: Json = inlined(whole)
    return schema


async def _serve(endpoint: _Endpoint, gateway: GatewayPort, request: BaseRequest, *parts: str) -> Response:
    if endpoint.reads == "body":
        arguments.query(request, ())
        data = await gateway.body(request, endpoint.max_bytes)
        fields = arguments.json_body(data or b"{}", msgspec.json.Decoder(endpoint.fields))
    else:
        fields = _decode_query(request, endpoint.fields)
    wait_s = max(0.0, min(getattr(fields, "wait_s", 0.0), MAX_WAIT_S))
    with gateway.admitted(endpoint.answer_bytes(fields), waits=wait_s > 0), ExitStack() as stack:
        body = await gateway.body(request, endpoint.max_bytes) if endpoint.reads == "raw" else b""
        session = (gateway.lasting_session if endpoint.lasts else gateway.session)(request, wait_s)
        asked = Asked(request, session, parts, body)
        if wait_s or endpoint.is_polled:
            stack.enter_context(gateway.connected(request))
        if endpoint.is_polled:  # under a key what it takes is kept for who asks again
            stack.enter_context(gateway.polling("unknown" if asked.key else "not_applied"))
        answer = await endpoint.act(asked, **msgspec.structs.asdict(fields))
    return json_answer({} if answer is None else answer, session.caller.positions)


def _decode_query(request: BaseRequest, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """The query parameters as that struct; `InvalidArgument` names what is wrong, unknown ones included."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    fields = {one.encode_name: one.type for one in described.fields}
    values = arguments.query(request, fields.keys())
    return kind(**{name: _value(values[name], name, fields[name]) for name in values})


def _value(text: str, name: str, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.Metadata):
        return _value(text, name, kind.type)
    if isinstance(kind, inspect.UnionType):
        return _value(text, name, next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    if isinstance(kind, inspect.FloatType):
        return arguments.seconds(text, name, MAX_WAIT_S if kind.le is None else kind.le)
    if isinstance(kind, inspect.IntType):
        return arguments.whole_number(text, name, MAX_SEQNUM if kind.le is None else kind.le)
    return text
