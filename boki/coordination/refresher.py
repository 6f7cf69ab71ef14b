"""Reads values in ZooKeeper again whenever they change, also if they cannot be read now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from kazoo.exceptions import NoAuthError, NoNodeError

from boki.coordination.session import SessionEnded
from boki.errors import ConfigError, VersionTooNew

_log = logging.getLogger("boki.launch.zookeeper")
UNREADABLE: Final = (ConfigError, VersionTooNew, NoNodeError, NoAuthError)
"""Another client of ZooKeeper has written, removed or locked what stood there."""
_LOOK_AGAIN_S: Final = 5.0
"""How soon a value that could not be read is looked at again."""


class Refresher:
    """Runs `refresh(watch)` once, and again after each change that the watch told. Many changes at once are one.

    A value that cannot be read ends no running process: the last good value stays in effect.
    """

    def __init__(
        self, refresh: Callable[[Callable[[], None]], Awaitable[None]], on_failure: Callable[[Exception], None]
    ) -> None:
        self._refresh = refresh
        self._on_failure = on_failure
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def poke(self) -> None:
        """Something may have changed."""
        self._changed.set()

    async def start(self) -> None:
        """Refresh once, then after every change."""
        await self._refresh(self.poke)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._refresh(self.poke)
            except SessionEnded:
                return
            except UNREADABLE as error:
                _log.error("ZooKeeper: %s: the last good value stays in effect", error or repr(error))
                asyncio.get_running_loop().call_later(_LOOK_AGAIN_S, self.poke)
            except Exception as error:  # noqa: BLE001 - whatever it is, this process is deaf from now on
                self._on_failure(error)
                return

    async def stop(self) -> None:
        """Stop refreshing."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
