"""Function hosts of versions that do not run any more, for logged calls that are pinned to them.

Each has worker processes of its own, which run the files of that version. It starts with the first call that needs it,
and stops when it has had none for a while: a call that is suspended needs no process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from boki.dispatch.server.pools import FunctionHost
from boki.dispatch.server.until_gone import run_until_gone
from boki.errors import BokiError, Unavailable
from boki.protocol.calls import Call, Outcome

_log = logging.getLogger("boki.functions")

_IDLE_S: Final = 60.0


class EarlierVersions:
    """Starts and stops the hosts. `folder_of` fetches the files of a version."""

    def __init__(self, make: Callable[[], FunctionHost], folder_of: Callable[[int], Awaitable[Path]]) -> None:
        self._make = make
        self._folder_of = folder_of
        self._hosts: dict[int, asyncio.Task[FunctionHost]] = {}
        self._calls: dict[int, int] = {}
        """Calls under way, by version."""
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._stopping: set[asyncio.Task[None]] = set()

    @property
    def numbers(self) -> list[int]:
        """The versions that have a host."""
        return sorted(self._hosts)

    async def call(self, number: int, call: Call, *, has_function: bool) -> Outcome:
        """Run a call with that version. Cancelling this cancels the call. `BokiError` if the version cannot be run.

        `has_function`: whether the function is one of that version. While it cannot be loaded the call is refused for
        now, and each offer of it tries that again.
        """
        self._calls[number] = self._calls.get(number, 0) + 1
        if (timer := self._timers.pop(number, None)) is not None:
            timer.cancel()
        try:
            host = await self._host(number)
            if has_function and call.function not in host.functions and (error := await host.try_broken()):
                raise Unavailable(f"{call.function!r} of version {number} cannot be loaded here now: {error}")
            return await run_until_gone(host, call)
        finally:
            self._calls[number] -= 1
            if not self._calls[number]:
                del self._calls[number]
                self._timers[number] = asyncio.get_running_loop().call_later(_IDLE_S, self._let_go, number)

    async def stop(self, drain_s: float) -> None:
        """Stop all of them, after waiting at most `drain_s` for calls that run."""
        for timer in self._timers.values():
            timer.cancel()
        for number in list(self._hosts):
            self._stop_soon(number, drain_s)
        await asyncio.gather(*self._stopping, return_exceptions=True)

    async def _host(self, number: int) -> FunctionHost:
        starting = self._hosts.get(number)
        if starting is None:
            starting = self._hosts[number] = asyncio.get_running_loop().create_task(self._start(number))
        try:
            return await asyncio.shield(starting)
        except Exception:  # whatever it is, the next call tries again
            if self._hosts.get(number) is starting:
                del self._hosts[number]
            raise

    async def _start(self, number: int) -> FunctionHost:
        folder = await self._folder_of(number)
        host = self._make()
        try:
            await host.start()
            await host.switch(folder, must_have_functions=True)
        except BaseException:
            await host.stop(0)
            raise
        _log.info("version %d of the functions runs for the calls that are pinned to it", number)
        return host

    def _let_go(self, number: int) -> None:
        self._timers.pop(number, None)
        if number not in self._calls:
            self._stop_soon(number, 0.0)

    def _stop_soon(self, number: int, drain_s: float) -> None:
        if (starting := self._hosts.pop(number, None)) is not None:
            task = asyncio.get_running_loop().create_task(_stop(starting, drain_s))
            self._stopping.add(task)
            task.add_done_callback(self._stopping.discard)


async def _stop(starting: asyncio.Task[FunctionHost], drain_s: float) -> None:
    with suppress(BokiError, OSError):
        await (await starting).stop(drain_s)
