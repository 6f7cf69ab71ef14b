"""Several callers of a store over one log in memory, whose operations are carried out one by one in a chosen order.

A caller is a generator of operations, as the library's bodies are. A scheduler takes turns between them, may lose the
answer of an append (carried out or not), and stop a caller permanently. Nothing waits, so a seed is a history.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from random import Random
from typing import Any, TypeVar

import msgspec

from boki import ConnectionLost
from boki.api.blocking_logbook import LogSession
from boki.api.deadline import Caller
from boki.blocking import LogBook
from boki.libs.bokistore.accesses import Direct
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import UNKNOWN_AUTHOR
from boki.libs.bokistore.transactions import Transaction
from boki.libs.bokistore.views import Rows
from boki.libs.fold.steps import Append, Pause, ReadPage, Step, Steps, run_blocking
from boki.log.limits import DEFAULT_LIMITS
from boki.log.memory import MemoryLog
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation

T = TypeVar("T")


class DirectPort:
    """A port that answers at once."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.now_us = 1_000_000

    def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        self.now_us += 1
        return self._log.answer(operation, self.now_us)


def logbook(log: MemoryLog | None = None, name: str = "book") -> LogBook:
    """A LogBook whose operations are carried out in the line that asks for them."""
    return LogSession(DirectPort(log or MemoryLog()), Caller(limits=DEFAULT_LIMITS)).logbook(name)


_nonces = count(1)


def new_nonce() -> bytes:
    return b"%d" % next(_nonces)


@dataclass
class Process:
    """What one process has: a memory of its own."""

    book: LogBook
    rows: Rows = field(default_factory=Rows)

    @cached_property
    def reader(self) -> Reader:
        return Reader(self.rows, self.book.name)

    def begin(self, key: str | None = None) -> Transaction:
        return Transaction(self.reader, new_nonce(), UNKNOWN_AUTHOR, key)

    @property
    def direct(self) -> Direct:
        return Direct(self.reader, UNKNOWN_AUTHOR, new_nonce)

    def run(self, steps: Steps[T]) -> T:
        """Carry it out without a break."""
        return run_blocking(steps, self.book, pause=lambda _: None)


@dataclass
class Running:
    """One caller under way: what it asks for next, and its outcome."""

    steps: Steps[Any]
    asks: Step | None = None
    result: Any = None
    error: BaseException | None = None
    is_over: bool = False

    def go_on(self, answer: Any = None, error: BaseException | None = None) -> None:
        """Give it an answer, and have it ask for the next one."""
        try:
            if error is not None:
                self.asks = self.steps.throw(error)
            elif self.asks is None:
                self.asks = next(self.steps)
            else:
                self.asks = self.steps.send(answer)
        except StopIteration as end:
            self.result, self.is_over = end.value, True
        except Exception as raised:  # noqa: BLE001 - it is what the caller is told
            self.error, self.is_over = raised, True


class Scheduler:
    """Takes turns between callers, by a seed."""

    def __init__(self, book: LogBook, rng: Random, *, lose: float = 0.0) -> None:
        self._book = book
        self._rng = rng
        self._lose = lose
        self.running: list[Running] = []
        self.now = 0
        """Counts operations: the clock of the history."""
        self.lost = 0

    def start(self, steps: Steps[Any]) -> Running:
        """A caller begins; it is given turns by `turn`."""
        caller = Running(steps)
        caller.go_on()
        if not caller.is_over:
            self.running.append(caller)
        return caller

    def turn(self) -> Running:
        """Carry out one operation of one caller."""
        caller = self._rng.choice(self.running)
        self.now += 1
        asked = caller.asks
        assert asked is not None
        is_append = isinstance(asked, Append)
        is_lost = is_append and self._rng.random() < self._lose
        if isinstance(asked, Pause):
            caller.go_on()
        elif is_lost and self._rng.random() < 0.5:
            self.lost += 1
            caller.go_on(error=ConnectionLost("the request was lost"))
        else:
            try:
                answer = run_blocking(_one(asked), self._book)
            except Exception as error:  # noqa: BLE001 - it is the answer
                caller.go_on(error=error)
            else:
                if is_lost:
                    self.lost += 1
                    caller.go_on(error=ConnectionLost("the answer was lost"))
                else:
                    caller.go_on(answer)
        if caller.is_over:
            self.running.remove(caller)
        return caller

    def finish(self) -> None:
        """Until all of them are over."""
        while self.running:
            self.turn()


def _one(step: Step) -> Steps[Any]:
    at_once = tuple(
        msgspec.structs.replace(each, wait_s=0.0) if isinstance(each, ReadPage) else each
        for each in (step if isinstance(step, tuple) else (step,))
    )
    return (yield at_once if isinstance(step, tuple) else at_once[0])
