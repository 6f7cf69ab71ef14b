"""Looking for the next message without sleeping, for a moment, where it is about to come (busy polling).

A process that sleeps until a message comes has to be woken, and the sender pays for a part of it. A virtual machine may
take 50 to 100 µs to give an idle core back, which is more than all the work of a read that the record cache answers. So
there are two windows in which a process looks, and does not sleep:

- A worker that waits for nothing but such a read looks for its answer for up to `ANSWER_NS`. That is enough for an
  engine that must first be woken.
- An engine that has answered such a read at once, and has nothing else under way for that worker, looks for the next
  request for up to `NEXT_NS`: a function that reads one record after the other sends it soon. That is no more than what
  being woken costs, so a function that computes for longer between its reads does not keep the engine awake.

What does not pay is tried less and less, as adaptive mutexes do it: each window in which nothing came doubles the
number of occasions that are left out next, up to `_MOST_SKIPPED`. An engine that relays requests to another one answers
nothing at once; there the worker alone looks.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Final

from boki.log.operations import Get, Operation, Read

ANSWER_NS: Final = 250_000
"""How long a worker looks for an answer."""
NEXT_NS: Final = 100_000
"""How long an engine looks for the next request."""
_MOST_SKIPPED: Final = 64


def is_answered_at_once(operation: Operation) -> bool:
    """Whether an engine that has the record and its index answers without asking others or waiting.

    >>> is_answered_at_once(Read("b")), is_answered_at_once(Read("b", wait_us=1)), is_answered_at_once(Get("b", 1))
    (True, False, True)
    """
    if isinstance(operation, Read):
        return not (operation.wait_us or operation.fresh)
    return isinstance(operation, Get)


class Payoff:
    """Whether looking is worth it, by how it went the last times. For one thread at a time."""

    __slots__ = ("_penalty", "_skipped")

    def __init__(self) -> None:
        self._penalty = 0
        """How many occasions were left out after the last window in which nothing came."""
        self._skipped = 0
        """How many occasions are still to be left out."""

    def is_worth_a_try(self) -> bool:
        """Whether to look on this occasion."""
        if self._skipped:
            self._skipped -= 1
            return False
        return True

    def paid(self) -> None:
        """The message came within the window."""
        self._penalty = 0

    def failed(self) -> None:
        """Nothing came within the window."""
        self._penalty = min(max(1, 2 * self._penalty), _MOST_SKIPPED)
        self._skipped = self._penalty


class BusyPolling:
    """Keeps an event loop turning until a message comes, for `window_ns` at most. It does everything else meanwhile."""

    __slots__ = ("_call_soon", "_is_turning", "_now_ns", "_payoff", "_until_ns", "_window_ns")

    def __init__(
        self,
        window_ns: int,
        call_soon: Callable[[Callable[[], None]], object],
        now_ns: Callable[[], int] = perf_counter_ns,
    ) -> None:
        self._window_ns = window_ns
        self._call_soon = call_soon
        self._now_ns = now_ns
        self._payoff = Payoff()
        self._until_ns = 0
        """The end of the open window; 0: none is open."""
        self._is_turning = False

    def expect(self) -> None:
        """A message is about to come."""
        if self._until_ns or not self._payoff.is_worth_a_try():
            return
        self._until_ns = self._now_ns() + self._window_ns
        if not self._is_turning:
            self._is_turning = True
            self._call_soon(self._turn)

    def came(self) -> None:
        """A message has come."""
        if self._until_ns:
            self._until_ns = 0
            self._payoff.paid()

    def _turn(self) -> None:
        if self._until_ns and self._now_ns() < self._until_ns:
            self._call_soon(self._turn)
            return
        self._is_turning = False
        if self._until_ns:
            self._until_ns = 0
            self._payoff.failed()
