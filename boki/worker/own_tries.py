"""Tries of calls that this worker's own functions start, begun before the engine asks for them.

A start whose body only computes needs no engine to run it: the request goes out, the body runs meanwhile, and its end
follows. The engine decides what counts, as it does with tries that it has sent (`boki.books.calls.trying`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from boki.api.function import Function
from boki.protocol.calls import Call
from boki.protocol.tries import Misses, is_worth_a_try
from boki.worker.frames import Accepted, ticket_of_try

_MOST: Final = 8
"""Bodies at once: the engine has other workers for more."""
_SHARED: Final = 256
"""A function of which fewer calls may run at once is left to the engine, which counts them."""


class OwnTries:
    """The tries of one worker. `begin_call` runs a call under a ticket."""

    def __init__(self, worker: int, begin_call: Callable[[int, Call], None], clock: Callable[[], float]) -> None:
        self.functions: Mapping[str, Function] = {}
        self._worker = worker
        self._begin_call = begin_call
        self._misses = Misses(lambda: int(clock() * 1e6))
        self._under_way = 0

    def ticket_for(self, caller: Call, request: int, call: Call) -> int:
        """The ticket under which to `begin` a call that is to be logged at once, if that is worth a try; else 0."""
        if caller.attempt > 1:  # its last run was lost or failed: the next one ends with no body but its own
            return 0
        chosen, function = call.chosen, self.functions.get(call.function)
        if function is None or function.declared is None or chosen is None or not is_worth_a_try(chosen):
            return 0
        info = function.info
        if info.concurrency < _SHARED or self._under_way >= _MOST:
            return 0
        return 0 if self._misses.rests(call.function) else ticket_of_try(self._worker, request)

    def begin(self, ticket: int, call: Call) -> None:
        """Run the call. Its request is sent now, and can be."""
        info = self.functions[call.function].info
        self._under_way += 1
        timeout_us = min(call.timeout_us, int(info.timeout_s * 1_000_000))
        call = replace(info.to_be_logged(call), timeout_us=timeout_us, retry=None, run=1, attempt=1, is_tried=True)
        self._begin_call(ticket, call)

    def ended(self) -> None:
        """The body of one is over. Whoever has asked for it may have left before."""
        self._under_way -= 1

    def answered(self, function: str, accepted: Accepted) -> None:
        """The start was answered. The try has helped if its own result stands there: another one may be of a version of
        the code that this worker cannot run.
        """
        has_helped = accepted.has_taken_try and accepted.result is not None
        self._misses.note(function, has_missed=not has_helped)
