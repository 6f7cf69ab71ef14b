"""Functions by name, as a gateway knows them from its engines.

A gateway that has just started, or has lost all its engines, does not know which functions there are. A request for a
name that it does not have waits then, as calls do that no engine takes, and is refused as retryable if that takes too
long: only a complete list proves that there is no such function.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Final

from aiohttp.web import BaseRequest

from boki.errors import NoSuchFunction, Unavailable
from boki.gateway.backend import Backend
from boki.gateway.core import RETRY_AFTER_S, GatewayCore
from boki.gateway.server.http import arguments
from boki.gateway.server.http.connections import while_connected
from boki.gateway.server.http.routing import method_of
from boki.protocol.calls import FunctionInfo
from boki.protocol.routes import Found, RouteTable

_LISTED: Final = 8
"""An error lists all functions if there are no more than this."""


class FunctionLookup:
    """Finds functions, and waits for engines that have yet to say what they run."""

    def __init__(self, backend: Backend, core: GatewayCore, clock: Callable[[], int]) -> None:
        self._backend = backend
        self._core = core
        self._clock = clock
        self._changed = asyncio.Event()
        self._routes = RouteTable(())
        self._routed: Mapping[str, FunctionInfo] = {}
        """The functions that the table is of."""

    def look_again(self) -> None:
        """What is known of the engines, or the time, has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def by_route(self, method: str, path: str) -> Found | list[str]:
        """The function whose own route this is; else the methods that routes of that path take."""
        functions = self._backend.functions
        if functions is not self._routed:
            self._routes, self._routed = RouteTable(functions.values()), functions
        return self._routes.find(method, path)

    async def look_for(self, request: BaseRequest, name: str) -> FunctionInfo | None:
        """The function of that name; None once the list is complete and it is not there. "": any will do.

        `Unavailable` if that is still unknown after `Budget.hold_us` or the time of the request, whichever is shorter.
        """

        def is_known() -> bool:
            functions = self._backend.functions
            return name in functions if name else bool(functions)

        if not is_known() and not self._backend.knows_functions:
            with self._core.admitted(waits=True), while_connected(request):
                await self._until(request, is_known, repr(name[:128]) if name else "at all")
        return self._backend.functions.get(name)

    async def wait_for(self, request: BaseRequest, name: str) -> FunctionInfo:
        """The same; `NoSuchFunction` if there is none."""
        info = await self.look_for(request, name)
        if info is None:
            raise no_such_function(name, self._backend.functions)
        return info

    async def wait_for_route(self, request: BaseRequest, path: str) -> None:
        """Return once a function has the path of the request, or all functions are known; `Unavailable` as above."""
        with self._core.admitted(waits=True), while_connected(request):
            await self._until(request, lambda: bool(self.by_route(method_of(request), path)), f"at {path[:100]}")

    async def _until(self, request: BaseRequest, is_found: Callable[[], bool], what: str) -> None:
        """Wait until that is so, or all functions are known."""
        hold_us = self._core.budget.hold_us
        until_us = self._clock() + min(hold_us, arguments.timeout_us(request.headers) or hold_us)
        while not is_found() and not self._backend.knows_functions:
            if self._clock() >= until_us or self._core.is_draining:
                raise Unavailable(
                    f"this gateway does not know yet whether there is a function {what}: no engine that is up has said "
                    "which functions it runs",
                    retry_after_s=RETRY_AFTER_S,
                )
            await self._changed.wait()


def no_such_function(name: str, functions: Mapping[str, FunctionInfo]) -> NoSuchFunction:
    """The error for a name without a function: close names, or all if they are few."""
    close = get_close_matches(name[:128], functions, n=3)
    names = sorted(functions)
    if close:
        remedy = f"did you mean {' or '.join(close)}?"
    elif not names:
        remedy = "no function is registered"
    elif len(names) <= _LISTED:
        remedy = f"there are: {', '.join(names)}"
    else:
        remedy = f"GET /status lists all {len(names)} functions"
    return NoSuchFunction(f"there is no function {name[:128]!r}; {remedy}", field="function", close=close)
