"""The stop of a node: one deadline for what is under way at all of its roles, which stop one after the other.

With a deadline each, a single long call would use up all of them, and the supervisor would kill the node before its
engine has closed its shards and its storage node has stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

AFTER_DRAIN_S: Final = 20.0
"""Seconds after `drain_s` until a node's gateway and engine are gone, at most. Each of these steps has a limit: last
answers, worker processes that end, checkpoint of the logged calls, shards, index, and the node's registration.
"""


class NodeStop:
    """When a node that stops cuts off what is still under way. `clock`: seconds, as the event loop's."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s: float | None = None

    def begin(self) -> None:
        """The node has been told to stop."""
        if self._began_s is None:
            self._began_s = self._clock()

    def deadline_s(self, drain_s: float) -> float:
        """When a role that is to stop ends its calls: this long after its node began to stop. One that stops alone,
        because it begins again, has as long from now on.
        """
        return (self._clock() if self._began_s is None else self._began_s) + drain_s

    def left_s(self, deadline_s: float) -> float:
        """Seconds until then; 0 if it is over."""
        return max(deadline_s - self._clock(), 0.0)
