"""Logged calls as records: what the system book `boki:calls` says, and the fold that tells which calls are unfinished.

A logged call is one that must not be forgotten: an asynchronous one, or one with an idempotency key. Most lives are two
records: ``Accepted``, before its body may run, and ``Finished``, with its outcome. ``Finished`` is appended under the
condition that the call's last record is the one that its writer knows, so an end is recorded at most once, however many
write it: the engine that ran the body, or any engine that was asked to cancel the call. Between them stand ``Started``
and ``Retrying`` where a call is delayed, waits for room, or runs more than once (see `boki.engine.calls.runs`). A call
that has failed or was cancelled can be **run again**: it is accepted again, under its id and the same condition. One
that waits for longer than records are kept is **carried forward** in the same way, so that it never holds up trimming.

Each call has an **owner**, the engine incarnation that accepted it and runs it. Every engine with the index folds the
book. When an owner is lost, and fenced so that it can append no more, one of the others appends ``TakenOver`` under the
condition that nobody has done so: from there on the lost engine's unfinished calls are its own.

A ``Checkpoint`` lets a restart read only the end of the book. It is fuzzy: it lists the calls that are unfinished when
it is made, and ``fold_from``: every record below it is reflected in the list. Records above may be reflected too, which
does no harm, because applying a record twice is like applying it once.

This file knows records and numbers, never a clock or a log. `boki.engine.calls.logged_calls` does the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from heapq import nlargest
from operator import attrgetter
from typing import Final, Literal, NamedTuple, assert_never

import msgspec

from boki.calls import Call, CallStatus, InvocationState, Outcome
from boki.engine.calls.runs import Runs
from boki.errors import CallCancelled
from boki.log.entries import EntryCodec

VERSION: Final = 3
"""Version 1 knew no owners; its calls belong to `NOBODY`. Version 2 did not record the first start of a call."""
BOOK: Final = "boki:calls"
ACCEPTED_TAG: Final = "accepted"
FINISHED_TAG: Final = "finished"
CHECKPOINT_TAG: Final = "checkpoint"
TAKEN_OVER_TAG: Final = "taken-over"
FAILED_TAG: Final = "failed"
CANCELLED_TAG: Final = "cancelled"


class Owner(NamedTuple):
    """An engine incarnation."""

    node: str
    incarnation: int


NOBODY: Final = Owner("", 0)

Unfinished = Literal["accepted", "running", "retrying"]


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """The call will run, once `delay_us` have passed since it was accepted.

    If this record carries a call forward, `accepted_us` is the time of the first one (0: of this one), and the fields
    behind `owner` say how far the call had come. `starts` counts its runs since it was accepted, those of an earlier
    life (before it was run again by hand) not included, which `runs` has, too.
    """

    call: Call
    request_hash: bytes
    delay_us: int = 0
    accepted_us: int = 0
    owner: Owner = NOBODY
    starts: int = 0
    state: Unfinished = "accepted"
    """"running": its owner starts the body as soon as this record is durable."""
    next_us: int = 0
    """When the next run is due, if `state` is "retrying"."""
    runs: Runs = Runs()


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """The owner starts the call's body, for the `starts`-th time since it was accepted."""

    id: str
    accepted_seqnum: int
    due_us: int
    owner: Owner
    starts: int
    runs: Runs = Runs()


class Retrying(msgspec.Struct, frozen=True, array_like=True, tag="retrying"):
    """A run has failed, and the next one is due at `next_us`."""

    id: str
    accepted_seqnum: int
    next_us: int
    owner: Owner
    starts: int
    runs: Runs


class Finished(msgspec.Struct, frozen=True, array_like=True, tag="finished"):
    """The call's outcome, with what a reader may ask about it, so that this record is all that has to be read."""

    id: str
    function: str
    book: str
    outcome: Outcome
    accepted_us: int
    due_us: int
    started_us: int
    attempts: int
    accepted_seqnum: int = 0
    """Where its payload is; 0: not known, the record is of an older version."""
    runs: Runs = Runs()

    @property
    def state(self) -> CallStatus:
        """Which end it is."""
        failure = self.outcome.failure
        if failure is None:
            return "done"
        return "cancelled" if failure.code == CallCancelled.code else "failed"


class TakenOver(msgspec.Struct, frozen=True, array_like=True, tag="taken-over"):
    """The unfinished calls of `lost`, which can append no more, belong to `heir` from here on."""

    lost: Owner
    heir: Owner


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """An unfinished call: the seqnum of its last record, when it may start (again), and who runs it."""

    id: str
    seqnum: int
    due_us: int
    owner: Owner = NOBODY
    starts: int = 0
    accepted: int = 0
    """The seqnum of its last `Accepted`, if that is not its last record."""
    state: Unfinished = "accepted"
    function: str = ""
    """With the fields below for lists; empty, if a version that had no lists has written it."""
    book: str = ""
    changed_us: int = 0
    accepted_us: int = 0
    attempts: int = 0
    started_us: int = 0
    last_started_us: int = 0

    @property
    def accepted_seqnum(self) -> int:
        """Where its payload is."""
        return self.accepted or self.seqnum


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The unfinished calls; records from `fold_from` on are still to be applied to them."""

    fold_from: int
    waiting: tuple[Waiting, ...]


Entry = Accepted | Started | Retrying | Finished | TakenOver | Checkpoint
CallEntry = Accepted | Started | Retrying | Finished
"""What is tagged with a call's id."""

CODEC: Final[EntryCodec[Entry]] = EntryCodec(BOOK, VERSION, Entry)


def id_tag(invocation_id: str) -> str:
    """The tag of all records of one call."""
    return f"id:{invocation_id}"


def id_of(entry: CallEntry) -> str:
    """The id of the call that the record is about."""
    return entry.call.id if isinstance(entry, Accepted) else entry.id


def owner_tag(owner: Owner) -> str:
    """The tag of the record that says who has taken over from an owner."""
    return f"owner:{owner.incarnation}"


def request_hash(call: Call, delay_us: int) -> bytes:
    """What must be equal for a key to stand for the same request. Deadlines, traces and positions may differ."""
    parts = (call.function, call.book, call.payload.encoding, delay_us, call.payload.data)
    return sha256(msgspec.msgpack.encode(parts)).digest()


def corrected_key(key: str, refused_id: str) -> str:
    """The key in the log for what comes under `key` after the call of that id was refused without having run.

    Whoever corrects the same call gets the same one, so that a corrected request runs once, too.
    """
    return "corrected:" + sha256(f"{refused_id} {key}".encode()).hexdigest()


def accepted_at(entry: Accepted, record_time_us: int) -> int:
    """When the call was accepted, by the log's time."""
    return entry.accepted_us or record_time_us


def due_at(entry: Accepted, record_time_us: int) -> int:
    """When the call may start, by the log's time."""
    return accepted_at(entry, record_time_us) + entry.delay_us


def carry_forward(entry: Accepted, record_time_us: int, waiting: Waiting, runs: Runs) -> Accepted:
    """The same call as a new record, of its owner now, as far as it has come: with the runs of its last record."""
    return msgspec.structs.replace(
        entry,
        accepted_us=accepted_at(entry, record_time_us),
        owner=waiting.owner,
        starts=waiting.starts,
        state=waiting.state,
        next_us=waiting.due_us if waiting.state == "retrying" else 0,
        runs=runs,
    )


def run_again(entry: Accepted, owner: Owner, finished: Finished) -> Accepted:
    """The call of a life that has ended, accepted again to be run at once."""
    runs = finished.runs if finished.runs.total else Runs(finished.attempts, finished.started_us, finished.started_us)
    return Accepted(entry.call, entry.request_hash, owner=owner, runs=runs)


def runs_of(entry: Accepted | Started | Retrying, record_time_us: int) -> Runs:
    """The runs of an unfinished call, by its last record. Version 2 only counted them."""
    if entry.starts and not entry.runs.total:
        return Runs(entry.starts).timed(record_time_us)
    return entry.runs.timed(record_time_us)


def waiting_of(entry: Accepted, seqnum: int, record_time_us: int) -> Waiting:
    """The call that this record accepts or carries forward, as it waits."""
    runs = runs_of(entry, record_time_us)
    return Waiting(
        entry.call.id,
        seqnum,
        entry.next_us or due_at(entry, record_time_us),
        entry.owner,
        entry.starts,
        state=entry.state,
        function=entry.call.function,
        book=entry.call.book,
        changed_us=record_time_us,
        accepted_us=accepted_at(entry, record_time_us),
        attempts=runs.total,
        started_us=runs.first_us,
        last_started_us=runs.last_us,
    )


def went_on(known: Waiting | None, entry: Started | Retrying, seqnum: int, record_time_us: int) -> Waiting:
    """The call as it waits after this record."""
    runs = runs_of(entry, record_time_us)
    return Waiting(
        entry.id,
        seqnum,
        entry.due_us if isinstance(entry, Started) else entry.next_us,
        entry.owner,
        entry.starts,
        entry.accepted_seqnum,
        state="running" if isinstance(entry, Started) else "retrying",
        function=known.function if known else "",
        book=known.book if known else "",
        changed_us=record_time_us,
        accepted_us=known.accepted_us if known else 0,
        attempts=runs.total,
        started_us=runs.first_us,
        last_started_us=runs.last_us,
    )


def state_of(
    accepted: Accepted, accepted_us: int, last: Accepted | Started | Retrying, last_time_us: int
) -> InvocationState:
    """What an unfinished call's acceptance (with the time of its record) and its last record say."""
    runs = runs_of(last, last_time_us)
    state: Unfinished
    match last:
        case Accepted():
            state, next_us = last.state, last.next_us
        case Started():
            state, next_us = "running", 0
        case Retrying():
            state, next_us = "retrying", last.next_us
        case _:
            assert_never(last)
    return InvocationState(
        id=accepted.call.id,
        function=accepted.call.function,
        book=accepted.call.book,
        state=state,
        accepted_us=accepted_at(accepted, accepted_us),
        due_us=due_at(accepted, accepted_us),
        started_us=runs.first_us,
        last_started_us=runs.last_us,
        next_us=next_us,
        attempts=runs.total,
        errors=runs.errors,
        last_error=runs.last_error,
    )


def ended_state(entry: Finished, record_time_us: int) -> InvocationState:
    """What the record of a call's end says."""
    return InvocationState(
        id=entry.id,
        function=entry.function,
        book=entry.book,
        state=entry.state,
        accepted_us=entry.accepted_us,
        due_us=entry.due_us,
        started_us=entry.started_us,
        last_started_us=entry.runs.last_us or entry.started_us,
        finished_us=record_time_us,
        attempts=entry.attempts,
        result=entry.outcome.result,
        failure=entry.outcome.failure,
        errors=entry.runs.errors,
        last_error=entry.runs.last_error,
    )


def listed_state(waiting: Waiting) -> InvocationState:
    """An unfinished call as a list shows it, from what the ledger holds."""
    return InvocationState(
        id=waiting.id,
        function=waiting.function,
        book=waiting.book,
        state=waiting.state,
        accepted_us=waiting.accepted_us,
        due_us=0 if waiting.state == "retrying" else waiting.due_us,
        next_us=waiting.due_us if waiting.state == "retrying" else 0,
        started_us=waiting.started_us,
        last_started_us=waiting.last_started_us,
        attempts=waiting.attempts,
    )


def end_tags(entry: Finished) -> list[str]:
    """The tags of a call's end beside its id: by which lists find it."""
    match entry.state:
        case "failed":
            return [FINISHED_TAG, FAILED_TAG]
        case "cancelled":
            return [FINISHED_TAG, CANCELLED_TAG]
        case _:
            return [FINISHED_TAG]


class Ledger:
    """The unfinished calls, by folding the book's records in order.

    What this engine itself appends it knows before it reads it. `learn` takes in such records ahead of the fold; the
    fold, when it comes to them, finds nothing new.
    """

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.waiting: dict[str, Waiting] = {}
        self.fold_from = 0
        """Every record below this is reflected in `waiting`."""
        self._counts: Counter[Owner] = Counter()
        self._over: dict[str, int] = {}
        """Calls known to be finished by a record that the fold has not come to."""
        if checkpoint is not None:
            self.fold_from = checkpoint.fold_from
            for waiting in checkpoint.waiting:
                self._put(waiting)

    def fold(self, entry: Entry, seqnum: int, record_time_us: int) -> None:
        """Take in the next record in ascending order; one that was folded before does no harm."""
        if isinstance(entry, TakenOver):
            self._take_over(entry)
        elif not isinstance(entry, Checkpoint):
            self._apply(entry, seqnum, record_time_us)
        self.fold_from = max(self.fold_from, seqnum + 1)
        if isinstance(entry, Finished) and self._over.get(entry.id, self.fold_from) < self.fold_from:
            del self._over[entry.id]

    def learn(self, entry: CallEntry, seqnum: int, record_time_us: int) -> None:
        """Take in a record of a call ahead of the fold; if the fold is past it, there is nothing to learn."""
        if seqnum >= self.fold_from:
            self._apply(entry, seqnum, record_time_us)

    def lose(self, invocation_id: str) -> None:
        """The call's records are gone, so it can neither be run nor finished."""
        self._pop(invocation_id)

    def _apply(self, entry: CallEntry, seqnum: int, record_time_us: int) -> None:
        match entry:
            case Accepted():
                self._wait(waiting_of(entry, seqnum, record_time_us))
            case Started() | Retrying():
                self._wait(went_on(self.waiting.get(entry.id), entry, seqnum, record_time_us))
            case Finished():
                known = self.waiting.get(entry.id)
                if known is None or known.seqnum < seqnum:  # else it has been run again since
                    self._pop(entry.id)
                    if seqnum >= self.fold_from:
                        self._over[entry.id] = seqnum
            case _:
                assert_never(entry)

    def _wait(self, waiting: Waiting) -> None:
        known = self.waiting.get(waiting.id)
        is_news = known is None or known.seqnum <= waiting.seqnum  # what was learned did not know its time
        if is_news and self._over.get(waiting.id, -1) < waiting.seqnum:
            self._put(waiting)

    def _take_over(self, entry: TakenOver) -> None:
        for waiting in self.owned_by(entry.lost):
            self._put(msgspec.structs.replace(waiting, owner=entry.heir))

    def _put(self, waiting: Waiting) -> None:
        self._pop(waiting.id)
        self.waiting[waiting.id] = waiting
        self._counts[waiting.owner] += 1

    def _pop(self, invocation_id: str) -> None:
        waiting = self.waiting.pop(invocation_id, None)
        if waiting is not None:
            self._counts[waiting.owner] -= 1
            if not self._counts[waiting.owner]:
                del self._counts[waiting.owner]

    def owners(self) -> list[Owner]:
        """Whose calls are unfinished."""
        return list(self._counts)

    def owned_by(self, owner: Owner) -> list[Waiting]:
        """The unfinished calls of an owner."""
        return [waiting for waiting in self.waiting.values() if waiting.owner == owner]

    def newest(self, below: int, limit: int, matches: Callable[[Waiting], bool]) -> list[Waiting]:
        """The unfinished calls that match, whose last record is below that seqnum: those that changed last first."""
        found = (waiting for waiting in self.waiting.values() if waiting.seqnum < below and matches(waiting))
        return nlargest(limit, found, key=attrgetter("seqnum"))

    def checkpoint(self) -> Checkpoint:
        """The state as a record."""
        return Checkpoint(self.fold_from, tuple(self.waiting.values()))

    def waiting_below(self, seqnum: int, limit: int) -> list[Waiting]:
        """Unfinished calls that hold up trimming to `seqnum`, the oldest first, at most `limit`."""
        holding = (waiting for waiting in self.waiting.values() if waiting.accepted_seqnum < seqnum)
        return sorted(holding, key=lambda waiting: waiting.accepted_seqnum)[:limit]

    def trim_floor(self, wanted: int) -> int:
        """How far the book may be trimmed: never past an unfinished call, nor past what is not known yet."""
        return min((wanted, self.fold_from, *(waiting.accepted_seqnum for waiting in self.waiting.values())))
