"""Which run of a pipeline may write: the one whose claim is the last in the progress book.

A claim is a conditional record, and whatever the run notes is appended on condition that its claim is still the last. A
run that starts while another has not ended **knocks**, by a record, and the other answers if it lives. If it does, the
newcomer goes away; if nobody answers, it takes over, and the other's notes are refused from then on, should it be
there after all. So an idle pipeline costs the log nothing, and a run that was killed blocks others only briefly.

The records carry system tags: a retention of the progress book does not take away what fences.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Final
from uuid import uuid4

import msgspec

from boki.api.log_calls import records_of, seqnums_of
from boki.errors import BokiError, ConditionFailed, Unavailable
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Append, Appended, Read
from boki.log.record import Expect, Record
from boki.spark.gateway import Gateway

RUN_TAG: Final = "!ingest-run:"
KNOCK_TAG: Final = "!ingest-knock:"
ALIVE_TAG: Final = "!ingest-alive:"
ANSWER_S: Final = 10.0
"""This long a run that lives may take to answer."""
_LISTEN_S: Final = 10.0
_PAUSE_S: Final = 1.0
_TRIES: Final = 20


Records = Sequence[tuple[bytes, Sequence[str]]]
"""Data and tags of each."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a pipeline, as its claim describes it."""

    id: str
    host: str
    pid: int
    has_ended: bool = False

    @staticmethod
    def new() -> Run:
        """This process's."""
        return Run(id=uuid4().hex, host=socket.gethostname(), pid=os.getpid())

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} (run {self.id[:8]})"


class Claim:
    """The right of one run to write, until another takes it."""

    def __init__(self, gateway: Gateway, book: str, pipeline: str, run: Run) -> None:
        self.gateway = gateway
        self.book = book
        self.pipeline = pipeline
        self.run = run
        self._seqnum = 0

    def take(self) -> None:
        """Get the claim. `Unavailable` names the run that has it and lives."""
        tag = RUN_TAG + self.pipeline
        for turn in range(_TRIES):
            record = self._last()
            before = _run_of(record) if record is not None else None
            if before is not None and not before.has_ended and before.id != self.run.id and self._answers(before):
                raise Unavailable(
                    f"pipeline {self.pipeline!r} is being run by {before}: wait until it ends, or end it; if it is "
                    "another pipeline, give one of them another name",
                    retryable=True,
                    pipeline=self.pipeline,
                )
            last_seqnum = record.seqnum if record is not None else 0
            try:
                (self._seqnum,) = self._append(
                    [(msgspec.json.encode(self.run), (tag,))], Expect(tag, last_seqnum), f"claim:{turn}"
                )
            except ConditionFailed:
                continue  # somebody else was quicker
            self.gateway.trim_tag(self.book, tag, self._seqnum)
            return
        raise Unavailable(f"pipeline {self.pipeline!r} is being started by others", retryable=True)

    def append(self, records: Records, key: str) -> list[int]:
        """Append to the progress book, once under the key, if the claim still holds; else `Unavailable`."""
        try:
            return self._append(records, Expect(RUN_TAG + self.pipeline, self._seqnum), key)
        except ConditionFailed:
            self.check()
            raise

    def check(self) -> None:
        """`Unavailable` if another run has taken over: what it writes from now on, this one must not."""
        record = self._last()
        if record is None:
            raise Unavailable(
                f"the claim of pipeline {self.pipeline!r} is gone: was book {self.book!r} deleted?",
                retryable=False,
                pipeline=self.pipeline,
            )
        if record.seqnum != self._seqnum:
            raise Unavailable(
                f"pipeline {self.pipeline!r} was taken over by {_run_of(record)}, which had no answer from this run "
                f"for {ANSWER_S:.0f} s. What this run has written is whole, and the other goes on from there",
                retryable=False,
                pipeline=self.pipeline,
            )

    def answer(self) -> None:
        """Say that this run lives. `Unavailable` if it is too late."""
        tag = ALIVE_TAG + self.pipeline
        self.append([(self.run.id.encode(), (tag,))], f"alive:{uuid4().hex}")

    def end(self, gateway: Gateway) -> None:
        """Give the claim back, so that the next run need not knock."""
        ended = msgspec.json.encode(msgspec.structs.replace(self.run, has_ended=True))
        tag = RUN_TAG + self.pipeline
        fence = Expect(tag, self._seqnum)
        (seqnum,) = _append(gateway, self.book, [(ended, (tag,))], fence, f"{self.run.id}:end")
        gateway.trim_tag(self.book, tag, seqnum)

    def knocks(self, gateway: Gateway, start: int) -> int | None:
        """Wait a while for somebody to knock, from `start` on; where to continue after it. None: nobody has."""
        read = Read(self.book, KNOCK_TAG + self.pipeline, max(start, self._seqnum), wait_us=int(_LISTEN_S * 1e6))
        found = gateway.find(read)
        return found.next_start if found.slabs else None

    def _answers(self, other: Run) -> bool:
        knock, alive = KNOCK_TAG + self.pipeline, ALIVE_TAG + self.pipeline
        (seqnum,) = self._append([(self.run.id.encode(), (knock,))], None, f"knock:{uuid4().hex}")
        found = self.gateway.find(Read(self.book, alive, seqnum, wait_us=int(ANSWER_S * 1e6)))
        for tag in (knock, alive):
            self.gateway.trim_tag(self.book, tag, seqnum)
        return any(record.data == other.id.encode() for record in records_of(found))

    def _last(self) -> Record | None:
        found = self.gateway.find(Read(self.book, RUN_TAG + self.pipeline, backward=True, fresh=True))
        return next(iter(records_of(found)), None)

    def _append(self, records: Records, when: Expect | None, key: str) -> list[int]:
        return _append(self.gateway, self.book, records, when, f"{self.run.id}:{key}")


class Doorkeeper:
    """Answers those who knock, in a thread of its own, for as long as the claim is held."""

    def __init__(self, claim: Claim, open_gateway: Callable[[], Gateway]) -> None:
        self.claim = claim
        self._open_gateway = open_gateway
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self._on_lost: Callable[[], object] = lambda: None
        self.lost: BokiError | None = None
        """Why the claim is gone."""
        threading.Thread(target=self._listen, daemon=True, name="boki-ingest-door").start()

    def when_lost(self, action: Callable[[], object]) -> None:
        """What to do when another run has taken over; at once, if it has."""
        with self._lock:
            self._on_lost = action
            is_lost = self.lost is not None
        if is_lost:
            action()

    def close(self) -> None:
        """Stop answering."""
        self._ends.set()

    def _listen(self) -> None:
        gateway = self._open_gateway()
        at = 0
        while not self._ends.is_set():
            try:
                behind = self.claim.knocks(gateway, at)
                if behind is not None and not self._ends.is_set():
                    at = behind
                    self.claim.answer()
            except BokiError as error:
                if isinstance(error, Unavailable) and error.details.get("pipeline"):
                    with self._lock:
                        self.lost, action = error, self._on_lost
                    action()
                    break
                self._ends.wait(_PAUSE_S)  # the gateway is away: who knocks is not answered either
        gateway.close()


def _append(gateway: Gateway, book: str, records: Records, when: Expect | None, key: str) -> list[int]:
    """Append them, however often it is asked for; `ConditionFailed` if they are refused."""
    group = Group(records, (when,) if when else (), f"ingest:{key}")
    answer = gateway.ask(Append(book, encode_chunk(book, [group])))
    assert isinstance(answer, Appended)
    rejected = answer.rejected[0] if answer.rejected else None
    return list(seqnums_of(answer.first_seqnum, group, rejected, book))


def _run_of(record: Record) -> Run:
    return msgspec.json.decode(record.data, type=Run)
