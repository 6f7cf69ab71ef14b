"""Records of attendants that are kept beside the histories of `golden`: of a limit, and of a schedule.

Nothing of them is replayed: today's fold must read each record, and come to the state that the version which recorded
them came to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

import boki.testing
from boki.libs.bokiflow import Limit, flow, workflow
from boki.libs.bokiflow.gates.marks import gate_id_of
from boki.libs.bokiflow.gates.passing import _Codec
from boki.libs.bokiflow.gates.records import gate_tag
from boki.libs.bokiflow.gates.state import Gate
from boki.libs.bokiflow.recorded import RecordedRecord
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
