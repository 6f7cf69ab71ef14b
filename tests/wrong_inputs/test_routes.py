"""Routes and responses that cannot be, and the whole message when a module is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, NotRequired, TypedDict

import msgspec
import pytest
from pydantic import BaseModel

from boki import Context, Response, function
from boki.api.function import Function
from boki.api.registry import Registry
from boki.errors import ConfigError, InvalidArgument
from boki.gateway.server.http.routing import Routes
from boki.protocol.calls import FunctionInfo, Payload, RequestHead
from boki.protocol.routes import OWN_PATHS, Found, RouteTable, parse_route
from tests.gateway.fake_backend import run, serving

_SHOWN = 'a route is a method and a path, such as "GET /u/{code}", not'
_METHODS = "methods: GET, POST, PUT, PATCH, DELETE"


@dataclass
class Order:
    """A payload with fields."""

    item: str
    count: int = 1


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ("/u", f"http: {_SHOWN} '/u'; {_METHODS}"),
        ("FETCH /u", f"http: {_SHOWN} 'FETCH /u'; {_METHODS}"),
        ("GET u", f"http: {_SHOWN} 'GET u'; {_METHODS}"),
        (7, f"http: {_SHOWN} 7; {_METHODS}"),
        (
            "GET /u/",
            "http: route 'GET /u/': '' cannot be a part of a path: write letters, digits and . _ ~ -, or a {variable}",
        ),
        (
            "GET /u/x{code}",
            (
                "http: route 'GET /u/x{code}': 'x{code}' cannot be a part of a path: write letters, digits and . _ ~ "
                "-, or a {variable}"
            ),
        ),
        (
            "GET /u/..",
            (
                "http: route 'GET /u/..': '..' cannot be a part of a path: write letters, digits and . _ ~ "
                "-, or a {variable}"
            ),
        ),
        (
            "GET /status",
            (
                "http: route 'GET /status' begins like the gateway's own paths: /status is one of the gateway; put "
                "another part before it"
            ),
        ),
        (
            "GET /{item}",
            (
                "http: route 'GET /{item}' begins like the gateway's own paths: with a variable it would take the "
                "paths of the gateway; put another part before it"
            ),
        ),
        ("GET /u/{item}/{item}", "http: route 'GET /u/{item}/{item}' names a variable twice"),
        ("GET " + "/a" * 17, f"http: route 'GET {'/a' * 17}' has more than 16 parts"),
    ],
)
def test_a_route_that_cannot_be_is_refused_when_the_module_is_loaded(route: Any, message: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigError) as caught:
        function(http=[route])
    assert caught.value.message == message


def test_variables_are_fields_of_the_payload() -> None:
    """Else nothing would take their values; the error lists the fields."""
    with pytest.raises(ConfigError) as caught:

        @function(http=["GET /orders/{id}"])
        async def order(ctx: Context, order: Order) -> None: ...

    told = caught.value.message
    assert told.startswith("http: route 'GET /orders/{id}' of order (")
    assert told.endswith("): the payload has no field 'id'; it has: item, count")


class OrderModel(BaseModel):
    item: str
    count: int = 1


class OrderStruct(msgspec.Struct):
    item: str
    count: int = 1


class OrderDict(TypedDict):
    item: str
    count: NotRequired[int]


@pytest.mark.parametrize("kind", [Order, OrderModel, OrderStruct, OrderDict])
@pytest.mark.parametrize(
    ("method", "query", "message"),
    [
        ("GET", (("count", "3"),), "query parameter item of search (GET /search) is missing"),
        ("GET", (), "query parameter item of search (GET /search) is missing"),
        (
            "POST",
            (("count", "3"),),
            "field item of search (POST /search) is missing: send it in the query, or in a JSON body",
        ),
    ],
)
def test_what_the_query_lacks_is_named(kind: Any, method: str, query: Any, message: str) -> None:
    """As its sender knows it: of a payload, or of its type, a request by a route says nothing."""

    async def search(ctx: Context, order: Any) -> None: ...

    search.__annotations__["order"] = kind
    decorated = function(http=[f"{method} /search"])(search)
    head = RequestHead(method, "/search", query, (), "", f"{method} /search")
    with pytest.raises(InvalidArgument) as caught:
        Function.of(decorated).arguments(Payload("json", b""), head)
    assert caught.value.message == message


def test_two_functions_of_a_module_cannot_share_a_route() -> None:
    """The error names both, with their places."""

    @function(http=["GET /orders/{item}"])
    async def one(ctx: Context, item: str) -> None: ...

    @function(http=["GET /orders/{count}"])
    async def two(ctx: Context, count: int) -> None: ...

    module = ModuleType("shop")
    definitions = [getattr(fn, "__boki_function__") for fn in (one, two)]  # noqa: B009
    loaded = next(value for name, value in vars(_module_of(one)).items() if name == "__boki_functions__")
    vars(module)["__boki_functions__"] = type(loaded)(None, definitions)
    with pytest.raises(ConfigError) as caught:
        Registry.of(module)
    told = caught.value.message
    assert told.startswith("two functions have the route 'GET /orders/{count}': one at ")
    assert " and two at " in told


def _module_of(fn: Callable[..., Any]) -> Any:
    return SimpleNamespace(**fn.__globals__)


@pytest.mark.parametrize(
    ("http", "message"),
    [
        ("GET /u", """http is a list of routes, such as ["GET /u/{code}"], not 'GET /u'"""),
        (["GET /u/{a}", "GET /u/{b}"], "http: two routes of the function are 'GET /u/{a}'"),
        ([f"GET /u/{n}" for n in range(33)], "http: a function may have 32 routes, not 33"),
    ],
)
def test_a_list_of_routes_that_cannot_be_is_refused(http: Any, message: str) -> None:
    """A text is no list, and no two are one."""
    with pytest.raises(ConfigError) as caught:
        function(http=http)
    assert caught.value.message == message


def test_no_route_can_take_a_path_of_the_gateway() -> None:
    """Every first part of the gateway's own paths is reserved."""

    async def scenario() -> None:
        async with serving() as (gateway, _, _):
            routes: Routes = gateway._routes
            assert {route.template.split("/")[1] for route in routes.all} <= OWN_PATHS

    run(scenario())


def test_of_two_routes_for_a_path_the_more_literal_one_is_taken() -> None:
    """The first difference decides, in whatever order they are registered; other methods are told."""

    def routed(*routes: str) -> FunctionInfo:
        return FunctionInfo(name=routes[0], module="m", is_async=True, http=routes)

    functions = [routed("GET /a/{x}/c"), routed("GET /a/b/{y}"), routed("PUT /a/{x}/{y}"), routed("GET /")]
    for order in (functions, functions[::-1]):
        table = RouteTable(order)
        found = table.find("GET", "/a/b/c")
        assert isinstance(found, Found)
        assert (found.function.name, found.values) == ("GET /a/b/{y}", ("c",))
        assert table.find("POST", "/a/b/c") == ["GET", "PUT"]
        assert table.find("GET", "/a//c") == table.find("GET", "/none/at/all/here") == []
        assert isinstance(table.find("GET", "/"), Found)
    assert parse_route("GET /a/{x}/c").variables == ("x",)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Response(status=99), "status must be an int from 200 to 599, not 99"),
        (lambda: Response("x", status=204), "a response with status 204 has no body: leave it out"),
        (lambda: Response(headers={"a b": "x"}), "'a b' is not the name of a header"),
        (
            lambda: Response(headers={"A": "x\r\nB: y"}),
            "header A must be printable ASCII in one line, not 'x\\r\\nB: y': quote or encode it",
        ),
        (lambda: Response(headers={"Boki-Position": "x"}), "header Boki-Position belongs to the gateway: leave it out"),
        (lambda: Response(headers={"Connection": "x"}), "header Connection belongs to the gateway: leave it out"),
        (
            lambda: Response(headers={"Access-Control-Allow-Origin": "*"}),
            (
                "header Access-Control-Allow-Origin is set by the configuration of the gateway: list origins in "
                "cors.origins"
            ),
        ),
        (lambda: Response(headers=["ab"]), "headers are pairs of str, not 'ab'"),  # type: ignore[list-item]
        (
            lambda: Response(content_type="a/b", headers={"content-type": "c/d"}),
            "Content-Type is given twice: as content_type and in headers",
        ),
        (
            lambda: Response(headers=[("A", "b")] * 65),
            "a response may have 64 headers of 16,384 bytes together, not 65 of 390",
        ),
        (
            lambda: Response.redirect("/grüß"),
            "a redirect's URL is printable ASCII without spaces, not '/grüß': quote it (urllib.parse.quote)",
        ),
        (lambda: Response.redirect("/", status=200), "a redirect has status 301, 302, 303, 307 or 308, not 200"),
    ],
)
def test_a_response_that_cannot_be_is_refused_where_it_is_made(make: Callable[[], Response], message: str) -> None:
    """By the name of what is wrong."""
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert caught.value.message == message
