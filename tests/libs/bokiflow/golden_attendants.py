"""Records of attendants that are kept beside the histories of `golden`: of limits, of a schedule, and of a lock, whose
queue has no attendant but its workflows.

Nothing of them is replayed: today's fold must read each record, and come to the state that the version which recorded
them came to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

import msgspec

import boki.testing
from boki.libs.bokiflow import Limit, flow, workflow
from boki.libs.bokiflow.gates.marks import gate_id_of
from boki.libs.bokiflow.gates.passing import _Codec
from boki.libs.bokiflow.gates.records import gate_tag
from boki.libs.bokiflow.gates.state import Gate
from boki.libs.bokiflow.locks import work
from boki.libs.bokiflow.locks.state import Freed, LockNote, LockQueue, LockRecord, Queued, Wanted, lock_tag
from boki.libs.bokiflow.recorded import RecordedRecord
from boki.libs.bokiflow.records import CODEC
from boki.libs.bokiflow.schedules import state as schedules

NAME = "golden"


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """What an attendant has followed."""

    records: tuple[RecordedRecord, ...]
    kept: bytes
    """The state behind the last of them, as the record that the attendant writes of it."""


@workflow(limit=Limit(concurrency=2, rate=3, per_s=3_600))
async def limited_by_rate(_n: int) -> Any:
    return await flow.receive("go")


@workflow
async def every_day(_n: int) -> Any:
    return await flow.receive("go")


async def _limit(ctx: boki.testing.Context) -> str:
    """Of two that run, one has ended; of those that wait, one may begin, and the rate holds the others up."""
    for n in range(5):
        await limited_by_rate.start(ctx, n, id=f"{n}", priority=n % 2)
        await ctx.clock.advance(1)
    await limited_by_rate.handle(ctx, "0").signal("go")
    await ctx.clock.advance(5)
    return gate_tag(gate_id_of(limited_by_rate.name, "test"))


@workflow(limit=Limit(concurrency=1, debounce_s=60, debounce_most_s=100))
async def calmed(_n: int) -> Any:
    return await flow.receive("go")


async def _debounce(ctx: boki.testing.Context) -> str:
    """The second start has begun when the cap was reached, the later ones have superseded each other, and the last one
    waits.
    """
    for n in range(3):
        await calmed.start(ctx, n, id=f"{n}")
        await ctx.clock.advance(50)
    for n in range(3, 5):
        await calmed.start(ctx, n, id=f"{n}")
        await ctx.clock.advance(5)
    return gate_tag(gate_id_of(calmed.name, "test"))


@workflow
async def queues_up(is_late: bool) -> None:
    if is_late:
        await flow.receive("come")
    async with flow.lock(NAME):
        await flow.receive("go")


_QUEUE_KEPT_EVERY = 7


async def _lock(ctx: boki.testing.Context) -> str:
    """The queue was written down whole; since then a holder and one that waits were found to have ended, an older one
    has come, and the one that was in its way has left.
    """
    older = await queues_up.start(ctx, True, id="older")
    with patch.object(work, "KEPT_EVERY", _QUEUE_KEPT_EVERY):
        for n in range(3):
            await ctx.clock.advance(1)
            one = await queues_up.start(ctx, False, id=f"{n}")
            await one.signal("go")
            await one.result()
        handles = []
        for n in range(3, 7):
            handles.append(await queues_up.start(ctx, False, id=f"{n}"))
            await ctx.clock.advance(1)
        await handles[0].kill()
        await ctx.clock.advance(60)
        await older.signal("come")
        await handles[2].kill()
        await ctx.clock.advance(60)
        await handles[1].signal("go")
        await handles[1].result()
    return lock_tag(NAME)


class _LockCodec:
    """Records of a lock, as those who read its queue take them in."""

    @staticmethod
    def encode(note: LockNote) -> bytes:
        return CODEC.encode(LockRecord(note))

    @staticmethod
    def own(data: bytes) -> LockNote | None:
        record = CODEC.own(data)
        return record.note if isinstance(record, LockRecord) else None


class _Queue:
    """The queue of a lock, with what a fold of an attendant has."""

    def __init__(self) -> None:
        self._queue = LockQueue()

    def apply(self, seqnum: int, _time_us: int, note: LockNote) -> None:
        """Take in the next record, which decides what it says."""
        if isinstance(note, Wanted | Freed):
            decided, _ = self._queue.decided(note)
            assert decided == note, f"the record at {seqnum} says {note}, and decides {decided}"
        self._queue.apply(seqnum, note)

    def kept(self) -> Queued:
        return Queued(tuple(self._queue.requests))


async def _schedule(ctx: boki.testing.Context) -> str:
    """It was paused, resumed and triggered; one tick waits, another one was left out, and a backfill is to come."""
    schedule = await every_day.schedule(ctx, 3, id=NAME, cron="30 2 * * *", zone="Europe/Berlin", overlap="queue")
    await schedule.pause("holidays")
    await ctx.clock.advance(3 * 86_400)
    await schedule.resume()
    await schedule.trigger(key="now")
    await ctx.clock.advance(2 * 86_400)
    now = datetime.fromtimestamp(ctx.clock.time()).astimezone()
    await schedule.backfill(now - timedelta(days=9), now - timedelta(days=7))
    await ctx.clock.advance(60)
    return schedules.schedule_tag(schedule.invocation_id)


class _Kind(msgspec.Struct, frozen=True):
    act: Callable[[boki.testing.Context], Awaitable[str]]
    codec: Any
    fold: Callable[[], Any]


ATTENDANTS = {
    "limit": _Kind(_limit, _Codec, Gate),
    "debounce": _Kind(_debounce, _Codec, Gate),
    "lock": _Kind(_lock, _LockCodec, _Queue),
    "schedule": _Kind(_schedule, schedules.CODEC, lambda: schedules.Fold(NAME)),
}


def folded(kind: str, records: tuple[RecordedRecord, ...]) -> Any:
    """The state behind these records."""
    codec, fold = ATTENDANTS[kind].codec, ATTENDANTS[kind].fold()
    for record in records:
        note = codec.own(record.data)
        assert note is not None, f"the record at {record.seqnum} is not known any more"
        fold.apply(record.seqnum, record.time_us, note)
    return fold.kept()


async def followed(kind: str) -> Followed:
    """Have such an attendant decide something, and record it."""
    async with boki.testing.context() as ctx:
        tag = await ATTENDANTS[kind].act(ctx)
        page = await ctx.logbook.read(tag)
        records = tuple(RecordedRecord(one.seqnum, one.time, one.data) for one in page.records)
        return Followed(records=records, kept=ATTENDANTS[kind].codec.encode(folded(kind, records)))


def encode(found: Followed) -> bytes:
    """The content of the file."""
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def decode(content: bytes) -> Followed:
    """What such a file says."""
    return msgspec.json.decode(content, type=Followed)


def state_of(kind: str, found: Followed) -> Any:
    """The state that the version which recorded it came to."""
    return ATTENDANTS[kind].codec.own(found.kept)
