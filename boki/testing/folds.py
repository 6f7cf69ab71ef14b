"""Checks of folds: that every process comes to the same state, from every place, whatever is killed on the way.

A library that is a fold of tagged records (`boki.libs.fold`) stands or falls with four promises, and each has a check
here. They raise `AssertionError` and name the record, or the order of events, that breaks the promise.

- `check_same_everywhere`: the fold is pure. Records applied a second time change nothing, and processes with other hash
  seeds come to the same state, so neither the order of a set nor the environment decides anything.
- `check_resumes`: whoever begins from any checkpoint comes to the state of whoever has read the whole history.
- `check_counted_once`: a numbered command counts once, wherever its repetition stands.
- `explore`: what acts (`boki.libs.fold.steps`) keeps its promises in every order of its operations, with lost requests,
  lost answers, and a crash between any two of them.

::

    COUNTERS = Subject("tests.test_counters:COUNTERS", begin=Counters, apply=apply_record)

    def test_the_fold_is_pure() -> None:
        check_same_everywhere(COUNTERS, records)

    def test_of_two_writers_each_counts_once() -> None:
        explore([lambda: add(1), lambda: add(2)], lambda world: check_sum(world, 3))
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from hashlib import sha256
from importlib import import_module
from typing import Any, Final, Generic, Literal, TypeVar, assert_never

import msgspec

from boki.api import log_calls
from boki.api.deadline import Caller
from boki.errors import BokiError, ConnectionLost, Unavailable
from boki.libs.fold import steps
from boki.libs.fold.steps import Step, Steps
from boki.log.memory import MemoryLog
from boki.log.operations import Answer, Appended, Compare, Found, Operation, Sync
from boki.log.record import Record

__all__ = ["Subject", "World", "check_counted_once", "check_resumes", "check_same_everywhere", "explore", "whole_state"]

F = TypeVar("F")

HASH_SEEDS: Final = ("1", "2")
_TIMEOUT_S: Final = 120


def whole_state(value: Any) -> Any:
    """Everything that an object holds, comparable between processes: sets are sorted, dictionaries keep their order.

    >>> whole_state({"b": {2, 1}, "a": (1, b"x")})
    ('dict', (("'b'", ('set', ('1', '2'))), ("'a'", ('tuple', ('1', "b'x'")))))
    """
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return repr(value)
        case set() | frozenset():
            return "set", tuple(sorted(map(whole_state, value), key=repr))
        case Mapping():
            return "dict", tuple((whole_state(key), whole_state(each)) for key, each in value.items())
        case Iterable():
            return type(value).__name__, tuple(map(whole_state, value))
    return type(value).__name__, tuple((name, whole_state(each)) for name, each in _members(value))


def _members(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        return [(name, getattr(value, name)) for name in value.__struct_fields__]
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value)]
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    slots = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return [(name, each) for name, each in (*slots, *getattr(value, "__dict__", {}).items()) if not callable(each)]


@dataclass(frozen=True)
class Subject(Generic[F]):
    """A fold under test. It stands in a module, under the name `where` ("package.module:NAME"), so that other processes
    find it.
    """

    where: str
    begin: Callable[[], F]
    apply: Callable[[F, Record], object]
    """Decode a record of the stream and apply it."""
    view: Callable[[F], Any] = whole_state
    """What must be equal, as a value that `repr` says alike in every process."""
    snapshot: Callable[[F], bytes] | None = None
    restore: Callable[[bytes], tuple[F, int]] | None = None
    """A state from a snapshot, and the seqnum from which its records are read on."""

    def fold(self, records: Iterable[Record]) -> F:
        """The state after these records."""
        state = self.begin()
        for record in records:
            self.apply(state, record)
        return state

    def digests(self, records: Iterable[Record]) -> list[str]:
        """A digest of the state after each record."""
        state = self.begin()
        found = []
        for record in records:
            self.apply(state, record)
            found.append(sha256(repr(self.view(state)).encode()).hexdigest())
        return found


# The fold


def check_same_everywhere(subject: Subject[Any], records: Sequence[Record]) -> None:
    """The fold is a function of the records alone: see the module."""
    expected = subject.digests(records)
    assert len(set(expected)) > 1 or len(records) < 2, "no record changes the view: there is nothing to compare"
    _compare(records, expected, subject.digests(records), "in the same process")
    state = subject.begin()
    for index, record in enumerate(records):
        for _ in range(2):
            subject.apply(state, record)
        assert repr(subject.view(state)) == repr(subject.view(subject.fold(records[: index + 1]))), (
            f"record {record.seqnum} (number {index}) changes the state when it is applied a second time"
        )
    for seed in HASH_SEEDS:
        _compare(records, expected, _elsewhere(subject, records, seed), f"in a process with PYTHONHASHSEED={seed}")


def _compare(records: Sequence[Record], expected: list[str], found: list[str], where: str) -> None:
    for index, (mine, other) in enumerate(zip(expected, found, strict=True)):
        assert mine == other, f"the state after record {records[index].seqnum} (number {index}) is another one {where}"


def _elsewhere(subject: Subject[Any], records: Sequence[Record], seed: str) -> list[str]:
    asked = msgspec.msgpack.encode((subject.where, list(records)))
    code = "from boki.testing.folds import _answer; _answer()"
    path = os.pathsep.join([str(os.curdir), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code], input=asked, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"the other process failed: {done.stderr.decode(errors='replace')}"
    digests: list[str] = msgspec.json.decode(done.stdout)
    return digests


def _answer() -> None:
    """The other process: digests of the fold that was named, of the records that were given."""
    where, records = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=tuple[str, list[Record]])
    module, name = where.split(":")
    subject: Subject[Any] = getattr(import_module(module), name)
    sys.stdout.buffer.write(msgspec.json.encode(subject.digests(records)))


def check_resumes(subject: Subject[Any], records: Sequence[Record], every: int = 1) -> None:
    """A state that begins from the snapshot after any record (or every this many) ends as the one that read them
    all.
    """
    assert subject.snapshot is not None, "a subject that is to be resumed has `snapshot` and `restore`"
    assert subject.restore is not None, "a subject that is to be resumed has `snapshot` and `restore`"
    whole = repr(subject.view(subject.fold(records)))
    before = subject.begin()
    for index, record in enumerate(records):
        subject.apply(before, record)
        if index % every:
            continue
        state, start = subject.restore(subject.snapshot(before))
        assert repr(subject.view(before)) == repr(subject.view(state)) or start <= record.seqnum, (
            f"the snapshot after record {record.seqnum} (number {index}) makes another state"
        )
        for later in records:
            if later.seqnum >= start:
                subject.apply(state, later)
        assert repr(subject.view(state)) == whole, (
            f"whoever begins from the snapshot after record {record.seqnum} (number {index}) comes to another state"
        )


def check_counted_once(
    subject: Subject[Any],
    records: Sequence[Record],
    is_command: Callable[[Record], bool],
    effects: Callable[[Any], Any],
) -> int:
    """A command that stands in the log again, anywhere behind itself, has no more effects; how many were tried.

    The seqnums of the records leave room for one between each two, for the repetition. `effects` is the part of the
    state that must be equal: how far the fold has come may differ.
    """
    expected = [repr(effects(subject.fold(records[: index + 1]))) for index in range(len(records))]
    tried = 0
    for first, command in enumerate(records):
        if not is_command(command):
            continue
        for place in range(first, len(records)):
            at = records[place]
            assert place + 1 == len(records) or records[place + 1].seqnum > at.seqnum + 1, (
                f"there is no room for a repetition behind record {at.seqnum}: give records seqnums that are 10 apart"
            )
            repeated = msgspec.structs.replace(command, seqnum=at.seqnum + 1, time=at.time)
            state = subject.fold((*records[: place + 1], repeated))
            assert repr(effects(state)) == expected[place], (
                f"command {command.seqnum} counts a second time when it comes again behind record {at.seqnum}"
            )
            tried += 1
    assert tried, "there is no command among the records"
    return tried


# What acts


class World:
    """A log in memory, and what the actors of one order of events came to. Its time continues by a millisecond with
    each operation, and by the pauses.
    """

    def __init__(self, book: str = "test") -> None:
        self.book = book
        self.log = MemoryLog()
        self.now_us = 1_000_000
        self.results: dict[int, Any] = {}
        """By actor: what its last life returned, or the `BokiError` that ended it."""
        self.crashes: list[int] = []
        """The actors that were killed, in order."""
        self._caller = Caller()

    def records(self, tag: str | None, book: str = "") -> list[Record]:
        """All records of a tag that are still there."""
        found: list[Record] = []
        start = 0
        while True:
            page = self.answer(steps.ReadPage(tag, start, book=book))
            found += page.records
            if page.is_end:
                return found
            start = page.next_start

    def answer(self, step: Any) -> Any:
        """Carry out one step, as a LogBook would, or an operation of the log itself. Raises `BokiError`."""
        if isinstance(step, tuple):
            return [self.answer(each) for each in step]
        self.now_us += 1_000
        if isinstance(step, Operation):
            return self._ask(step)
        return self._carry_out(step)

    def _carry_out(self, step: steps.Operation) -> Any:
        limits = self._caller.limits
        match step:
            case steps.Pause():
                self.now_us += round(step.seconds * 1e6)
                return None
            case steps.Append():
                return self._append(step)
            case steps.ReadPage():
                stop = step.stop
                read = log_calls.read_page(self._book(step), step.tag, step.start, stop, step.limit, limits)
                return log_calls.page_of(self._found(read))
            case steps.Compare():
                tags, lasts = zip(*step.rows, strict=True)
                return self._ask(Compare(self._book(step), tags, lasts))
            case steps.Tail():
                read = log_calls.read_prev(self._book(step), step.tag, step.max_seqnum, limits)
                return log_calls.first_record(self._found(read))
            case steps.Get():
                (record,) = log_calls.records_of(self._found(log_calls.get(self._book(step), step.seqnum)))
                return record
            case steps.SetAuxdata():
                self._ask(log_calls.set_auxdata(self._book(step), step.seqnum, step.data, limits))
                return None
            case steps.Trim():
                self._ask(log_calls.trim(self._book(step), step.before, step.tag, self._caller))
                return None
            case steps.AskGateway():
                raise Unavailable("there is no gateway before a log in memory")
            case steps.Sync():
                self._ask(Sync(self._book(step)))
                return None
            case _:
                assert_never(step)

    def _book(self, step: Any) -> str:
        return step.book or self.book

    def _append(self, step: steps.Append) -> list[int]:
        limits, book = self._caller.limits, self._book(step)
        group = log_calls.many_records(step.records, tuple(step.when), step.key, limits)
        answer = self._ask(log_calls.append_operation(book, [group], limits))
        assert isinstance(answer, Appended)
        rejected = answer.rejected[0] if answer.rejected else None
        return list(log_calls.seqnums_of(answer.first_seqnum, group, rejected, book))

    def _found(self, operation: Operation) -> Found:
        answer = self._ask(operation)
        assert isinstance(answer, Found)
        return answer

    def _ask(self, operation: Operation) -> Answer:
        return self.log.answer(operation, self.now_us)


Fault = Literal["lost", "unanswered", "killed before", "killed after"]
"""What may happen to an operation: its request is lost, its answer is lost, or its process dies before or after it."""
FAULTS: Final[tuple[Fault, ...]] = ("lost", "unanswered", "killed before", "killed after")


class _Actor:
    """One process, which begins again from the beginning when it was killed."""

    def __init__(self, number: int, begin: Callable[[], Steps[Any]], world: World) -> None:
        self._number = number
        self._begin = begin
        self._world = world
        self._running = begin()
        self.next: Step | None = None
        self._go_on(lambda: next(self._running))

    def step(self, fault: Fault | None) -> None:
        step = self.next
        assert step is not None, "it has something to do"
        if fault == "killed before":
            return self._restart()
        try:
            answer = None if fault == "lost" else self._world.answer(step)
            if fault in ("lost", "unanswered"):
                raise ConnectionLost("the answer never came")
        except BokiError as error:
            raised = error
            if fault != "killed after":
                return self._go_on(lambda: self._running.throw(raised))
        if fault == "killed after":
            return self._restart()
        return self._go_on(lambda: self._running.send(answer))

    def _restart(self) -> None:
        self._running.close()
        self._world.crashes.append(self._number)
        self._running = self._begin()
        self._go_on(lambda: next(self._running))

    def _go_on(self, advance: Callable[[], Step]) -> None:
        self.next = None
        try:
            self.next = advance()
        except StopIteration as end:
            self._world.results[self._number] = end.value
        except BokiError as error:
            self._world.results[self._number] = error


class _Choices:
    """The choices of one order of events: those that are given, then the first of each."""

    def __init__(self, given: Sequence[int]) -> None:
        self.given = given
        self.taken: list[tuple[int, int]] = []

    def choose(self, count: int) -> int:
        at = len(self.taken)
        choice = self.given[at] if at < len(self.given) else 0
        self.taken.append((choice, count))
        return choice

    def following(self) -> list[int] | None:
        """The choices of the next order; None: this was the last."""
        taken = list(self.taken)
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return None
        return [*(choice for choice, _ in taken[:-1]), taken[-1][0] + 1]


def explore(
    actors: Sequence[Callable[[], Steps[Any]]],
    check: Callable[[World], None],
    *,
    prepare: Callable[[World], None] | None = None,
    most_switches: int = 2,
    most_faults: int = 1,
    faults: Sequence[Fault] = FAULTS,
    most_steps: int = 1_000,
) -> int:
    """Run the actors in every order, and call `check` at the end of each; the number of orders.

    In an order one actor takes over from another at most `most_switches` times before it has ended, and at most
    `most_faults` faults happen, each at any operation. Actors that are killed begin again. `prepare` fills the log.
    """
    given: list[int] | None = []
    number = 0
    while given is not None:
        choices = _Choices(given)
        world = World()
        if prepare is not None:
            prepare(world)
        events = _run(actors, world, choices, most_switches, most_faults, faults, most_steps)
        try:
            check(world)
        except AssertionError as error:
            raise AssertionError(f"{error}\nin this order of events:\n" + "\n".join(events)) from error
        number += 1
        given = choices.following()
    return number


def _run(
    actors: Sequence[Callable[[], Steps[Any]]],
    world: World,
    choices: _Choices,
    switches: int,
    faults_left: int,
    faults: Sequence[Fault],
    most_steps: int,
) -> list[str]:
    running = [_Actor(number, begin, world) for number, begin in enumerate(actors)]
    events: list[str] = []
    now = 0
    while ready := [number for number, actor in enumerate(running) if actor.next is not None]:
        assert len(events) < most_steps, "it does not end:\n" + "\n".join(events[-20:])
        others = [number for number in ready if number != now]
        if now not in ready:
            now = ready[0]
        elif others and switches:
            choice = choices.choose(1 + len(others))
            if choice:
                switches -= 1
                now = others[choice - 1]
        fault = None
        is_asking = not isinstance(running[now].next, steps.Pause)
        if faults_left and is_asking:
            choice = choices.choose(1 + len(faults))
            if choice:
                faults_left -= 1
                fault = faults[choice - 1]
        events.append(f"  actor {now}: {running[now].next!r:.160}" + (f"  ({fault})" if fault else ""))
        running[now].step(fault)
    return events
