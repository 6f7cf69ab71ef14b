"""What a group would be given next: pure, and without changing anything."""

from __future__ import annotations

from boki.libs.bokiqueue.groups import BACK, WAITING, Group, Spot
from boki.libs.bokiqueue.state import ShardState


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
