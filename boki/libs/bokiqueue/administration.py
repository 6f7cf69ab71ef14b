"""A queue as an operator sees it: groups, figures, dead letters, replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from boki import InvalidArgument, LogBook, NotFound, TooLarge, WrongType
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.figures import GroupStats, group_stats, length, next_spots
from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.groups import DEAD, TAKE_BYTES, Aside, Delivery
from boki.libs.bokiqueue.messages import DeadLetter, Message, parse_handle
from boki.libs.bokiqueue.records import BYTES, DropGroup, OpenGroup, Settle, Setup, sound
from boki.libs.bokiqueue.refusals import check_count, check_group, no_such_group, shown
from boki.libs.bokiqueue.state import MAX_GROUPS
from boki.libs.fold.arguments import NAME

if TYPE_CHECKING:
    from boki.libs.bokiqueue.queue import Queue


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


async def caught_up(queue: Queue[Any]) -> Following:
    """The fold, after everything that is acknowledged by now."""
    shared = await queue.opened()
    await queue.logbook.sync()
    await shared.catch_up(queue.logbook)
    return shared


async def caught_up_group(queue: Queue[Any]) -> Following:
    """The same, if there is this handle's group; the default one is made by its first take."""
    shared = await caught_up(queue)
    if queue.group and queue.group not in shared.lines[0].state.groups:
        raise no_such_group(queue.name, queue.group)
    return shared


async def append_to_all(queue: Queue[Any], shared: Following, make: Callable[[int], OpenGroup | DropGroup]) -> None:
    """Append what is made for each shard, at one place of the log."""
    made = [make(shard) for shard in range(shared.shards)]
    group = [(records.encode(kind), records.tags_of(kind, queue.name, shared.shards)) for kind in made]
    await queue.logbook.append_many(group)
    await shared.catch_up(queue.logbook)


# Groups


async def create_group(queue: Queue[Any], name: str, start: int | str, start_time_s: float | None) -> None:
    """See `Queue.create_group`."""
    check_group(name)
    seqnum, time_us = _start(start, start_time_s)
    shared = await caught_up(queue)
    if name not in (groups := shared.lines[0].state.groups) and len(groups) >= MAX_GROUPS:
        raise TooLarge(
            f"queue {queue.name!r} has {len(groups):,} groups, the maximum: drop one first, or use another queue",
            field="group",
            limit=MAX_GROUPS,
        )
    await append_to_all(queue, shared, lambda shard: OpenGroup(shard, name, seqnum, time_us))


async def replay(queue: Queue[Any], start: int | str, start_time_s: float | None) -> None:
    """See `Queue.replay`."""
    seqnum, time_us = _start(start, start_time_s)
    shared = await caught_up(queue)
    if queue.group not in shared.lines[0].state.groups:
        raise no_such_group(queue.name, queue.group)
    await append_to_all(queue, shared, lambda shard: OpenGroup(shard, queue.group, seqnum, time_us, is_anew=True))


async def drop_group(queue: Queue[Any], name: str) -> None:
    """See `Queue.drop_group`."""
    shared = await caught_up(queue)
    if check_group(name) not in shared.lines[0].state.groups:
        raise no_such_group(queue.name, name)
    await append_to_all(queue, shared, lambda shard: DropGroup(shard, name))


# Looking


async def stats(queue: Queue[Any]) -> QueueStats:
    """The queue in figures."""
    shared = await caught_up(queue)
    states = [line.state for line in shared.lines]
    now_us = shared.clock.looking_us(queue.logbook.session.likely_time_us())
    names = sorted({name for state in states for name in state.groups})
    return QueueStats(
        queue.name,
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


async def peek(queue: Queue[Any], count: int) -> list[Message[Any]]:
    """The messages that the group would be given now, without taking them; of large ones fewer, of 16 MiB in all.

    Not those that are delayed, or that stand behind a message of their key.
    """
    check_count(count, "count", 1_000)
    shared = await caught_up_group(queue)
    found: list[Message[Any]] = []
    room = TAKE_BYTES
    now_us = shared.clock.looking_us(queue.logbook.session.likely_time_us())
    for line in shared.lines:
        wanted = [Delivery(spot, 0, 0, 0) for spot in next_spots(line.state, queue.group, count - len(found), now_us)]
        bodies = await shared.bodies.fetch(queue.logbook, wanted, room)
        for one, body in zip(wanted, bodies, strict=False):
            if isinstance(body, tuple):  # else no take would find it either
                found.append(Message(queue.name, line.shard, queue.group, one, *body, queue.kind))
                room -= len(body[1])
        if len(bodies) < len(wanted) or room <= 0:
            break
    return found


async def dead_letters(queue: Queue[Any], limit: int) -> list[DeadLetter]:
    """Dead letters of the group, the oldest message first; of large ones fewer, of 16 MiB in all."""
    check_count(limit, "limit", 10_000)
    shared = await caught_up_group(queue)
    found: list[DeadLetter] = []
    room = TAKE_BYTES
    for line in shared.lines:
        group = line.state.groups.get(queue.group)
        asides = [] if group is None else [one for _, one in sorted(group.aside.items()) if one.status == DEAD]
        asides = asides[: limit - len(found)]
        wanted = [Delivery(aside.spot, 0, 0, 0) for aside in asides]
        bodies = await shared.bodies.fetch(queue.logbook, wanted, room)
        for aside, body in zip(asides, bodies, strict=False):
            form, data = body if isinstance(body, tuple) else (BYTES, b"")
            found.append(_dead_letter(line.shard, aside, form, data))
            room -= len(data)
        if len(bodies) < len(wanted) or room <= 0:
            break
    return found


async def change_dead(queue: Queue[Any], verb: int, handles: tuple[str, ...]) -> int:
    """See `Queue.redrive` and `Queue.purge`."""
    wanted = {parse_handle(handle): handle for handle in handles}
    shared = await caught_up_group(queue)
    dead = {
        (line.shard, pos)
        for line in shared.lines
        if (group := line.state.groups.get(queue.group)) is not None
        for pos, aside in group.aside.items()
        if aside.status == DEAD
    }
    strange = [handle for place, handle in wanted.items() if place not in dead]
    if strange:
        raise _no_dead_letters(queue, strange, "none was changed")
    changed = 0
    gone: list[str] = []
    by_shard: dict[int, list[int]] = {}
    for shard, pos in sorted(wanted or dead):
        by_shard.setdefault(shard, []).append(pos)
    for shard, positions in by_shard.items():
        for start in range(0, len(positions), 1_000):
            some = positions[start : start + 1_000]
            verdicts = await shared.settle(queue.logbook, shard, Settle(queue.group, verb, [(pos, 0) for pos in some]))
            changed += sum(verdicts)
            gone += [f"{shard}-{pos}" for pos, is_true in zip(some, verdicts, strict=True) if not is_true]
    if gone and wanted:
        others = "what else was named was changed" if changed else "none was changed"
        raise _no_dead_letters(queue, gone, f"somebody else was quicker; {others}", changed)
    return changed


def _no_dead_letters(queue: Queue[Any], handles: list[str], what_of_others: str, changed: int = 0) -> NotFound:
    named = ", ".join(handles[:10]) + (f" and {len(handles) - 10} more" if len(handles) > 10 else "")
    of_group = f", group {queue.group!r}" if queue.group else ""
    return NotFound(
        f"there is no dead letter {named} in queue {queue.name!r}{of_group}: {what_of_others}",
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
