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


class Answered(Protocol):
    """What was answered."""

    @property
    def time_us(self) -> int:
        """The log's time of its record."""


class Counted(Answered, Protocol):
    """The outcome of a command, with what a library adds to it."""

    @property
    def number(self) -> int:
        """The command's number in its session."""


K = TypeVar("K")
R = TypeVar("R", bound=Answered)
A = TypeVar("A", bound=Counted)


class Answers(Generic[K, R]):
    """Answers that are remembered, in the order in which they were noted, with bounds: their age, their number, and
    what they weigh together. The last one stays however much it weighs.
    """

    def __init__(self, last: dict[K, R], *, keep_us: int, most: int, most_weight: int | None = None) -> None:
        self.last = last
        """Part of a snapshot."""
        self.weights: dict[K, int] = {}
        """Of those that weigh anything, in the same order."""
        self.weight = 0
        self._keep_us, self._most, self._most_weight = keep_us, most, most_weight

    def __len__(self) -> int:
        return len(self.last)

    def note(self, key: K, answer: R, weight: int = 0) -> None:
        """This is the newest one."""
        self.drop(key)
        self.last[key] = answer
        if weight:
            self.weights[key] = weight
            self.weight += weight

    def drop(self, key: K) -> None:
        """Forget it."""
        self.last.pop(key, None)
        self.weight -= self.weights.pop(key, 0)

    def forget_old(self, time_us: int) -> list[K]:
        """Forget what is too old, or too much, by the time of records alone: so every fold forgets the same. Which."""
        forgotten = []
        while self.last:
            key, answer = next(iter(self.last.items()))
            is_heavy = self._most_weight is not None and self.weight > self._most_weight and len(self.last) > 1
            if answer.time_us > time_us - self._keep_us and len(self.last) <= self._most and not is_heavy:
                break
            self.drop(key)
            forgotten.append(key)
        return forgotten


class Sessions(Answers[bytes, A]):
    """The sessions that command a fold, and the outcome of the last command of each."""

    def __init__(self, last: dict[bytes, A], *, keep_us: int = SESSION_US, most: int = MAX_SESSIONS) -> None:
        super().__init__(last, keep_us=keep_us, most=most)

    def counts(self, session: bytes, number: int) -> bool:
        """Whether the command of that number has not come before. If it has, its session was heard of all the same."""
        last = self.last.get(session)
        if last is None or number > last.number:
            return True
        self.note(session, last, self.weights.get(session, 0))
        return False
