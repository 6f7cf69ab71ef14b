"""Logged calls as records: what the system book `boki:calls` says, and the fold that tells which calls are unfinished.

A logged call is one that must not be forgotten: an asynchronous one, or one with an idempotency key. Its life is two
records: ``Accepted``, before its body may run, and ``Finished``, with its outcome. ``Finished`` is appended under the
condition that the call's last record is the one that its runner knows, so an outcome is recorded at most once, whoever
ran the body. A call that is delayed for longer than records are kept is **carried forward**: its ``Accepted`` is
appended anew, under the same condition, so that it never holds up trimming.

Each call has an **owner**, the engine incarnation that accepted it and runs it. Every engine with the index folds the
book. When an owner is lost, and fenced so that it can append no more, one of the others appends ``TakenOver`` under the
condition that nobody has done so: from there on the lost engine's unfinished calls are its own. A body that such an
heir starts is recorded first (``Started``), so that a call which kills its engines does not go on for ever.

A ``Checkpoint`` lets a restart read only the end of the book. It is fuzzy: it lists the calls that are unfinished when
it is made, and ``fold_from``: every record below it is reflected in the list. Records above may be reflected too, which
does no harm, because applying a record twice is like applying it once.

This file knows records and numbers, never a clock or a log. `boki.engine.calls.logged_calls` does the rest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple, assert_never

import msgspec

from boki.calls import Call, InvocationState, Outcome
from boki.errors import CallLost
from boki.log.entries import EntryCodec
from boki.log.operations import Failure

VERSION: Final = 2
"""Version 1 knew no owners; its calls belong to nobody."""
BOOK: Final = "boki:calls"
ACCEPTED_TAG: Final = "accepted"
FINISHED_TAG: Final = "finished"
CHECKPOINT_TAG: Final = "checkpoint"
TAKEN_OVER_TAG: Final = "taken-over"

MAX_STARTS: Final = 4
"""How often the body of a call is started if its worker dies every time."""
FIRST_BACKOFF_US: Final = 100_000
MAX_BACKOFF_US: Final = 10_000_000


class Owner(NamedTuple):
    """An engine incarnation."""

    node: str
    incarnation: int


NOBODY: Final = Owner("", 0)


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """The call will run, once `delay_us` have passed since it was accepted.

    If this record carries a call forward, `accepted_us` is the time of the first one (0: of this one), and `starts`
    counts the `Started` before it.
    """

    call: Call
    request_hash: bytes
    delay_us: int = 0
    accepted_us: int = 0
    owner: Owner = NOBODY
    starts: int = 0


class Started(msgspec.Struct, frozen=True, array_like=True, tag="started"):
    """An heir starts the call's body, for the `starts`-th time that a start is recorded."""

    id: str
    accepted_seqnum: int
    due_us: int
    owner: Owner
    starts: int


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


class TakenOver(msgspec.Struct, frozen=True, array_like=True, tag="taken-over"):
    """The unfinished calls of `lost`, which can append no more, belong to `heir` from here on."""

    lost: Owner
    heir: Owner


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """An unfinished call: the seqnum of its last record, when it may start, and who runs it."""

    id: str
    seqnum: int
    due_us: int
    owner: Owner = NOBODY
    starts: int = 0
    """How many `Started` it has."""
    accepted: int = 0
    """The seqnum of its last `Accepted`, if that is not its last record."""

    @property
    def accepted_seqnum(self) -> int:
        """Where its payload is."""
        return self.accepted or self.seqnum


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The unfinished calls; records from `fold_from` on are still to be applied to them."""

    fold_from: int
    waiting: tuple[Waiting, ...]


Entry = Accepted | Started | Finished | TakenOver | Checkpoint
CallEntry = Accepted | Started | Finished
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


def carry_forward(entry: Accepted, record_time_us: int, waiting: Waiting) -> Accepted:
    """The same call as a new record, due when it was, of its owner now."""
    accepted_us = accepted_at(entry, record_time_us)
    return msgspec.structs.replace(entry, accepted_us=accepted_us, owner=waiting.owner, starts=waiting.starts)


def waiting_of(entry: Accepted, seqnum: int, record_time_us: int) -> Waiting:
    """The call that this record accepts or carries forward, as it waits."""
    return Waiting(entry.call.id, seqnum, due_at(entry, record_time_us), entry.owner, entry.starts)


@dataclass(slots=True)
class Progress:
    """What a runner knows of a call that it runs: how often its body was started, and since when it runs.

    `starts` begins with the recorded starts of earlier owners, not this one's.
    """

    starts: int = 0
    refusals: int = 0
    started_us: int = 0


def run_again_after(outcome: Outcome, progress: Progress) -> int | None:
    """In how many microseconds the body is to be started again after this outcome of a start; None: it is final.

    A body that was refused before it started (overload, draining) runs later, however often that happens, because the
    call was accepted. One whose worker died runs again a bounded number of times: it may be what kills its workers. A
    body that raised or overran its deadline has had its run.
    """
    failure = outcome.failure
    if failure is None:
        return None
    if failure.outcome == "not_applied" and failure.retryable:
        progress.starts -= 1
        progress.refusals += 1
        if not progress.starts:
            progress.started_us = 0
        return _backoff_us(progress.refusals)
    if failure.code == CallLost.code and progress.starts < MAX_STARTS:
        return _backoff_us(progress.starts)
    return None


def lost_too_often() -> Outcome:
    """The end of a call whose starts are used up although none of them is known to have ended."""
    error = CallLost(f"{MAX_STARTS} engines that ran the call were lost: it may be what ended them")
    return Outcome(None, Failure.of(error))


def _backoff_us(times: int) -> int:
    return min(FIRST_BACKOFF_US << min(times - 1, 16), MAX_BACKOFF_US)


def state_of(entry: Accepted | Finished, record_time_us: int, progress: Progress | None) -> InvocationState:
    """What the call's last record says, and what its runner, if it is in this process, knows beside it."""
    match entry:
        case Accepted():
            progress = progress or Progress()
            return InvocationState(
                id=entry.call.id,
                function=entry.call.function,
                book=entry.call.book,
                state="running" if progress.started_us else "accepted",
                accepted_us=accepted_at(entry, record_time_us),
                due_us=due_at(entry, record_time_us),
                started_us=progress.started_us,
                attempts=progress.starts,
            )
        case Finished():
            return InvocationState(
                id=entry.id,
                function=entry.function,
                book=entry.book,
                state="done" if entry.outcome.failure is None else "failed",
                accepted_us=entry.accepted_us,
                due_us=entry.due_us,
                started_us=entry.started_us,
                finished_us=record_time_us,
                attempts=entry.attempts,
                result=entry.outcome.result,
                failure=entry.outcome.failure,
            )
        case _:
            assert_never(entry)


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
        """Take in a record of a call ahead of the fold."""
        self._apply(entry, seqnum, record_time_us)

    def lose(self, invocation_id: str) -> None:
        """The call's records are gone, so it can neither be run nor finished."""
        self._pop(invocation_id)

    def _apply(self, entry: CallEntry, seqnum: int, record_time_us: int) -> None:
        match entry:
            case Accepted():
                self._wait(waiting_of(entry, seqnum, record_time_us))
            case Started():
                waiting = Waiting(entry.id, seqnum, entry.due_us, entry.owner, entry.starts, entry.accepted_seqnum)
                self._wait(waiting)
            case Finished():
                self._pop(entry.id)
                if seqnum >= self.fold_from:
                    self._over[entry.id] = seqnum
            case _:
                assert_never(entry)

    def _wait(self, waiting: Waiting) -> None:
        known = self.waiting.get(waiting.id)
        is_news = known is None or known.seqnum < waiting.seqnum
        if is_news and waiting.id not in self._over:
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
