"""A shard as one looks at it: length, age, what has expired, what comes next. Pure; nothing is decided here."""

from __future__ import annotations

from typing import Final

import msgspec

from boki.libs.bokiqueue.backlog import Spot
from boki.libs.bokiqueue.groups import BACK, DEAD, LEASED, WAITING, Group
from boki.libs.bokiqueue.state import DEFAULT_GROUP, ShardState

NEVER_US: Final = 1 << 63


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


def waiting_since_us(state: ShardState, name: str) -> int:
    """Since when the next message waits to be taken, or from when on one can be; 0: there is none."""
    group = state.groups.get(name)
    segment = state.backlog.find(state.backlog.first_pos if group is None else group.cursor)
    if group is not None and (group.is_dry or segment is None) and not group.back_count:
        return group.next_due_us()
    if group is not None and group.back_count:
        return group.oldest_back_us()
    return segment.time_us if segment is not None else 0


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
        any(group.is_blocked for group in groups),
        sum(state.standing.unheard_pops(name) for state in states),
    )


def next_spots(state: ShardState, name: str, count: int, now_us: int) -> list[Spot]:
    """What a take by the group would find now: first what came back, then what is untouched.

    Without what is delayed, has expired, or stands behind a message of its key that somebody has.
    """
    group = state.groups.get(name)
    spots = [] if group is None else [spot for spot in _back(group, now_us) if _is_free(group, spot, now_us)]
    pos = state.backlog.first_pos if group is None else group.cursor
    while len(spots) < count and (segment := state.backlog.find(pos)) is not None:
        if segment.due_us <= now_us:
            for index in range(pos - segment.first, segment.count):
                spot = segment.spot(index)
                if _is_free(group, spot, now_us):
                    spots.append(spot)
                if len(spots) == count:
                    break
        pos = segment.first + segment.count
    return spots[:count]


def _back(group: Group, now_us: int) -> list[Spot]:
    return [
        aside.spot
        for _, aside in sorted(group.aside.items())
        if aside.status == BACK or (aside.status == WAITING and aside.due_us <= now_us)
    ]


def _is_free(group: Group | None, spot: Spot, now_us: int) -> bool:
    if spot.expires_us and spot.expires_us <= now_us:
        return False
    return group is None or not group.keeps_back(spot)
