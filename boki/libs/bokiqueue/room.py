"""Back-pressure: room for pushes in a queue that has a maximum length.

What is pushed is appended after somebody has looked, so it goes by this machine's clock whether messages have expired:
nothing depends on it but how soon there is room for others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from boki import LogBook, TooLarge
from boki.libs.bokiqueue.figures import NEVER_US, length, next_expiry_us
from boki.libs.bokiqueue.records import Settings
from boki.libs.bokiqueue.refusals import QueueFull

if TYPE_CHECKING:
    from boki.libs.bokiqueue.following import Following

_MARGIN_S: Final = 0.001


class Occupied(NamedTuple):
    """How many messages live in a full queue, from one time until another one, if no record comes."""

    at: tuple[int, ...]
    """The last record of each shard."""
    from_us: int
    until_us: int
    length: int


@asynccontextmanager
async def room(
    logbook: LogBook, shared: Following, settings: Settings, count: int, patience_s: float
) -> AsyncIterator[None]:
    """Room for so many messages, for which this process does not let others push meanwhile. `QueueFull`"""
    if count > settings.max_length:
        raise TooLarge(
            f"{count:,} messages never fit in queue {shared.queue!r}, whose maximum length is "
            f"{settings.max_length:,}: push them in parts",
            field="bodies",
            limit=settings.max_length,
        )
    await _wait(logbook, shared, settings, count, patience_s)
    shared.pushing += count
    try:
        yield
    finally:
        shared.pushing -= count


async def _wait(logbook: LogBook, shared: Following, settings: Settings, count: int, patience_s: float) -> None:
    begun = shared.clock.here()
    while True:
        await shared.catch_up(logbook)
        now_us = shared.clock.looking_us(logbook.likely_time_us())
        there = shared.pushing + sum(length(line.state) for line in shared.lines)
        until_us = NEVER_US
        if there + count > settings.max_length:
            occupied = _look(shared, now_us)
            there, until_us = shared.pushing + occupied.length, occupied.until_us
        if there + count <= settings.max_length:
            return
        left_s = patience_s - shared.clock.since(begun)
        if left_s < _MARGIN_S:
            raise QueueFull(
                f"queue {shared.queue!r} has {there:,} messages, and its maximum length is {settings.max_length:,}: "
                "push again when some were taken, or wait with wait_s",
                queue=shared.queue,
                limit=settings.max_length,
            )
        left_s = min(left_s, (until_us - now_us) / 1e6 + _MARGIN_S)
        await shared.wait_for_record(logbook, left_s)


def _look(shared: Following, now_us: int) -> Occupied:
    """All messages are looked at, which takes long in a long queue: once for all who wait for room here."""
    at = tuple(line.state.at for line in shared.lines)
    known = shared.occupied
    if known is None or known.at != at or not known.from_us <= now_us < known.until_us:
        states = [line.state for line in shared.lines]
        until_us = min(next_expiry_us(state, now_us) for state in states)
        known = shared.occupied = Occupied(at, now_us, until_us, sum(length(state, now_us) for state in states))
    return known
