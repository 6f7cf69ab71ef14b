"""Watches over those in front: a lock is freed when its workflow has ended without leaving it, such as by a kill.

Each workflow that waits watches the request in front of its own, so one end wakes one workflow. When that request
leaves the queue, this workflow is told (`LockQueue.decided`), and watches the next one.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final, NamedTuple

from boki import ConditionFailed, Context, NoSuchInvocation
from boki.extending import OVER, CallsById, WakeOn, ends_of
from boki.libs.bokiflow.history import life_of
from boki.libs.bokiflow.locks.state import Freed, LockRequest
from boki.libs.bokiflow.locks.work import QueueChange, read_queue
from boki.libs.fold import steps
from boki.libs.fold.retrying import until_answered

_SURE_US: Final = 12 * 3_600 * 1_000_000
"""A workflow that began so long ago and of which nothing is known has ended: calls are kept for longer."""


class Ahead(NamedTuple):
    """What a request waits for."""

    wake: WakeOn
    """Wakes the workflow when there is news of the one in front."""
    holder: str
    """The workflow that holds the lock, for people."""

    def note(self, key: str) -> str:
        """What the workflow waits for, for people; see `lock_of`."""
        return f"waits for lock {key}, which {self.holder} holds"


_NOTE: Final = re.compile(r"waits for lock (.*?), which ")


def lock_of(note: str) -> str | None:
    """The first lock that a workflow with this note waits for; None: for none."""
    found = _NOTE.match(note)
    return None if found is None else found[1]


async def watch(ctx: Context, key: str, request_id: str, now_us: int) -> Ahead | None:
    """What the request waits for, now that those in front that have ended are gone; None: it waits for nothing."""
    while True:
        queue = await until_answered(lambda: steps.run(read_queue(key), ctx.logbook))
        place = queue.place_of(request_id)
        if not place:
            return None
        front = queue.requests[place - 1]
        wake = await _life_of(ctx, front)
        if not await _has_ended(ctx, front, now_us):
            return Ahead(wake, queue.requests[0].name)
        change = QueueChange(queue, Freed(key, front.id, has_ended=True))
        try:
            await ctx.logbook.append_many(change.records(ctx.logbook), when=tuple(change.conditions))
        except ConditionFailed:
            continue  # another workflow was faster, or came


async def _life_of(ctx: Context, request: LockRequest) -> WakeOn:
    book = ends_of(request.call).book
    tag = f"id:{request.call}"
    last = await until_answered(partial(ctx.logbook_named(book).check_tail, tag))
    return WakeOn(book, tag, last.next_seqnum if last is not None else 0)


async def _has_ended(ctx: Context, request: LockRequest, now_us: int) -> bool:
    """Whether the workflow has ended without leaving the lock. Maybe its call runs for a later start of the same id,
    which has not made the request.
    """
    try:
        state = await CallsById(ctx).state(request.call)
    except NoSuchInvocation:
        return now_us - request.age_us > _SURE_US
    is_known = bool(request.life and state.start)
    return state.state in OVER or (is_known and life_of(state.start) != request.life)
