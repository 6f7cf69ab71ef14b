"""The kit that checks folds finds what is wrong with one: each check has a fold that breaks it."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from boki import BokiError, ConditionFailed, ConnectionLost, Expect, NewRecord, Record
from boki.libs.fold.checkpoints import Checkpoints, End
from boki.libs.fold.commands import Sessions
from boki.libs.fold.steps import ReadPage, Steps, again, append, page, read_all, tail
from boki.retry import Backoff
from boki.testing.folds import (
    Subject,
    World,
    check_counted_once,
    check_resumes,
    check_same_everywhere,
    explore,
    whole_state,
)
from tests.libs.fold.subjects import numbered

HERE = "tests.libs.fold.test_testkit"


class Answer(msgspec.Struct, frozen=True, array_like=True):
    number: int
    time_us: int


class Counter:
    """Sums what sessions add, each number of a session once."""

    def __init__(self) -> None:
        self.total = 0
        self.at = 0
        self.sessions: Sessions[Answer] = Sessions({})

    def apply(self, record: Record) -> None:
        session, number, amount = msgspec.msgpack.decode(record.data, type=tuple[bytes, int, int])
        if record.seqnum <= self.at:
            return
        self.at = record.seqnum
        if self.sessions.counts(session, number):
            self.total += amount
            self.sessions.note(session, Answer(number, record.time))

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((self.total, self.at, self.sessions.last))

    @classmethod
    def restored(cls, data: bytes) -> tuple[Counter, int]:
        found = cls()
        kind = tuple[int, int, dict[bytes, Answer]]
        found.total, found.at, sessions = msgspec.msgpack.decode(data, type=kind)
        found.sessions = Sessions(sessions)
        return found, found.at + 1


class Forgetful(Counter):
    """Its snapshot says nothing of the sessions."""

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode((self.total, self.at, {}))


class Careless(Counter):
    """Counts whatever comes."""

    def apply(self, record: Record) -> None:
        _, _, amount = msgspec.msgpack.decode(record.data, type=tuple[bytes, int, int])
        self.at = record.seqnum
        self.total += amount


class Hashing(Counter):
    """Decides by the order of a set."""

    def apply(self, record: Record) -> None:
        if record.seqnum > self.at:
            super().apply(record)
            self.total += int.from_bytes("".join({*"abcdefgh"}).encode(), "big")


class Local(Counter):
    """Looks at its process."""

    def apply(self, record: Record) -> None:
        super().apply(record)
        self.total = os.getpid()


COUNTER = Subject(f"{HERE}:COUNTER", Counter, Counter.apply, snapshot=Counter.snapshot, restore=Counter.restored)
FORGETFUL = Subject(
    f"{HERE}:FORGETFUL", Forgetful, Forgetful.apply, snapshot=Forgetful.snapshot, restore=Forgetful.restored
)
CARELESS = Subject(f"{HERE}:CARELESS", Careless, Careless.apply)
HASHING = Subject(f"{HERE}:HASHING", Hashing, Hashing.apply)
LOCAL = Subject(f"{HERE}:LOCAL", Local, Local.apply)

RECORDS = numbered(
    [
        msgspec.msgpack.encode((b"ada" if number % 3 else b"bob", number // 2, 1 + number))
        for number in range(20)
        for _ in range(1 + (number == 7))
    ]
)


def total(counter: Counter) -> int:
    return counter.total


def test_a_fold_that_keeps_its_promises_passes() -> None:
    """All checks of the same fold, and they have looked at something."""
    check_same_everywhere(COUNTER, RECORDS)
    check_resumes(COUNTER, RECORDS)
    check_resumes(COUNTER, RECORDS, every=5)
    assert check_counted_once(COUNTER, RECORDS, lambda _: True, total) == len(RECORDS) * (len(RECORDS) + 1) // 2


def test_a_record_that_counts_twice_is_found() -> None:
    """Both where it is applied twice and where it stands twice."""
    with pytest.raises(AssertionError, match="changes the state when it is applied a second time"):
        check_same_everywhere(CARELESS, RECORDS)
    with pytest.raises(AssertionError, match="command 10 counts a second time when it comes again behind record 10"):
        check_counted_once(CARELESS, RECORDS, lambda _: True, total)


def test_a_fold_that_depends_on_hashes_or_on_its_process_is_found() -> None:
    """By a process of its own."""
    with pytest.raises(AssertionError, match="is another one in a process with PYTHONHASHSEED="):
        check_same_everywhere(HASHING, RECORDS)
    with pytest.raises(AssertionError, match="is another one in a process with PYTHONHASHSEED="):
        check_same_everywhere(LOCAL, RECORDS)


def test_a_snapshot_that_forgets_is_found() -> None:
    """The state that it makes is compared at once, and after the rest of the history."""
    with pytest.raises(AssertionError, match=r"the snapshot after record 10 \(number 0\) makes another state"):
        check_resumes(FORGETFUL, RECORDS)


def test_checks_that_have_nothing_to_look_at_fail() -> None:
    """A history that changes nothing, no command, no room for a repetition."""
    same = [msgspec.structs.replace(record, seqnum=1) for record in RECORDS[:3]]
    with pytest.raises(AssertionError, match="there is nothing to compare"):
        check_same_everywhere(COUNTER, same)
    with pytest.raises(AssertionError, match="there is no command"):
        check_counted_once(COUNTER, RECORDS, lambda _: False, total)
    near = [msgspec.structs.replace(record, seqnum=number) for number, record in enumerate(RECORDS, 1)]
    with pytest.raises(AssertionError, match="there is no room for a repetition"):
        check_counted_once(COUNTER, near, lambda _: True, total)


def test_the_whole_state_sees_what_equality_does_not() -> None:
    """The order of a dictionary is state, the order of a set is none."""
    assert whole_state({"a": 1, "b": 2}) != whole_state({"b": 2, "a": 1})
    assert whole_state({"a", "b"}) == whole_state({"b", "a"})
    assert whole_state(Counter()) == whole_state(Counter())


# What acts

BACKOFF = Backoff(tries=20)


def count_up(*, is_careful: bool = True, is_conditional: bool = True) -> Steps[int]:
    """Add one to a counter in the log."""
    tries = 0
    while True:
        last = yield from tail("n", fresh=True)
        number = 1 if last is None else int(last.data) + 1
        when = [Expect("n", last.seqnum if last else 0)] if is_conditional else []
        try:
            yield from append([NewRecord(b"%d" % number, ["n"])], when)
        except ConditionFailed:
            tries += 1
            yield from again(tries, BACKOFF, "others were faster")
        except ConnectionLost:
            if is_careful:
                raise
            tries += 1
            yield from again(tries, BACKOFF, "no answer came")
        else:
            return number


def check_no_number_twice(world: World) -> None:
    numbers = [int(record.data) for record in world.records("n")]
    assert len(set(numbers)) == len(numbers), f"a number twice: {numbers}"


def check_as_many_as_ended(world: World) -> None:
    ended = [result for result in world.results.values() if isinstance(result, int)]
    most = len(world.results) + len(world.crashes)
    count = len(world.records("n"))
    assert len(ended) <= count <= most, f"{count} numbers, {len(ended)} ended, at most {most}"


def test_all_orders_of_two_actors_are_gone_through() -> None:
    """Every place for a switch and for a fault is used, and what is right holds in all of them."""
    alone = explore([count_up], check_no_number_twice, most_faults=0)
    faulty = explore([count_up], check_no_number_twice)
    both = explore([count_up, count_up], check_no_number_twice, most_faults=0)
    all_of_it = explore([count_up, count_up], check_no_number_twice)
    assert (alone, faulty) == (1, 1 + 2 * 4)
    assert both == 5 < all_of_it
    explore([count_up, count_up], check_as_many_as_ended)


def test_a_race_is_found_and_told_step_by_step() -> None:
    """Without its condition two actors take the same number: the order of events in which they do is shown."""

    def careless() -> Steps[int]:
        return count_up(is_conditional=False)

    assert explore([careless], check_no_number_twice) > 1
    with pytest.raises(AssertionError, match=r"(?s)a number twice.*in this order of events:\n  actor 0: Tail"):
        explore([careless, careless], check_no_number_twice, most_faults=0)


def test_an_append_that_is_repeated_in_doubt_is_found() -> None:
    """A lost answer is no refusal."""

    def hasty() -> Steps[int]:
        return count_up(is_careful=False)

    assert explore([hasty], check_as_many_as_ended, most_faults=0) == 1
    with pytest.raises(AssertionError, match=r"(?s)2 numbers.*\(unanswered\)"):
        explore([hasty], check_as_many_as_ended)


def test_actors_that_never_end_are_found() -> None:
    """Rather than waited for."""

    def endless() -> Steps[None]:
        while True:
            yield from tail("n")

    with pytest.raises(AssertionError, match="it does not end"):
        explore([endless], lambda _: None, most_steps=50)


# Checkpoints, in all orders


def test_checkpoints_are_whole_in_all_orders_of_two_writers_and_a_reader() -> None:
    """Whatever is lost or killed between any two operations: a reader finds a state that one of them has written, or
    none if none is complete, and it never goes back behind one that was complete before.
    """
    points: Checkpoints[bytes] = Checkpoints("!s", "!sc", lambda data, _: data)

    def prepare(world: World) -> None:
        for number in range(3):
            world.answer(_append(b"%d" % number, "!s"))

    def write() -> Steps[End | None]:
        seen = yield from read_all("!s")
        end = yield from points.save(b"whole state", seen[-1].seqnum, seen[-1].seqnum, ["!s"])
        if end is not None:
            yield from points.trim(end, end.floor)
        return end

    def read() -> Steps[tuple[bytes | None, int]]:
        while True:
            loaded = yield from points.newest()
            start = 0 if loaded is None else loaded.end.covers + 1
            found = yield from page(ReadPage("!s", start))
            if found.first_seqnum <= start:  # else a newer one was completed meanwhile: as a follower sees it
                return (None if loaded is None else loaded.state), len(found.records)

    def check(world: World) -> None:
        found = world.results[2]
        if isinstance(found, BokiError):
            return  # its own request or answer was lost
        state, left = found
        assert state in (None, b"whole state")
        assert state is not None or left >= 3, f"records that no checkpoint covers are gone: {left}"

    assert explore([write, write, read], check, prepare=prepare, most_switches=2) > 1_000


def _append(data: bytes, tag: str) -> Any:
    return next(append([NewRecord(data, [tag])]))
