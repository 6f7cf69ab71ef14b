"""Sinks without Spark: attempts of tasks and drivers over a log in memory, which tests lead step by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from boki.errors import BokiError, ConnectionLost
from boki.libs.fold.steps import Pause
from boki.log.operations import Append
from boki.spark.lane import Attempt
from boki.spark.ledger import LaneNote
from boki.spark.options import WriteOptions
from boki.spark.sink import writing
from boki.spark.steps import Step, Steps
from tests.spark.memory_gateway import MemorySystem

LOST = ConnectionLost("lost", outcome="unknown")


def options(book: str | None = "b", *, is_json: bool = False) -> WriteOptions:
    """The options of a sink."""
    return WriteOptions(gateway="", token="", book=book, is_json=is_json, write_id=None)


def frame(*datas: Any, tags: Any = None, books: Any = None) -> Any:
    """An Arrow batch, as Spark hands it over."""
    columns = {"data": pa.array(datas, pa.string())}
    if tags is not None:
        columns["tags"] = pa.array(tags, pa.list_(pa.string()))
    if books is not None:
        columns["book"] = pa.array(books, pa.string())
    return pa.RecordBatch.from_pydict(columns)


def rows(*numbers: int) -> list[Any]:
    """Batches with a row for each number, tagged `t`."""
    return [frame(*map(str, numbers), tags=[["t"]] * len(numbers))] if numbers else []


class Actor:
    """Somebody whose steps go to the system one at a time: a task, or a driver."""

    def __init__(self, system: MemorySystem, steps: Steps[Any]) -> None:
        self.system = system
        self.result: Any = None
        self.error: BokiError | None = None
        self.is_done = False
        self.count = 0
        self.waited_s = 0.0
        self._steps = steps
        self.next: Step | None = None
        self._advance(lambda: next(steps))

    def step(self, *, is_lost: bool = False, has_no_answer: bool = False) -> None:
        """Carry out the next one. `is_lost`: it never arrives; `has_no_answer`: it does, and the actor is not told."""
        step, self.next = self.next, None
        assert step is not None
        self.count += 1
        try:
            answer = None if is_lost else self._answer(step)
            if is_lost or has_no_answer:
                raise LOST
        except BokiError as error:
            found = error
            self._advance(lambda: self._steps.throw(found))
        else:
            self._advance(lambda: self._steps.send(answer))

    def _answer(self, step: Step) -> Any:
        if isinstance(step, tuple):
            return [self.system.answer(trim) for trim in step] and None
        assert not isinstance(step, Pause)
        return self.system.answer(step)

    def _advance(self, go_on: Callable[[], Step]) -> None:
        """Up to the next operation; nobody waits here."""
        try:
            step = go_on()
            while isinstance(step, Pause):
                self.waited_s += step.seconds
                step = self._steps.send(None)
            self.next = step
        except StopIteration as end:
            self.result, self.is_done = end.value, True
        except BokiError as error:
            self.error, self.is_done = error, True

    @property
    def is_at_append(self) -> bool:
        """Whether the next step is an append, whose answer may get lost."""
        return isinstance(self.next, Append)

    def finish(self) -> Any:
        """Carry out all steps; what they come to."""
        while not self.is_done:
            self.step()
        if self.error is not None:
            raise self.error
        return self.result


def task(
    system: MemorySystem, batches: Sequence[Any], *, write: str = "w", batch: int = 0, partition: int = 0
) -> Actor:
    """An attempt of a task that writes these batches to book `b`, or to those that they name."""
    book = None if batches and "book" in batches[0].schema.names else "b"
    return Actor(system, writing(batches, options(book), Attempt(write, batch, partition)))


def written(system: MemorySystem, batches: Sequence[Any], **place: Any) -> list[LaneNote]:
    """What a task that nothing disturbs has written."""
    notes: list[LaneNote] = task(system, batches, **place).finish()
    return notes


def datas(system: MemorySystem, book: str = "b", tag: str | None = None) -> Counter[str]:
    """The rows that are in a book, and how often."""
    return Counter(record.data.decode() for record in system.records(book, tag))


def once_each(*numbers: int) -> Counter[str]:
    """Each of these rows, once."""
    return Counter(map(str, numbers))


def orders(run: Callable[[Iterator[bool]], None], most_changes: int) -> int:
    """Call `run` for every order of two actors' steps in which one takes over from the other at most this many times.

    `run` draws, before each step at which both could continue, whether the other takes over. Returns how many orders
    there were.
    """
    prefix: list[bool] = []
    number = 0
    while True:
        taken: list[bool] = []

        def draws(given: list[bool] = prefix, taken: list[bool] = taken) -> Iterator[bool]:
            while True:
                taken.append(given[len(taken)] if len(taken) < len(given) else False)
                yield taken[-1]

        run(draws())
        number += 1
        while taken and (taken[-1] or sum(taken) == most_changes):
            taken.pop()
        if not taken:
            return number
        prefix = [*taken[:-1], True]


def race(first: Actor, second: Actor, draws: Iterator[bool]) -> None:
    """Let both continue until they have ended."""
    now, other = first, second
    while not (now.is_done and other.is_done):
        if now.is_done or (not other.is_done and next(draws)):
            now, other = other, now
        now.step()
