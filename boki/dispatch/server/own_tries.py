"""Tries that workers have begun by themselves (`boki.worker.own_tries`), until the logged calls ask for them.

They ask as for any other call, by `FunctionHost.start_call`. If a worker has begun that very try, with the code that
runs now, it is taken in its place, whether it is over or not.
"""

from __future__ import annotations

from collections.abc import Callable

from boki.protocol.calls import Call, Outcome


class OwnTry:
    """One of them. Its outcome may come before it is asked for."""

    __slots__ = ("_done", "_outcome", "call", "number", "ticket")

    def __init__(self, ticket: int, call: Call, number: int) -> None:
        """`number` is that of the functions that run now (`FunctionHost.functions_number`)."""
        self.ticket = ticket
        self.call = call
        self.number = number
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
        self._waiting: dict[str, OwnTry] = {}
        """By the start of their call (`ChosenId.start`)."""

    def keep(self, begun: OwnTry) -> None:
        """A worker has begun it."""
        assert begun.call.chosen is not None, "others are not tried by workers"
        self._waiting[begun.call.chosen.start] = begun

    def taken(self, call: Call, number: int) -> OwnTry | None:
        """The try of this call, if a worker has begun it with the functions of this number."""
        if call.chosen is None or (begun := self._waiting.get(call.chosen.start)) is None:
            return None
        if begun.number != number or begun.call.payload is not call.payload:  # or it came with another request
            return None
        return self._waiting.pop(call.chosen.start)

    def drop(self, begun: OwnTry, cancel: Callable[[int], None]) -> None:
        """Its call is logged, or refused: if nobody has asked for the try, it is cancelled."""
        assert begun.call.chosen is not None, "others are not kept"
        start = begun.call.chosen.start
        if self._waiting.get(start) is begun:
            del self._waiting[start]
            cancel(begun.ticket)
