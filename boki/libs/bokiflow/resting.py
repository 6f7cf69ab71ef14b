"""What wakes a workflow that is suspended, and what a run looks after that has something else to do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, NamedTuple

from boki import BokiError, Context
from boki.extending import CallsById, WakeOn, ends_of
from boki.libs.bokiflow.beginning import has_ended
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.inbox import InboxReader
from boki.libs.bokiflow.locks.watching import Ahead, watch
from boki.libs.bokiflow.machine import Machine
from boki.libs.bokiflow.records import inbox_tag
from boki.libs.bokiflow.work import CallWork

_WATCHED: Final = 12
"""Maximum number of locks of which a run watches the workflow in front."""
_WATCHED_EVERY_US: Final = 5_000_000
"""How often a run does that which is not suspended."""
_LOOK_S: Final = 1.0
"""For how long it tries then: the log of the calls may be away while that of the workflow is there."""


class Waits(NamedTuple):
    """What a workflow waits for, but for time."""

    wakes: list[WakeOn]
    note: str
    """For people; "": nothing that they want to know."""


async def what_wakes(
    ctx: Context, machine: Machine, inbox: InboxReader, now_us: int, *, is_paused: bool
) -> Waits | None:
    """What the workflow waits for. None: the end of a call is about to come, or its start is under way.

    Messages that had come before are in the letters of the inbox. In a pause no end of a call matters.
    """
    run = ctx.invocation_id
    ahead = await _ahead(ctx, machine, now_us)
    await inbox.read_to_end()
    wakes = [WakeOn(ctx.logbook.name, inbox_tag(run), inbox.next_start)]
    wakes += [found.wake for _, found in ahead]
    calls = [command.work for command in machine.open_commands if isinstance(command.work, CallWork)]
    if calls and not is_paused:
        ends = ends_of(run)
        last = await ctx.logbook_named(ends.book).check_tail(ends.tag)
        wakes.append(ends_of(run, last.next_seqnum if last is not None else 0))
        known = CallsById(ctx)
        for work in calls:  # of one that is only started no end is waited for, which might never come
            if not work.awaits or await has_ended(known, work.invocation_id) is not False:
                return None
    return Waits(wakes, ", ".join(found.note(key) for key, found in ahead))


async def _ahead(ctx: Context, machine: Machine, now_us: int) -> list[tuple[str, Ahead]]:
    """What each lock that is waited for waits for, now that holders which have ended are gone."""
    return [
        (key, found)
        for key, request in machine.mailbox.locks.waiting[:_WATCHED]
        if (found := await watch(ctx, key, request, now_us)) is not None
    ]


class LockWatch:
    """Watches those in front while a step runs: a run that only waits is woken by their ends, and this one is not."""

    def __init__(self, ctx: Context, machine: Machine) -> None:
        self._ctx = ctx
        self._machine = machine
        self._now_us = clock_of(ctx).now_us
        self._next_us = self._now_us() + _WATCHED_EVERY_US

    async def look(self) -> None:
        """Take requests of workflows that have ended out of the queues, if it is time for that."""
        now_us = self._now_us()
        if now_us >= self._next_us and self._machine.mailbox.locks.is_waiting:
            self._next_us = now_us + _WATCHED_EVERY_US
            with suppress(BokiError, TimeoutError):  # the next look may find out, and messages are not to wait
                async with asyncio.timeout(_LOOK_S):
                    await _ahead(self._ctx, self._machine, now_us)
