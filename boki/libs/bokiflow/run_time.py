"""The time of one run: before its deadline it gives way to a new run of the workflow, which replays and continues.

A workflow may take years, but each run of it has a deadline as every call has (`run_timeout_s`). A workflow that is
never idle, or has a long step, comes near to it:

- From the middle of its time on, a run gives way as soon as no step is under way.
- In its last quarter it begins nothing any more, so that steps under way come to their ends. Each of them has had a
  quarter of `run_timeout_s` at least before the next moment.
- Shortly before the deadline, what is still under way is cut off: that attempt of the step has timed out. The step's
  policy decides about another one, in the new run.

A run that passes its deadline all the same, such as while no log can be had, is lost, as with its engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from typing import Final, Protocol

from boki import Context, DeadlineExceeded
from boki.extending import CallsById, Suspend
from boki.libs.bokiflow.background import Background
from boki.libs.bokiflow.carrying import Carrier
from boki.libs.bokiflow.clocks import FlowClock, FlowTimer, clock_of
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.keeping import Keeper
from boki.libs.bokiflow.machine import Machine

GIVES_WAY: Final = "gives way to a new run"
_LATE_US: Final = 100_000
"""A run that begins later than this after its call was accepted was delayed, or has waited for a worker."""
_MARGIN_PART: Final = 20
_MARGIN_MOST_S: Final = 60.0
"""Seconds before the deadline when steps are cut off: they may clean up, and the journal is to be written."""


class RunTime:
    """The time of one run. Its executions share it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.total_s = ctx.remaining_s
        accepted_us = CallsById(ctx).accepted_us
        self.is_late = 0 < accepted_us < clock_of(ctx).now_us() - _LATE_US
        """Whether a request to end or to pause may have been acknowledged before it."""
        self._margin_s = min(self.total_s / _MARGIN_PART, _MARGIN_MOST_S)
        self._last_s = self.total_s / 4 + self._margin_s  # so a step has a quarter before it is cut off

    def has_at_most(self, left_s: float) -> bool:
        """Whether no more than that is left."""
        return self.total_s < inf and self._ctx.remaining_s <= left_s

    @property
    def may_end(self) -> bool:
        """Whether it gives way as soon as no step is under way."""
        return self.has_at_most(self.total_s / 2)

    @property
    def begins_nothing(self) -> bool:
        """Whether it begins no step any more."""
        return self.has_at_most(self._last_s)

    @property
    def cuts_off(self) -> bool:
        """Whether what is under way is cut off."""
        return self.has_at_most(self._margin_s)

    @property
    def next_s(self) -> float | None:
        """Seconds until the next of these moments; None: there is none."""
        if self.total_s == inf:
            return None
        left_s = self._ctx.remaining_s
        moments = (self.total_s / 2, self._last_s, self._margin_s)
        return next((left_s - moment for moment in moments if left_s > moment), None)

    def early_us(self, most_us: int) -> int:
        """Microseconds after its beginning until a run is no short one: these, or less if it may take little time."""
        return int(min(most_us, self.total_s * 1e6 / 8))

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Around the run: what its deadline has refused ends the run, and not the workflow."""
        try:
            yield
        except DeadlineExceeded as error:
            if not self.cuts_off:
                raise
            raise Suspend(1, note=GIVES_WAY) from error


class Shell(Protocol):
    """The execution, as `Leaving` knows it."""

    def turn(self) -> None:
        """Look what is to be done."""

    def give_way(self, note: str) -> None:
        """End the execution by a suspension that is over at once."""

    @property
    def has_ended(self) -> bool:
        """Whether it has."""

    @property
    def background(self) -> Background:
        """What it does next to steps and journal."""


class Leaving:
    """The end of an execution whose run gives way."""

    def __init__(
        self,
        shell: Shell,
        run_time: RunTime,
        clock: FlowClock,
        machine: Machine,
        journal: JournalWriter,
        carrier: Carrier,
        keeper: Keeper,
    ) -> None:
        self._shell = shell
        self._run_time = run_time
        self._clock = clock
        self._machine = machine
        self._journal = journal
        self._carrier = carrier
        self._keeper = keeper
        self._timer: FlowTimer | None = None
        self._is_under_way = False
        self.is_due = False
        """Whether the run gives way as soon as no step is under way."""
        self.holds = False
        """Whether nothing is begun any more."""

    def watch(self) -> None:
        """Look at the time now, and at each moment of `RunTime` from here on."""
        if self._run_time.cuts_off:
            self._carrier.cut_off(
                f"the attempt was under way when its run came to its end (run_timeout_s of the workflow is "
                f"{self._run_time.total_s:g}), and was cut off"
            )
        self.is_due = self._run_time.may_end
        next_s = self._run_time.next_s
        if next_s is not None:  # a microsecond more, or it would be early again and again
            self._timer = self._clock.call_at(self._clock.now_us() + int(next_s * 1e6) + 1, self.watch)
        if self.is_due:
            self._shell.turn()

    def close(self) -> None:
        """The execution has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def begins(self) -> bool:
        """Give way if no step is under way; whether it does. After each event once it is due."""
        is_quiet = self._is_quiet
        self.holds = self.holds or is_quiet or self._run_time.begins_nothing
        if is_quiet and not self._is_under_way:
            self._is_under_way = True
            self._shell.background.spawn(self._leave())
        elif self.holds:
            self._carrier.hold()
        return is_quiet

    @property
    def _is_quiet(self) -> bool:
        """Whether a new run would do nothing that this one has begun."""
        machine = self._machine
        if machine.is_over or machine.halted is not None or machine.mailbox.answers:
            return False
        is_busy = self._carrier.is_under_way or self._keeper.is_writing
        return not is_busy and self._shell.background.count <= self._is_under_way

    async def _leave(self) -> None:
        """Have all that is recorded be durable, and suspend the call for a moment."""
        machine, journal = self._machine, self._journal
        try:
            self._carrier.hold()
            self._carrier.record_failed_attempts()
            journal.begin(machine.seen, machine.now_us, machine.began_us)
            journal.note_seen(machine.seen, machine.now_us, machine.began_us)
            journal.flush()
            await journal.rest()
            is_certain = not journal.is_overtaken and journal.error is None
            if is_certain and self._is_quiet and not self._shell.has_ended:
                self._shell.give_way(GIVES_WAY)
        finally:
            self._is_under_way = False
