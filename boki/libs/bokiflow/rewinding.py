"""Rewinds a workflow to a step, and forks one: acts for `Handle.rewind` and `Handle.fork`.

Both write a journal before the workflow runs, under the condition that nothing else was written meanwhile. A rewind is
one record. A fork is a copy of what is kept, the messages included: see `boki.libs.bokiflow.copying`. If the process
is lost in between, the workflow has not begun, and the same may be asked for again.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from random import Random
from typing import Final
from uuid import uuid4

from boki import AlreadyExists, BokiError, ConditionFailed, Expect, LogBook, NoSuchInvocation, WrongState
from boki.extending import OVER, PINNED, InvocationState, calls_reporting_to, ends_of, invocation_id_of
from boki.libs.bokiflow.beginning import Beginning, Calls
from boki.libs.bokiflow.branching import branch_at, keeps_step, new_scope, rewound
from boki.libs.bokiflow.copying import copy_history, drop_copies, planned
from boki.libs.bokiflow.gates.marks import KEY, LIMIT, PRIORITY, gate_id_of
from boki.libs.bokiflow.history import History, life_of
from boki.libs.bokiflow.records import Resumed, encode_note, inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import read_counted, read_history, recorded_payload
from boki.libs.bokiflow.work import CHILD, JOINS, child_of
from boki.libs.fold.retrying import until_decided

WRITER_NAMES: Final = Random()
"""Draws the numbers by which rewinds sign their records."""
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


async def fork(
    calls: Calls, logbook: LogBook, call: InvocationState, step: int | None, new_id: str, *, is_named: bool = True
) -> int:
    """Begin a workflow of a new id with the history of that one up to a step: the number of the step.

    `is_named`: the caller knows the id, and may ask for the same again.
    """
    run = call.id
    _check_alone(call, "fork")
    new_run = invocation_id_of(call.function, call.book, new_id)
    await logbook.sync()
    with suppress(NoSuchInvocation):
        raise _in_use(call, new_run, new_id, f"it is {(await calls.state(new_run)).state}")
    history = await read_history(logbook, journal_tag(run))
    made = await planned(logbook, history, step, run, new_run)
    await _check_children(calls, logbook, run, history, None, made.branch.n)
    await copy_history(logbook, history, made, _in_use(call, new_run, new_id, "messages were sent to that id"))
    payload = history.continued.payload if history.continued is not None else recorded_payload(history)
    attributes = {name: value for name, value in call.attributes.items() if _goes_with_fork(name)}
    attributes |= {FORKED_FROM: call.name, PINNED: 0}
    copies = "" if payload is not None else run
    watcher = "" if keeps_step(history, made.branch) else gate_id_of(call.function, call.book)
    again = Beginning(call.function, call.book, new_run, made.start, new_id, attributes, payload, copies, watcher)
    try:
        await calls.begin(again)
    except BokiError as error:
        if not is_named and error.outcome == "not_applied":
            with suppress(BokiError):
                await drop_copies(logbook, made)
        raise
    return made.branch.n


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


def _in_use(call: InvocationState, new_run: str, new_id: str, why: str) -> AlreadyExists:
    return AlreadyExists(
        f"{call.function} {new_id!r} is in use ({why}): fork to an id that is free", invocation=new_run
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
        if child.start.startswith(f"{run}:") and not child.start.startswith(scopes):
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
