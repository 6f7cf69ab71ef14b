"""Carries out what the body of one execution asks of the log, and what it writes to the store.

Both are **moments**: while one lasts, nothing else happens in the workflow. What comes meanwhile waits (`when_over`).
So the answer to a question has its place in the order of events without a record of its own, and nothing comes
between a write's place in the journal and its group.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from boki import BokiError, Context, Expect, Trimmed
from boki.extending import Failure
from boki.libs.bokiflow.asking import Committing, Question, StoreWork
from boki.libs.bokiflow.history import Scopes
from boki.libs.bokiflow.hooks import hooks
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.locks.state import grants_tag
from boki.libs.bokiflow.machine import Command, Machine
from boki.libs.bokiflow.records import Began, Done, Result
from boki.libs.bokiflow.refusals import LockLost, lock_lost, unreadable
from boki.libs.bokistore import ConflictError
from boki.libs.bokistore.records import Author
from boki.libs.bokistore.way import Way
from boki.libs.fold.outbox import Outbox
from boki.libs.fold.retrying import until_answered
from boki.retry import Backoff

_REFUSED: Final = Backoff(first_s=0.001, longest_s=0.05, jitter=0.0)


class Keeper:
    """See the module. `record` records and delivers an event, `committed` delivers one that is recorded, `after` is
    called when a moment is over, with the error that ends the execution, if any.
    """

    def __init__(
        self,
        ctx: Context,
        scopes: Scopes,
        machine: Machine,
        journal: JournalWriter,
        now_us: Callable[[], int],
        committed: Callable[[Done, int], None],
        after: Callable[[BaseException | None], None],
        die: Callable[[], None],
    ) -> None:
        self._way = Way(ctx.logbook)
        self._ctx = ctx
        self._scopes = scopes
        self._machine = machine
        self._journal = journal
        self._now_us = now_us
        self._committed = committed
        self._after = after
        self._die = die
        self._writes: deque[Command] = deque()
        self._waiting: deque[Callable[[], object]] = deque()
        self._task: asyncio.Task[Callable[[], object]] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a moment lasts, or one has to begin."""
        return self._task is not None or self._machine.is_reading or bool(self._writes)

    @property
    def is_writing(self) -> bool:
        """Whether something is under way that another execution would have to do again."""
        return self._task is not None or bool(self._writes)

    def write(self, command: Command) -> None:
        """Have this be written, after what has been asked for before."""
        self._writes.append(command)

    def when_over(self, event: Callable[[], object]) -> bool:
        """Keep the event until the moment is over; False if none lasts."""
        if self.is_busy:
            self._waiting.append(event)
            return True
        return False

    def begin(self) -> None:
        """Begin the next moment, if there is one and none lasts."""
        if self._task is None and self._machine.is_reading:
            self._start(self._read())
        elif self._task is None and self._writes:
            self._start(self._write(self._writes.popleft()))

    async def close(self) -> None:
        """Ask nothing more."""
        task, self._task = self._task, None
        self._waiting.clear()
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def record_before_effect(self) -> None:
        """What follows has an effect: record first what only this execution knows. That is as of where the body has
        read, and that a message came before the end of something else that was under way: another execution may have it
        the other way round, and must not do the same under other numbers. It is also when the workflow began, if the
        body has used its time: another execution would draw other random numbers.
        """
        machine, journal = self._machine, self._journal
        if (machine.position.is_chosen and journal.read_at) or machine.raced > journal.seen:
            journal.add(Began(), machine.seen, machine.now_us, machine.began_us)
        elif machine.is_time_used:
            journal.begin(machine.seen, machine.now_us, machine.began_us)

    def make_certain(self) -> bool:
        """Have all be durable that an answer depends on; whether it is."""
        self.record_before_effect()
        self._journal.seal()
        self._journal.flush()
        return self._journal.is_firm

    def _start(self, work: Coroutine[Any, Any, Callable[[], object]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._task = task
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[Callable[[], object]]) -> None:
        """Between the tasks of the loop: here the body may run."""
        if task is not self._task:
            return
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            task.result()()
            while self._waiting and not self.is_busy:
                self._waiting.popleft()()
        self._after(error)

    # questions

    async def _read(self) -> Callable[[], object]:
        machine, questions = self._machine, self._machine.take_questions()
        base = await self._base()
        position = max(base, machine.seen_at)
        if machine.is_at_end:
            self._journal.read_at = base
        try:
            found = await asyncio.gather(*(answered(question, self._way, position) for question, _ in questions))
        except Trimmed as error:
            raise unreadable(machine.name, position, error) from error
        answers = [(future, *answer) for (_, future), answer in zip(questions, found, strict=True)]
        return partial(machine.answer, answers)

    async def _base(self) -> int:
        """As of which seqnum the body reads, but for messages."""
        position = self._machine.position
        if position.recorded:
            return position.recorded
        if position.is_moving:
            position.moved(await self._journal.watched())
        if not position.seqnum:
            last = await until_answered(self._ctx.logbook.check_tail)
            position.choose(0 if last is None else last.seqnum)
        return position.seqnum

    # writes

    async def _write(self, command: Command) -> Callable[[], object]:
        journal, machine = self._journal, self._machine
        work = command.work
        assert isinstance(work, StoreWork), "nothing else is written"
        if hooks().dies("before", work.name):
            return self._die
        began_us, tries = self._now_us(), 0
        author = Author(self._ctx.function_name, self._ctx.invocation_id, f"{self._scopes.at(command.n)}:{command.n}")
        while True:
            await journal.rest()
            if journal.is_overtaken or journal.error is not None or not command.is_open:
                return _nothing
            tries += 1
            tokens = machine.mailbox.locks.tokens if work.is_fenced else []
            lost = await self._lost(tokens) if tries > 1 else None
            if lost is not None:
                out, result, tokens = Outbox(self._ctx.logbook), Result(None, Failure.of(lost)), []
            else:
                out, result = await self._prepared(work, author, is_again=tries > 1)
            fences = [Expect(grants_tag(key), last_seqnum=token) for key, token in tokens]
            done = machine.end(command, result, began_us, tries)
            assert done is not None, "the body wants it, and does nothing meanwhile"
            at_us = max(self._now_us(), machine.now_us)
            when = [*out.conditions, *fences]
            found = await journal.commit(done, machine.seen, at_us, machine.began_us, out.records, when)
            if found is not None:
                out.committed(found)
                self._way.tend()
                if hooks().dies("after", work.name):
                    return self._die
                return partial(self._committed, done, at_us)
            if tries > 1:
                await asyncio.sleep(_REFUSED.pause_s(tries - 1))

    async def _lost(self, tokens: list[tuple[str, int]]) -> LockLost | None:
        """Whether one of these locks was granted to another workflow since."""
        for key, token in tokens:
            last = await until_answered(partial(self._ctx.logbook.check_tail, grants_tag(key)))
            if last is not None and last.seqnum != token:
                return lock_lost(key, token)
        return None

    async def _prepared(self, work: StoreWork, author: Author, *, is_again: bool) -> tuple[Outbox, Result]:
        """What to append, and what the journal is to say of it."""
        out = Outbox(self._ctx.logbook)
        try:
            conflict, core, value = await until_answered(lambda: self._prepare(work, author, is_again=is_again))
            if core is not None:
                core.hand_over(out)
        except BokiError as error:
            return Outbox(self._ctx.logbook), Result(None, Failure.of(error))
        return out, Result(None, Failure.of(conflict)) if conflict is not None else work.result(value)

    async def _prepare(
        self, work: StoreWork, author: Author, *, is_again: bool
    ) -> tuple[ConflictError | None, Committing | None, Any]:
        try:
            if is_again:
                await self._way.run(work.again())
            return None, *(await self._way.run(work.prepare(self._way, author)))
        except ConflictError as error:  # it may be retried, but not here
            return error, None, None


async def answered(question: Question, way: Way, position: int) -> tuple[Any, Exception | None]:
    """The answer, or the error that the body gets. `Trimmed`: nobody can tell any more what the answer was."""
    try:
        return await until_answered(lambda: way.run(question.ask(way, position))), None
    except Trimmed:
        raise
    except BokiError as error:
        return None, error


def _nothing() -> None:
    """The execution has ended otherwise."""
