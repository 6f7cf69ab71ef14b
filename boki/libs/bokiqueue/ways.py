"""Registry of followed queues per log connection: one shared budget of bodies, one shutdown.

A fold is kept as long as somebody uses it, and a while longer: making it anew means to read a checkpoint. There is no
timer; the ones that nobody needs any more go when another queue is followed.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from boki.libs.bokiqueue.bodies import BodyStore

if TYPE_CHECKING:
    from boki.libs.bokiqueue.following import Following

IDLE_S: Final = 300.0
"""A queue that nobody has used for so long is followed no more."""


class Way:
    """One way to the log."""

    def __init__(self) -> None:
        self.bodies = BodyStore()
        self._followings: dict[tuple[str, str], Following] = {}
        """By book and queue."""
        self._used_s: dict[tuple[str, str], float] = {}

    def __len__(self) -> int:
        return len(self._followings)

    def find(self, book: str, queue: str, now_s: float) -> Following | None:
        """The one that follows the queue. It is used now."""
        found = self._followings.get((book, queue))
        if found is not None:
            self._used_s[book, queue] = max(self._used_s[book, queue], now_s)
        return found

    def put(self, book: str, following: Following, now_s: float = math.inf) -> None:
        """From now on that one follows its queue; without a time it is never let go."""
        for name, used_s in list(self._used_s.items()):
            if used_s < now_s - IDLE_S < math.inf and not self._followings[name].is_busy:
                self._let_go(name)
        if (book, following.queue) in self._followings:
            self._let_go((book, following.queue))
        self._followings[book, following.queue] = following
        self._used_s[book, following.queue] = now_s

    async def come_to_rest(self, patience_s: float) -> None:
        """Until nothing goes on beside what is waited for: checkpoints, trims, giving back. After that it is ended."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + patience_s
        while tasks := {task for one in self._followings.values() for task in one.tasks}:
            _, late = await asyncio.wait(tasks, timeout=max(0.0, until_s - loop.time()))
            for task in late:
                task.cancel()

    def _let_go(self, name: tuple[str, str]) -> None:
        self._followings.pop(name).bodies.clear()
        del self._used_s[name]


_ways: WeakKeyDictionary[object, Way] = WeakKeyDictionary()


def way_of(origin: object) -> Way:
    """What is shared by all LogBooks with that origin."""
    found = _ways.get(origin)
    if found is None:
        found = _ways[origin] = Way()
    return found
