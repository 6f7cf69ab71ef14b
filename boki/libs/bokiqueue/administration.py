"""A queue as an operator sees it: settings, groups, figures, dead letters, replay. The base of `Queue`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Generic, TypeVar

import msgspec

from boki import ConditionFailed, Expect, InvalidArgument, LogBook, NotFound, TooLarge, WrongType
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.checkpoints import newest_settings
from boki.libs.bokiqueue.figures import GroupStats as GroupStats
from boki.libs.bokiqueue.figures import group_stats, length
from boki.libs.bokiqueue.following import Following, following
from boki.libs.bokiqueue.groups import DEAD, TAKE_BYTES, Aside, Delivery
from boki.libs.bokiqueue.messages import BYTES, Message
from boki.libs.bokiqueue.peeking import next_spots
from boki.libs.bokiqueue.records import PURGE, REDRIVE, DropGroup, OpenGroup, Settings, Settle, Setup
from boki.libs.bokiqueue.refusals import (
    MAX_SHARDS,
    NAME,
    check_count,
    check_group,
    check_queue,
    check_span,
    no_such_group,
    no_such_queue,
    shown,
)
from boki.libs.bokiqueue.state import MAX_GROUPS
from boki.libs.bokiqueue.validity import sound

T = TypeVar("T")

SETTINGS_S: Final = 1.0
"""For so long a handle trusts the settings that it has read."""
MAX_MESSAGES: Final = 1_000_000_000


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


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that failed too often, or that a consumer gave up. `id` is the message's, `handle` names it here.

    Of one whose body cannot be read any more `data` is empty.
    """

    handle: str
    id: str
    reason: str
    deliveries: int
    pushed_us: int
    died_us: int
    form: int
    data: bytes


class Administration(Generic[T]):
    """See `Queue`."""

    def __init__(self, logbook: LogBook, name: str, *, group: str = "", type: type[T] | None = None) -> None:  # noqa: A002
        """Nothing is read or written yet."""
        self.logbook = logbook
        self.name = check_queue(name)
        self.group = check_group(group)
        self.kind = type
        self._settings: Settings | None = None
        self._settings_seqnum = 0
        self._version = 0
        self._settings_read_at = 0.0

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} of {self.logbook.name!r}>"

    # Settings

    async def read_settings(self, *, fresh: bool = False) -> Settings | None:
        """The queue's settings; None if there is no such queue. They may be a second old, unless they are `fresh`."""
        is_old = asyncio.get_running_loop().time() - self._settings_read_at > SETTINGS_S
        if fresh or is_old or self._settings is None:
            last, found, version = await newest_settings(self.logbook, self.name, fresh=fresh)
            if found is None and not fresh:
                last, found, version = await newest_settings(self.logbook, self.name, fresh=True)
            self._know(found, last, version)
        return self._settings

    def _know(self, settings: Settings | None, seqnum: int, version: int) -> None:
        self._settings, self._settings_seqnum, self._version = settings, seqnum, version
        self._settings_read_at = asyncio.get_running_loop().time()

    def stands(self) -> Expect:
        """The condition that the queue is there, as this handle knows it: its book may have been deleted meanwhile."""
        return Expect(records.settings_tag(self.name), self._settings_seqnum)

    async def create(
        self, *, shards: int = 1, max_deliveries: int = 10, max_length: int = 0, retain_s: float = 0
    ) -> Settings:
        """Have a queue of that name, with these settings if there was none; the settings that it has.

        `shards`: how many parts it has, each in order, for ever. `max_deliveries`: a message that was leased so often
        without an ack becomes a dead letter (0: never). `max_length`: pushes wait, or are refused, while so many
        messages are to be taken (0: no bound; what processes push at the same moment may go a little beyond it).
        `retain_s`: how long messages that all groups have done can still be replayed.
        """
        settings = _settings(shards, max_deliveries, max_length, retain_s)
        return await self._set_up(settings)

    async def configure(
        self, *, max_deliveries: int | None = None, max_length: int | None = None, retain_s: float | None = None
    ) -> Settings:
        """Change what is given; see `create`. Processes that only push notice it within a second.

        If nothing is changed nothing is appended.
        """
        while True:
            last, old, version = await newest_settings(self.logbook, self.name, fresh=True)
            if old is None:
                raise no_such_queue(self.name, self.logbook.name)
            settings = _settings(
                old.shards,
                old.max_deliveries if max_deliveries is None else max_deliveries,
                old.max_length if max_length is None else max_length,
                old.retain_us / 1e6 if retain_s is None else retain_s,
            )
            if settings == old:
                self._know(old, last, version)
                return old
            try:
                return await self._append_settings(settings, last)
            except ConditionFailed:
                continue

    async def _set_up(self, settings: Settings) -> Settings:
        known = await self.read_settings()
        while known is None:
            last, known, version = await newest_settings(self.logbook, self.name, fresh=True)
            if known is None:
                with suppress(ConditionFailed):  # somebody else has just created it
                    return await self._append_settings(settings, last, is_first=True)
            self._know(known, last, version)
        if known.shards != settings.shards:
            if settings.shards == 1:
                return known
            raise InvalidArgument(
                f"queue {self.name!r} was created with {known.shards} shards and the number cannot change: create "
                "another queue",
                field="shards",
            )
        return known

    async def _append_settings(self, settings: Settings, last_seqnum: int, *, is_first: bool = False) -> Settings:
        tag = records.settings_tag(self.name)
        group: list[tuple[bytes, tuple[str, ...]]] = [
            (records.encode(Setup(shard, settings, is_first)), records.record_tags(self.name, shard, settings.shards))
            for shard in range(settings.shards)
        ]
        if is_first and settings.shards == 1:  # who still follows one of several shards must come to this
            group[0] = (group[0][0], (*group[0][1], records.feed_tag(self.name)))
        group.append(
            (records.encode(Setup(0, settings)), (tag, f"{records.QUEUES_TAG}:{self.name}", records.QUEUES_TAG))
        )
        seqnums = await self.logbook.append_many(group, when=Expect(tag, last_seqnum))
        self._know(settings, seqnums[-1], records.VERSION)
        return settings

    async def check_stands(self, shards: int) -> None:
        """`NoSuchQueue` if it is no more, or another one by now; else `stands` is a condition that holds."""
        settings = await self.read_settings(fresh=True)
        if settings is None or settings.shards != shards:
            raise no_such_queue(self.name, self.logbook.name)

    @property
    def shards(self) -> int:
        """How many parts it has. The queue must have been opened."""
        return self._known_settings().shards

    @property
    def max_deliveries(self) -> int:
        """What decides now about dead letters, as far as this process has read. The queue must have been opened."""
        return self._shared(self._known_settings()).lines[0].state.settings.max_deliveries

    def _known_settings(self) -> Settings:
        if self._settings is None:
            raise InvalidArgument(f"queue {self.name!r} was not opened yet: await queue.create() first", field="queue")
        return self._settings

    def _shared(self, settings: Settings) -> Following:
        shared = following(self.logbook, self.name, settings.shards)
        shared.may_stand = self._version >= records.VERSION
        return shared

    async def _modernised(self, settings: Settings) -> Settings:
        """The settings, in a record that readers refuse who do not know what stands under standing takes."""
        if self._version < records.VERSION:
            with suppress(ConditionFailed):  # somebody else was quicker
                return await self._append_settings(settings, self._settings_seqnum)
            return await self.read_settings(fresh=True) or settings
        return settings

    async def _caught_up(self) -> Following:
        """The fold, after everything that is acknowledged by now."""
        settings = await self.read_settings()
        if settings is None:
            raise no_such_queue(self.name, self.logbook.name)
        shared = self._shared(settings)
        await self.logbook.sync()
        await shared.catch_up(self.logbook)
        return shared

    async def _caught_up_group(self) -> Following:
        """The same, if there is this handle's group; the default one is made by its first take."""
        shared = await self._caught_up()
        if self.group and self.group not in shared.lines[0].state.groups:
            raise no_such_group(self.name, self.group)
        return shared

    async def _append_to_all(self, shared: Following, make: Callable[[int], OpenGroup | DropGroup]) -> None:
        group = []
        for shard in range(shared.shards):
            kind = make(shard)
            tags = records.record_tags(self.name, shard, shared.shards)
            if records.ends_leases(kind):
                tags = (*tags, records.fence_tag(self.name, shard))
            group.append((records.encode(kind), tags))
        await self.logbook.append_many(group)
        await shared.catch_up(self.logbook)

    # Groups

    async def create_group(
        self, name: str, *, start: int | str = "earliest", start_time_s: float | None = None
    ) -> None:
        """Have a group that is given every message from `start` on: a seqnum, "earliest" or "now".

        `start_time_s`: from that time on instead, in seconds since the epoch. What was pushed before is given to it if
        it is still kept: because another group has not done it, or by `retain_s`. Nothing happens if there is such a
        group.
        """
        check_group(name)
        seqnum, time_us = _start(start, start_time_s)
        shared = await self._caught_up()
        if name not in (groups := shared.lines[0].state.groups) and len(groups) >= MAX_GROUPS:
            raise TooLarge(
                f"queue {self.name!r} has {len(groups):,} groups, the maximum: drop one first, or use another queue",
                field="group",
                limit=MAX_GROUPS,
            )
        await self._append_to_all(shared, lambda shard: OpenGroup(shard, name, seqnum, time_us))

    async def replay(self, *, start: int | str = "earliest", start_time_s: float | None = None) -> None:
        """Let this handle's group begin anew, from any point that is kept; what it has leased is forgotten.

        All of it at once, in the order of the log, whoever consumes meanwhile. `NoSuchGroup`
        """
        seqnum, time_us = _start(start, start_time_s)
        shared = await self._caught_up()
        if self.group not in shared.lines[0].state.groups:
            raise no_such_group(self.name, self.group)
        await self._append_to_all(shared, lambda shard: OpenGroup(shard, self.group, seqnum, time_us, is_anew=True))

    async def drop_group(self, name: str) -> None:
        """Have no such group: nothing is kept for it any more. `NoSuchGroup`"""
        shared = await self._caught_up()
        if check_group(name) not in shared.lines[0].state.groups:
            raise no_such_group(self.name, name)
        await self._append_to_all(shared, lambda shard: DropGroup(shard, name))

    # Looking

    async def stats(self) -> QueueStats:
        """The queue in figures."""
        shared = await self._caught_up()
        states = [line.state for line in shared.lines]
        now_us = shared.clock.looking_us(self.logbook.likely_time_us())
        names = sorted({name for state in states for name in state.groups})
        return QueueStats(
            self.name,
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

    async def peek(self, count: int = 10) -> list[Message[T]]:
        """The messages that the group would be given now, without taking them; of large ones fewer, of 16 MiB in all.

        Not those that are delayed, or that stand behind a message of their key.
        """
        check_count(count, "count", 1_000)
        shared = await self._caught_up_group()
        found: list[Message[T]] = []
        room = TAKE_BYTES
        now_us = shared.clock.looking_us(self.logbook.likely_time_us())
        for line in shared.lines:
            wanted = [
                Delivery(spot, 0, 0, 0) for spot in next_spots(line.state, self.group, count - len(found), now_us)
            ]
            bodies = await shared.bodies.fetch(self.logbook, wanted, room)
            for one, body in zip(wanted, bodies, strict=False):
                if isinstance(body, tuple):  # else no take would find it either
                    found.append(Message(self.name, line.shard, self.group, one, *body, self.kind))
                    room -= len(body[1])
            if len(bodies) < len(wanted) or room <= 0:
                break
        return found

    async def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """Dead letters of the group, the oldest message first; of large ones fewer, of 16 MiB in all."""
        check_count(limit, "limit", 10_000)
        shared = await self._caught_up_group()
        found: list[DeadLetter] = []
        room = TAKE_BYTES
        for line in shared.lines:
            group = line.state.groups.get(self.group)
            asides = [] if group is None else [one for _, one in sorted(group.aside.items()) if one.status == DEAD]
            asides = asides[: limit - len(found)]
            wanted = [Delivery(aside.spot, 0, 0, 0) for aside in asides]
            bodies = await shared.bodies.fetch(self.logbook, wanted, room)
            for aside, body in zip(asides, bodies, strict=False):
                form, data = body if isinstance(body, tuple) else (BYTES, b"")
                found.append(_dead_letter(line.shard, aside, form, data))
                room -= len(data)
            if len(bodies) < len(wanted) or room <= 0:
                break
        return found

    async def redrive(self, *handles: str) -> int:
        """Let dead letters be taken again, as if they had never been: those named, or all; how many there were.

        `NotFound` if one that is named is none: then nothing is changed.
        """
        return await self._change_dead(REDRIVE, handles)

    async def purge(self, *handles: str) -> int:
        """Drop dead letters for good: those named, or all; how many there were. `NotFound` as for `redrive`."""
        return await self._change_dead(PURGE, handles)

    async def _change_dead(self, verb: int, handles: tuple[str, ...]) -> int:
        wanted = {_place(handle): handle for handle in handles}
        shared = await self._caught_up_group()
        dead = {
            (line.shard, pos)
            for line in shared.lines
            if (group := line.state.groups.get(self.group)) is not None
            for pos, aside in group.aside.items()
            if aside.status == DEAD
        }
        strange = [handle for place, handle in wanted.items() if place not in dead]
        if strange:
            raise self._no_dead_letters(strange, "none was changed")
        changed = 0
        gone: list[str] = []
        by_shard: dict[int, list[int]] = {}
        for shard, pos in sorted(wanted or dead):
            by_shard.setdefault(shard, []).append(pos)
        for shard, positions in by_shard.items():
            for start in range(0, len(positions), 1_000):
                some = positions[start : start + 1_000]
                verdicts = await shared.settle(
                    self.logbook, shard, Settle(self.group, verb, [(pos, 0) for pos in some])
                )
                changed += sum(verdicts)
                gone += [f"{shard}-{pos}" for pos, is_true in zip(some, verdicts, strict=True) if not is_true]
        if gone and wanted:
            others = "what else was named was changed" if changed else "none was changed"
            raise self._no_dead_letters(gone, f"somebody else was quicker; {others}", changed)
        return changed

    def _no_dead_letters(self, handles: list[str], what_of_others: str, changed: int = 0) -> NotFound:
        named = ", ".join(handles[:10]) + (f" and {len(handles) - 10} more" if len(handles) > 10 else "")
        of_group = f", group {self.group!r}" if self.group else ""
        return NotFound(
            f"there is no dead letter {named} in queue {self.name!r}{of_group}: {what_of_others}",
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


def _settings(shards: int, max_deliveries: int, max_length: int, retain_s: float) -> Settings:
    return Settings(
        check_count(shards, "shards", MAX_SHARDS),
        check_count(max_deliveries, "max_deliveries", 1_000, least=0),
        check_count(max_length, "max_length", MAX_MESSAGES, least=0),
        check_span(retain_s, "retain_s"),
    )


def _start(start: object, start_time_s: object) -> tuple[int, int]:
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


def _dead_letter(shard: int, aside: Aside, form: int, data: bytes) -> DeadLetter:
    spot = aside.spot
    return DeadLetter(
        f"{shard}-{spot.pos}",
        f"{spot.seqnum}-{spot.index}",
        aside.reason,
        aside.deliveries,
        spot.time_us,
        aside.due_us,
        form,
        data,
    )


def _place(handle: object) -> tuple[int, int]:
    """The shard and the position that a dead letter's handle names."""
    parts = handle.split("-") if isinstance(handle, str) else []
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise InvalidArgument(f"a dead letter's handle has the form 0-17, not {handle!r:.60}", field="handle")
    return int(parts[0]), int(parts[1])
