"""Carries out the commands of one execution: steps, calls, and writes to the store.

A command with an effect begins when the journal is durable up to where it was started. What a command ends with is
recorded by the execution, unless the body does not want it any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextvars import Context as Variables
from typing import Any, Final, Protocol, assert_never

from boki import BokiError, Context
from boki.extending import Payload
from boki.libs.bokiflow.answering import append_answer
from boki.libs.bokiflow.asking import StoreWork
from boki.libs.bokiflow.attempts import Attempts
from boki.libs.bokiflow.calling import Calling
from boki.libs.bokiflow.clocks import FlowClock
from boki.libs.bokiflow.history import Scopes
from boki.libs.bokiflow.hooks import hooks
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.keeping import Keeper
from boki.libs.bokiflow.machine import Command, Machine
from boki.libs.bokiflow.mailbox import note_of_answer
from boki.libs.bokiflow.records import Answered, Beat, Fact, Intended, Result
from boki.libs.bokiflow.work import CallWork, StepWork, Works

_AGAIN_US: Final = 300_000
"""How long after a call that could not be made it is tried again."""


class Shell(Protocol):
    """The execution, as its carrier knows it."""

    def record(self, fact: Fact, *, lazily: bool = False) -> None:
        """Record an event, and deliver it."""

    def turn(self) -> None:
        """Look what the body has started."""

    def end(self, error: BaseException | None = None) -> None:
        """End the execution."""

    def die(self) -> None:
        """A test wants this process to be lost."""

    @property
    def has_ended(self) -> bool:
        """Whether it has."""


class Carrier:
    """See the module."""

    def __init__(
        self,
        shell: Shell,
        ctx: Context,
        scopes: Scopes,
        clock: FlowClock,
        variables: Variables,
        machine: Machine,
        journal: JournalWriter,
        keeper: Keeper,
    ) -> None:
        self._shell = shell
        self._ctx = ctx
        self._scopes = scopes
        self._clock = clock
        self._outer = variables
        self._machine = machine
        self._journal = journal
        self._keeper = keeper
        self._calling = Calling(ctx, scopes)
        self._loop = asyncio.get_running_loop()
        self.steps: dict[int, Attempts] = {}
        """Steps under way, or between two attempts."""
        self.quick: deque[Attempts] = deque()
        """Those of them that run to their ends where they begin: see `run_next`."""
        self.calls: dict[int, asyncio.Task[Result]] = {}
        """Calls under way."""
        self.held: deque[tuple[int, Command]] = deque()
        """Commands that begin when the journal is durable up to a place."""
        self._unsaid: dict[Attempts, Payload] = {}
        """The newest heartbeats of steps whose last one is on its way to the log."""
        self._is_holding = False
        self._ending: set[asyncio.Future[Any]] = set()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way that would run again in another execution."""
        is_about_to_begin = any(command.is_begun for _, command in self.held)
        return not self.calls and not self.steps and not is_about_to_begin

    @property
    def is_running(self) -> bool:
        """Whether the body of a step runs now, or is about to."""
        return bool(self.quick) or any(attempts.is_running for attempts in self.steps.values())

    @property
    def is_under_way(self) -> bool:
        """Whether the body of a step runs, or must begin here, because its intent is recorded."""
        return self.is_running or any(command.is_begun for _, command in self.held)

    @property
    def attempt_count(self) -> int:
        """How many attempts were begun at the steps that are under way."""
        return sum(attempts.count for attempts in self.steps.values())

    @property
    def next_due_us(self) -> int:
        """When the next timer or attempt is due; 0: none is."""
        due = self._machine.due_timer()
        times = [due[0]] if due is not None else []
        times += [attempts.due_us for attempts in self.steps.values() if attempts.due_us]
        return min(times, default=0)

    def record_failed_attempts(self) -> None:
        """Record each failed attempt whose step waits for the next one, once: another run continues after it."""
        machine = self._machine
        for attempts in self.steps.values():
            retrying = attempts.take_retrying()
            if retrying is not None:
                self._journal.add(retrying, machine.seen, machine.now_us, machine.began_us)

    def release(self, *, is_paused: bool) -> None:
        """Begin what was held until the journal was durable this far. In a pause only what is recorded as begun, of
        which another run could not tell whether it has had an effect.
        """
        waiting: list[tuple[int, Command]] = []
        while self.held and self.held[0][0] <= self._journal.durable:
            place, command = self.held.popleft()
            if is_paused and not command.is_begun:
                waiting.append((place, command))
            elif command.is_open:
                self._carry_out(command)
        self.held.extendleft(reversed(waiting))

    def beat(self) -> None:
        """Record the newest heartbeats of steps whose last one is durable now."""
        for attempts in [one for one in self._unsaid if one.beat_place <= self._journal.durable]:
            self._beat(attempts, self._unsaid.pop(attempts))

    def hold(self) -> None:
        """Begin no other attempts at the steps that have failed: another run does, or this one after `rearm`."""
        self._is_holding = True
        for attempts in self.steps.values():
            attempts.hold()

    def rearm(self) -> None:
        """Begin the attempts that were held, when they are due."""
        if self._is_holding:
            self._is_holding = False
            for attempts in self.steps.values():
                attempts.rearm()

    def cut_off(self, why: str) -> None:
        """The attempts under way have timed out, because the run comes to its end."""
        for attempts in list(self.steps.values()):
            future = attempts.cut_off(why)
            if future is not None:
                self._ending.add(future)
                future.add_done_callback(self._ending.discard)

    def close(self) -> set[asyncio.Future[Any]]:
        """End whatever still runs; what is to be waited for."""
        for attempts in self.steps.values():
            future = attempts.stop()
            if future is not None:
                self._ending.add(future)
        self.steps.clear()
        self.quick.clear()
        for task in self.calls.values():
            task.cancel()
            self._ending.add(task)
        return self._ending

    def launch(self, command: Command) -> None:
        """Carry out a command, as soon as what came before it is durable, if it has an effect."""
        work: Works = command.work  # type: ignore[assignment] # bodies start nothing else
        if isinstance(work, StoreWork):
            self._keeper.write(command)
            return
        machine, waits = self._machine, work.waits
        if waits:
            self._keeper.record_before_effect()
        if machine.is_time_used and not work.is_pure:  # a run that begins again must have the same time, and chance
            self._journal.begin(machine.seen, machine.now_us, machine.began_us)
            waits = waits or not self._journal.is_begin_durable  # the record of a pure step may say it, which can wait
        if waits:
            self._journal.seal()  # also the order of what has ended so far decides what follows
        if waits and not self._journal.is_firm:
            self.held.append((self._journal.firm, command))
        else:
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        work: Works = command.work  # type: ignore[assignment]
        match work:
            case StepWork():
                self._begin_step(command, work)
            case CallWork():
                task = self._loop.create_task(self._calling.perform(work, command.n))
                self.calls[command.n] = task
                task.add_done_callback(lambda done: self._on_called(command, done))
            case StoreWork():
                self._keeper.write(command)
            case _:
                assert_never(work)

    def _begin_step(self, command: Command, work: StepWork) -> None:
        if work.step.options.at_most_once and not command.is_begun:
            if command.intended:
                self._finish(command, Result(), 0, 1)
                return
            command.is_begun = True
            self._shell.record(Intended(command.n, work.name, work.digest))
            self._journal.flush()
            self.held.append((self._journal.firm, command))
            return
        if hooks().dies("before", work.name):
            self._shell.die()
            return
        key = f"{self._scopes.of_key(command.n)}:{command.n}"
        if not work.waits:  # a crash may take back what came before it, and give its number to another step
            key = f"{key}:{work.digest.hex()}"
        ended, beating = self._on_ended, self._on_beat
        attempts = Attempts(
            command, work, key, self._clock, self._outer, ended, self._shell.turn, beating, self._ctx, self._loop
        )
        self.steps[command.n] = attempts
        if attempts.ends_at_once:
            self.quick.append(attempts)
        else:
            attempts.begin()

    def run_next(self) -> bool:
        """Run the next step that ends where it begins, with what the body does then; False if there is none.

        Only after all that the body has started was launched: else the rest would wait for the record of this step.
        """
        while self.quick:
            attempts = self.quick.popleft()
            if self.steps.get(attempts.command.n) is attempts:  # else the body does not want it any more
                attempts.begin()
                return True
        return False

    async def answer(self, answers: Sequence[tuple[Answered, int]]) -> None:
        """Send these answers to the updates at these places; under keys, because a replay makes them again."""
        most_bytes = self._ctx.logbook.session.caller.limits.record_bytes
        for answer, seqnum in answers:
            await append_answer(self._ctx, note_of_answer(answer, most_bytes), answer.id, seqnum)

    def stop(self, command: Command) -> None:
        """The body does not want it any more."""
        attempts = self.steps.pop(command.n, None)
        future = attempts.stop() if attempts is not None else self.calls.pop(command.n, None)
        if future is not None:
            future.cancel()
            self._ending.add(future)
            future.add_done_callback(self._ending.discard)

    def _on_called(self, command: Command, task: asyncio.Task[Result]) -> None:
        self.calls.pop(command.n, None)
        if task.cancelled() or self._shell.has_ended:
            return
        error = task.exception()
        if isinstance(error, BokiError):  # that may pass
            self._clock.call_at(self._clock.now_us() + _AGAIN_US, lambda: self._call_again(command))
        elif error is not None:
            self._shell.end(error)
        else:
            self._finish(command, task.result(), command.began_us, 1)

    def _call_again(self, command: Command) -> None:
        if command.is_open and not self._shell.has_ended:
            self._carry_out(command)

    def _on_ended(self, attempts: Attempts, result: Result) -> None:
        self.steps.pop(attempts.command.n, None)
        if hooks().dies("after", attempts.work.name):
            self._shell.die()
            return
        result = attempts.work.step.bounded(result, attempts.most_bytes)
        self._finish(attempts.command, result, attempts.began_us, attempts.count)

    def _finish(self, command: Command, result: Result, began_us: int, attempts: int) -> None:
        if self._keeper.when_over(lambda: self._finish(command, result, began_us, attempts)):
            return
        done = self._machine.end(command, result, began_us, attempts)
        if done is not None and not self._shell.has_ended:
            work: Works = command.work  # type: ignore[assignment]
            self._shell.record(done, lazily=work.is_pure)
            self._shell.turn()

    def _on_beat(self, attempts: Attempts, details: Payload) -> None:
        """A heartbeat may come from a thread."""
        self._loop.call_soon_threadsafe(self._beat, attempts, details)

    def _beat(self, attempts: Attempts, details: Payload) -> None:
        command, work = attempts.command, attempts.work
        if self._keeper.when_over(lambda: self._beat(attempts, details)):
            return
        if not command.is_open or self._shell.has_ended:
            return
        if attempts.beat_place > self._journal.durable:
            self._unsaid[attempts] = details
            return
        self._shell.record(Beat(command.n, details, work.name, work.digest))
        attempts.beat_place = self._journal.place
        self._journal.flush_firm()
