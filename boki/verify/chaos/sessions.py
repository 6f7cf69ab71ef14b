"""Clients of a cluster under fault: sessions that do a bit of everything and write down what they were told.

Each session is one client with a token of its own (`Boki-Position`). What it does is drawn from its seed; what comes
back is what the checkers of `boki.verify.histories` judge. Payloads are unique. An append with a key is repeated under
it until its outcome is known, which is what keys are for; one without is never repeated.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random

from boki.client import Client
from boki.errors import BokiError, ConditionFailed
from boki.log.metalog import Positions, parse_positions
from boki.log.record import Record
from boki.verify.chaos.functions.witness import Seen as WitnessSeen
from boki.verify.chaos.functions.witness import Step
from boki.verify.histories.history import (
    Appending,
    Call,
    Condition,
    History,
    Ordered,
    Reading,
    Refused,
    Request,
    Result,
    Seen,
    Shown,
    Syncing,
    Told,
    Trimming,
    Written,
    payload_name,
)

APPEND_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 30.0
"""What a LogBook gives every operation that names no time of its own."""
_GIVE_UP_S = 30.0
_STALL_US = 250_000
TAGS = ("red", "green", "blue")
_TRIMMED_TAG = "blue"
COUNTED_TAG = "!counted"
_KEY_ATTEMPTS = 8
_RETRY_S = 0.2
_KEPT_BEHIND_TRIM = 30


def now_us() -> int:
    """The clock of histories: monotonic, the same for all processes of a machine."""
    return time.monotonic_ns() // 1000


def seen(record: Record) -> Seen:
    """A record as a history tells it."""
    return Seen(record.seqnum, payload_name(record.data), tuple(record.tags), record.time)


class Progress:
    """Of all sessions: how many appends were acknowledged, and the longest time in which none was.

    `on_stall` is told of each that was longer than a quarter of a second, when it is over, in seconds.
    """

    def __init__(self, on_stall: Callable[[float], None]) -> None:
        self.acknowledged = 0
        self.longest_us = 0
        self._last_us = 0
        self._on_stall = on_stall

    def note(self, end_us: int) -> None:
        """An append was acknowledged."""
        if self._last_us:
            stall_us = end_us - self._last_us
            self.longest_us = max(self.longest_us, stall_us)
            if stall_us > _STALL_US:
                self._on_stall(stall_us / 1e6)
        self.acknowledged += 1
        self._last_us = end_us


class Session:
    """One client. `witnessed` collects what functions saw that they must not; `accepted`, calls that must end."""

    def __init__(
        self,
        name: str,
        client: Client,
        random: Random,
        history: History,
        progress: Progress,
        books: tuple[str, ...],
    ) -> None:
        self.name = name
        self.witnessed: list[str] = []
        self.accepted: list[str] = []
        self._client = client
        self._random = random
        self._history = history
        self._progress = progress
        self._books = books
        self._count = 0
        self._last_seqnum = 0
        self._counts: dict[str, int] = {}

    async def close(self) -> None:
        """Close its connections."""
        await self._client.close()

    async def step(self) -> None:
        """One thing, drawn from what a session can do."""
        book = self._random.choice(self._books)
        step: Callable[[str], Awaitable[None]] = self._random.choices(
            (
                self._append,
                self._append_under_key,
                self._append_if_last,
                self._append_if_count,
                self._append_many,
                self._read_next,
                self._read_page,
                self._check_tail,
                self._sync,
                self._trim,
                self._invoke,
                self._invoke_later,
            ),
            (30, 8, 8, 4, 6, 12, 8, 10, 3, 1, 4, 2),
        )[0]
        await step(book)

    # appends

    def _payload(self) -> str:
        self._count += 1
        return f"{self.name}-{self._count}"

    def _tags(self) -> tuple[str, ...]:
        return tuple(self._random.sample(TAGS, self._random.randint(0, 2)))

    async def _append(self, book: str) -> None:
        await self._append_once(book, Appending((Written(self._payload(), self._tags()),)))

    async def _append_once(self, book: str, request: Appending) -> Call:
        log = self._client.logbook(book)
        when = [condition.expect() for condition in request.when]

        async def append() -> Result:
            if len(request.records) == 1:
                written = request.records[0]
                data = written.payload.encode()
                place = await log.append(data, written.tags, when=when, key=request.key, timeout_s=APPEND_TIMEOUT_S)
                return Ordered((place,))
            rows = [(written.payload.encode(), written.tags) for written in request.records]
            return Ordered(tuple(await log.append_many(rows, when=when, key=request.key, timeout_s=APPEND_TIMEOUT_S)))

        return await self._record(book, request, append)

    async def _append_many(self, book: str) -> None:
        count = self._random.randint(2, 5)
        await self._append_once(book, Appending(tuple(Written(self._payload(), self._tags()) for _ in range(count))))

    async def _append_under_key(self, book: str) -> None:
        payload = self._payload()
        request = Appending((Written(payload, self._tags()),), key=payload)
        for _ in range(_KEY_ATTEMPTS):
            call = await self._append_once(book, request)
            if isinstance(call.result, Ordered):
                break
            await asyncio.sleep(_RETRY_S)
        if self._random.random() < 0.3:
            await self._append_once(book, request)  # again, though it is there

    async def _append_if_last(self, book: str) -> None:
        tag = self._random.choice(TAGS[:2])
        call = await self._read(book, Reading(tag=tag, backward=True))
        if isinstance(call.result, Shown):
            last = call.result.records[-1].seqnum if call.result.records else 0
            await self._append_once(book, Appending((Written(self._payload(), (tag,)),), when=(Condition(tag, last),)))

    async def _append_if_count(self, book: str) -> None:
        condition = Condition(COUNTED_TAG, count=self._counts.get(book, 0))
        request = Appending((Written(self._payload(), (COUNTED_TAG,)),), when=(condition,))
        call = await self._append_once(book, request)
        if isinstance(call.result, Ordered):
            self._counts[book] = condition.count + 1
        elif isinstance(call.result, Refused) and call.result.actual_count >= 0:
            self._counts[book] = call.result.actual_count

    # reads

    async def _read(self, book: str, request: Reading) -> Call:
        log = self._client.logbook(book)

        async def read() -> Result:
            if request.fresh:
                tail = await log.check_tail(request.tag, fresh=True)
                return _last(tail)
            if request.backward:
                found = await log.read_prev(request.tag)
                return _last(found)
            if request.limit == 1:
                found = await log.read_next(request.tag, min_seqnum=request.start)
                if found is None:
                    return Shown(())
                return Shown((seen(found),), found.next_seqnum, is_end=False)
            page = await log.read(request.tag, start=request.start, limit=request.limit)
            return Shown(tuple(map(seen, page.records)), page.next_start, is_end=not page.records)

        return await self._record(book, request, read)

    def _start(self) -> int:
        return 0 if self._random.random() < 0.3 else self._last_seqnum

    async def _read_next(self, book: str) -> None:
        await self._read(book, Reading(tag=self._random.choice((None, *TAGS)), start=self._start()))

    async def _read_page(self, book: str) -> None:
        tag = self._random.choice((None, *TAGS))
        await self._read(book, Reading(tag=tag, start=self._start(), limit=self._random.choice((3, 50))))

    async def _check_tail(self, book: str) -> None:
        tag = self._random.choice((None, *TAGS))
        await self._read(book, Reading(tag=tag, backward=True, fresh=self._random.random() < 0.5))

    async def _sync(self, book: str) -> None:
        async def sync() -> Result:
            await self._client.logbook(book).sync()
            return Told()

        await self._record(book, Syncing(), sync)

    async def _trim(self, book: str) -> None:
        call = await self._read(book, Reading(tag=_TRIMMED_TAG, backward=True))
        if not isinstance(call.result, Shown) or not call.result.records:
            return
        before = max(1, call.result.records[-1].seqnum - self._random.randint(0, _KEPT_BEHIND_TRIM))
        is_whole = self._random.random() < 0.2

        async def trim() -> Result:
            await self._client.logbook(book).trim(before, tag=None if is_whole else _TRIMMED_TAG)
            return Told()

        await self._record(book, Trimming(before, None if is_whole else _TRIMMED_TAG), trim)

    # calls

    async def _invoke(self, book: str) -> None:
        step = Step(self._random.choice(TAGS[:2]), self._payload(), self._payload())
        parts = [
            (f"{self.name}/{name}", Appending((Written(name, (step.tag,)),), key=name))
            for name in (step.parent_id, step.child_id)
        ]
        begun_us = now_us()
        needs = self._positions()
        calls = []
        for session, request in parts:
            self._history.fork(self.name, session, begun_us)
            # what a call appends is in doubt for as long as its records are: no deadline of a client's bounds it
            calls.append(self._history.begin(session, book, request, begun_us, begun_us + (1 << 40), needs))
        try:
            answer: WitnessSeen = await self._client.invoke(
                "witness", step, book=book, timeout_s=APPEND_TIMEOUT_S, result_type=WitnessSeen
            )
        except BokiError as error:
            for call in calls:
                call.is_abandoned = True
            if error.outcome == "not_applied":
                for call in calls:
                    self._history.end(call, _refused(error), now_us())
            return
        for call, seqnum in zip(calls, (answer.parent_seqnum, answer.child_seqnum), strict=True):
            self._history.end(call, Ordered((seqnum,)), now_us(), self._positions())
        for session, _ in parts:
            self._history.join(session, self.name, now_us())
        if not answer.child_saw_parent:
            self.witnessed.append(f"the child of {step.parent_id} did not see its parent's record")
        if not answer.parent_saw_child:
            self.witnessed.append(f"{step.parent_id} did not see its child's record")

    async def _invoke_later(self, book: str) -> None:
        step = Step(self._random.choice(TAGS[:2]), self._payload(), "")
        request = Appending((Written(step.parent_id, (step.tag,)),), key=step.parent_id)
        call = self._history.begin(f"{self.name}/{step.parent_id}", book, request, now_us(), now_us() + (1 << 40))
        call.is_abandoned = True
        try:
            accepted = await self._client.invoke_later("note_once", step, book=book, key=step.parent_id)
        except BokiError:
            return  # under its key it may still run, once
        self.accepted.append(accepted)

    # recording

    def _positions(self) -> Positions:
        return parse_positions(self._client.position)

    async def _record(self, book: str, request: Request, ask: Callable[[], Awaitable[Result]]) -> Call:
        begun_us = now_us()
        timeout_s = APPEND_TIMEOUT_S if isinstance(request, Appending) else READ_TIMEOUT_S
        deadline_us = begun_us + round(timeout_s * 1e6)
        call = self._history.begin(self.name, book, request, begun_us, deadline_us, self._positions())
        result: Result
        try:
            async with asyncio.timeout(timeout_s + _GIVE_UP_S):
                result = await ask()
        except BokiError as error:
            result = _refused(error)
        except TimeoutError:
            return call  # the checker of deadlines will tell
        self._history.end(call, result, now_us(), self._positions())
        if isinstance(result, Ordered):
            self._progress.note(call.end_us)
            self._last_seqnum = max(self._last_seqnum, result.seqnums[-1])
        return call

    async def read_out(self, reader: str) -> None:
        """Write down all that every book holds."""
        for book in self._books:
            log = self._client.logbook(book)
            await log.sync()
            records: list[Seen] = []
            start = 0
            while (page := await log.read(start=start)).records:
                records += map(seen, page.records)
                start = page.next_start
            self._history.read_out(reader, book, now_us(), records)

    async def unfinished(self, wait_s: float) -> list[str]:
        """Of the calls that were accepted, those that have not ended after this long."""
        late: list[str] = []
        until = time.monotonic() + wait_s
        for call in self.accepted:
            left_s = max(0.1, until - time.monotonic())
            try:
                state = await self._client.invocation(call, wait_s=left_s)
            except BokiError as error:
                late.append(f"{call}: {error}")
                continue
            if state.state != "done":
                late.append(f"{call} is {state.state}" + (f": {state.error}" if state.error else ""))
        return late


def _last(record: Record | None) -> Shown:
    """What a backward read of one record has shown."""
    return Shown(()) if record is None else Shown((seen(record),), record.seqnum, is_end=False)


def _refused(error: BokiError) -> Refused:
    if not isinstance(error, ConditionFailed):
        return Refused(error.code, error.outcome)
    actual_count = int(error.details.get("actual_count", -1))
    return Refused(error.code, error.outcome, int(error.details.get("actual_seqnum", 0)), actual_count)
