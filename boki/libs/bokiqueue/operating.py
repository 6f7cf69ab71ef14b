"""A queue as an operator sees it: settings, figures, groups, dead letters. Figures are pure; nothing is decided here.

Settings are found under their tag, trusted for a moment by a handle, and appended under a condition.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from boki import ConditionFailed, Expect, InvalidArgument, LogBook, NotFound
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.callers import Body, Lost
from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.groups import (
    DEAD,
    LEASED,
    MAX_ASIDE,
    TAKE_BYTES,
    UNTOUCHED,
    WAITING,
    Aside,
    Delivery,
    Group,
    Spot,
)
from boki.libs.bokiqueue.lines import Line
from boki.libs.bokiqueue.messages import DeadLetter, Message, no_such_queue
from boki.libs.bokiqueue.records import BYTES, MAX_SHARDS, DropGroup, OpenGroup, Settings, Settle, Setup, sound
from boki.libs.bokiqueue.sessions import NEVER_US
from boki.libs.bokiqueue.state import DEFAULT_GROUP, ShardState
from boki.libs.bokiqueue.stored import newest_settings
from boki.libs.fold.arguments import NAME, check_count, check_span, few_of

SETTINGS_S: Final = 1.0  # for this long a handle trusts the settings that it has read
MAX_MESSAGES: Final = 1_000_000_000
MAX_TIME_S: Final = 1e11

Place = tuple[int, int]
"""A shard, and a position in it."""


# Settings


class KnownSettings:
    """The settings of one queue, as one handle has read them."""

    def __init__(self, logbook: LogBook, name: str) -> None:
        self.logbook, self.name = logbook, name
        self._settings: Settings | None = None
        self._seqnum = self.version = 0
        self._read_at = 0.0

    async def read(self, *, fresh: bool = False) -> Settings | None:
        """The settings; None if there is no such queue. They may be a second old, unless they are `fresh`."""
        if fresh or self.recent is None:
            last, found, version = await newest_settings(self.logbook, self.name, fresh=fresh)
            if found is None and not fresh:
                last, found, version = await newest_settings(self.logbook, self.name, fresh=True)
            self._know(found, last, version)
        return self._settings

    @property
    def recent(self) -> Settings | None:
        """The settings, if they were read lately."""
        return self._settings if asyncio.get_running_loop().time() - self._read_at <= SETTINGS_S else None

    async def opened(self, *, fresh: bool = False) -> Settings:
        """The settings of a queue that is there. `NoSuchQueue`"""
        settings = await self.read(fresh=fresh)
        if settings is None:
            raise no_such_queue(self.name, self.logbook.name)
        return settings

    def known(self) -> Settings:
        """The settings that were read last."""
        if self._settings is None:
            raise InvalidArgument(f"queue {self.name!r} was not opened yet: await queue.create() first", field="queue")
        return self._settings

    def _know(self, settings: Settings | None, seqnum: int, version: int) -> None:
        self._settings, self._seqnum, self.version = settings, seqnum, version
        self._read_at = asyncio.get_running_loop().time()

    def stands(self) -> Expect:
        """The condition that the queue is there, as this handle knows it: its book may have been deleted meanwhile."""
        return Expect(records.settings_tag(self.name), self._seqnum)

    async def check_stands(self, shards: int) -> None:
        """`NoSuchQueue` if it is gone, or another one by now; else `stands` is a condition that holds."""
        if (await self.opened(fresh=True)).shards != shards:
            raise no_such_queue(self.name, self.logbook.name)

    async def create(self, settings: Settings) -> Settings:
        """Have these settings if there are none; those that the queue has."""
        known = await self.read(fresh=True)  # else what was deleted a moment ago seems to be there still
        while known is None:
            with suppress(ConditionFailed):  # another process has just created it
                return await self._append(settings, is_first=True)
            known = await self.read(fresh=True)
        if settings.shards not in (1, known.shards):
            raise InvalidArgument(
                f"queue {self.name!r} was created with {known.shards} shard{'' if known.shards == 1 else 's'} and the "
                "number cannot change: create another queue",
                field="shards",
            )
        return known

    async def change(self, max_deliveries: int | None, max_length: int | None, retain_s: float | None) -> Settings:
        """Change what is given. If that is nothing, nothing is appended."""
        while True:
            old = await self.opened(fresh=True)
            settings = settings_of(
                old.shards,
                old.max_deliveries if max_deliveries is None else max_deliveries,
                old.max_length if max_length is None else max_length,
                old.retain_us / 1e6 if retain_s is None else retain_s,
            )
            if settings == old:
                return old
            with suppress(ConditionFailed):
                return await self._append(settings)

    async def modernise(self, settings: Settings) -> Settings:
        """The settings, in a record that readers refuse that do not know what stands under standing takes."""
        with suppress(ConditionFailed):  # another process was quicker
            return await self._append(settings)
        return await self.opened(fresh=True)

    async def _append(self, settings: Settings, *, is_first: bool = False) -> Settings:
        name, tag = self.name, records.settings_tag(self.name)
        group: list[tuple[bytes, tuple[str, ...]]] = [
            (records.encode(Setup(shard, settings, is_first)), records.record_tags(name, shard, settings.shards))
            for shard in range(settings.shards)
        ]
        if is_first and settings.shards == 1:  # a process that still follows several shards must come to this
            group[0] = (group[0][0], (*group[0][1], records.feed_tag(name)))
        queues = records.QUEUES_TAG
        group.append((records.encode(Setup(0, settings)), (tag, f"{queues}:{name}", queues)))
        seqnums = await self.logbook.append_many(group, when=self.stands())
        self._know(settings, seqnums[-1], records.VERSION)
        return settings


def settings_of(shards: int, max_deliveries: int, max_length: int, retain_s: float) -> Settings:
    """Settings that were asked for."""
    return Settings(
        check_count(shards, "shards", MAX_SHARDS),
        check_count(max_deliveries, "max_deliveries", 1_000, least=0),
        check_count(max_length, "max_length", MAX_MESSAGES, least=0),
        check_span(retain_s, "retain_s"),
    )


# Figures


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


class _Left(NamedTuple):
    """Messages that a group has not done, which were pushed at one time and are in one condition (see `groups`)."""

    messages: int
    time_us: int
    expires_us: int
    status: int

    def has_expired(self, now_us: int) -> bool:
        """Whether no take gives any of them any more: their time is over, and they are not leased."""
        return self.status not in (LEASED, DEAD) and 0 < self.expires_us <= now_us


def _left(state: ShardState, name: str) -> Iterator[_Left]:
    """What the group has not done. All that is untouched counts as pushed with the first of it, unless pushes of the
    queue expire: then all are looked at, which takes long in a long queue.
    """
    backlog, group = state.backlog, state.groups.get(name)
    cursor = backlog.first_pos if group is None else group.cursor
    if backlog.may_expire:
        for one in backlog.segments():
            if (count := one.first + one.count - max(cursor, one.first)) > 0:
                yield _Left(count, one.time_us, one.expires_us, UNTOUCHED)
    elif (first := backlog.find(cursor)) is not None:
        yield _Left(backlog.next_pos - cursor, first.time_us, 0, UNTOUCHED)
    for aside in () if group is None else group.aside.values():
        yield _Left(1, aside.spot.time_us, aside.spot.expires_us, aside.status)


def depth(state: ShardState, name: str) -> int:
    """Messages that the group has not done, without dead letters; of a group that is not there, all."""
    group = state.groups.get(name)
    if group is None:
        return state.backlog.next_pos - state.backlog.first_pos
    return state.backlog.next_pos - group.cursor + len(group.aside) - group.count(DEAD)


def length(state: ShardState, now_us: int = 0) -> int:
    """Messages that some group has not done: what the maximum length bounds. With a time, those that live then."""
    names = state.groups or (DEFAULT_GROUP,)
    if not now_us:
        return max(depth(state, name) for name in names)
    return max(
        sum(one.messages for one in _left(state, name) if one.status != DEAD and not one.has_expired(now_us))
        for name in names
    )


def next_expiry_us(state: ShardState, now_us: int) -> int:
    """When the next message expires that some group has still to take; in the far future if none does."""
    left = (one for name in state.groups or (DEFAULT_GROUP,) for one in _left(state, name))
    later = (one.expires_us for one in left if one.expires_us > now_us and one.status not in (LEASED, DEAD))
    return min(later, default=NEVER_US)


def group_stats(name: str, states: list[ShardState], now_us: int) -> GroupStats:
    """The group's figures over all shards."""
    groups = [state.groups[name] for state in states if name in state.groups]
    left = [one for state in states for one in _left(state, name)]
    live = [one for one in left if not one.has_expired(now_us)]
    oldest_us = min((one.time_us for one in live if one.status != DEAD), default=now_us)
    counts: Counter[int] = Counter()
    for one in live:
        counts[one.status] += one.messages
    return GroupStats(
        name,
        counts.total() - counts[DEAD],
        counts[LEASED],
        counts[WAITING],
        counts[DEAD],
        round(max(0, now_us - oldest_us) / 1e6, 3),
        sum(group.done_count for group in groups),
        sum(group.expired_count for group in groups) + sum(one.messages for one in left) - counts.total(),
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
    await shared.folds.append_if_exists(logbook, lambda exists: logbook.append_many(group, when=exists))
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
    found = await _looked_at(logbook, shared, lambda state, most: next_spots(state, group, most, now_us), count)
    return [
        Message(shared.queue, line.shard, group, Delivery(spot, 0, 0, 0), *body, kind)
        for line, spot, body in found
        if isinstance(body, tuple)  # else no take would find it either
    ]


async def dead_letters(logbook: LogBook, shared: Following, group: str, limit: int) -> list[DeadLetter]:
    """See `Queue.dead_letters`."""
    letters: dict[Place, DeadLetter] = {}

    def spots(state: ShardState, most: int) -> list[Spot]:
        dead = _dead(state, group)[:most]
        for one in dead:  # as they are now: the fold continues while bodies are read
            identity, spot = f"{one.spot.seqnum}-{one.spot.index}", one.spot
            told = identity, one.reason, one.deliveries, spot.time_us, one.due_us, BYTES, b""
            letters[state.shard, spot.pos] = DeadLetter(f"{state.shard}-{spot.pos}", *told)
        return [one.spot for one in dead]

    found: list[DeadLetter] = []
    for line, spot, body in await _looked_at(logbook, shared, spots, limit):
        letter = letters[line.shard, spot.pos]
        form, data = body if isinstance(body, tuple) else (BYTES, b"")
        found.append(msgspec.structs.replace(letter, form=form, data=data))
    return found


def _dead(state: ShardState, name: str) -> list[Aside]:
    """The group's dead letters, in order."""
    group = state.groups.get(name)
    return [] if group is None else [one for _, one in sorted(group.aside.items()) if one.status == DEAD]


async def _looked_at(
    logbook: LogBook, shared: Following, spots_of: Callable[[ShardState, int], list[Spot]], most: int
) -> list[tuple[Line, Spot, Body | Lost]]:
    """These messages of each shard with their bodies: `most` at most, and of large ones as many as fill a take."""
    found: list[tuple[Line, Spot, Body | Lost]] = []
    room_bytes = TAKE_BYTES
    for line in shared.lines:
        spots = spots_of(line.state, most - len(found))[: most - len(found)]
        taken = [(line.shard, Delivery(spot, 0, 0, 0)) for spot in spots]
        bodies = await shared.folds.fetch(logbook, taken, room_bytes)
        found += [(line, spot, body) for spot, body in zip(spots, bodies, strict=False)]
        room_bytes -= sum(len(body[1]) for body in bodies if isinstance(body, tuple))
        if len(bodies) < len(spots) or room_bytes <= 0 or len(found) == most:
            break
    return found


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
    of_group = f", group {group!r}" if group else ""
    return NotFound(
        f"there is no dead letter {few_of(handles)} in queue {queue!r}{of_group}: {what_of_others}",
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
    """From which record and which time on a group begins. A seqnum may be in digits."""
    if isinstance(start, str) and start.isascii() and start.isdigit() and len(start) < 20:
        start = int(start)
    if isinstance(start, str) and start not in ("earliest", "now"):
        raise InvalidArgument(f'start must be a seqnum, "earliest" or "now", not {start!r:.60}', field="start")
    seqnum = {"earliest": 0, "now": records.NOW}[start] if isinstance(start, str) else start
    if type(seqnum) is not int or seqnum < 0 or seqnum > records.NOW:
        raise InvalidArgument(f"start must be a seqnum, not {start!r:.60}", field="start")
    time_us = 0 if start_time_s is None else check_span(start_time_s, "start_time_s", most_s=MAX_TIME_S)
    return seqnum, time_us
