"""Ends workflows with the children that they leave behind, as each child's policy says.

A kill is begun by a logged call, the **closer**, which is in the log before the workflow is ended: the process that
asked for the kill may be lost right then, and the children are closed all the same. It does its work twice, some
seconds apart, because a body that is being killed may still start a child.
"""

from __future__ import annotations

from asyncio import gather
from contextlib import suppress
from functools import partial
from typing import Final

from boki import ConditionFailed, Context, Expect, NoSuchInvocation, WrongState
from boki.extending import OVER, CallsById, InvocationState, Payload, Suspend, calls_reporting_to, encode_any, ends_of
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.history import life_of
from boki.libs.bokiflow.records import (
    CancelRequested,
    Ended,
    Entry,
    encode_entry,
    encode_note,
    ended_tag,
    inbox_tag,
    journal_tag,
    uncounted,
)
from boki.libs.bokiflow.sweeping import Sweeps, place_of
from boki.libs.bokiflow.work import CHILD, child_of
from boki.libs.fold.retrying import until_answered

CLOSER: Final = "close"
"""What a closer attends to: see `ChosenId.attends`."""
_AGAIN_US: Final = 3_000_000
_ANY_TIME: Final = 1 << 62
_AT_ONCE: Final = 16
"""Number of children that are looked up at a time."""


async def close_and_look_again(ctx: Context, keep_s: float) -> Payload:
    """The body of a closer. In the end it says that the workflow has ended, which a killed one could not say itself."""
    calls = CallsById(ctx)
    run, _, life_us = calls.payload.data.decode().partition(" ")
    nothing = encode_any(None, "the end of a closer")
    try:
        state = await until_answered(partial(calls.state, run), f"a look at workflow {run}")
    except NoSuchInvocation:
        return nothing
    await kill_tree(ctx, run, keep_s, int(life_us))
    if str(state.life_us) == life_us:
        await record_end(ctx, run, state, keep_s)
    if ctx.run_number == 1:
        raise Suspend(clock_of(ctx).now_us() + _AGAIN_US, note="looks once more for children")
    return nothing


async def record_end(ctx: Context, run: str, killed: InvocationState, keep_s: float) -> None:
    """Record in the journal that the workflow has ended, unless it was begun again since: the record would take the
    place of one of the new life, which would then run a step again.

    The journal is counted before the state is read, so that a life which begins after that fails the condition by its
    first record. The record says its place, which a later life needs if the records in front of it are trimmed.
    """
    book, tag = ctx.logbook_named(killed.book), journal_tag(run)
    place = await place_of(book, tag)
    ended_us = 0
    with suppress(NoSuchInvocation):  # forgotten since: then nothing was begun again
        state = await until_answered(partial(CallsById(ctx).state, run), f"a look at workflow {run}")
        if state.life_us != killed.life_us:
            return
        ended_us = state.finished_us
    end = encode_entry(Entry(0, uncounted(place), 0, 0, Ended(ended_us)))
    when = Expect(tag, count=place)
    key = f"flow-end:{run}:{killed.life_us}"
    with suppress(ConditionFailed):
        append = partial(book.append, end, [tag, ended_tag(keep_s)], key=key, when=when)
        await until_answered(append, f"the end of workflow {run}")


async def kill_tree(ctx: Context, run: str, keep_s: float, life_us: int = 0) -> None:
    """End a workflow, and its children as their policies say, and those of children that it ends. Repeatable.

    What they leave is trimmed after `keep_s`: of children the decorator is not known here. `life_us`: which life of it.
    If it was begun again since, that and what it has started is not to be closed. 0: whichever it has.
    """
    await _kill_all(ctx, [(run, life_us)], keep_s)


async def close_children(ctx: Context, keep_s: float, *, is_copy: bool) -> None:
    """Treat the children of a workflow that ends as their policies say: all that the log knows of, also those that it
    started before it continued as new. Children of an earlier life of the id are left alone. `is_copy`: it was rewound,
    and has those of the life before. Repeatable.
    """
    run = ctx.invocation_id
    since_us = 0
    if not is_copy:
        with suppress(NoSuchInvocation):  # an engine may not have heard of it yet
            state = await until_answered(partial(CallsById(ctx).state, run), f"a look at workflow {run}")
            since_us = state.accepted_us
    await _kill_all(ctx, await _close_children(ctx, run, 0, since_us), keep_s)


async def _kill_all(ctx: Context, runs: list[tuple[str, int]], keep_s: float) -> None:
    """End these lives of calls, and their children."""
    calls = CallsById(ctx)
    while runs:
        one, life_us = runs.pop()
        with suppress(NoSuchInvocation, WrongState):
            killed = await until_answered(partial(calls.cancel, one, life_us), f"the end of workflow {one}")
            if await _has_left_something(ctx, killed):
                await record_end(ctx, one, killed, keep_s)
                if killed.book != ctx.logbook.name:  # there no workflow may end by itself that keeps it for as long
                    ctx.logbook.session.shared(Sweeps).workflow_ended(ctx, keep_s, killed.book)
        runs += await _close_children(ctx, one, life_us)


async def _has_left_something(ctx: Context, killed: InvocationState) -> bool:
    """Whether there is something to be trimmed of a call that was killed: of a function, or a workflow that has done
    nothing, there is not.
    """
    book = ctx.logbook_named(killed.book)
    tags = journal_tag(killed.id), inbox_tag(killed.id)
    looks = [until_answered(partial(book.check_tail, tag), f"what workflow {killed.id} has left") for tag in tags]
    return any(tail is not None for tail in await gather(*looks))


async def _close_children(ctx: Context, run: str, life_us: int, since_us: int = 0) -> list[tuple[str, int]]:
    """Of the children accepted since that time: ask those to end that are to cancel themselves; the ones to be killed,
    and in which lives. `life_us`: that of their parent; children of a later life of it are left alone. 0: it has
    none.
    """
    calls = CallsById(ctx)
    killed = []
    children = await children_of(ctx, run)
    looks = [children[at : at + _AT_ONCE] for at in range(0, len(children), _AT_ONCE)]
    found = [state for some in looks for state in await gather(*(_state_of(calls, child) for child in some))]
    parent = await _state_of(calls, run) if life_us and children else None  # after them: none is of a life after that
    until_us = _ANY_TIME if parent is None or parent.life_us == life_us else parent.life_us
    for child, state in zip(children, found, strict=True):
        if state is None or CHILD not in state.attributes:  # it was a child, and another caller has started it again
            continue
        _, policy = child_of(state.attributes)
        if not since_us <= state.accepted_us < until_us or state.state in ("done", "failed"):
            continue
        if policy == "kill":
            killed.append((child, state.life_us))  # also one that is: its own children may not be closed yet
        elif policy == "cancel" and state.state not in OVER:
            await ask_to_end(ctx, state)
    return killed


async def _state_of(calls: CallsById, call: str) -> InvocationState | None:
    """What is known of a call; None: it is not kept any more."""
    try:
        return await until_answered(partial(calls.state, call), f"a look at call {call}")
    except NoSuchInvocation:
        return None


async def ask_to_end(ctx: Context, child: InvocationState) -> None:
    """Ask a child workflow to cancel itself. Repeatable; one that was begun again since is asked again."""
    run = child.id
    life = life_of(child.start) if child.start else 0
    note, key = encode_note(CancelRequested("its parent has ended", life)), f"flow-close:{run}:{child.life_us}"
    append = partial(ctx.logbook_named(child.book).append, note, [inbox_tag(run)], key=key)
    await until_answered(append, f"a request to workflow {run}")


async def children_of(ctx: Context, run: str) -> list[str]:
    """Children that may have something to be ended: not those that returned, of which there may be thousands."""
    book = ctx.logbook_named(ends_of(run).book)
    await until_answered(book.sync, "a look at children")
    return await until_answered(partial(calls_reporting_to, book, run, skip_done=True), "a look at children")
