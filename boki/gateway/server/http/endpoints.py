"""Endpoints: what a route takes, does and answers, said once. The routes and the OpenAPI document are made of it.

An endpoint is a function. Its keyword parameters, with their types and defaults, are the fields of its query or of its
JSON body: they decode the request, and the document describes them::

    things = Endpoints("Things", {"book": "The LogBook's name"})

    @things("GET", "/things/{book}", "listThings", "The things of a book", answer={"things": list[str]})
    async def names(asked: Asked, prefix: Annotated[str, Meta(description="Only names that begin so")] = "") -> object:
        return {"things": [...]}
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import Parameter, signature
from typing import Any, Final, Literal, TypeVar, get_args, get_type_hints

import msgspec
from aiohttp.web import BaseRequest, Response, StreamResponse
from msgspec import inspect

from boki.api.http.exchange import MAX_WAIT_S
from boki.api.logbook import LogSession
from boki.errors import InvalidArgument
from boki.faces import GatewayPort, Route
from boki.gateway.server.http import arguments
from boki.gateway.server.http.answers import json_answer
from boki.gateway.server.http.openapi_parts import (
    BYTES,
    KEY,
    POSITION,
    TEXT,
    TIMEOUT,
    Json,
    json_of,
    operation_of,
    path_parameter,
    query_parameter,
    schema_of,
    without_null,
)
from boki.log.ids import MAX_SEQNUM

BODY_BYTES: Final = 64 * 1024
"""Maximum size of a JSON body, unless an endpoint says otherwise."""

EVENTS: Final[Json] = {"text/event-stream": {"schema": TEXT}}
"""The `answer` of an endpoint that streams server-sent events."""

Act = TypeVar("Act", bound=Callable[..., Awaitable[object]])


@dataclass(slots=True)
class Asked:
    """One request."""

    request: BaseRequest
    gateway: GatewayPort
    begin: Callable[[], LogSession]
    parts: tuple[str, ...]
    """The variable parts of the path."""
    body: bytes = b""
    """The raw body of an endpoint that reads one."""
    value: Any = None
    """The value of the JSON body of an endpoint that reads one."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the answer. A GET whose `If-None-Match` names the ETag is answered 304."""

    _session: LogSession | None = None

    @property
    def session(self) -> LogSession:
        """The log for this request. The time that its caller gives begins when it is first asked for: so after the
        body, which may be long on its way.
        """
        if self._session is None:
            self._session = self.begin()
        return self._session

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
    uses_log: bool
    fields: type[msgspec.Struct]
    reads: str
    value: Any
    answer: Any
    has_key: bool
    takes_headers: Mapping[str, str | Json]
    body_types: tuple[str, ...]
    max_bytes: int | None
    answer_bytes: Callable[[Any], int]
    lasts: bool
    is_polled: bool
    waits: bool
    streams_s: float
    is_admitted: bool
    function: str

    @property
    def names(self) -> list[str]:
        """The names of the variable parts of the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    def function_of(self, parts: Sequence[str], fields: msgspec.Struct) -> str:
        """The function that a request names; "": none."""
        given = dict(zip(self.names, parts, strict=True))
        return given.get(self.function) or str(getattr(fields, self.function, ""))


class Endpoints:
    """The endpoints of one library. `tag` heads them in the document; `places` describes variable parts of paths."""

    def __init__(
        self,
        tag: str,
        places: dict[str, str],
        schemas: Mapping[str, Json] | None = None,
        *,
        uses_log: bool = True,
        function: str = "",
    ) -> None:
        """`schemas`: of variable parts that are not any text. `uses_log`: whether requests have a session of the log,
        with their positions and deadline. `function`: the variable part, or the field, that names a function: the
        request waits until the gateway knows whether that is registered; one that names none, until it knows any.
        """
        self._tag = tag
        self._uses_log = uses_log
        self._function = function
        self._places = places
        self._schemas = schemas or {}
        self._all: list[_Endpoint] = []

    def __call__(
        self,
        method: str,
        path: str,
        name: str,
        summary: str,
        *,
        reads: Literal["query", "body", "raw", "json", "own"] = "query",
        value: Any = Any,
        answer: Any = None,
        has_key: bool = False,
        takes_headers: Mapping[str, str | Json] | None = None,
        body_types: tuple[str, ...] = (),
        max_bytes: int | None = BODY_BYTES,
        answer_bytes: Callable[[Any], int] = lambda _: 0,
        lasts: bool = False,
        is_polled: bool = False,
        waits: bool = False,
        streams_s: float = 0.0,
        is_admitted: bool = True,
    ) -> Callable[[Act], Act]:
        """Add the decorated function, or method, which takes an `Asked` and its fields.

        `reads`: fields come from the query or from a JSON body; "raw" and "json": from the query, and the body is
        `Asked.body`, or JSON as `Asked.value`, of the type `value`; "own": the function reads the body itself, which is
        JSON of the type `value`, else of the `body_types`, else bytes. A field whose name is a Python word ends in an
        underscore. `answer`: a type, or the fields of a JSON object with their types. `takes_headers`: those that the
        function reads itself: their descriptions, or schemas with them. `body_types`: further content types of the
        body. `max_bytes`: of the body; None: what the gateway takes of any request. `answer_bytes`: about how large an
        answer is, by the fields; so much of the gateway's budget it takes. `lasts`: it finishes what it has begun while
        the gateway drains. `is_polled`: it waits for `wait_s`, until its client disconnects or the gateway drains; any
        other ends with its client only. `waits`: it takes as long as a long poll also without `wait_s`. `streams_s`: it
        streams, for this long at most, and returns the stream. `is_admitted`: it has a place in the gateway's budget of
        requests; else the function takes a place itself.
        """

        def add(act: Act) -> Act:
            self._all.append(
                _Endpoint(
                    *(method, path, name, summary, act, self._uses_log, _fields_of(act, name), reads, value, answer),
                    *(has_key, takes_headers or {}, body_types, max_bytes, answer_bytes, lasts, is_polled, waits),
                    *(streams_s, is_admitted, self._function),
                )
            )
            return act

        return add

    def routes(self, gateway: GatewayPort, owner: object = None) -> list[Route]:
        """The routes, at that gateway. `owner`: the object whose methods they are, if they are methods."""
        return [Route(one.method, one.path, partial(_serve, one, gateway, owner)) for one in self._all]

    def paths(self) -> dict[str, Json]:
        """What the OpenAPI document says."""
        found: dict[str, Json] = {}
        for one in self._all:
            found.setdefault(one.path, {})[one.method.lower()] = self._operation(one)
        return found

    def _operation(self, one: _Endpoint) -> Json:
        parameters = [path_parameter(name, self._places[name], self._schemas.get(name, TEXT)) for name in one.names]
        schema = schema_of(one.fields)
        described = json_of(schema_of(one.value))
        own = described if one.value is not Any else {} if one.body_types else dict(BYTES)
        bodies = {"body": json_of(schema), "raw": json_of({}) | BYTES, "json": described, "own": own}
        body = bodies.get(one.reads)
        if body is not None:
            body |= {kind: {"schema": {}} for kind in one.body_types}
        for name, kind in schema["properties"].items() if one.reads != "body" else ():
            kind = without_null(kind)
            parameters.append(query_parameter(name, kind.pop("description", name), kind))
        for name, description in one.takes_headers.items():
            kind = dict(description) if isinstance(description, dict) else TEXT | {"description": description}
            parameters.append({"name": name, "in": "header", "description": kind.pop("description"), "schema": kind})
        parameters += [*([KEY] if one.has_key else []), *([POSITION, TIMEOUT] if one.uses_log else [])]
        return operation_of(one.name, one.summary, parameters, _content_of(one.answer), body=body, tag=self._tag)


def _fields_of(act: Callable[..., object], name: str) -> type[msgspec.Struct]:
    hints = get_type_hints(act, include_extras=True)
    own = [one for one in signature(act).parameters.values() if one.name not in {"self", "asked"}]
    fields = [(one.name, hints[one.name], *(() if one.default is Parameter.empty else (one.default,))) for one in own]
    kind: type[msgspec.Struct] = msgspec.defstruct(
        *(name, fields),
        frozen=True,
        forbid_unknown_fields=True,
        kw_only=True,
        rename={one.name: one.name.rstrip("_") for one in own},
    )
    return kind


def _content_of(answer: Any) -> Json:
    if answer is EVENTS:
        return dict(EVENTS)
    kind = msgspec.defstruct("Answer", _with_defaults(answer), kw_only=True) if isinstance(answer, dict) else answer
    return json_of({"type": "object"} if kind is None else schema_of(kind))


def _with_defaults(answer: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The fields of an answer; those that may be unset need not be there."""
    return [
        (name, kind, msgspec.UNSET) if msgspec.UnsetType in get_args(kind) else (name, kind)
        for name, kind in answer.items()
    ]


async def _serve(
    endpoint: _Endpoint, gateway: GatewayPort, owner: object, request: BaseRequest, *parts: str
) -> StreamResponse:
    if endpoint.reads == "body":
        arguments.query(request, ())
        data = await gateway.body(request, endpoint.max_bytes)
        fields = arguments.json_body(data or b"{}", _decoder(endpoint.fields))
    else:
        fields = _decode_query(request, endpoint.fields)
    wait_s = max(0.0, min(getattr(fields, "wait_s", 0.0), MAX_WAIT_S)) or endpoint.streams_s
    waits = wait_s > 0 or endpoint.waits
    if endpoint.function:
        await gateway.look_for(request, endpoint.function_of(parts, fields))
    with ExitStack() as stack:
        if endpoint.is_admitted:
            stack.enter_context(gateway.admitted(endpoint.answer_bytes(fields), waits=waits))
        body = await gateway.body(request, endpoint.max_bytes) if endpoint.reads in {"raw", "json"} else b""
        value = arguments.json_body(body, _decoder(endpoint.value)) if endpoint.reads == "json" else None
        begin = partial(gateway.lasting_session if endpoint.lasts else gateway.session, request, wait_s)
        asked = Asked(request, gateway, begin, parts, body, value)
        is_long_read = endpoint.method == "GET" and hasattr(fields, "wait_s")  # also without: an engine may be behind
        if waits or endpoint.is_polled or is_long_read:
            stack.enter_context(gateway.connected(request))
        if endpoint.is_polled:  # under a key what it takes is kept for who asks again
            stack.enter_context(gateway.polling("unknown" if asked.key else "not_applied"))
        if endpoint.uses_log:
            arguments.check_log_headers(request.headers)
        act = endpoint.act if owner is None else partial(endpoint.act, owner)
        answer = await act(asked, **msgspec.structs.asdict(fields))
    return answer if isinstance(answer, StreamResponse) else _answered(endpoint, asked, answer)


def _answered(endpoint: _Endpoint, asked: Asked, answer: object) -> Response:
    positions = asked.session.caller.positions if endpoint.uses_log else None
    response = json_answer({} if answer is None else answer, positions)
    response.headers.update(asked.headers)
    etag = asked.headers.get("ETag")
    known = asked.request.headers.get("If-None-Match", "").replace(" ", "").split(",")
    if etag is None or etag not in known or asked.request.method not in {"GET", "HEAD"}:
        return response
    return Response(status=304, headers=response.headers)


def _decode_query(request: BaseRequest, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """The query parameters as that struct; `InvalidArgument` names what is wrong, unknown ones included."""
    fields, lists = _shape_of(kind)
    values = arguments.query(request, fields.keys(), *lists)
    found: dict[str, Any] = {}
    for shown in set(values):
        name, inner = fields[shown]
        if isinstance(inner, inspect.ListType):
            item = _plain(inner.item_type)
            found[name] = [_value(text, shown, item) for text in arguments.query_list(request, shown)]
        else:
            found[name] = _value(values[shown], shown, inner)
    return kind(**found)


@cache
def _shape_of(kind: type[msgspec.Struct]) -> tuple[dict[str, tuple[str, inspect.Type]], list[str]]:
    """The query parameters with the fields that they are, and those of them that may be repeated."""
    described = inspect.type_info(kind)
    assert isinstance(described, inspect.StructType)
    fields = {one.encode_name: (one.name, _plain(one.type)) for one in described.fields}
    return fields, [name for name, (_, inner) in fields.items() if isinstance(inner, inspect.ListType)]


_decoder: Final = cache(msgspec.json.Decoder)


def _plain(kind: inspect.Type) -> inspect.Type:
    """The type without its description, and without None."""
    if isinstance(kind, inspect.Metadata):
        return _plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _plain(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    return kind


def _value(text: str, name: str, kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.FloatType):
        return arguments.seconds(text, name, MAX_WAIT_S if kind.le is None else kind.le)
    if isinstance(kind, inspect.IntType):
        return arguments.whole_number(text, name, MAX_SEQNUM if kind.le is None else kind.le, kind.ge or 0)
    if isinstance(kind, inspect.BoolType):
        return arguments.flag(text, name)
    if isinstance(kind, inspect.LiteralType) and text not in kind.values:
        *others, last = map(str, kind.values)
        raise InvalidArgument(f"{name} must be {', '.join(others)} or {last}, not {text[:60]!r}", field=name)
    return text
