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
from boki.worker.frames import ticket_of_try

_MOST: Final = 8
"""At once: the engine has other workers for more."""
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

    def begin(self, request: int, call: Call) -> int:
        """Begin to run a call that is to be logged at once, if that is worth a try; its ticket, else 0."""
        chosen, function = call.chosen, self.functions.get(call.function)
        if function is None or function.declared is None or chosen is None or not is_worth_a_try(chosen):
            return 0
        info = function.info
        if info.concurrency < _SHARED or self._under_way >= _MOST:
            return 0
        if self._misses.rests(call.function):
            return 0
        self._under_way += 1
        timeout_us = min(call.timeout_us, int(info.timeout_s * 1_000_000))
        ticket = ticket_of_try(self._worker, request)
        call = replace(info.to_be_logged(call), timeout_us=timeout_us, retry=None, run=1, attempt=1, is_tried=True)
        self._begin_call(ticket, call)
        return ticket

    def ended(self, function: str, *, has_helped: bool) -> None:
        """The start was answered. `has_helped`: with the result."""
        self._under_way -= 1
        self._misses.note(function, has_missed=not has_helped)
