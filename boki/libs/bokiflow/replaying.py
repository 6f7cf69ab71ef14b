"""Replays of workflows: what an execution begins with, and what a query, or a check of new code, is all of.

Nothing is carried out: the body is brought to where the journal and the inbox end, and can be asked there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from boki import InvalidArgument, LogBook
from boki.extending import Function, Payload, most_call_bytes
from boki.libs.bokiflow.body import BODY, PAYLOAD_MARK, Body
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.inbox import Letter, letter_of
from boki.libs.bokiflow.joins import Base, JoinRecord
from boki.libs.bokiflow.journal import PAGE_RECORDS
from boki.libs.bokiflow.keeping import answered
from boki.libs.bokiflow.machine import Machine
from boki.libs.bokiflow.one_round import inbox_of, of_one_round
from boki.libs.bokiflow.records import CODEC, Continued, entry_of, inbox_tag, journal_tag
from boki.libs.bokiflow.refusals import NoThread
from boki.libs.bokiflow.state import OpenTransaction
from boki.libs.bokiflow.stepping import STARTER
from boki.libs.bokiflow.sweeping import place_of
from boki.libs.bokistore.way import Way
from boki.libs.fold.retrying import until_answered

T = TypeVar("T")

_OVER: Final = object()
_ENTRY_BYTES: Final = 4_096
"""What the record of a continuation needs beside its payload, at most."""
_KEPT_BYTES: Final = 16
"""What it needs for a message beside its data."""


class Runnable(Protocol):
    """What can be run."""

    name: str
    fn: Any
    keep_s: float | None
    """For how long after its end its history is kept; None: as the system says."""
    continue_after: int
    """After this many steps, timers and calls `flow.continue_if_long` begins it as new."""


async def read_history(logbook: LogBook, tag: str, life: int | None = None) -> History:
    """The journal as far as it has come. `life` None: the latest."""
    history = History(life)
    while True:
        page = await until_answered(partial(logbook.read, tag, start=history.next_start, limit=PAGE_RECORDS))
        if not page.records:
            history.settle()
            return history
        if page.first_seqnum and not history.next_start:
            first = entry_of(page.records[0].data)
            history.is_counted = first is not None and (first.life == life or isinstance(first.fact, Continued))
        for record in page.records:
            history.fold(record.data, record.seqnum)


async def read_counted(logbook: LogBook, tag: str, life: int | None = None, *, asks: bool = False) -> History:
    """The journal as `read_history` gives it, with a place that is certain. `asks`: an append to it was refused.

    Where what earlier lives had left is trimmed, the log tells how many records the journal has had. Those that another
    execution appended since are not among what is read twice.
    """
    history = await read_history(logbook, tag, life)
    if history.place and history.is_counted and not asks:
        return history
    place, before = await place_of(logbook, tag), history.next_start
    history = await read_history(logbook, tag, life)
    history.place = place if history.next_start == before else max(history.place, place)
    return history


def prepared(body: Body, name: str, history: History, run: str) -> tuple[Machine, Variables]:
    """A machine for the body, and the context that the body is to run in. `run` is the workflow's invocation id."""
    machine = body.machine = Machine(name, history, body.run)
    machine.mailbox.requests = history.requests(run)
    context = copy_context()
    context.run(STARTER.set, body.start_step)
    context.run(BODY.set, body)
    return machine, context


def replay(
    machine: Machine,
    history: History,
    letters: deque[Letter],
    now_us: int,
    context: Variables,
    hand_over: Callable[[Letter], None],
) -> Iterator[None]:
    """Bring the machine to the end of the journal. Continue with it between tasks of the running loop; it stops
    wherever the body has asked something of the log, to be answered first.
    """
    read_at = [entry.read_at for entry in history.entries] + [history.last_read_at]
    machine.seen = machine.seen_at = history.cursor
    machine.position.recorded = read_at[0]
    machine.begin(history.began_us or now_us, context)
    yield from _questions(machine)
    for letter in kept_letters(history):
        hand_over(letter)
        yield from _questions(machine)
    for number, entry in enumerate(history.entries):
        while letters and letters[0].seqnum <= entry.seen:
            hand_over(letters.popleft())
            yield from _questions(machine)
        machine.replay(entry, history.seqnums[number])
        machine.position.recorded = read_at[number + 1]
        yield from _questions(machine)


def kept_letters(history: History) -> list[Letter]:
    """What an earlier round has handed on in its record: the first messages of this one, at its beginning."""
    letters = (letter_of(data, seqnum, history.began_us) for seqnum, data in history.kept)
    return [letter for letter in letters if letter is not None]


def _questions(machine: Machine) -> Iterator[None]:
    """Stop for as long as the body asks."""
    while machine.is_reading:
        yield


async def between_tasks(work: Callable[[], T]) -> T:
    """What `work` returns, called by the running loop while none of its tasks runs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
            done.set_exception(error)
        else:
            done.set_result(found)

    loop.call_soon(run)
    return await done


async def ask_query(
    logbook: LogBook, workflow: Runnable, invocation_id: str, flow_id: str, query: str, payload: Any
) -> Any:
    """What a workflow's handler of that query says, by a replay in this process. Nothing else happens."""
    ask = partial(_ask_round, logbook, workflow, invocation_id, flow_id, query, payload)
    return await of_one_round(ask, f"{workflow.name} {flow_id!r}")


async def _ask_round(
    logbook: LogBook, workflow: Runnable, invocation_id: str, flow_id: str, query: str, payload: Any
) -> Any:
    history = await read_history(logbook, journal_tag(invocation_id))
    begun_with = history.continued.payload if history.continued is not None else recorded_payload(history)
    if begun_with is None:
        raise InvalidArgument(
            f"{workflow.name} {flow_id!r} answers no queries yet: it has not come to flow.on_query(...), or it calls "
            "none",
            field="query",
        )

    def ask(machine: Machine, context: Variables) -> Any:
        if machine.halted is not None:
            raise machine.halted
        return context.run(machine.mailbox.query, query, payload)

    return await at_the_end(logbook, workflow, invocation_id, flow_id, history, begun_with, ask)


async def at_the_end(
    logbook: LogBook,
    workflow: Runnable,
    invocation_id: str,
    flow_id: str,
    history: History,
    begun_with: Payload,
    look: Callable[[Machine, Variables], T],
    way: Way | None = None,
) -> T:
    """What `look` finds where the journal and the inbox end, by a replay in this process. Nothing else happens.

    `way`: what the body reads by; None: one of its own. `RoundOver` if it has continued as new since the history was
    read.
    """
    inbox = await inbox_of(logbook, invocation_id, history)
    arguments = Function.of(workflow).arguments(begun_with)
    body = Body(history.scopes(invocation_id), flow_id, logbook.name, workflow.fn, arguments)
    body.most_payload_bytes = most_payload_bytes(logbook, history)
    base = await read_base(logbook, invocation_id)
    if base is not None:
        join(body, base)
    machine, context = prepared(body, workflow.name, history, invocation_id)

    def hand_over(letter: Letter) -> None:
        machine.deliver(*letter)

    def all_of_it() -> Iterator[None]:
        yield from replay(machine, history, inbox.letters, 0, context, hand_over)
        while inbox.letters:
            hand_over(inbox.letters.popleft())
            yield from _questions(machine)

    replaying, reads_by = all_of_it(), way or Way(logbook)
    try:
        while await between_tasks(lambda: next(replaying, _OVER)) is not _OVER:
            await _answer(machine, reads_by)
        if isinstance(machine.halted, NoThread):
            raise machine.halted
        return await between_tasks(partial(look, machine, context))
    finally:
        machine.put_away()


async def _answer(machine: Machine, way: Way) -> None:
    """Answer what the body asks, as its execution would."""
    position = machine.position
    if not (position.recorded or position.seqnum):
        last = await until_answered(way.logbook.check_tail)
        position.choose(0 if last is None else last.seqnum)
    at = max(position.recorded or position.seqnum, machine.seen_at)
    answers = [(future, *await answered(question, way, at)) for question, future in machine.take_questions()]
    await between_tasks(lambda: machine.answer(answers))


async def read_base(logbook: LogBook, invocation_id: str) -> Base | None:
    """What a workflow that has joined a transaction begins with; None: it has joined none."""
    page = await until_answered(partial(logbook.read, inbox_tag(invocation_id), start=0, limit=1))
    for record in page.records:
        found = CODEC.own(record.data)
        if isinstance(found, JoinRecord):
            return found.base
    return None


def size_of_kept(kept: Sequence[tuple[int, bytes]]) -> int:
    """What messages need in the record of a continuation, at most."""
    return sum(len(data) + _KEPT_BYTES for _, data in kept)


def most_payload_bytes(logbook: LogBook, history: History | None = None) -> int:
    """What a continuation hands over at most: as much as a start takes, because a fork is one; beside the messages
    that are handed on again. An earlier version took more: what has done so once may again.
    """
    record_bytes = logbook.session.caller.limits.record_bytes
    kept_bytes = 0 if history is None else size_of_kept(history.kept)
    most = record_bytes - _ENTRY_BYTES - kept_bytes
    started = most_call_bytes(record_bytes) - _ENTRY_BYTES
    continued = history.continued if history is not None else None
    return most if continued is not None and len(continued.payload.data) > started else min(most, started)


def join(body: Body, base: Base) -> None:
    """Have the body work in the transaction of its parent."""
    body.joined = OpenTransaction()
    body.joined.draft.base = base


def recorded_payload(history: History) -> Payload | None:
    """What the workflow was started with, if its journal says it: that of one that answers queries does."""
    return history.marks.get(PAYLOAD_MARK)
