"""Functions' own routes over HTTP, such as "GET /u/{code}": how they are written, which clash, and which one a path is.

Pure values: workers register them, engines refuse modules whose routes clash, gateways find functions by them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from boki.errors import ConfigError
from boki.protocol.calls import FunctionInfo

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
OWN_PATHS: Final = frozenset(
    {
        "asyncFunction",
        "calls",
        "flow",
        "flow-schedule",
        "function",
        "functions",
        "healthz",
        "invocation",
        "lib",
        "logbook",
        "metrics",
        "openapi.json",
        "queue",
        "readyz",
        "status",
        "store",
    }
)
"""First parts of the gateway's own paths; those of libraries that Boki does not bring begin with /lib/NAME/."""
MAX_ROUTES: Final = 32
MAX_PARTS: Final = 16

_LITERAL: Final = re.compile(r"[A-Za-z0-9._~-]{1,100}")
_VARIABLE: Final = re.compile(r"\{([a-z_][a-z0-9_]{0,60})\}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A method and a path. `parts` are its parts between slashes; a variable is one with braces."""

    text: str
    method: str
    parts: tuple[str, ...]

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of its variables, in order."""
        return tuple(part[1:-1] for part in self.parts if part.startswith("{"))

    def values_in(self, parts: list[str]) -> tuple[str, ...] | None:
        """What stands for its variables in a path of as many parts; None if it is another path. None is empty."""
        values = []
        for wanted, part in zip(self.parts, parts, strict=True):
            if wanted.startswith("{") and part:
                values.append(part)
            elif wanted != part:
                return None
        return tuple(values)

    @property
    def shape(self) -> tuple[str, tuple[str, ...]]:
        """What no two routes may share: the method, and the path whatever its variables are called."""
        return self.method, tuple("{}" if part.startswith("{") else part for part in self.parts)


def parse_route(text: object) -> HttpRoute:
    """A route as it is written; `ConfigError` says what is wrong with it."""
    method, _, path = text.partition(" ") if isinstance(text, str) else ("", "", "")
    if method not in METHODS or not path.startswith("/"):
        raise ConfigError(
            f'http: a route is a method and a path, such as "GET /u/{{code}}", not {text!r:.80}; methods: '
            f"{', '.join(METHODS)}",
            field="http",
        )
    parts = tuple(path.split("/")[1:])
    route = HttpRoute(f"{method} {path}", method, parts)
    for part in parts if parts != ("",) else ():
        if part in {".", ".."} or not (_LITERAL.fullmatch(part) or _VARIABLE.fullmatch(part)):
            raise ConfigError(
                f"http: route {route.text!r:.100}: {part!r:.60} cannot be a part of a path: write letters, digits and "
                ". _ ~ -, or a {variable}",
                field="http",
            )
    if len(parts) > MAX_PARTS:
        raise ConfigError(f"http: route {route.text!r:.100} has more than {MAX_PARTS} parts", field="http")
    if parts[0] in OWN_PATHS or parts[0].startswith("{"):
        is_variable = parts[0].startswith("{")
        why = "with a variable it would take the paths" if is_variable else f"/{parts[0]} is one"
        raise ConfigError(
            f"http: route {route.text!r:.100} begins like the gateway's own paths: {why} of the gateway; put another "
            "part before it",
            field="http",
        )
    if len(set(route.variables)) != len(route.variables):
        raise ConfigError(f"http: route {route.text!r:.100} names a variable twice", field="http")
    return route


def parse_routes(texts: object) -> tuple[HttpRoute, ...]:
    """The routes of one function."""
    if isinstance(texts, str) or not isinstance(texts, Iterable):
        raise ConfigError(f'http is a list of routes, such as ["GET /u/{{code}}"], not {texts!r:.80}', field="http")
    routes = tuple(parse_route(text) for text in texts)
    if len(routes) > MAX_ROUTES:
        raise ConfigError(f"http: a function may have {MAX_ROUTES} routes, not {len(routes)}", field="http")
    for route in routes:
        if sum(route.shape == other.shape for other in routes) > 1:
            raise ConfigError(f"http: two routes of the function are {route.text!r:.100}", field="http")
    return routes


class Found(NamedTuple):
    """The function of a path, its route, and what stands there for the route's variables, still percent-encoded."""

    function: FunctionInfo
    route: HttpRoute
    values: tuple[str, ...]


class RouteTable:
    """The routes of many functions, none of which clash."""

    def __init__(self, functions: Iterable[FunctionInfo]) -> None:
        self._by_size: dict[int, list[tuple[HttpRoute, FunctionInfo]]] = {}
        for info in functions:
            for route in parse_routes(info.http):
                self._by_size.setdefault(len(route.parts), []).append((route, info))
        for routes in self._by_size.values():  # a literal part goes before a variable, the first difference decides
            routes.sort(key=lambda one: [part.startswith("{") for part in one[0].parts])

    def __bool__(self) -> bool:
        return bool(self._by_size)

    def find(self, method: str, path: str) -> Found | list[str]:
        """The function of this request; else the methods that the path does take."""
        parts = path.split("/")[1:]
        allowed = []
        for route, info in self._by_size.get(len(parts), ()):
            values = route.values_in(parts)
            if values is not None:
                if route.method == method:
                    return Found(info, route, values)
                allowed.append(route.method)
        return sorted(set(allowed))


def clash(one: Iterable[FunctionInfo], other: Iterable[FunctionInfo]) -> tuple[HttpRoute, str, str] | None:
    """A route that functions of both groups have, and the names of the two functions."""
    owners = {route.shape: info.name for info in other for route in parse_routes(info.http)}
    for info in one:
        for route in parse_routes(info.http):
            if route.shape in owners:
                return route, info.name, owners[route.shape]
    return None
