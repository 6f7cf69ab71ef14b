"""`Schedule`: a schedule by its id, as users and gateways hold it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import uuid4

import msgspec

from boki import (
    AlreadyExists,
    ConditionFailed,
    Expect,
    InvalidArgument,
    KeyReused,
    LogBook,
    NoSuchInvocation,
    WrongState,
)
from boki.extending import OVER, Attribute, InvocationState, invocation_id_of
from boki.libs.bokiflow.beginning import KnownCalls
from boki.libs.bokiflow.refusals import NoSuchSchedule
from boki.libs.bokiflow.schedules.attendant import own_attributes, run_id
from boki.libs.bokiflow.schedules.spec import OVERLAPS, Overlap, Spec, describe, next_tick, tick_name
from boki.libs.bokiflow.schedules.state import (
    CODEC,
    Backfilled,
    Defined,
    Deleted,
    Fold,
    Note,
    Paused,
    Recent,
    Resumed,
    Triggered,
    schedule_tag,
)
from boki.libs.bokiflow.stepping import refuse_in_body
from boki.libs.fold.arguments import check_key

MAX_SCHEDULE_ID_CHARS: Final = 120
"""So that there is room for the tick in the ids of its workflows."""
MAX_TRIGGER_CHARS: Final = 40
"""Of the key of a trigger, for the same reason."""
MAX_BACKFILL: Final = 10_000
_PAGE_RECORDS: Final = 1_000
_NEXT: Final = 5
_NOT_ATTENDED: Final = "nothing attends to it: it ended long ago, or was never started; create it again"

IfExists = Literal["fail", "replace"]
Start = Callable[[], Awaitable[Any]]
"""Starts the attendant; does nothing if it runs."""


def schedule_call_id(workflow: str, book: str, schedule: str) -> str:
    """The invocation id of a schedule's attendant."""
    return invocation_id_of(workflow, book, "boki:schedule", schedule)


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a schedule. Times are microseconds since the epoch."""

    id: str
    workflow: str
    invocation_id: str
    book: str
    status: Literal["active", "paused", "failed"]
    """"failed": its attendant has ended, as after a kill; create it again."""
    note: str
    """Why it is paused, or failed."""
    when: str
    """Its ticks in a few words."""
    spec: Spec
    next_us: tuple[int, ...]
    """The next ticks."""
    running: tuple[str, ...]
    """Ids of its workflows that have not ended."""
    queued: tuple[str, ...]
    """Ids of those that wait for them."""
    counts: dict[str, int]
    """How many ticks were started, queued, skipped or missed."""
    recent: tuple[Recent, ...]


class Schedule:
    """A schedule by its id. It may not have been created yet."""

    def __init__(self, workflow: str, schedule_id: str, calls: KnownCalls, logbook: LogBook) -> None:
        """See `Workflow.schedule` and `Workflow.schedule_handle`."""
        self.workflow = workflow
        """The name of the workflow that it starts."""
        self.id = check_key(schedule_id, "id", MAX_SCHEDULE_ID_CHARS)
        """The id that it was given when it was created."""
        self.invocation_id = schedule_call_id(workflow, logbook.name, self.id)
        """The id of the logged call that attends to it."""
        self._calls = calls
        self._logbook = logbook

    def __repr__(self) -> str:
        return f"<schedule {self.id!r} of {self.workflow}>"

    async def create(
        self,
        spec: Spec,
        start: Start,
        attributes: Mapping[str, Attribute],
        *,
        if_exists: IfExists = "fail",
        is_paused: bool = False,
    ) -> None:
        """Have there be such a schedule: its first tick is the first one from now on. `attributes`: of its workflows.

        If there is one of that id, "replace" changes its ticks, its payload and its attributes. What it has done, and
        whether it is paused, stays. "fail": `AlreadyExists`. Of two that create it at once, one is refused.
        """
        if if_exists not in ("fail", "replace"):
            raise InvalidArgument(f"if_exists must be fail or replace, not {if_exists!r:.40}", field="if_exists")
        fold = await self._fold()
        attendant = await self._attendant()
        is_there = fold.spec is not None and not fold.is_deleted and attendant is not None
        if is_there and if_exists == "fail":
            raise self._exists()
        note = CODEC.encode(Defined(spec, is_paused))
        try:
            await self._logbook.append(note, [self._tag], when=Expect(self._tag, fold.last_seqnum))
        except ConditionFailed:
            if if_exists == "fail":
                raise self._exists() from None
            await self._logbook.append(note, [self._tag])
        if attendant is not None and own_attributes(attendant.attributes) != attributes:
            await self._end_attendant()
        try:
            await start()
        except KeyReused:  # it replaces one with another payload: what the attendant knows is in the log
            await self._end_attendant()
            await start()

    async def state(self) -> ScheduleState:
        """What is known of it. `NoSuchSchedule`"""
        fold = await self._known()
        call: InvocationState | None = None
        with suppress(NoSuchInvocation):
            call = await self._calls.state(self.invocation_id)
        spec = fold.spec
        assert spec is not None, "it is known"
        is_over = call is None or call.state in OVER
        ticks: list[int] = []
        at_us = fold.cursor_us
        while len(ticks) < _NEXT and (tick_us := next_tick(spec, at_us)) is not None:
            ticks.append(tick_us)
            at_us = tick_us
        failure = _NOT_ATTENDED if call is None else "" if call.failure is None else call.failure.message
        return ScheduleState(
            id=self.id,
            workflow=self.workflow,
            invocation_id=self.invocation_id,
            book=self._logbook.name,
            status="failed" if is_over else "paused" if fold.is_paused else "active",
            note=failure if is_over else fold.reason,
            when=describe(spec),
            spec=spec,
            next_us=() if fold.is_paused or is_over else tuple(ticks),
            running=tuple(run_id(self.id, key) for key in fold.running),
            queued=tuple(run_id(self.id, key) for key, _ in fold.queued),
            counts=dict(fold.counts),
            recent=tuple(fold.recent),
        )

    async def pause(self, reason: str = "") -> None:
        """Let ticks pass by until `resume`. What runs continues, and what waits for it is started."""
        await self._say(Paused(reason))

    async def resume(self) -> None:
        """Let ticks count again, from now on: those that have passed stay out."""
        await self._say(Resumed())

    async def trigger(self, *, key: str | None = None, overlap: Overlap | None = None) -> str:
        """Start the workflow now, also while paused: its id. The same key starts it once.

        `overlap` stands in for the schedule's policy: with "skip", the workflow is not started while another one runs.
        """
        chosen = check_key(key, "key", MAX_TRIGGER_CHARS) if key is not None else uuid4().hex[:12]
        await self._say(Triggered(chosen, _overlap(overlap)), f"schedule-trigger:{self.invocation_id}:{chosen}")
        return run_id(self.id, f"now-{chosen}")

    async def backfill(self, start: datetime, end: datetime, *, overlap: Overlap | None = None) -> int:
        """Start the workflows of the ticks from `start` to before `end`: how many ticks that is.

        One after the other, or all together if the schedule allows overlaps; `overlap` says otherwise. What comes
        meanwhile, ticks and triggers, is decided by the schedule's own policy: one that skips leaves out its ticks
        while a workflow of the past runs. A tick that was started before, however long ago, is not started again. At
        most 10,000 ticks at once.
        """
        from_us, until_us = _micros(start, "start"), _micros(end, "end")
        if from_us <= 0:
            raise InvalidArgument("start must be later than 1970: ticks are counted from there", field="start")
        if until_us <= from_us:
            raise InvalidArgument("end must be later than start: no tick is in between", field="end")
        fold = await self._known()
        assert fold.spec is not None, "it is known"
        count, at_us = 0, from_us - 1
        while (tick_us := next_tick(fold.spec, at_us)) is not None and tick_us < until_us:
            count, at_us = count + 1, tick_us
            if count > MAX_BACKFILL:
                raise InvalidArgument(
                    f"there are more than {MAX_BACKFILL:,} ticks from {tick_name(from_us)} to {tick_name(until_us)}: "
                    "backfill a shorter time",
                    field="end",
                )
        if count:
            await self._say(Backfilled(from_us, until_us, _overlap(overlap)))
        return count

    async def delete(self) -> None:
        """Start nothing any more. What runs continues. Again: `NoSuchSchedule`."""
        try:
            await self._say(Deleted())
        except NoSuchSchedule:
            await self._end_attendant()  # the process that deleted it may have been lost right then
            raise
        await self._end_attendant()

    # in between

    @property
    def _tag(self) -> str:
        return schedule_tag(self.invocation_id)

    async def _say(self, note: Note, key: str | None = None) -> None:
        await self._known()
        await self._logbook.append(CODEC.encode(note), [self._tag], key=key)

    async def _known(self) -> Fold:
        fold = await self._fold()
        if fold.spec is None or fold.is_deleted:
            raise NoSuchSchedule(
                f"there is no schedule {self.id!r} of {self.workflow}: create it, or list those that there are",
                id=self.id,
                workflow=self.workflow,
            )
        return fold

    async def _fold(self) -> Fold:
        refuse_in_body("a method of a schedule")
        fold = Fold(self.id)
        start = 0
        while True:
            page = await self._logbook.read(self._tag, start=start, limit=_PAGE_RECORDS)
            if not page.records:
                return fold
            for record in page.records:
                note = CODEC.own(record.data)
                if note is not None:
                    fold.apply(record.seqnum, record.time, note)
                fold.last_seqnum = record.seqnum
            start = page.next_start

    async def _end_attendant(self) -> None:
        with suppress(WrongState, NoSuchInvocation):  # an earlier try has ended it
            await self._calls.cancel(self.invocation_id)

    async def _attendant(self) -> InvocationState | None:
        """The call that attends to it; None: there is none, or it has ended."""
        try:
            state = await self._calls.state(self.invocation_id)
        except NoSuchInvocation:
            return None
        return None if state.state in OVER else state

    def _exists(self) -> AlreadyExists:
        return AlreadyExists(
            f"there is a schedule {self.id!r} of {self.workflow}: replace it (if_exists='replace', or --replace on the "
            "command line), or delete it first",
            id=self.id,
        )


def _overlap(overlap: Overlap | None) -> Overlap | None:
    if overlap is not None and overlap not in OVERLAPS:
        raise InvalidArgument(f"overlap must be one of {', '.join(OVERLAPS)}, not {overlap!r:.40}", field="overlap")
    return overlap


def _micros(moment: datetime, field: str) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidArgument(
            f"{field} must be a datetime with a time zone, such as datetime(2026, 11, 1, tzinfo=UTC)", field=field
        )
    return round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)
