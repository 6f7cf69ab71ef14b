"""Rewinds a workflow to a step, and forks one: acts for `Handle.rewind` and `Handle.fork`.

Both write a journal before the workflow runs, under the condition that nothing else was written meanwhile. A rewind is
one record. A fork is a copy of what is kept, the messages included. If whoever does it is lost in between, the workflow
has not begun, and the same may be asked for again.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final
from uuid import uuid4

from boki import AlreadyExists, ConditionFailed, Expect, LogBook, NoSuchInvocation, WrongState
from boki.extending import OVER, PINNED, InvocationState, calls_reporting_to, ends_of, invocation_id_of
from boki.libs.bokiflow.beginning import Beginning, Calls
from boki.libs.bokiflow.branching import (
    Branch,
    branch_at,
    copied_journal,
    copied_letter,
    keeps_step,
    letters_for,
    new_scope,
    rewound,
)
from boki.libs.bokiflow.gates.marks import KEY, LIMIT, PRIORITY, gate_id_of
from boki.libs.bokiflow.history import History, life_of
from boki.libs.bokiflow.one_round import RoundOver, inbox_of
from boki.libs.bokiflow.records import Resumed, encode_note, inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import kept_letters, read_counted, read_history, recorded_payload
from boki.libs.bokiflow.work import CHILD, JOINS, child_of
from boki.libs.fold.retrying import until_answered, until_decided

WRITER_NAMES: Final = Random()
"""Draws the numbers by which rewinds and forks sign their records."""
_AT_ONCE: Final = 100
_AT_ONCE_BYTES: Final = 1 << 18
FORKED_FROM: Final = "boki:forked_from"
"""The attribute that names the id which a workflow was forked from."""


async def rewind(calls: Calls, logbook: LogBook, call: InvocationState, step: int | None, *, is_paused: bool) -> int:
    """Have a workflow that has ended, or is paused, continue in front of that step: its number."""
    run = call.id
    if call.state not in OVER and not is_paused:
        raise WrongState(
            f"{call.function} {call.name!r} runs ({call.state}): pause it first, or kill it, and rewind it then",
            state=call.state,
        )
    if call.state in OVER:
        _check_alone(call, "rewind")
    await logbook.sync()
    start = f"rewind {uuid4().hex}"
    history = await read_counted(logbook, journal_tag(run))
    life = life_of(start) if call.state in OVER else history.life
    branch = branch_at(history, step, run, new_scope(run, life, history.place), is_fork=False)
    await _check_children(calls, logbook, run, history, branch.n, None)
    now_us = logbook.session.likely_time_us()
    data = rewound(branch, history=history, writer=WRITER_NAMES.getrandbits(32), life=life, at_us=now_us)
    tag = journal_tag(run)
    try:
        append = partial(logbook.append, data, [tag], when=Expect(tag, count=history.place))
        await until_decided(append, f"a rewind of workflow {run}")
    except ConditionFailed:
        raise WrongState(
            f"{call.function} {call.name!r} has gone on meanwhile: nothing was rewound by this request; look at it "
            "again",
            state=call.state,
        ) from None
    await logbook.append(encode_note(Resumed()), [inbox_tag(run)])
    if call.state in OVER:
        again = Beginning(
            call.function,
            call.book,
            run,
            start,
            call.name,
            {**call.attributes, PINNED: 0},  # it may have failed for want of the code that runs now
            copies=run,
            watcher="" if history.has_begun else gate_id_of(call.function, call.book),
            if_ended="again",
        )
        await calls.begin(again)
    return branch.n


async def fork(calls: Calls, logbook: LogBook, call: InvocationState, step: int | None, new_id: str) -> int:
    """Begin a workflow of a new id with the history of that one up to a step: the number of the step."""
    run = call.id
    _check_alone(call, "fork")
    new_run = invocation_id_of(call.function, call.book, new_id)
    await logbook.sync()
    await _check_free(calls, logbook, call, new_run, new_id)
    start = f"fork {uuid4().hex}"
    life = life_of(start)
    history = await read_history(logbook, journal_tag(run))
    before = await read_counted(logbook, journal_tag(new_run))
    branch = branch_at(history, step, run, new_scope(new_run, life, before.place), is_fork=True)
    await _check_children(calls, logbook, run, history, None, branch.n)
    moved = await _copy_inbox(logbook, history, branch, run, new_run, start)
    journal = copied_journal(
        history,
        branch,
        moved,
        writer=WRITER_NAMES.getrandbits(32),
        place=before.place,
        life=life,
        at_us=logbook.session.likely_time_us(),
    )
    await _write(logbook, journal_tag(new_run), before.place, journal)
    payload = history.continued.payload if history.continued is not None else recorded_payload(history)
    attributes = {name: value for name, value in call.attributes.items() if _goes_with_fork(name)}
    attributes |= {FORKED_FROM: call.name, PINNED: 0}
    copies = "" if payload is not None else run
    watcher = "" if keeps_step(history, branch) else gate_id_of(call.function, call.book)
    again = Beginning(call.function, call.book, new_run, start, new_id, attributes, payload, copies, watcher)
    await calls.begin(again)
    return branch.n


def _check_alone(call: InvocationState, what: str) -> None:
    """Refuse if it has joined the transaction of its parent: what it writes is committed with that, or not at all."""
    if JOINS in call.attributes:
        raise WrongState(
            f"{call.function} {call.name or call.id!r} is a part of the transaction of the workflow that has "
            f"called it: {what} that one, which calls it again",
            state=call.state,
        )


def _goes_with_fork(attribute: str) -> bool:
    """Whether a fork has this attribute of the first workflow: the user's, and what the start says of flow control."""
    return not attribute.startswith("boki:") or attribute in (LIMIT, KEY, PRIORITY)


async def _check_free(calls: Calls, logbook: LogBook, call: InvocationState, new_run: str, new_id: str) -> None:
    try:
        known = await calls.state(new_run)
    except NoSuchInvocation:
        what = "messages were sent to that id"
    else:
        what = f"it is {known.state}"
    if what.startswith("it") or await logbook.check_tail(inbox_tag(new_run)) is not None:
        raise AlreadyExists(
            f"{call.function} {new_id!r} is in use ({what}): fork to an id that is free", invocation=new_run
        )


async def _check_children(
    calls: Calls, logbook: LogBook, run: str, history: History, since: int | None, until: int | None
) -> None:
    """Refuse if a child runs that is to be forgotten (from step `since`), or is another's (before step `until`).

    Steps are numbered again in each round and each life. A child of an earlier one was started by none of these steps.
    """
    scopes = tuple(f"{scope} " for _, scope in history.scopes(run).parts)
    book = logbook.session.logbook(ends_of(run).book)
    for child_id in await calls_reporting_to(book, run):
        try:
            child = await calls.state(child_id)
        except NoSuchInvocation:
            continue
        if CHILD not in child.attributes:  # another caller has started it again since
            continue
        if child.start and not child.start.startswith(scopes):
            continue
        n, _ = child_of(child.attributes)
        if child.state in OVER or (since is not None and n < since) or (until is not None and n >= until):
            continue
        what = f"child {child.function} {child.name or child.id!r} of step {n} still runs"
        if since is not None:
            raise WrongState(
                f"{what}, and the step would start another one: end it first, or wait", invocation=child_id
            )
        raise WrongState(
            f"{what}, and reports to the workflow that is forked: wait for its end, or fork at step {n}",
            invocation=child_id,
        )


async def _copy_inbox(
    logbook: LogBook, history: History, branch: Branch, run: str, new_run: str, start: str
) -> list[tuple[int, int]]:
    """Copy the messages that the kept part was given: where each stood, and stands now."""
    try:
        inbox = await inbox_of(logbook, run, history)
    except RoundOver:
        raise WrongState(
            "the workflow has continued as new, or was trimmed, while it was read: nothing was forked; fork it again",
            state="changed",
        ) from None
    letters = letters_for(history, branch, [*kept_letters(history), *inbox.letters])
    requests = history.requests(run)
    moved: list[tuple[int, int]] = []
    for some in _groups([copied_letter(letter, requests) for letter in letters]):
        records = [(data, [inbox_tag(new_run)]) for data in some]
        append = partial(logbook.append_many, records, key=f"{start} {len(moved)}")
        seqnums = await until_answered(append, "a copy of messages")
        moved += zip((letter.seqnum for letter in letters[len(moved) :]), seqnums, strict=False)
    return moved


async def _write(logbook: LogBook, tag: str, place: int, records: list[bytes]) -> None:
    for some in _groups(records):
        append = partial(logbook.append_many, [(data, [tag]) for data in some], when=Expect(tag, count=place))
        await until_decided(append, "a copy of a journal")
        place += len(some)


def _groups(records: list[bytes]) -> list[list[bytes]]:
    """The records in groups that one append takes."""
    found: list[list[bytes]] = []
    size = 0
    for data in records:
        if not found or len(found[-1]) == _AT_ONCE or size + len(data) > _AT_ONCE_BYTES:
            found.append([])
            size = 0
        found[-1].append(data)
        size += len(data)
    return found
