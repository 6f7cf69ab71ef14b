"""The state of a shard as a checkpoint keeps it: data alone."""

from __future__ import annotations

import msgspec

from boki.libs.bokiqueue.backlog import Rate
from boki.libs.bokiqueue.groups import LEASED, Aside, Delivery
from boki.libs.bokiqueue.records import GroupName, Later, Number, Settings, Taker, Time
from boki.libs.bokiqueue.sessions import Given, Popped, Standing


class OpDone(msgspec.Struct, frozen=True, array_like=True):
    """What a take with an op was given."""

    time_us: Time
    deliveries: list[Delivery]


class GroupSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """A group as a checkpoint keeps it."""

    cursor: Number
    aside: list[Aside]
    is_dry: bool
    done_count: Number
    expired_count: Number
    rate: Rate


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A process that consumed for a group, until then: of a Boki that dealt shards to processes."""

    group: str
    taker: bytes
    until_us: Later


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state after the record `at`. `resume`: where the untouched pushes begin."""

    at: Number
    time_us: Time
    resume: Number
    resume_pos: Number
    floor: Number
    settings: Settings
    groups: dict[GroupName, GroupSnapshot]
    takers: dict[Taker, Given]
    popped: dict[Taker, list[Popped]]
    ops: dict[str, OpDone]
    marks: list[tuple[Number, Number, Number]]
    last_fence: Number
    push_rate: Rate
    members: list[Member]
    opened_at: Number = 0
    passed_by: Number = 0
    standing: list[Standing] = []
    """Of each group in the order of turns."""


def sound_snapshot(data: bytes, covers: int) -> Snapshot | None:
    """The state in a checkpoint that covers so much, if it is a valid one; None if it is to be skipped."""
    try:
        snapshot = msgspec.msgpack.decode(data, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    is_sound = (
        snapshot.at == covers
        and snapshot.resume <= snapshot.at + 1
        and all(snapshot.resume_pos <= group.cursor for group in snapshot.groups.values())
        and all(
            aside.spot.pos < group.cursor and (aside.deliveries > 0 or aside.status != LEASED)
            for group in snapshot.groups.values()
            for aside in group.aside
        )
    )
    return snapshot if is_sound else None
