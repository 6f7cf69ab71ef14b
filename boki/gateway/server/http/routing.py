"""Which handler answers a path. A dozen routes need no more than this, and aiohttp's router costs as much as a call."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from aiohttp.web import BaseRequest

from boki.errors import ConfigError, InvalidArgument, NotFound
from boki.faces import Route
from boki.protocol.calls import ModuleInfo


class Routes:
    """Finds the route of a request."""

    def __init__(self, routes: list[Route]) -> None:
        """`ConfigError` if two routes take the same requests."""
        self.all = routes
        taken: set[tuple[str, ...]] = set()
        self._by_shape: dict[tuple[str, int], list[tuple[list[str], Route]]] = {}
        for route in routes:
            parts = route.template.split("/")
            request = (route.method, *("{}" if part.startswith("{") else part for part in parts))
            if request in taken:
                raise ConfigError(f"two routes take {route.method} {route.template}")
            taken.add(request)
            self._by_shape.setdefault((parts[1], len(parts)), []).append((parts, route))

    def find(self, method: str, path: str) -> tuple[Route, list[str]]:
        """The route and the variable parts of a path (without a query).

        `NotFound`, or `InvalidArgument` with the methods that the path does take as `allow`.
        """
        parts = path.split("/")
        allowed = []
        for wanted, route in self._by_shape.get((parts[1] if len(parts) > 1 else "", len(parts)), ()):
            values = _match(wanted, parts)
            if values is None:
                continue
            if route.method == method:
                return route, values
            allowed.append(route.method)
        raise not_there(method, path, allowed)


def method_of(request: BaseRequest) -> str:
    """The method whose route answers the request: HEAD is a GET whose answer has no body."""
    return "GET" if is_head(request) else request.method


def is_head(request: BaseRequest) -> bool:
    """Whether only the head of the answer is asked for: nothing may be written after it."""
    return request.method == "HEAD"


def not_there(
    method: str, path: str, allowed: list[str], broken: Sequence[ModuleInfo] = ()
) -> NotFound | InvalidArgument:
    """The error for a path that is not there, or takes these methods only. `broken`: it may be of one of them."""
    if allowed:
        if "GET" in allowed:
            allowed = sorted({*allowed, "HEAD"})
        text = f"{path[:100]} takes {', '.join(allowed)}, not {method[:20]}"
        return InvalidArgument(text, field="method", allow=allowed)
    told = [f"module {module.module} is broken: {module.error.rstrip()}" for module in broken]
    return NotFound(
        "\n".join([f"there is nothing at {path[:100]}; /openapi.json lists all paths", *told]), field="path"
    )


def _match(wanted: list[str], parts: list[str]) -> list[str] | None:
    values = []
    for name, part in zip(wanted, parts, strict=True):
        if name.startswith("{"):
            values.append(decoded(part) if "%" in part else part)
        elif name != part:
            return None
    return values


def decoded(part: str, what: str = "the path") -> str:
    """A part of a path; `InvalidArgument` if its bytes are no UTF-8, which would become other characters silently."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"{what} is not UTF-8: {part[:60]!r}; percent-encode the bytes of its UTF-8, as %C3%A9 for é", field="path"
        ) from None
