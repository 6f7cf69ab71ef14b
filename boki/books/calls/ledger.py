"""Logged calls as records: what the system book `boki:calls` says, and the fold that tells which calls are unfinished.

A logged call is one that must not be forgotten: an asynchronous one, or one with an idempotency key. Most lives are two
records: ``Accepted``, before its body may run, and ``Finished``, with its outcome. ``Finished`` is appended under the
condition that the call's last record is the one that its writer knows, so an end is recorded at most once, however many
write it: the engine that ran the body, or any engine that was asked to cancel the call. Between them stand ``Started``
and ``Retrying`` where a call is delayed, waits for room, or runs more than once (see `boki.books.calls.runs`), and
``Suspended`` where a run has ended and the next one waits for a time or a record, with no process meanwhile. A call
that has failed or was cancelled can be **run again**: it is accepted again, under its id and the same condition. One
that waits for longer than records are kept is **carried forward** in the same way, so that it never holds up trimming.
So is the end of a call that reports to an unfinished one, which may still ask for it (`boki.books.calls.trimming`).

Each call has an **owner**, the engine incarnation that accepted it and runs it. Every engine with the index folds the
book. When an owner is lost, and fenced so that it can append no more, one of the others appends ``TakenOver`` under the
condition that nobody has done so: from there on the lost engine's unfinished calls are its own.

A ``Checkpoint`` lets a restart read only the end of the book. It is fuzzy: it lists the calls that are unfinished when
it is made, and ``fold_from``: every record below it is reflected in the list. Records above may be reflected too, which
does no harm, because applying a record twice is like applying it once.

This file knows records and numbers, never a clock or a log. `boki.books.calls.logged_calls` does the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import sha256
from heapq import nlargest, nsmallest
from operator import attrgetter
from sys import intern
from typing import Final, assert_never

import msgspec

from boki.books.calls.runs import Runs
from boki.books.calls.waiting import (
    NOBODY,
    Owner,
    PackedCall,
    Unfinished,
    Waiting,
    WaitingCalls,
    as_waiting,
    only_version,
)
from boki.errors import CallCancelled, CorruptData
from boki.libs.fold.codec import RecordCodec
from boki.libs.fold.fold import Learner
from boki.log.record import Record
from boki.protocol.calls import (
    CALLS_BOOK,
    PINNED,
    Attribute,
    Call,
    CallStatus,
    Outcome,
    Suspension,
    ends_tag,
    starts_tag,
    version_of,
)

VERSION: Final = 4
"""Version 1 knew no owners; its calls belong to `NOBODY`. Version 2 did not record the first start of a call.
Version 3 did not suspend calls."""
BOOK: Final = CALLS_BOOK
ACCEPTED_TAG: Final = "accepted"
FINISHED_TAG: Final = "finished"
CHECKPOINT_TAG: Final = "checkpoint"
TAKEN_OVER_TAG: Final = "taken-over"
FAILED_TAG: Final = "failed"
CANCELLED_TAG: Final = "cancelled"
JUST_BEFORE: Final = -1
"""See `Finished.accepted_seqnum`."""


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """The call will run, once `delay_us` have passed since it was accepted.

    If this record carries a call forward, or runs it again by hand, `accepted_us` is the time of the first one (0: of
    this one), and the fields behind `owner` say how far the call had come. `starts` counts its runs since then, those
    of an earlier life (before it was run again by hand) not included, which `runs` has, too.
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
    suspension: Suspension | None = None
    """What the call waits for, if `state` is "suspended"."""


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


class Suspended(msgspec.Struct, frozen=True, array_like=True, tag="suspended"):
    """A run has ended, and the next one is due when what it waits for has come; attempts are counted again."""

    id: str
    accepted_seqnum: int
    owner: Owner
    runs: Runs
    suspension: Suspension


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
    """Where its payload is; 0: the record is of an older version; `JUST_BEFORE`, on record: in the one before it."""
    runs: Runs = Runs()
    reports_to: str = ""
    """See `boki.protocol.calls.ChosenId`."""
    name: str = ""
    """See `boki.protocol.calls.ChosenId`, as for the fields below."""
    attributes: dict[str, Attribute] = {}
    watcher: str = ""
    ended_us: int = 0
    """When the call ended, if this record keeps an earlier one of its end; 0: when it was written."""

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


class CheckpointPart(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint-part"):
    """Some of the unfinished calls of a checkpoint that follows."""

    waiting: tuple[Waiting, ...]


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The unfinished calls; records from `fold_from` on are still to be applied to them."""

    fold_from: int
    waiting: tuple[Waiting, ...]
    parts: tuple[int, ...] = ()
    """The seqnums of the `CheckpointPart`s that hold what did not fit."""


def part_of(calls: Iterable[Waiting | PackedCall]) -> CheckpointPart:
    """Some unfinished calls as they stand in a checkpoint."""
    return CheckpointPart(tuple([as_waiting(call) for call in calls]))


Unended = Accepted | Started | Retrying | Suspended
CallEntry = Unended | Finished
Entry = CallEntry | TakenOver | Checkpoint | CheckpointPart
"""What is tagged with a call's id."""

CODEC: Final[RecordCodec[Entry]] = RecordCodec(f"book {BOOK}", VERSION, Entry)


def entry_of(record: Record) -> Entry:
    """What a record says, with the seqnum of its acceptance."""
    entry = CODEC.decode(record.data)
    is_after_it = isinstance(entry, Finished) and entry.accepted_seqnum == JUST_BEFORE
    return msgspec.structs.replace(entry, accepted_seqnum=record.seqnum - 1) if is_after_it else entry


def accepted_of(record: Record) -> Accepted:
    """The acceptance that this record is; `CorruptData` if it is something else."""
    entry: Entry = CODEC.decode(record.data)
    if not isinstance(entry, Accepted):
        raise CorruptData(f"record {record.seqnum} of book {BOOK} should accept a call, and is {type(entry).__name__}")
    return entry


def finished_of(record: Record) -> Finished:
    """The end that this record is; `CorruptData` if it is something else."""
    entry = entry_of(record)
    if not isinstance(entry, Finished):
        raise CorruptData(f"record {record.seqnum} of book {BOOK} should end a call, and is {type(entry).__name__}")
    return entry


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


def runs_of(entry: Unended, record_time_us: int) -> Runs:
    """The runs of an unfinished call, by its last record. Version 2 only counted them."""
    if not isinstance(entry, Suspended) and entry.starts and not entry.runs.total:
        return Runs(entry.starts).timed(record_time_us)
    return entry.runs.timed(record_time_us)


def waiting_of(entry: Accepted, seqnum: int, record_time_us: int) -> Waiting:
    """The call that this record accepts or carries forward, as it waits."""
    runs = runs_of(entry, record_time_us)
    due_us = entry.next_us or due_at(entry, record_time_us)
    return Waiting(
        entry.call.id,
        seqnum,
        due_us if entry.suspension is None else entry.suspension.wake_us,
        _shared_owner(entry.owner),
        entry.starts,
        state=entry.state,
        function=intern(entry.call.function),
        book=intern(entry.call.book),
        changed_us=record_time_us,
        accepted_us=accepted_at(entry, record_time_us),
        attempts=runs.total,
        started_us=runs.first_us,
        last_started_us=runs.last_us,
        suspension=entry.suspension,
        name=name_of(entry.call),
        attributes=_shared_attributes(attributes_of(entry.call)),
    )


def _shared_attributes(attributes: dict[str, Attribute]) -> dict[str, Attribute] | None:
    """One object for all calls that have nothing but a version."""
    if not attributes:
        return None
    return only_version(version_of(attributes)) if attributes.keys() == {PINNED} else attributes


@lru_cache(maxsize=256)
def _shared_owner(owner: Owner) -> Owner:
    """One object for all calls of an engine: a hundred thousand calls may sleep."""
    return Owner(intern(owner.node), owner.incarnation)


def went_on(known: Waiting | None, entry: Started | Retrying | Suspended, seqnum: int, record_time_us: int) -> Waiting:
    """The call as it waits after this record."""
    runs = runs_of(entry, record_time_us)
    state: Unfinished
    suspension = None
    match entry:
        case Started():
            state, due_us, starts = "running", entry.due_us, entry.starts
        case Retrying():
            state, due_us, starts = "retrying", entry.next_us, entry.starts
        case Suspended():
            state, due_us, starts = "suspended", entry.suspension.wake_us, 0
            suspension = entry.suspension
        case _:
            assert_never(entry)
    return Waiting(
        known.id if known else entry.id,
        seqnum,
        due_us,
        _shared_owner(entry.owner),
        starts,
        entry.accepted_seqnum,
        state=state,
        function=known.function if known else "",
        book=known.book if known else "",
        changed_us=record_time_us,
        accepted_us=known.accepted_us if known else 0,
        attempts=runs.total,
        started_us=runs.first_us,
        last_started_us=runs.last_us,
        suspension=suspension,
        name=known.name if known else "",
        attributes=known.attributes if known else None,
    )


def acceptance_tags(entry: Accepted) -> list[str]:
    """The tags of an acceptance, apart from its id: a call that this one reports to finds it by the second."""
    chosen = entry.call.chosen
    reports_to = "" if chosen is None else chosen.reports_to
    return [ACCEPTED_TAG, starts_tag(reports_to)] if reports_to else [ACCEPTED_TAG]


def end_tags(entry: Finished) -> list[str]:
    """The tags of a call's end, apart from its id: by which lists find it, and what waits for it."""
    found = [FINISHED_TAG]
    found += [ends_tag(waiter) for waiter in dict.fromkeys((entry.reports_to, entry.watcher)) if waiter]
    match entry.state:
        case "failed":
            found.append(FAILED_TAG)
        case "cancelled":
            found.append(CANCELLED_TAG)
        case _:
            pass
    return found


def name_of(call: Call) -> str:
    """What people call it; "" if its caller did not choose its id."""
    return "" if call.chosen is None else call.chosen.name


def attributes_of(call: Call) -> dict[str, Attribute]:
    """By which lists find it."""
    return {} if call.chosen is None else call.chosen.attributes


class Ledger(Learner[CallEntry]):
    """The unfinished calls, by folding the book's records in order.

    What this engine itself appends it knows before it reads it. `learn` takes in such records ahead of the fold; the
    fold, when it comes to them, finds nothing new.
    """

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.waiting = WaitingCalls()
        self.fold_from = 0
        """Every record below this is reflected in `waiting`."""
        self.suspended_count = 0
        self._counts: Counter[Owner] = Counter()
        self._over: dict[str, int] = {}
        """Calls known to be finished by a record that the fold has not come to."""
        if checkpoint is not None:
            self.fold_from = checkpoint.fold_from
            for waiting in checkpoint.waiting:
                self._put(waiting)

    def apply(self, seqnum: int, record_time_us: int, entry: Entry) -> None:
        """Take in the next record in ascending order; one that was folded before does no harm."""
        if isinstance(entry, TakenOver):
            self._take_over(entry)
        elif not isinstance(entry, Checkpoint | CheckpointPart):
            self._apply(entry, seqnum, record_time_us)
        self.fold_from = max(self.fold_from, seqnum + 1)
        if isinstance(entry, Finished) and self._over.get(entry.id, self.fold_from) < self.fold_from:
            del self._over[entry.id]

    def learn(self, seqnum: int, record_time_us: int, entry: CallEntry) -> None:
        """Take in a record of a call ahead of the fold; if the fold is past it, there is nothing to learn."""
        if seqnum >= self.fold_from:
            self._apply(entry, seqnum, record_time_us)

    def has_later(self, invocation_id: str) -> bool:
        """Whether records of the call are known beyond its end that was just folded: it has been run again."""
        return invocation_id in self.waiting or invocation_id in self._over

    def lose(self, invocation_id: str) -> None:
        """The call's records are gone, so it can neither be run nor finished."""
        self._pop(invocation_id)

    def _apply(self, entry: CallEntry, seqnum: int, record_time_us: int) -> None:
        match entry:
            case Accepted():
                if self._over.get(entry.call.id, -1) < seqnum:  # else it has ended with its acceptance, or since
                    self._wait(waiting_of(entry, seqnum, record_time_us))
            case Started() | Retrying() | Suspended():
                self._wait(went_on(self.waiting.get(entry.id), entry, seqnum, record_time_us))
            case Finished():
                known = self.waiting.get(entry.id)
                if known is None or known.seqnum < seqnum:  # else it has been run again since
                    self._pop(entry.id)
                    if seqnum >= self.fold_from:  # perhaps the end of a later life is known already
                        self._over[entry.id] = max(seqnum, self._over.get(entry.id, 0))
            case _:
                assert_never(entry)

    def _wait(self, waiting: Waiting) -> None:
        known = self.waiting.get(waiting.id)
        is_news = known is None or known.seqnum <= waiting.seqnum
        if known is not None and known.seqnum == waiting.seqnum:  # what was learned did not know its time
            waiting = msgspec.structs.replace(waiting, id=known.id)
        if is_news and self._over.get(waiting.id, -1) < waiting.seqnum:
            self._put(waiting)

    def _take_over(self, entry: TakenOver) -> None:
        for call in self.owned_by(entry.lost):
            self._put(msgspec.structs.replace(as_waiting(call), owner=entry.heir))

    def _put(self, waiting: Waiting) -> None:
        self._discount(waiting.id)
        self.waiting.put(waiting)
        self._counts[waiting.owner] += 1
        self.suspended_count += waiting.state == "suspended"

    def _pop(self, invocation_id: str) -> None:
        self._discount(invocation_id)
        self.waiting.pop(invocation_id)

    def _discount(self, invocation_id: str) -> None:
        known = self.waiting.kept(invocation_id)
        if known is not None:
            self._counts[known.owner] -= 1
            self.suspended_count -= known.state == "suspended"
            if not self._counts[known.owner]:
                del self._counts[known.owner]

    def owners(self) -> list[Owner]:
        """Whose calls are unfinished."""
        return list(self._counts)

    def owned_by(self, owner: Owner) -> list[Waiting | PackedCall]:
        """The unfinished calls of an owner."""
        return [call for call in self.waiting.all_kept() if call.owner == owner]

    def newest(self, below: int, limit: int, matches: Callable[[Waiting | PackedCall], bool]) -> list[Waiting]:
        """The unfinished calls that match, whose last record is below that seqnum: those that changed last first."""
        found = (call for call in self.waiting.all_kept() if matches(call) and call.seqnum < below)
        return [as_waiting(call) for call in nlargest(limit, found, key=attrgetter("seqnum"))]

    def waiting_below(self, seqnum: int, limit: int) -> list[Waiting]:
        """Unfinished calls that hold up trimming to `seqnum`, the oldest first, at most `limit`."""
        holding = [call for call in self.waiting.all_kept() if call.accepted_seqnum < seqnum]
        return [as_waiting(call) for call in nsmallest(limit, holding, key=attrgetter("accepted_seqnum"))]

    def trim_floor(self, wanted: int) -> int:
        """How far the book may be trimmed: never past an unfinished call, nor past what is not known yet."""
        return min((wanted, self.fold_from, *(call.accepted_seqnum for call in self.waiting.all_kept())))
