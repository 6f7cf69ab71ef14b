"""How much time a call has left, and on whose behalf log operations are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf
from time import monotonic, time
from typing import Final

from boki.errors import DeadlineExceeded
from boki.log.checks import check_seconds, check_writable
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.metalog import Positions
from boki.log.operations import Append

DEFAULT_TIMEOUT_S: Final = 30.0
"""How long an operation may take if its caller does not say."""

LONGEST_POLL_S: Final = 20.0
"""A longer wait is made of several requests, so that no peer holds one for longer than this."""

_ANSWER_MARGIN_S: Final = 0.1
"""A long poll ends so much before the call's deadline, so that its answer still finds somebody."""


@dataclass(slots=True)
class Deadline:
    """The moment `at` on `clock` (seconds, any origin) after which the call is no longer awaited."""

    at: float = inf
    clock: Callable[[], float] = monotonic

    @staticmethod
    def after(timeout_s: float, clock: Callable[[], float] = monotonic) -> Deadline:
        """The deadline `timeout_s` from now."""
        return Deadline(clock() + timeout_s, clock)

    def left_s(self) -> float:
        """Seconds left; 0 if none."""
        return inf if self.at == inf else max(0.0, self.at - self.clock())

    def timeout_s(self, wished_s: float | None = None, default_s: float = DEFAULT_TIMEOUT_S) -> float:
        """How long an operation may take: what its caller wishes, but no longer than the call has left.

        `DeadlineExceeded` if nothing is left: the operation is not begun.
        """
        timeout_s = default_s if wished_s is None else check_seconds(wished_s, "timeout_s", positive=True)
        if self.at == inf:
            return timeout_s
        left_s = self.at - self.clock()
        if left_s <= 0:
            raise DeadlineExceeded("the deadline of this call has passed: nothing was begun", outcome="not_applied")
        return min(timeout_s, left_s)

    def wait_s(self, wished_s: float) -> float:
        """How long a poll may wait, so that its answer comes before the deadline."""
        left_s = self.left_s()
        return min(wished_s, left_s - min(_ANSWER_MARGIN_S, left_s / 2)) if left_s < inf else wished_s


@dataclass(slots=True)
class Caller:
    """Who asks: what it has seen of the logs, how long it has, and the limits that it is held to."""

    positions: Positions = field(default_factory=dict)
    deadline: Deadline = field(default_factory=Deadline)
    limits: Limits = DEFAULT_LIMITS
    longest_poll_s: float = LONGEST_POLL_S
    is_runtime: bool = False
    """Whether it is the runtime itself, which alone writes the books of the runtime."""
    wall_clock: Callable[[], float] = time
    """Seconds since the epoch: in a test they are virtual."""
    last_appends: list[Append] | None = None
    """What is appended together with the end of the call; None: this caller cannot leave anything."""

    def detached(self) -> Caller:
        """The same, as far as it has seen by now, with all the time in the world."""
        return replace(
            self, positions=dict(self.positions), deadline=Deadline(clock=self.deadline.clock), last_appends=None
        )

    def check_writable(self, book: str) -> None:
        """`InvalidArgument` if this caller may not write the book."""
        if not self.is_runtime:
            check_writable(book)
