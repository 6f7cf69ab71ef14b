"""Executions of one run that write its journal at once come to an end, in whatever order the log takes the records."""

from __future__ import annotations

import asyncio
from collections import deque

from boki import LogBook
from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller
from boki.api.logbook import LogSession
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.records import Began, Done, Entry, Fired, Result, encode_entry
from boki.libs.bokiflow.replaying import read_history
from boki.log.chunk import Group, encode_chunk
from boki.log.memory import MemoryLog
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Operation
from boki.testing.memory_port import MemoryPort

TAG = "!fj:run"
STEPS = (1, 2)
ROUNDS = 40


class Process(MemoryPort):
    """The way of one execution to the log. Its appends wait until all that were sent before them are carried out."""

    def __init__(self, log: MemoryLog, sent: deque[tuple[Process, asyncio.Future[None]]]) -> None:
        super().__init__(log)
        self._sent = sent
        self.waits = asyncio.Event()
        """It has sent an append, or come to its end: then it does nothing more by itself."""

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        if isinstance(operation, Append):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sent.append((self, turn))
            self.waits.set()
            await turn
        return await super().request(operation, positions, timeout_s)

    def begin(self, writer: int, *, gives_way: bool) -> asyncio.Task[None]:
        """An execution in this process."""
        book = LogSession(self, AppendGatherer(self), Caller()).logbook("test")
        execution = asyncio.ensure_future(run(book, writer, gives_way=gives_way))
        execution.add_done_callback(lambda _: self.waits.set())
        return execution


def append(log: MemoryLog, entry: Entry) -> None:
    """A record of another execution."""
    log.answer(Append("test", encode_chunk("test", [Group([(encode_entry(entry), [TAG])])])), 1)


async def run(book: LogBook, writer: int, *, gives_way: bool) -> None:
    """An execution that has two steps at once, begun again whenever it is overtaken, as `run_workflow` does it."""
    was_overtaken = False
    while True:
        history = await read_history(book, TAG, 0)
        changed = asyncio.Event()
        in_turn = was_overtaken and gives_way
        journal = JournalWriter(book, TAG, history, writer, 0, changed.set, run=1, in_turn=in_turn)
        missing = [n for n in STEPS if history.fact(n) is None]
        for n in missing:
            journal.add(Done(n, "step", b"", Result()), 0, 0, 1)
            journal.flush()
        while missing and not journal.is_firm and not journal.is_overtaken:
            await changed.wait()
            changed.clear()
        await journal.rest()
        if not journal.is_overtaken:
            return
        was_overtaken = True


async def ends(*, gives_way: bool) -> int:
    """How many of two executions have ended after some rounds. In between their reads a record of a third one came,
    which does not count: so each of them is late by one place when the other has sent two.
    """
    log, sent = MemoryLog(), deque[tuple[Process, asyncio.Future[None]]]()
    processes = [Process(log, sent), Process(log, sent)]
    append(log, Entry(9, 0, 0, 0, Began(), began_us=1))
    executions = [processes[0].begin(1, gives_way=gives_way)]
    await processes[0].waits.wait()
    append(log, Entry(8, 0, 0, 0, Fired(5)))
    executions.append(processes[1].begin(2, gives_way=gives_way))
    await processes[1].waits.wait()
    for _ in range(ROUNDS):
        if not sent:
            break
        process, turn = sent.popleft()
        process.waits.clear()
        turn.set_result(None)
        await process.waits.wait()
    done = sum(one.done() for one in executions)
    for one in executions:
        one.cancel()
    await asyncio.gather(*executions, return_exceptions=True)
    return done


async def test_what_was_overtaken_writes_in_turn_and_ends() -> None:
    """Seed 707010: two executions with two steps each ran the steps again and again, for as long as both lived."""
    assert await ends(gives_way=True) == 2


async def test_executions_that_send_two_at_once_overtake_each_other_for_ever() -> None:
    """The ablation: the second record of each takes the place of the first of the other, and does not count."""
    assert await ends(gives_way=False) == 0
