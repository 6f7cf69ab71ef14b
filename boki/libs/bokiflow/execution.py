"""One execution of a run in this process. Everything that its `Machine` decides is carried out here.

Steps run as tasks of the worker's loop; when one has ended its record is on the way to the log, and the body continues
at once. What has an effect waits until everything before it is durable, and so does the result. All callbacks are
called by the worker's loop between tasks, so that the body's own loop may run inside of them.

**Messages** are read when the body waits for one, when a run was woken, and from a second on: short runs
never look. **Rest**: if for a while there was nothing to do but to wait for the time, for messages or for calls, the
execution ends by `Suspend`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import Context as Variables
from contextvars import copy_context
from random import Random
from typing import Any, Final

from boki import BokiError, Context
from boki.extending import CallsById, Payload, Suspend
from boki.libs.bokiflow.background import Background
from boki.libs.bokiflow.body import Body, ContinueAsNew
from boki.libs.bokiflow.carrying import Carrier
from boki.libs.bokiflow.clocks import FlowClock, FlowTimer, clock_of
from boki.libs.bokiflow.continuing import record_continuation
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.hooks import hooks
from boki.libs.bokiflow.inbox import InboxReader, Letter
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.keeping import Keeper
from boki.libs.bokiflow.pausing import Pause
from boki.libs.bokiflow.records import Done, Ended, Fact, Fired, ended_tag, inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import prepared, replay
from boki.libs.bokiflow.resting import LockWatch, what_wakes
from boki.libs.bokiflow.run_time import Leaving, RunTime

WRITER_NAMES: Final = Random()
"""Draws the number by which an execution signs its records: a simulation seeds it."""
_LISTEN_US: Final = 1_000_000
"""After this time a run reads its inbox in any case: it may hold a request to cancel it."""
_LINGER_US: Final = 300_000
"""How long a run waits for something to happen before it is suspended."""
_SLICE_STEPS: Final = 16
"""After this many of them, steps that await nothing let the other tasks of the worker run."""
TRIED: Final = "to be accepted first"


class Overtaken(Exception):
    """Another execution of the run has written to the journal: read it, and begin again."""


class Execution:
    """See the module."""

    def __init__(
        self,
        ctx: Context,
        name: str,
        history: History,
        body: Body,
        life: int,
        run_time: RunTime,
        *,
        keep_s: float,
        in_turn: bool = False,
    ) -> None:
        """`in_turn`: an earlier one of this process was overtaken, see `boki.libs.bokiflow.journal`."""
        self._ctx = ctx
        self._id = ctx.invocation_id
        self._body = body
        self._history = history
        self._is_woken = ctx.run_number > 1 or run_time.is_late
        self._keep_s = keep_s
        self._clock: FlowClock = clock_of(ctx)
        self._outer: Variables = copy_context()
        self.machine, self._inner = prepared(body, name, history, self._id)
        tag, writer = journal_tag(self._id), WRITER_NAMES.getrandbits(32)
        self.journal = JournalWriter(
            ctx.logbook, tag, history, writer, life, self._on_journal, run=ctx.run_number, in_turn=in_turn
        )
        taken, forgotten = history.taken, history.forgotten
        tag = inbox_tag(self._id)
        watching = LockWatch(ctx, self.machine).look
        self.inbox = InboxReader(ctx.logbook, tag, history.cursor, taken, self._on_letters, forgotten, watching)
        self.inbox.lives = history.lives
        self._keeper = Keeper(
            ctx, body.scopes, self.machine, self.journal, self._clock.now_us, self._committed, self._on_kept, self.die
        )
        self._carrier = Carrier(
            self, ctx, body.scopes, self._clock, self._outer, self.machine, self.journal, self._keeper
        )
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self.background = Background(self._loop, self.end, self.turn)
        self._leaving = Leaving(self, run_time, self._clock, self.machine, self.journal, self._carrier, self._keeper)
        self._early_us = run_time.early_us(_LISTEN_US)
        self._timer: FlowTimer | None = None
        self._timer_n = -1
        self._listen_timer: FlowTimer | None = None
        self._rest_timer: FlowTimer | None = None
        self._pause = Pause(self.machine.mailbox.requests)
        self._is_turning = False
        self._events = 0
        """Counts what has happened, to notice that nothing has."""
        self._suspend: Suspend | None = None
        self._is_end_due = False
        self._error: BaseException | None = None
        self._is_tried = CallsById(ctx).is_tried
        if self._is_tried:
            self.journal.refuse = self.give_way

    async def result(self) -> Any:
        """What the workflow returned; raises what it raised, `Suspend`, `Overtaken`, `Diverged` or `ContinueAsNew`."""
        if self._is_woken:  # maybe by a message
            await self.inbox.read_to_end()
        elif self._history.entries:
            await self.inbox.read_to(max(entry.seen for entry in self._history.entries))
        elif self._history.continued is not None:  # short rounds would never look for a request to end or to pause
            await self.inbox.read_to(self.inbox.next_start)
        if not self._ended.done():  # else what was read is not for it: see `run_workflow`
            self._loop.call_soon(self._begin)
        with self._clock.waiting():
            await self._ended
        if self.journal.is_overtaken:
            raise Overtaken
        for error in (self.journal.error, self._error, self._suspend, self.machine.halted):
            if error is not None:
                raise error
        try:
            found = self.machine.result()
        except ContinueAsNew:
            raise
        except BaseException:
            await self._record_last()
            raise
        await self._record_last()
        return found

    async def _record_last(self) -> None:
        """Leave the last records to the engine, which appends them with the end of the workflow, if nothing that has an
        effect comes in between: ending children that are left has one.
        """
        journal, machine = self.journal, self.machine
        if self._body.may_have_children:  # to close them is an effect
            self._keeper.record_before_effect()
            journal.seal()
        tag = ended_tag(self._keep_s)
        moment = Ended(self._clock.now_us()), machine.seen, machine.now_us, machine.began_us
        self._is_end_due = not journal.finish(tag, *moment) and not self._history.has_ended
        if not self._body.may_have_children and not hooks().replays and journal.leave():
            return
        journal.flush()
        if self._suspend is not None:
            raise self._suspend
        if not journal.is_firm:
            await journal.rest()
        if journal.is_overtaken:
            raise Overtaken
        if journal.error is not None:
            raise journal.error

    def leave_end(self) -> None:
        """The children are closed: leave a record of the end, if there is none. What was sent until now was for it."""
        if self._is_end_due:
            machine = self.machine
            self.journal.leave_end(Ended(self._clock.now_us()), machine.seen, machine.now_us, machine.began_us)

    async def record_continuation(self, payload: Payload) -> None:
        """The workflow begins again, by a record in front of which the journal is trimmed."""
        if self._is_tried:
            raise Suspend(1, note=TRIED)
        await record_continuation(
            self._ctx, self.machine, self.inbox, self.journal, self._history, self._clock.now_us(), payload
        )

    async def close(self) -> None:
        """End whatever still runs, and wait for it: another execution may begin then."""
        self.machine.put_away()
        for timer in (self._timer, self._listen_timer, self._rest_timer):
            if timer is not None:
                timer.cancel()
        self._leaving.close()
        ending = self._carrier.close()
        ending |= self.background.cancel()
        await self._keeper.close()
        await self.inbox.close()
        waited = {future for future in ending if isinstance(future, asyncio.Task) and not future.done()}
        if waited:
            await asyncio.wait(waited)

    # events

    def _begin(self) -> None:
        machine, letters = self.machine, self.inbox.letters
        now_us = self._clock.now_us()
        self._replaying = replay(machine, self._history, letters, now_us, self._inner, self._hand_over)
        try:
            self._replay()
        except Exception as error:  # noqa: BLE001 - as in `turn`
            self.end(error)

    def _replay(self) -> None:
        """Continue with the journal; what the body asks of the log is answered in between."""
        for _ in self._replaying:
            self._ask()
            return
        self.machine.go_live()
        if not self._is_tried:  # a try ends long before, and reads nothing
            self._listen_timer = self._clock.call_at(self._clock.now_us() + self._early_us, self._on_lasting)
        self._deliver()
        self.turn()

    def _on_lasting(self) -> None:
        """The run is not a short one."""
        self.inbox.follow()
        self._leaving.watch()

    def _on_kept(self, error: BaseException | None) -> None:
        """A question was answered, or something was written."""
        self._events += 1
        if self._ended.done():
            return
        if error is not None or self.journal.is_overtaken or self.journal.error is not None:
            self.end(error)  # `result` says why
        elif not self.machine.is_live:
            self._replay()
        else:
            self._on_durable()
            self._deliver()
            self.turn()

    def _committed(self, done: Done, at_us: int) -> None:
        self._events += 1
        if self.machine.apply(done, at_us):
            self.machine.position.moved(self.journal.last_seqnum)

    def _on_letters(self) -> None:
        self._deliver()
        self.turn()

    def _deliver(self) -> None:
        """Deliver what has come, unless the workflow is paused: then only what ends the pause."""
        letters = self.inbox.letters
        while letters and not self._ended.done() and self.machine.halted is None and not self._keeper.is_busy:
            if self._pause.holds(letters):
                return
            self._hand_over(letters.popleft())

    def _hand_over(self, letter: Letter) -> None:
        self._pause.hear(letter.note)
        self._events += 1
        self.machine.deliver(*letter)

    def turn(self) -> None:
        """After every event: carry out what the body has started, and see whether it has ended.

        Steps that await nothing run in here, one after the other, until the worker's other tasks are to have a turn.
        """
        if self._is_turning:
            return  # the loop below looks at it
        quick = self._carrier.quick
        self._is_turning = True
        try:
            self._look()
            for _ in range(_SLICE_STEPS):
                if self._ended.done() or not self._carrier.run_next():
                    break
                self._look()
        except Exception as error:  # noqa: BLE001 - a callback of the loop: the run would wait forever
            self.end(error)
        finally:
            self._is_turning = False
        if (quick or self._has_more) and not self._ended.done():
            self._loop.call_soon(self.turn)

    @property
    def _has_more(self) -> bool:
        """Whether the body has started something meanwhile, by a step that ended where it was launched."""
        machine = self.machine
        if machine.marks or machine.stopped:
            return True
        return bool(machine.started) and not self._pause.reason and not self._leaving.holds

    def _look(self) -> None:
        machine = self.machine
        if self._ended.done():
            return
        if machine.halted is not None:
            self.end()
            return
        if machine.marks:
            for mark in machine.take_marks():
                self.journal.add(mark, machine.seen, machine.now_us, machine.began_us)
        if machine.stopped:
            for command in machine.take_stopped():
                self._carrier.stop(command)
        if self._leaving.is_due and self._leaving.begins():
            return
        self._begin_what_was_held()
        if machine.started and not self._pause.reason and not self._leaving.holds:
            for command in machine.take_started():
                if self._is_tried and not command.work.is_pure:
                    self.give_way()
                    return
                self._carrier.launch(command)
        if self._is_tried and (machine.mailbox.answers or machine.mailbox.is_listening):
            self.give_way()
            return
        self._send_answers()
        if self._keeper.is_busy and not machine.is_over:
            self._ask()
            return
        if machine.is_over and not self._waits_to_continue:
            if hooks().replays:
                self.journal.flush()
            if self.journal.is_sent_firm and not machine.mailbox.answers and not self.background.count:
                self.end()
            return
        self.journal.flush_firm()
        if self._carrier.quick:
            return  # there is more to look at
        if machine.mailbox.is_listening:
            self.inbox.follow()
        self._arm()
        if self._rest_timer is None and self._is_idle:
            self._plan_rest()

    def _begin_what_was_held(self) -> None:
        """A pause holds attempts that are due, and what waits for records; its end is no record that would tell."""
        if self._pause.reason:
            self._carrier.hold()
        elif not self._leaving.holds:
            self._carrier.rearm()
        if not self._keeper.is_busy:  # else it comes again
            self._carrier.release(is_paused=bool(self._pause.reason))

    def end(self, error: BaseException | None = None) -> None:
        """End the execution; the error is what it ends with."""
        if not self._ended.done():
            self._error = error
            self._ended.set_result(None)

    @property
    def has_ended(self) -> bool:
        """Whether it has come to an end of whatever kind."""
        return self._ended.done()

    def die(self) -> None:
        """A test wants this process to be lost: what is not durable by now never happened."""
        self._suspend = Suspend(self._clock.now_us() + 1, note="lost, for a test")
        self.end()

    def give_way(self, note: str = TRIED) -> None:
        """Another run continues at once: of a body that was only tried, when the call is accepted."""
        self._suspend = Suspend(1, note=note)
        self.end()

    def _ask(self) -> None:
        """Ask the log what the body wants to know."""
        if self._is_tried:
            self.give_way()
        else:
            self._keeper.begin()

    def _replays(self) -> bool:
        """Whether a test wants a replay now: after a record, while nothing runs that would run again."""
        is_alone = self._carrier.is_idle and not self.background.count
        is_alone = is_alone and not self._keeper.is_busy and self.machine.is_live
        return hooks().replays and is_alone and self.journal.place > self._history.place and self.journal.is_quiet

    def record(self, fact: Fact, *, lazily: bool = False) -> None:
        """Record an event, and deliver it."""
        machine = self.machine
        self._events += 1
        now_us = max(self._clock.now_us(), machine.now_us)
        self.journal.add(fact, machine.seen, now_us, machine.began_us, lazily=lazily)
        if machine.apply(fact, now_us):
            machine.position.moves()
            self.journal.watch()

    def _on_journal(self) -> None:
        """More of the journal is durable, or it was overtaken."""
        if self._ended.done():
            return
        journal = self.journal
        if journal.is_overtaken or journal.error is not None:
            self._loop.call_soon(self.end)
            return
        if self._replays():
            self.end(Overtaken())
        else:
            self._on_durable()

    def _on_durable(self) -> None:
        if self._keeper.is_busy:
            return  # it comes again
        self._carrier.beat()
        self._carrier.release(is_paused=bool(self._pause.reason))
        self._send_answers()
        if self.machine.is_over or self._carrier.quick or (self._rest_timer is None and self._is_idle):
            self._loop.call_soon(self.turn)

    def _send_answers(self) -> None:
        """Answer updates once what they were answered with is certain."""
        mailbox = self.machine.mailbox
        if mailbox.answers and self._keeper.make_certain():
            answers = [(answer, mailbox.handled[answer.id]) for answer in mailbox.answers]
            mailbox.answers = []  # those that come until the task begins are not certain yet
            self.background.spawn(self._carrier.answer(answers))

    # timers and rest

    def _arm(self) -> None:
        due = self.machine.due_timer()
        if due is None or due[1] == self._timer_n or self._pause.reason:  # it would be due at once, again and again
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_n = due[1]
        self._timer = self._clock.call_at(due[0], self._fire)

    def _fire(self) -> None:
        self._timer, self._timer_n = None, -1
        if self._keeper.when_over(self._fire):
            return
        due = self.machine.due_timer()
        is_due = due is not None and due[0] <= self._clock.now_us()
        if due is not None and is_due and not self._ended.done() and not self._pause.reason:
            self.record(Fired(due[1]))
        self.turn()

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to do but to wait."""
        if (self._carrier.held and not self._pause.reason) or self._keeper.is_busy:
            return False
        if self._carrier.is_under_way or self.background.count:
            return False
        return self.journal.is_firm and (not self.machine.is_over or self._waits_to_continue)

    @property
    def _waits_to_continue(self) -> bool:
        """Whether the body has ended to continue as new, and waits for the end of a pause."""
        return bool(self._pause.reason) and isinstance(self.machine.error, ContinueAsNew)

    def _plan_rest(self) -> None:
        if self._is_tried:
            self.give_way()
            return
        events = self._events

        def look() -> None:
            self._rest_timer = None
            if self._ended.done() or not self._is_idle:
                return
            due_us = self._carrier.next_due_us
            now_us = self._clock.now_us()
            if self._events != events or (due_us and due_us <= now_us + _LINGER_US and not self._pause.reason):
                self._plan_rest()
            else:
                self.background.spawn(self._try_to_rest(events, self._carrier.attempt_count))

        linger_us = 0 if self._pause.reason else _LINGER_US
        self._rest_timer = self._clock.call_at(self._clock.now_us() + linger_us, look)

    async def _try_to_rest(self, events: int, attempt_count: int) -> None:
        """Suspend the call. What cannot be found out now, such as of a call whose start is under way, may be later."""
        with suppress(BokiError):
            await self._rest(events, attempt_count)

    async def _rest(self, events: int, attempt_count: int) -> None:
        """Suspend the call, if nothing has happened when all that this needs is done, since the look that found nothing
        to do: a message may have come before this task had its first turn, and a step may run for it.
        """
        machine, journal = self.machine, self.journal
        self._carrier.record_failed_attempts()
        if not journal.begin(machine.seen, machine.now_us, machine.began_us) and self._pause.reason:
            journal.note_seen(machine.seen, machine.now_us, machine.began_us)
        journal.flush()
        await journal.rest()
        is_paused = bool(self._pause.reason)
        try:
            found = await what_wakes(self._ctx, machine, self.inbox, journal, is_paused=is_paused)
        finally:  # what it has read is not read again, also if this rest is given up
            self._deliver()
        if found is None:
            return
        if self._events != events or journal.is_overtaken or self._ended.done() or self._carrier.is_running:
            return
        if self._keeper.is_busy:  # what had come before this began made the body ask, and it has no answer yet
            return
        if self._carrier.attempt_count != attempt_count:  # the log was slow, and an attempt was due meanwhile
            return
        wake_us = 0 if self._pause.reason else found.wake_us(self._carrier.next_due_us)
        note = f"paused: {self._pause.reason}" if self._pause.reason else found.note
        self._suspend = Suspend(wake_us, found.wakes, note[:200])
        self.end()
