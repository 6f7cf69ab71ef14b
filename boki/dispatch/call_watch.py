"""Reports how each call ended, child calls included, to the console of `boki dev` or the log of a node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from boki.errors import CallCancelled
from boki.log.operations import Failure
from boki.protocol.calls import Call, Outcome

OnCall = Callable[[Call, Outcome, int], None]
"""A call, how it ended, and how many microseconds it took, its wait for a worker included."""

_GIVEN_UP: Final = Outcome(None, Failure.of(CallCancelled("nobody waits for it any more", outcome="unknown")))


class CallWatch:
    """Times calls from when they are asked for to their outcome."""

    def __init__(self, on_call: OnCall, clock: Callable[[], int]) -> None:
        self._on_call = on_call
        self._clock = clock
        self._own: dict[int, tuple[Call, int]] = {}
        """By ticket."""
        self._children: dict[int, dict[int, tuple[Call, int]]] = {}
        """By worker and the number of its request. What a worker has given up is never answered."""

    def watched(self, ticket: int, call: Call, done: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """`done`, and telling."""
        self._own[ticket] = (call, self._clock())

        def ended(outcome: Outcome) -> None:
            self._tell(ticket, outcome)
            done(outcome)

        return ended

    def cancelled(self, ticket: int) -> None:
        """Its caller has cancelled it, or left."""
        self._tell(ticket, _GIVEN_UP)

    def _tell(self, ticket: int, outcome: Outcome) -> None:
        call, started_us = self._own.pop(ticket)
        if call.is_tried and (outcome.failure is not None or outcome.suspended is not None):
            return  # it runs again, once it is accepted, and then its end is reported
        self._on_call(call, outcome, self._clock() - started_us)

    def child_began(self, worker: int, request: int, call: Call) -> None:
        """A call in this worker has asked for another one, under this number."""
        self._children.setdefault(worker, {})[request] = (call, self._clock())

    def child_ended(self, worker: int, request: int, outcome: Outcome) -> None:
        """That one has ended."""
        if (begun := self._children.get(worker, {}).pop(request, None)) is not None:
            self._on_call(begun[0], outcome, self._clock() - begun[1])

    def child_abandoned(self, worker: int, request: int) -> None:
        """The caller of that one has left."""
        self._children.get(worker, {}).pop(request, None)

    def worker_gone(self, worker: int) -> None:
        """The worker has ended, with all that it has asked for."""
        self._children.pop(worker, None)
