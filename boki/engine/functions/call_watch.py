"""Reports how each call ended, child calls included, to the console of `boki dev` or the log of a node."""

from __future__ import annotations

from collections.abc import Callable

from boki.calls import Call, Outcome

OnCall = Callable[[Call, Outcome, int], None]
"""A call, how it ended, and how many microseconds it took, its wait for a worker included."""


class CallWatch:
    """Times calls from when they are asked for to their outcome."""

    def __init__(self, on_call: OnCall, clock: Callable[[], int]) -> None:
        self._on_call = on_call
        self._clock = clock
        self._children: dict[int, dict[int, tuple[Call, int]]] = {}
        """By worker and the number of its request. What a worker has given up is never answered."""

    def watched(self, call: Call, done: Callable[[Outcome], None]) -> Callable[[Outcome], None]:
        """`done`, and telling."""
        started_us = self._clock()

        def ended(outcome: Outcome) -> None:
            self._on_call(call, outcome, self._clock() - started_us)
            done(outcome)

        return ended

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
