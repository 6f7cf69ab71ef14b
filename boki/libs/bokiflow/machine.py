"""One execution of a workflow's body: what it has started, and what it waits for. Pure; `run.py` acts for it.

The body runs on a `FlowLoop`. What it starts (a step, a timer, a call) is a **command**, numbered in the order of its
start. A command ends by an **event**, and events are delivered one at a time: the loop runs until it is quiet, then
comes the next. The order of the events is all that an execution depends on, and the journal keeps it.

**Replay.** The events of the journal are delivered in its order, with the messages of the inbox that each record says
were delivered before it. Commands that the body starts meanwhile are only remembered. When the journal is at its end,
what is still open is handed out to be carried out, and the execution is live.

**Divergence.** A command carries its name and a digest of its arguments, and so does its record, also that of an intent
to run it at most once. If they differ, or such a record is about a command that was never started, nothing is delivered
any more: `halted` says what was recorded and what the code did instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from heapq import heappop, heappush
from typing import Any, Final, NoReturn, Protocol, assert_never

from boki.extending import Payload, decode_any, encode_any
from boki.libs.bokiflow.dropping import drops, takes_again
from boki.libs.bokiflow.history import History, describe, is_about
from boki.libs.bokiflow.loop import FlowFuture, FlowLoop, FlowTask
from boki.libs.bokiflow.mailbox import Mailbox
from boki.libs.bokiflow.positions import Position
from boki.libs.bokiflow.records import (
    Beat,
    Began,
    Continued,
    Done,
    Ended,
    Entry,
    Fact,
    Fired,
    Intended,
    Marked,
    Note,
    Result,
    Retrying,
    Rewound,
)
from boki.libs.bokiflow.refusals import Diverged, NoThread, cancelled, diverged, unfinished

_NEVER_US: Final = 253_402_300_799_000_000
"""The end of the year 9999: timers of an infinite time, as of `asyncio.timeout(math.inf)`, are due then."""
_BY_ITSELF: Final = "it cancelled itself, or awaited what was cancelled"


class Work(Protocol):
    """What a command is to do outside of the body."""

    name: str
    digest: bytes

    @property
    def is_pure(self) -> bool:
        """Whether nothing waits for the record of its end."""

    def value(self, result: Result) -> Any:
        """What the body is given for a result; raises what it ended with."""


class CommandFuture(FlowFuture[Any]):
    """What the body awaits of a command. If the body cancels it, the command's work is no longer wanted."""

    def __init__(self, machine: Machine, command: Command) -> None:
        super().__init__(loop=machine.loop)
        self._machine = machine
        self._command = command

    def cancel(self, msg: Any | None = None) -> bool:
        """See `asyncio.Future.cancel`."""
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._machine.stop(self._command)
        return is_cancelled


class Command:
    """Something that the body has started, at `began_us` of the workflow's time, which is the same in a replay."""

    __slots__ = ("began_us", "future", "intended", "is_begun", "is_open", "n", "retrying", "said", "work")

    def __init__(self, n: int, work: Work, machine: Machine) -> None:
        self.n, self.work = n, work
        self.began_us = machine.now_us
        self.future = CommandFuture(machine, self)
        self.is_open = True
        """Whether its end is still wanted."""
        self.is_begun = False
        """Whether this execution has recorded that it is about to begin."""
        self.intended = False
        """Whether its journal says that it was about to begin."""
        self.retrying: Retrying | None = None
        """The last attempt, as the journal describes it."""
        self.said: Beat | None = None
        """What it said last of its progress."""

    def __repr__(self) -> str:
        return f"{self.work.name}#{self.n}"


class Machine:
    """See the module. `body` is called once, when the machine begins."""

    def __init__(self, name: str, history: History, body: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        self.name = name
        self.loop = FlowLoop(self._start_timer)  # type: ignore[abstract] # what is missing is refused, see there
        self.now_us = 0
        self.began_us = 0
        self.seen = 0
        """The last message of the inbox that was delivered."""
        self.seen_at = 0
        """As of where the body reads since then: at the message, or where that was copied from."""
        self.raced = 0
        """The last message that came while something else could have come first: a step's end, a call's, a timer's."""
        self.is_time_used = False
        """Whether the body depends on when it began: that must be certain before it has an effect."""
        self.event_count = 0
        """Ends of commands, since the body began."""
        self.replayed = 0
        """Records of the journal that were replayed."""
        self.is_live = False
        self.is_at_end = not history.entries
        """Whether the journal has nothing more to replay."""
        self.halted: Diverged | NoThread | None = None
        """Why nothing is delivered any more."""
        self.started: list[Command] = []
        """What is to be carried out, once it is taken: see `take_started`."""
        self.stopped: list[Command] = []
        """What is no longer wanted."""
        self.position = Position(history)
        """As of where the body reads the log."""
        self._questions: list[tuple[Any, FlowFuture[Any]]] = []
        self._history = history
        self._body = body
        self.next_n = 0
        """The number of the command that the body starts next."""
        self._commands: dict[int, Command] = {}
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._due: list[tuple[int, int]] = []
        self._main: FlowTask[Any] | None = None
        self._context = Context()
        self._cancel_reason: str | None = None
        self._failure: Exception | None = None
        self.is_ending = False
        """Whether the body has come to its end, and only undoes and leaves what it has to."""
        self._conditions: list[tuple[Callable[[], bool], FlowFuture[None]]] = []
        self._decided: dict[str, Any] = {}
        self.marks: list[Marked] = []
        """Decisions to be recorded."""
        self.mailbox = Mailbox(self.loop, self.cancel, self.fail, partial(drops, self), partial(takes_again, self))

    # events

    def begin(self, began_us: int, context: Context) -> None:
        """Start the body at this time, in this context."""
        self.began_us = self.now_us = began_us
        self._context = context
        self._main = self.loop.create_task(self._whole_body(), name=self.name, context=context.copy())
        self.mailbox.begin(self._main)
        self._run()

    async def _whole_body(self) -> Any:
        try:
            return await self._body()
        finally:
            self.mailbox.close()  # at once: tasks beside the body may be about to run, and would take messages

    def replay(self, entry: Entry, seqnum: int) -> None:
        """The next record of the journal. Messages up to its `seen` were delivered before."""
        if self.halted is None:
            self.replayed += 1
            self.is_at_end = entry is self._history.entries[-1]
            if self.apply(entry.fact, entry.at_us):
                self.position.moved(seqnum)

    def apply(self, fact: Fact, at_us: int) -> bool:
        """An event, or what is known of a command before its event, at this time. Whether it moves the position."""
        self._pass_to(at_us)
        moves = False
        self.event_count += isinstance(fact, Done | Fired)
        match fact:
            case Done():
                command = self._commands.get(fact.n)
                if command is None or (command.work.name, command.work.digest) != (fact.name, fact.digest):
                    self._diverge(fact)
                    return False
                moves = not command.work.is_pure
                self._end(command, fact.result)
            case Fired():
                handle = self._timers.pop(fact.n, None)
                if handle is None:
                    self._diverge(fact)
                    return False
                moves = True
                self.loop.run_handle(handle)
            case Intended() | Retrying() | Beat():
                self._keep(fact)
            case Began() | Marked() | Continued() | Rewound() | Ended():
                pass
            case _:
                assert_never(fact)
        self._run()
        return moves

    def deliver(self, seqnum: int, at_us: int, note: Note, stood_at: int = 0) -> None:
        """The next message of the inbox. `stood_at`: it is a copy of one of another inbox, which stood there."""
        if self.halted is None:
            if self._commands or self.due_timer() is not None:
                self.raced = seqnum
            if seqnum > self.seen:  # else an earlier round has handed it on
                self.seen, self.seen_at = seqnum, stood_at or seqnum
            self._pass_to(at_us)
            self._context.run(self.mailbox.deliver, seqnum, note, stood_at or seqnum)
            self._run()

    def go_live(self) -> None:
        """The journal is at its end: what the body has started from here on is to be carried out."""
        self.is_live = self.is_at_end = True
        if self._main is not None and not self._main.done():
            self.started = list(self._commands.values())

    def end(self, command: Command, result: Result, began_us: int, attempts: int) -> Done | None:
        """The record of the end of a command's work; None if the body does not want it any more."""
        if not command.is_open:
            return None
        return Done(command.n, command.work.name, command.work.digest, result, began_us, attempts)

    def due_timer(self) -> tuple[int, int] | None:
        """When the next timer is over, and its number."""
        while self._due:
            due_us, n = self._due[0]
            handle = self._timers.get(n)
            if handle is not None and not handle.cancelled():
                return due_us, n
            self._timers.pop(n, None)
            heappop(self._due)
        return None

    def cancel(self, reason: str = "") -> None:
        """Cancel the body, as a task is cancelled; one that ends already has a reason, and is not disturbed."""
        if self._main is not None and self._cancel_reason is None and not self.is_ending:
            self._cancel_reason = reason
            self._main.cancel()

    def fail(self, error: Exception) -> None:
        """End the body with this error, which a handler of its messages raised; unless it ends already."""
        if self._main is not None and self._failure is None and not self.is_ending:
            self._failure = error
            self._main.cancel()

    def _run(self) -> None:
        """Run the body until it is quiet, and again while a condition that it waits for has come true."""
        self.loop.run_until_quiet()
        while self._conditions and self.halted is None:
            waiting = [pair for pair in self._conditions if not pair[1].done()]
            self._conditions = [pair for pair in waiting if not self._context.run(_settle, *pair)]
            if len(self._conditions) == len(waiting):
                return
            self.loop.run_until_quiet()

    # what the body does

    async def lose(self, error: NoThread) -> NoReturn:
        """End this execution, and not the body: the code that asks for it waits until the machine is put away."""
        self.halted = self.halted or error
        while True:
            await self.loop.create_future()

    @property
    def diverged(self) -> Diverged | None:
        """How the code and the journal differ; None: nothing is known of it."""
        return self.halted if isinstance(self.halted, Diverged) else None

    @property
    def may_continue(self) -> bool:
        """Whether the body may begin as new here: where a replay comes past, it did not."""
        return self.is_live or self.is_at_end

    @property
    def next_end(self) -> Done | None:
        """The recorded end of what the body starts next."""
        return fact if not self.is_live and isinstance(fact := self._history.fact(self.next_n), Done) else None

    def start(self, work: Work) -> CommandFuture:
        """The body starts a command."""
        command = Command(self._number(), work, self)
        recorded = None if self.is_live else self._history.fact(command.n)
        if recorded is not None and not is_about(recorded, work.name, work.digest):
            self._diverge(recorded, _said(recorded, command))
            return command.future
        self._commands[command.n] = command
        if self.is_live:
            self.started.append(command)
        return command.future

    def stop(self, command: Command) -> None:
        """The body does not want a command any more."""
        if command.is_open:
            command.is_open = False
            del self._commands[command.n]
            if self.is_live:
                self.stopped.append(command)

    def when(self, condition: Callable[[], bool]) -> FlowFuture[None]:
        """A future that is done when the condition is true, which is looked at after each event."""
        future: FlowFuture[None] = self.loop.create_future()
        if condition():
            future.set_result(None)
        else:
            self.mailbox.waits(future)
            self._conditions.append((condition, future))
        return future

    def ask(self, question: Any) -> FlowFuture[Any]:
        """The body reads the log: nothing happens in the workflow until that is answered."""
        future: FlowFuture[Any] = self.loop.create_future()
        self._questions.append((question, future))
        return future

    @property
    def is_reading(self) -> bool:
        """Whether the body has asked something of the log."""
        return bool(self._questions) and self.halted is None

    def take_questions(self) -> list[tuple[Any, FlowFuture[Any]]]:
        """What the body has asked, in order."""
        questions, self._questions = self._questions, []
        return questions

    def answer(self, answers: list[tuple[FlowFuture[Any], Any, Exception | None]]) -> None:
        """Give the body what it has asked for, in the order in which it has asked."""
        for future, value, error in answers:
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)
        self._run()

    def decide(self, name: str, new: Any, old: Any) -> Any:
        """A decision by name: `new` where the body comes to it for the first time live, `old` where it had come past
        this point before there was this decision; and from then on what it was.
        """
        if name not in self._decided:
            recorded = self._history.marks.get(name)
            if recorded is not None:
                self._decided[name] = decode_any(recorded, f"decision {name}")
            elif self.is_live or self.is_at_end:
                self._decided[name] = new
                self.marks.append(Marked(name, encode_any(new, f"decision {name}")))
            else:
                self._decided[name] = old
        return self._decided[name]

    def keep(self, name: str, value: Payload) -> None:
        """Record a value by name, once."""
        if name not in self._decided and name not in self._history.marks:
            self._decided[name] = value
            self.marks.append(Marked(name, value))

    def _start_timer(self, when_s: float, handle: asyncio.TimerHandle) -> None:
        n = self._number()
        recorded = None if self.is_live else self._history.fact(n)
        if recorded is not None and not isinstance(recorded, Fired):
            self._diverge(recorded, f"started timer#{n}")
            return
        self._timers[n] = handle
        due_us = self.began_us + when_s * 1e6
        heappush(self._due, (round(due_us) if due_us < _NEVER_US else _NEVER_US, n))

    def _number(self) -> int:
        n = self.next_n
        self.next_n = n + 1
        return n

    # state

    @property
    def is_over(self) -> bool:
        """Whether the body has ended."""
        return self._main is not None and self._main.done()

    @property
    def error(self) -> BaseException | None:
        """What the body has raised; None if it has not ended, or otherwise."""
        main = self._main
        return main.exception() if main is not None and main.done() and not main.cancelled() else None

    def result(self) -> Any:
        """What the body returned; raises what it raised."""
        assert self._main is not None, "it has begun"
        handlers = self.mailbox.running_handlers
        try:
            value = self._main.result()
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            reason = self._cancel_reason
            raise cancelled(self.name, _BY_ITSELF if reason is None else reason) from None
        except Exception:
            raise
        except SystemExit as error:  # it would end the worker process, and the other workflows in it
            raise RuntimeError(f"the workflow raised SystemExit({error.code!r}): return, or raise an error") from error
        except BaseException:  # it continues as new
            if handlers:
                raise unfinished(self.name, handlers) from None
            raise
        if handlers:
            raise unfinished(self.name, handlers)
        return value

    def take_started(self) -> list[Command]:
        """Commands to carry out now, each once."""
        started, self.started = self.started, []
        return [command for command in started if command.is_open]

    def take_marks(self) -> list[Marked]:
        """Decisions to be recorded, each once."""
        marks, self.marks = self.marks, []
        return marks

    def take_stopped(self) -> list[Command]:
        """Commands whose work is to be ended."""
        stopped, self.stopped = self.stopped, []
        return stopped

    @property
    def open_commands(self) -> list[Command]:
        """What the body has started and waits for, without timers."""
        return list(self._commands.values())

    def put_away(self) -> None:
        """The execution is over, whatever the body thinks: it continues elsewhere, or later."""
        self.loop.put_away()

    def _pass_to(self, at_us: int) -> None:
        if at_us > self.now_us:
            self.now_us = at_us
            self.loop.time_s = (at_us - self.began_us) / 1e6

    def _end(self, command: Command, result: Result) -> None:
        command.is_open = False
        del self._commands[command.n]
        try:
            value = command.work.value(result)
        except Exception as error:  # noqa: BLE001 - it is the body's
            command.future.set_exception(error)
        else:
            command.future.set_result(value)

    def _keep(self, fact: Intended | Retrying | Beat) -> None:
        command = self._commands.get(fact.n)
        if command is None:
            # an intent was compared where it was started; and the body may have given it up since
            if fact.name and fact.n >= self.next_n:
                self._diverge(fact)
            return
        if fact.name and not is_about(fact, command.work.name, command.work.digest):  # attempts of another step
            self._diverge(fact, _said(fact, command))
            return
        match fact:
            case Intended():
                command.intended = True
            case Retrying():
                command.retrying = fact
            case Beat():
                command.said = fact

    def _diverge(self, recorded: Done | Fired | Intended | Retrying | Beat, started: str = "") -> None:
        if self.halted is None:
            command = self._commands.get(recorded.n)
            did = started or (f"started {command}" if command is not None else "did not start it")
            self.halted = diverged(self.name, describe(recorded), did)


def _settle(condition: Callable[[], bool], future: FlowFuture[None]) -> bool:
    """Whether the wait for the condition is over: it is true, or it has raised, which is for who waits."""
    try:
        is_over = bool(condition())
    except Exception as error:  # noqa: BLE001 - it is the body's
        future.set_exception(error)
        return True
    if is_over:
        future.set_result(None)
    return is_over


def _said(recorded: Done | Fired | Intended | Retrying | Beat, command: Command) -> str:
    """What the code did instead of what is recorded."""
    is_other = not isinstance(recorded, Fired) and recorded.name == command.work.name
    return f"started {command}{' with other arguments' if is_other else ''}"
