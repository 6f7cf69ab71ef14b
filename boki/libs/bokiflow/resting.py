"""What wakes a workflow that is suspended, and what a run looks after that has something else to do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, NamedTuple

from boki import BokiError, Context, NoSuchInvocation
from boki.extending import MAX_WAKES, OVER, CallsById, WakeOn, ends_of
from boki.libs.bokiflow.beginning import has_ended, next_change
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.inbox import InboxReader
from boki.libs.bokiflow.journal import JournalWriter
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


_STALLED_RUNS: Final = 20
"""After this many runs without progress it is not woken any more by what other calls do. Two workflows that wait for
each other's calls would wake each other again and again, because each run of a call is such a change.
"""
_LONGEST_US: Final = 60_000_000
"""The longest time until it looks then whether they have ended. From a second on it doubles with each run."""
_DOUBLINGS: Final = 6


class Waits(NamedTuple):
    """What a workflow waits for."""

    wakes: list[WakeOn]
    note: str
    """For people; "": nothing that they want to know."""
    look_us: int = 0
    """When it looks after calls that other callers have started; 0: their changes wake it, if there are any."""

    def wake_us(self, due_us: int) -> int:
        """When it continues at the latest, if a timer or an attempt is due then; 0: there is none."""
        return min((time_us for time_us in (due_us, self.look_us) if time_us), default=0)


async def what_wakes(
    ctx: Context, machine: Machine, inbox: InboxReader, journal: JournalWriter, *, is_paused: bool
) -> Waits | None:
    """What the workflow waits for. None: the end of a call is about to come, or its start is under way.

    Messages that had come before are in the letters of the inbox. In a pause no end of a call matters.
    """
    run, now_us, look_us = ctx.invocation_id, clock_of(ctx).now_us(), 0
    ahead = await _ahead(ctx, machine, now_us)
    await inbox.read_to_end()
    wakes = [WakeOn(ctx.logbook.name, inbox_tag(run), inbox.next_start)]
    wakes += [found.wake for _, found in ahead]
    calls = [command.work for command in machine.open_commands if isinstance(command.work, CallWork)]
    if calls and not is_paused:
        ends = ends_of(run)
        last = await ctx.logbook_named(ends.book).check_tail(ends.tag)
        wakes.append(ends_of(run, last.next_seqnum if last is not None else 0))
        others = await _others(CallsById(ctx), run, calls)
        if others is None or len(wakes) + len(others) > MAX_WAKES:  # too many: the run stays, and asks for their ends
            return None
        stalled = ctx.run_number - journal.progress_run - _STALLED_RUNS
        if others and stalled >= 0:
            look_us = now_us + min(1_000_000 << min(stalled, _DOUBLINGS), _LONGEST_US)
        for call in others:
            if not look_us:
                wakes.append(await next_change(ctx, call))
            if await has_ended(CallsById(ctx), call) is not False:
                return None
    return Waits(wakes, ", ".join(found.note(key) for key, found in ahead), look_us)


async def _others(known: CallsById, run: str, calls: list[CallWork]) -> list[str] | None:
    """Those of the calls whose ends are not reported to this workflow: another caller has started them, maybe again.
    None: one of them has no end that is waited for.
    """
    found = []
    for work in calls:
        if not work.awaits:  # it is only started, and its end might never come
            return None
        try:
            state = await known.state(work.invocation_id)
        except NoSuchInvocation:
            return None
        if state.state in OVER:
            return None
        if not state.start.startswith(f"{run}:"):  # as the scopes are named in which this workflow starts calls
            found.append(work.invocation_id)
    return found


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
