"""Tries that workers have begun by themselves (`boki.worker.own_tries`), until the logged calls ask for them.

They ask as for any other call, by `FunctionHost.start_call`. If a worker has begun that very try, with the code that
runs now, it is taken in its place, whether it is over or not.
"""

from __future__ import annotations

from collections.abc import Callable

from boki.dispatch.server.worker_link import WorkerLink
from boki.protocol.calls import Call, Outcome
from boki.worker.frames import InvokeLater, is_try_of


def admit_try(link: WorkerLink, frame: InvokeLater) -> bool:
    """Take note of the ticket under which the worker tries the call of the frame. False: it may not, since the ticket
    must be its own and later than all before, and the call be logged at once under a chosen id. User code runs in it.
    """
    if frame.call.chosen is None or frame.delay_s or frame.key is not None:
        return False
    if not is_try_of(link.number, frame.tried) or frame.tried >= link.newest_try:  # they are counted down from 0
        return False
    link.newest_try = frame.tried
    return True


class OwnTry:
    """One of them. Its outcome may come before it is asked for."""

    __slots__ = ("_done", "_outcome", "call", "is_taken", "number", "ticket")

    def __init__(self, ticket: int, call: Call, number: int) -> None:
        """`number` is that of the functions that run now (`FunctionHost.functions_number`)."""
        self.ticket = ticket
        self.call = call
        self.number = number
        self.is_taken = False
        """The engine has asked for it."""
        self._done: Callable[[Outcome], None] | None = None
        self._outcome: Outcome | None = None

    @property
    def is_over(self) -> bool:
        """Whether its outcome is known."""
        return self._outcome is not None

    def end(self, outcome: Outcome) -> None:
        """This is how it ended."""
        self._outcome = outcome
        if self._done is not None:
            self._done(outcome)

    def tell(self, done: Callable[[Outcome], None]) -> None:
        """`done` is called with its outcome, maybe at once."""
        if self._outcome is not None:
            done(self._outcome)
        else:
            self._done = done


class OwnTries:
    """Those that nobody has asked for yet."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], OwnTry] = {}
        """By `_key`."""

    def keep(self, begun: OwnTry) -> None:
        """A worker has begun it."""
        self._waiting[_key(begun.call)] = begun

    def take(self, call: Call, number: int) -> OwnTry | None:
        """The try of this call, if a worker has begun it with the functions of this number."""
        if (begun := self._waiting.get(_key(call))) is None:
            return None
        if begun.number != number or begun.call.payload is not call.payload:  # or it came with another request
            return None
        begun.is_taken = True
        return self._waiting.pop(_key(call))

    def drop(self, begun: OwnTry, cancel: Callable[[int], None]) -> None:
        """Its call is logged, or refused: if nobody has asked for the try, it is cancelled."""
        if self._waiting.get(_key(begun.call)) is begun:
            del self._waiting[_key(begun.call)]
        if not begun.is_taken:
            cancel(begun.ticket)


def _key(call: Call) -> tuple[str, str]:
    """Names one start of one call: all calls that one parent starts may share `ChosenId.start`."""
    return call.id, "" if call.chosen is None else call.chosen.start
