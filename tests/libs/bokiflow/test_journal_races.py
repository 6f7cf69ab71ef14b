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
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Operation
from boki.testing.memory_port import MemoryPort

TAG = "!fj:run"
STEPS = (1, 2)
ROUNDS = 40
SETTLED = 60
"""This many turns of the loop suffice for what an execution does between two appends."""


class InOrder(MemoryPort):
    """Appends are carried out one by one, in the order in which they were sent."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: deque[asyncio.Future[None]] = deque()

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        if isinstance(operation, Append):
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._sent.append(turn)
            await turn
        return await super().request(operation, positions, timeout_s)

    def carry_out_next(self) -> None:
        """The next append, if there is one."""
        if self._sent:
            self._sent.popleft().set_result(None)


async def settle() -> None:
    """Let the executions hear of an answer, read, and send what follows."""
    for _ in range(SETTLED):
        await asyncio.sleep(0)


def append(port: InOrder, entry: Entry) -> None:
    """A record of another execution."""
    chunk = encode_chunk("test", [Group([(encode_entry(entry), [TAG])])])
    port.log.answer(Append("test", chunk), port.clock.now_us)


def logbook(port: InOrder) -> LogBook:
    """The LogBook as a process of its own has it."""
    return LogSession(port, AppendGatherer(port), Caller()).logbook("test")


async def run(book: LogBook, writer: int, *, gives_way: bool) -> None:
    """An execution that has two steps at once, begun again whenever it is overtaken, as `run_workflow` does it."""
    was_overtaken = False
    while True:
        history = await read_history(book, TAG, 0)
        changed = asyncio.Event()
        in_turn = was_overtaken and gives_way
        journal = JournalWriter(book, TAG, history, writer, 0, changed.set, in_turn=in_turn)
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
    port = InOrder()
    append(port, Entry(9, 0, 0, 0, Began(), began_us=1))
    first = asyncio.ensure_future(run(logbook(port), 1, gives_way=gives_way))
    await settle()
    append(port, Entry(8, 0, 0, 0, Fired(5)))
    second = asyncio.ensure_future(run(logbook(port), 2, gives_way=gives_way))
    await settle()
    for _ in range(ROUNDS):
        port.carry_out_next()
        await settle()
    done = first.done() + second.done()
    for one in (first, second):
        one.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    return done


async def test_what_was_overtaken_writes_in_turn_and_ends() -> None:
    """Seed 707010: two executions with two steps each ran the steps again and again, for as long as both lived."""
    assert await ends(gives_way=True) == 2


async def test_executions_that_send_two_at_once_overtake_each_other_for_ever() -> None:
    """The ablation: the second record of each takes the place of the first of the other, and does not count."""
    assert await ends(gives_way=False) == 0
