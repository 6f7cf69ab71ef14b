"""Logged calls as records: what the system book `boki:calls` says, and the fold that tells which calls are unfinished.

A logged call is one that must not be forgotten: an asynchronous one, or one with an idempotency key. Its life is two
records: ``Accepted``, before its body may run, and ``Finished``, with its outcome. ``Finished`` is appended under the
condition that the call's last record is the ``Accepted`` that its runner knows, so an outcome is recorded at most once,
whoever ran the body. A call that is delayed for longer than records are kept is **carried forward**: its ``Accepted``
is appended anew, under the same condition, so that it never holds up trimming.

A ``Checkpoint`` lets a restart read only the end of the book. It is fuzzy: it lists the calls that are unfinished when
it is made, and ``fold_from``, a seqnum such that every record below it is reflected in the list. Records above may be
reflected too, which does no harm, because applying a record twice is like applying it once. The bound comes from the
order of appends: one that is still in flight stands above everything that was acknowledged before it was issued.

This file knows records and numbers, never a clock or a log. `boki.engine.logged_calls` does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Final, assert_never

import msgspec

from boki.calls import Call, InvocationState, Outcome
from boki.errors import CallLost, CorruptData, VersionTooNew

VERSION: Final = 1
BOOK: Final = "boki:calls"
ACCEPTED_TAG: Final = "accepted"
FINISHED_TAG: Final = "finished"
CHECKPOINT_TAG: Final = "checkpoint"

MAX_STARTS: Final = 4
"""How often the body of a call is started if its worker dies every time."""
FIRST_BACKOFF_US: Final = 100_000
MAX_BACKOFF_US: Final = 10_000_000


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag="accepted"):
    """The call will run, once `delay_us` have passed since it was accepted.

    `accepted_us` is the time of the first such record if this one carries it forward; 0: the time of this record.
    """

    call: Call
    request_hash: bytes
    delay_us: int = 0
    accepted_us: int = 0


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


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """An unfinished call: the seqnum of its last `Accepted`, and when it may start."""

    id: str
    seqnum: int
    due_us: int


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="checkpoint"):
    """The unfinished calls; records from `fold_from` on are still to be applied to them."""

    fold_from: int
    waiting: tuple[Waiting, ...]


Entry = Accepted | Finished | Checkpoint

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[Entry]] = msgspec.msgpack.Decoder(Entry)


def encode_entry(entry: Entry) -> bytes:
    """The record data of an entry: a version, then msgpack."""
    return bytes((VERSION,)) + _encoder.encode(entry)


def decode_entry(data: bytes) -> Entry:
    """The entry; `VersionTooNew` or `CorruptData` if these are not its bytes."""
    if data and data[0] > VERSION:
        raise VersionTooNew(f"a record of book {BOOK} has version {data[0]}, newer than this Boki's {VERSION}: upgrade")
    try:
        return _decoder.decode(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise CorruptData(f"a record of book {BOOK} cannot be read: {error}") from None


def id_tag(invocation_id: str) -> str:
    """The tag of all records of one call."""
    return f"id:{invocation_id}"


def request_hash(call: Call, delay_us: int) -> bytes:
    """What must be equal for a key to stand for the same request. Deadlines, traces and positions may differ."""
    parts = (call.function, call.book, call.payload.encoding, delay_us, call.payload.data)
    return sha256(_encoder.encode(parts)).digest()


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


def carry_forward(entry: Accepted, record_time_us: int) -> Accepted:
    """The same call as a new record, due when it was."""
    return msgspec.structs.replace(entry, accepted_us=accepted_at(entry, record_time_us))


@dataclass(slots=True)
class Progress:
    """What a runner knows of a call that it runs: how often its body was started, and since when it runs."""

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
    """The unfinished calls, and up to which seqnum that is the whole truth."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.waiting: dict[str, Waiting] = {}
        self._next_seqnum = 0
        self._in_flight: dict[int, int] = {}
        self._tokens = count()
        if checkpoint is not None:
            self.waiting = {waiting.id: waiting for waiting in checkpoint.waiting}
            self._next_seqnum = checkpoint.fold_from

    @property
    def fold_from(self) -> int:
        """Every record below this is reflected in `waiting`."""
        return next(iter(self._in_flight.values()), self._next_seqnum)

    def apply(self, entry: Entry, seqnum: int, record_time_us: int) -> None:
        """Take in a record. In ascending order, or again, or not at all if an own append has told the same."""
        match entry:
            case Accepted():
                self.accept(Waiting(entry.call.id, seqnum, due_at(entry, record_time_us)))
            case Finished():
                self.finish(entry.id, seqnum)
            case Checkpoint():
                self._saw(seqnum)
            case _:
                assert_never(entry)

    def accept(self, waiting: Waiting) -> None:
        """The call is accepted, or carried forward."""
        self.waiting[waiting.id] = waiting
        self._saw(waiting.seqnum)

    def finish(self, invocation_id: str, seqnum: int) -> None:
        """The call's outcome is recorded."""
        self.waiting.pop(invocation_id, None)
        self._saw(seqnum)

    def issue_append(self) -> int:
        """An append of this book goes out now: whatever seqnum it gets lies above all that were acknowledged."""
        token = next(self._tokens)
        self._in_flight[token] = self._next_seqnum
        return token

    def settle_append(self, token: int) -> None:
        """The append is decided, and if it was appended, `apply` has been told."""
        del self._in_flight[token]

    def checkpoint(self) -> Checkpoint:
        """The state as a record."""
        return Checkpoint(self.fold_from, tuple(self.waiting.values()))

    def waiting_below(self, seqnum: int, limit: int) -> list[Waiting]:
        """Unfinished calls that hold up trimming to `seqnum`, the oldest first, at most `limit`."""
        return sorted((w for w in self.waiting.values() if w.seqnum < seqnum), key=lambda w: w.seqnum)[:limit]

    def trim_floor(self, wanted: int) -> int:
        """How far the book may be trimmed: never past an unfinished call, nor past what is not known yet."""
        return min((wanted, self.fold_from, *(w.seqnum for w in self.waiting.values())))

    def _saw(self, seqnum: int) -> None:
        self._next_seqnum = max(self._next_seqnum, seqnum + 1)
