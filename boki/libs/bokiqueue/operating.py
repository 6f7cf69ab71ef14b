"""A queue as an operator sees it: figures, groups, dead letters, replay. Figures are pure; nothing is decided here."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from boki import InvalidArgument, LogBook, NotFound, WrongType
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.callers import Body, Lost
from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.groups import DEAD, LEASED, MAX_ASIDE, TAKE_BYTES, WAITING, Aside, Delivery, Group, Spot
from boki.libs.bokiqueue.lines import Line
from boki.libs.bokiqueue.messages import DeadLetter, Message, shown
from boki.libs.bokiqueue.records import BYTES, DropGroup, OpenGroup, Settle, Setup, sound
from boki.libs.bokiqueue.sessions import NEVER_US
from boki.libs.bokiqueue.state import DEFAULT_GROUP, ShardState
from boki.libs.fold.arguments import NAME

Place = tuple[int, int]
"""A shard, and a position in it."""


class GroupStats(msgspec.Struct, frozen=True):
    """A consumer group in figures. `depth` is what it has still to do, `in_flight` what is leased of that, and
    `delayed` what is not due yet; `oldest_age_s` is that of the oldest message that it has not done, and
    `done_per_s` how many it has done lately. All by the log's time: what has expired counts as that alone.
    `blocked`: its limit of leased, delayed, parked and dead messages is reached, and nothing is given out.
    `unconfirmed`: popped by consumers that waited, and that have not said yet that they received them.
    """

    name: str
    depth: int
    in_flight: int
    delayed: int
    dead: int
    oldest_age_s: float
    done: int
    expired: int
    done_per_s: float
    blocked: bool
    unconfirmed: int = 0


def depth(state: ShardState, name: str) -> int:
    """Messages that the group has not done, without dead letters; of a group that is not there, all."""
    group = state.groups.get(name)
    if group is None:
        return state.backlog.next_pos - state.backlog.first_pos
    return state.backlog.next_pos - group.cursor + len(group.aside) - group.count(DEAD)


def length(state: ShardState, now_us: int = 0) -> int:
    """Messages that some group has not done: what the maximum length bounds. With a time, those that live then."""
    return max(depth(state, name) - expired(state, name, now_us) for name in state.groups or (DEFAULT_GROUP,))


def expired(state: ShardState, name: str, now_us: int) -> int:
    """How many of them have expired by then and were not come to yet; of a queue with ages all are looked at."""
    if not now_us:
        return 0
    group = state.groups.get(name)
    cursor = state.backlog.first_pos if group is None else group.cursor
    untouched = sum(
        segment.first + segment.count - max(cursor, segment.first)
        for segment in (state.backlog.segments() if state.backlog.may_expire else ())
        if segment.has_expired(now_us) and segment.first + segment.count > cursor
    )
    asides = () if group is None else group.aside.values()
    return untouched + sum(aside.has_expired(now_us) for aside in asides)


def oldest_us(state: ShardState, name: str, now_us: int) -> int:
    """When the oldest message was pushed that the group has not done; 0 if there is none.

    Dead letters do not count, nor what has expired by then.
    """
    group = state.groups.get(name)
    asides = () if group is None else group.aside.values()
    oldest = [aside.spot.time_us for aside in asides if aside.status != DEAD and not aside.has_expired(now_us)]
    cursor = state.backlog.first_pos if group is None else group.cursor
    segment = state.backlog.find(cursor)
    if segment is not None and segment.has_expired(now_us):
        live = (one for one in state.backlog.segments() if one.first >= cursor and not one.has_expired(now_us))
        segment = next(live, None)
    return min([*oldest, segment.time_us] if segment is not None else oldest, default=0)


def next_expiry_us(state: ShardState, now_us: int) -> int:
    """When the next message expires that some group has still to take; in the far future if none does."""
    untouched = (segment.expires_us for segment in (state.backlog.segments() if state.backlog.may_expire else ()))
    asides = (
        aside.spot.expires_us
        for group in state.groups.values()
        for aside in group.aside.values()
        if aside.status not in (LEASED, DEAD)
    )
    return min((due_us for dues in (untouched, asides) for due_us in dues if due_us > now_us), default=NEVER_US)


def group_stats(name: str, states: list[ShardState], now_us: int) -> GroupStats:
    """The group's figures over all shards."""
    groups = [state.groups[name] for state in states if name in state.groups]
    oldest = [time_us for state in states if (time_us := oldest_us(state, name, now_us))]
    expired_now = sum(expired(state, name, now_us) for state in states)
    delayed = [one for group in groups for one in group.aside.values() if one.status == WAITING]
    return GroupStats(
        name,
        sum(depth(state, name) for state in states) - expired_now,
        sum(group.count(LEASED) for group in groups),
        sum(not one.has_expired(now_us) for one in delayed),
        sum(group.count(DEAD) for group in groups),
        round(max(0, now_us - min(oldest, default=now_us)) / 1e6, 3),
        sum(group.done_count for group in groups),
        sum(group.expired_count for group in groups) + expired_now,
        round(sum(group.rate.per_s(now_us) for group in groups), 3),
        any(len(group.aside) >= MAX_ASIDE for group in groups),
        sum(state.standing.unheard_pops(name) for state in states),
    )


def next_spots(state: ShardState, name: str, count: int, now_us: int) -> list[Spot]:
    """What a take by the group would be given now: it is given to a copy of the group."""
    group = state.groups.get(name) or Group(state.backlog.first_pos)
    looking = Group(group.cursor, map(msgspec.structs.replace, group.aside.values()))
    return [one.spot for one in looking.take(state.backlog, now_us, count, 0, 0)]


class QueueStats(msgspec.Struct, frozen=True):
    """A queue in figures, and what holds for it (see `create`); `depth` is the largest of its groups'."""

    name: str
    shards: int
    pushed: int
    depth: int
    pushed_per_s: float
    max_deliveries: int
    max_length: int
    retain_s: float
    groups: list[GroupStats]
    passed_by: int = 0
    """Records under the queue's tags that are not valid records of a queue: they change nothing."""


async def append_to_all(logbook: LogBook, shared: Following, make: Callable[[int], OpenGroup | DropGroup]) -> None:
    """Append what is made for each shard, at one place of the log."""
    made = [make(shard) for shard in range(shared.shards)]
    group = [(records.encode(kind), records.tags_of(kind, shared.queue, shared.shards)) for kind in made]
    await logbook.append_many(group)
    await shared.follower.catch_up(logbook)


# Looking


def stats(shared: Following, wall_us: int) -> QueueStats:
    """The queue in figures, by this machine's time."""
    states = [line.state for line in shared.lines]
    now_us = shared.clock.looking_us(wall_us)
    names = sorted({name for state in states for name in state.groups})
    return QueueStats(
        shared.queue,
        shared.shards,
        sum(state.backlog.next_pos for state in states),
        sum(length(state, now_us) for state in states),
        round(sum(state.push_rate.per_s(now_us) for state in states), 3),
        states[0].settings.max_deliveries,
        states[0].settings.max_length,
        states[0].settings.retain_us / 1e6,
        [group_stats(name, states, now_us) for name in names],
        states[0].passed_by,
    )


async def peek(logbook: LogBook, shared: Following, group: str, count: int, kind: Any) -> list[Message[Any]]:
    """See `Queue.peek`."""
    now_us = shared.clock.looking_us(logbook.session.likely_time_us())
    found: list[Message[Any]] = []
    async for line, spot, body in _with_bodies(
        logbook, shared, lambda state, most: next_spots(state, group, most, now_us), count
    ):
        if isinstance(body, tuple):  # else no take would find it either
            found.append(Message(shared.queue, line.shard, group, Delivery(spot, 0, 0, 0), *body, kind))
    return found


async def dead_letters(logbook: LogBook, shared: Following, group: str, limit: int) -> list[DeadLetter]:
    """See `Queue.dead_letters`."""

    def spots(state: ShardState, most: int) -> list[Spot]:
        return [aside.spot for aside in _dead(state, group)][:most]

    found: list[DeadLetter] = []
    async for line, spot, body in _with_bodies(logbook, shared, spots, limit):
        form, data = body if isinstance(body, tuple) else (BYTES, b"")
        aside = line.state.groups[group].aside[spot.pos]
        identity = f"{spot.seqnum}-{spot.index}"
        letter = aside.reason, aside.deliveries, spot.time_us, aside.due_us, form, data
        found.append(DeadLetter(f"{line.shard}-{spot.pos}", identity, *letter))
    return found


def _dead(state: ShardState, name: str) -> list[Aside]:
    group = state.groups.get(name)
    return [] if group is None else [one for _, one in sorted(group.aside.items()) if one.status == DEAD]


async def _with_bodies(
    logbook: LogBook, shared: Following, spots_of: Callable[[ShardState, int], list[Spot]], most: int
) -> AsyncIterator[tuple[Line, Spot, Body | Lost]]:
    """These messages of each shard with their bodies: `most` at most, and of large ones as many as fill a take."""
    room_bytes = TAKE_BYTES
    for line in shared.lines:
        spots = spots_of(line.state, most)
        bodies = await shared.bodies.fetch(logbook, [Delivery(spot, 0, 0, 0) for spot in spots], room_bytes)
        for spot, body in zip(spots, bodies, strict=False):
            yield line, spot, body
            most -= 1
            room_bytes -= len(body[1]) if isinstance(body, tuple) else 0
        if len(bodies) < len(spots) or room_bytes <= 0 or not most:
            return


async def change_dead(logbook: LogBook, shared: Following, group: str, verb: int, wanted: dict[Place, str]) -> int:
    """Redrive or purge the dead letters at these (shard, position), by their handles, or all; how many there were."""
    dead = {(line.shard, one.spot.pos) for line in shared.lines for one in _dead(line.state, group)}
    strange = [handle for place, handle in wanted.items() if place not in dead]
    if strange:
        raise _no_dead_letters(shared.queue, group, strange, "none was changed")
    settled = [(shard, pos, 0) for shard, pos in sorted(wanted or dead)]
    gone = await shared.settle(logbook, Settle(group, verb, []), settled)
    changed = len(settled) - len(gone)
    if gone and wanted:
        others = "what else was named was changed" if changed else "none was changed"
        named = [f"{shard}-{pos}" for shard, pos, _ in gone]
        raise _no_dead_letters(shared.queue, group, named, f"another process was quicker; {others}", changed)
    return changed


def _no_dead_letters(queue: str, group: str, handles: list[str], what_of_others: str, changed: int = 0) -> NotFound:
    named = ", ".join(handles[:10]) + (f" and {len(handles) - 10} more" if len(handles) > 10 else "")
    of_group = f", group {group!r}" if group else ""
    return NotFound(
        f"there is no dead letter {named} in queue {queue!r}{of_group}: {what_of_others}",
        outcome="unknown" if changed else "not_applied",
        field="handle",
    )


async def queue_names(logbook: LogBook) -> list[str]:
    """The queues of a book, by name."""
    names: set[str] = set()
    start = 0
    while (page := await logbook.read(records.QUEUES_TAG, start=start)).records:
        prefix = f"{records.QUEUES_TAG}:"
        own = [one for one in page.records if isinstance(sound(one), Setup)]
        found = {tag.removeprefix(prefix) for one in own for tag in one.tags if tag.startswith(prefix)}
        names |= {name for name in found if NAME.fullmatch(name)}
        start = page.next_start
    return sorted(names)


def start_of(start: object, start_time_s: object) -> tuple[int, int]:
    """From which record and which time on a group begins."""
    if isinstance(start, str) and start not in ("earliest", "now"):
        raise InvalidArgument(f'start must be a seqnum, "earliest" or "now", not {start!r:.60}', field="start")
    seqnum = {"earliest": 0, "now": records.NOW}[start] if isinstance(start, str) else start
    if type(seqnum) is not int or seqnum < 0 or seqnum > records.NOW:
        raise InvalidArgument(f"start must be a seqnum, not {start!r:.60}", field="start")
    return seqnum, 0 if start_time_s is None else _time_us(start_time_s)


def _time_us(time_s: object) -> int:
    if isinstance(time_s, bool) or not isinstance(time_s, (int, float)):
        raise WrongType(
            f"start_time_s must be seconds since the epoch, not {type(time_s).__name__}", field="start_time_s"
        )
    if not 0 <= time_s < 1e11:
        raise InvalidArgument(
            f"start_time_s must be seconds since the epoch, not {shown(time_s)}", field="start_time_s"
        )
    return round(time_s * 1e6)
