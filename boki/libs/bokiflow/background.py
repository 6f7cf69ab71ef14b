"""What an execution does next to its steps and its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Background:
    """Tasks of one execution. One that fails ends it; after each other one it looks what is to be done."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, end: Callable[[BaseException], None], turn: Callable[[], None]
    ) -> None:
        self._loop = loop
        self._end = end
        self._turn = turn
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        """Number of tasks that have not ended."""
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin one more."""
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_end)

    def cancel(self) -> set[asyncio.Task[None]]:
        """Cancel those that have not ended; these are to be awaited."""
        for task in self._tasks:
            task.cancel()
        return set(self._tasks)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)
        else:
            self._turn()
