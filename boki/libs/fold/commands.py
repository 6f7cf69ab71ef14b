"""Numbered commands: a session numbers what it asks of a fold, and each number counts once, however often appended.

An append whose answer is lost may have happened. So a command carries its session and a number, and is appended again
under that number for as long as it is in doubt. The fold counts a number once, and remembers its outcome until the
session's next command, for a process that begins again from a checkpoint and has not heard of it. Pure.
"""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

SESSION_US: Final = 15 * 60 * 1_000_000
"""A session that has sent no command for this long is forgotten, with the outcome of its last one."""
MAX_SESSIONS: Final = 10_000
"""Sessions that a fold remembers; beyond that the longest silent are forgotten first."""


class Counted(Protocol):
    """The outcome of a command, with what a library adds to it."""

    @property
    def number(self) -> int:
        """The command's number in its session."""

    @property
    def time_us(self) -> int:
        """The log's time of its record."""


A = TypeVar("A", bound=Counted)


class Sessions(Generic[A]):
    """The sessions that command a fold, and the outcome of the last command of each."""

    def __init__(self, last: dict[bytes, A], *, keep_us: int = SESSION_US, most: int = MAX_SESSIONS) -> None:
        self.last = last
        """In the order of the last commands; part of a snapshot."""
        self._keep_us = keep_us
        self._most = most

    def counts(self, session: bytes, number: int) -> bool:
        """Whether the command of that number has not come before. If it has, its session was heard of all the same."""
        last = self.last.get(session)
        if last is None or number > last.number:
            return True
        self.note(session, last)
        return False

    def note(self, session: bytes, answer: A) -> None:
        """A command counts, and this came of it."""
        self.last.pop(session, None)
        self.last[session] = answer

    def forget_old(self, time_us: int) -> list[bytes]:
        """Forget sessions that are silent for too long, or too many, by the time of records alone: so every fold
        forgets the same. Which they are.
        """
        forgotten = []
        while self.last:
            session, answer = next(iter(self.last.items()))
            if answer.time_us > time_us - self._keep_us and len(self.last) <= self._most:
                break
            del self.last[session]
            forgotten.append(session)
        return forgotten
