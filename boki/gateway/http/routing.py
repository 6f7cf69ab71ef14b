"""Which handler answers a path. A dozen routes need no more than this, and aiohttp's router costs as much as a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import unquote

from aiohttp.web import StreamResponse

from boki.errors import InvalidArgument, NotFound

Handler = Callable[..., Awaitable[StreamResponse]]
"""Takes the request and the variable parts of its path."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path such as `/logbook/{book}/append`, and who answers it."""

    method: str
    template: str
    handler: Handler
    is_open: bool = False
    """Whether it needs no token."""
    is_call: bool = False
    """Whether its first variable part is a function that is called, and so counted by its name."""


class Routes:
    """Finds the route of a request."""

    def __init__(self, routes: list[Route]) -> None:
        self.all = routes
        self._by_shape: dict[tuple[str, int], list[tuple[list[str], Route]]] = {}
        for route in routes:
            parts = route.template.split("/")
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


def not_there(method: str, path: str, allowed: list[str]) -> NotFound | InvalidArgument:
    """The error for a path that is not there, or takes these methods only."""
    if allowed:
        text = f"{path[:100]} takes {', '.join(allowed)}, not {method[:20]}"
        return InvalidArgument(text, field="method", allow=allowed)
    return NotFound(f"there is nothing at {path[:100]}; /openapi.json lists all paths", field="path")


def _match(wanted: list[str], parts: list[str]) -> list[str] | None:
    values = []
    for name, part in zip(wanted, parts, strict=True):
        if name.startswith("{"):
            values.append(decoded(part) if "%" in part else part)
        elif name != part:
            return None
    return values


def decoded(part: str) -> str:
    """A part of a path; `InvalidArgument` if its bytes are no UTF-8, which would become other characters silently."""
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(f"the path is not UTF-8: {part[:60]!r}", field="path") from None
