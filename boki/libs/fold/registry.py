"""Registry of what a library follows, one for each connection to the log: shared by all calls, evicted when idle.

A fold is kept for as long as it is used and a while longer, because to make it again means to read a checkpoint. There
is no timer: what is idle goes when something else is followed. `logbook.session.shared(MyRegistry)` is the one of a
connection.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

IDLE_S: Final = 300.0
"""What was not used for this long is followed no more."""


class Followed(Protocol):
    """What a registry keeps."""

    @property
    def is_busy(self) -> bool:
        """Whether a caller waits for it, or something is under way."""

    def let_go(self) -> None:
        """It is kept no more: give back what it holds outside itself."""


F = TypeVar("F", bound=Followed)


class Registry(Generic[F]):
    """What is followed over one connection, by book and name, and the background tasks."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self._kept: dict[tuple[str, str], F] = {}
        self._used_s: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[F]:
        return iter(list(self._kept.values()))

    def find(self, book: str, name: str, now_s: float) -> F | None:
        """What is followed under that name. It is used now, in seconds of the event loop."""
        found = self._kept.get((book, name))
        if found is not None:
            self._used_s[book, name] = max(self._used_s[book, name], now_s)
        return found

    def put(self, book: str, name: str, followed: F, now_s: float = math.inf) -> F:
        """Follow this from now on; without a time it is never evicted. What was there before goes, and what is idle."""
        for key, used_s in list(self._used_s.items()):
            if used_s < now_s - IDLE_S < math.inf and not self._kept[key].is_busy:
                self._let_go(key)
        if (book, name) in self._kept:
            self._let_go((book, name))
        self._kept[book, name] = followed
        self._used_s[book, name] = now_s
        return followed

    def _let_go(self, key: tuple[str, str]) -> None:
        del self._used_s[key]
        self._kept.pop(key).let_go()


class Tasks:
    """Background work: checkpoints, trims, clean-up."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """Do it in a task of its own. It must handle its errors. None: the event loop is over, and nothing is done."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # a caller that the loop has left behind is collected, and its `finally` asks for work
            work.close()
            return None
        task = loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def come_to_rest(self, patience_s: float = math.inf) -> None:
        """Until all work has ended, also what it has spawned; what continues for longer than `patience_s` is cancelled.
        The task that calls this is not waited for.
        """
        loop = asyncio.get_running_loop()
        until_s = loop.time() + patience_s
        while tasks := [task for task in self._running if task is not asyncio.current_task()]:
            left_s = None if until_s == math.inf else max(0.0, until_s - loop.time())
            _, late = await asyncio.wait(tasks, timeout=left_s)
            for task in late:
                task.cancel()
