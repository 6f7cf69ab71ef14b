"""What can wait: queues that are kept back for a while, for something that must go to the same process anyway."""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle
from typing import Final

from boki.net.outbox import Outbox

_EARLY_S: Final = 0.0005
"""A timer is exact to about a millisecond."""


class Patience:
    """The outboxes of one process that have only what can wait, and when that is over."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._held: dict[Outbox, float] = {}
        self._timer: TimerHandle | None = None

    def __contains__(self, outbox: object) -> bool:
        return outbox in self._held

    def hold(self, outbox: Outbox, patience_s: float) -> None:
        """Flush it after that time, or earlier if it is held already."""
        until_s = self._loop.time() + patience_s
        self._held[outbox] = min(until_s, self._held.get(outbox, until_s))
        if self._timer is None:
            self._timer = self._loop.call_later(patience_s, self._end)

    def forget(self, outbox: Outbox) -> None:
        """It is flushed by somebody else, or closed."""
        self._held.pop(outbox, None)

    def _end(self) -> None:
        self._timer = None
        now_s = self._loop.time()
        for outbox, until_s in list(self._held.items()):
            if until_s - now_s < _EARLY_S:
                del self._held[outbox]
                outbox.flush()
        if self._held:
            self._timer = self._loop.call_later(min(self._held.values()) - now_s, self._end)

    def close(self) -> None:
        """Flush nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()
