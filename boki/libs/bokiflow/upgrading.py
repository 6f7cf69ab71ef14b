"""Moves a workflow to another deployed version of the code, if its history does not diverge under that.

A logged call does it, the **mover**, which runs with the version that the workflow is to move to. It replays what is
recorded, and then pins the workflow by a record of the ledger of calls, under the condition that no run has begun
since. So a mover that is lost is repeated, and of two movers one finds the work done. A workflow that runs at that
moment is looked at again a little later.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final
from uuid import uuid4

import msgspec

from boki import Context, InvalidArgument, WrongState
from boki.extending import (
    ATTENDS,
    OVER,
    PINNED,
    THIS_VERSION,
    Attribute,
    CallsById,
    Function,
    InvocationState,
    Payload,
    decode_any,
    encode_any,
    version_of,
)
from boki.libs.bokiflow.beginning import Beginning, Calls, ended_attendant
from boki.libs.bokiflow.clocks import clock_of
from boki.libs.bokiflow.one_round import of_one_round
from boki.libs.bokiflow.records import journal_tag
from boki.libs.bokiflow.refusals import WorkflowEnded
from boki.libs.bokiflow.replaying import Runnable, at_the_end, read_history
from boki.libs.fold.retrying import until_answered

MOVER: Final = "upgrade"
CHECKER: Final = "upgrade-check"
"""What movers attend to: see `ChosenId.attends`. A checker does everything but the move."""
_TRIES: Final = 12
_PAUSE_US: Final = 250_000


class Upgrade(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a request to move a workflow to another version."""

    id: str
    workflow: str
    before: int
    """The version that it was pinned to; 0: it was not pinned."""
    version: int
    """The version that it was to move to."""
    is_moved: bool
    """Whether it is pinned to that now. It may have been before."""
    diverges: str = ""
    """Why not: both sides of where the code does something else than what is recorded."""
    is_busy: bool = False
    """Why not: it ran all the time, so it could not be looked at."""


async def upgrade(calls: Calls, call: InvocationState, version: int | None, *, is_dry: bool) -> Upgrade:
    """Have a mover move the workflow of that call, to the version that runs now if none is named; see `Upgrade`."""
    if call.state in OVER:
        raise WorkflowEnded(
            f"{call.function} {call.name!r} has ended ({call.state}): only what continues is moved. boki flow "
            "rewind continues it with the code that runs now",
            state=call.state,
        )
    mover = uuid4().hex
    attributes: dict[str, Attribute] = {
        ATTENDS: CHECKER if is_dry else MOVER,
        PINNED: version or 0,
        THIS_VERSION: True,
    }
    beginning = Beginning(call.function, call.book, mover, mover, call.name, attributes, copies=call.id)
    result = await ended_attendant(calls, beginning, f"{call.function} {call.name!r} was not moved, and may be yet,")
    assert result is not None, "it has ended without a failure"
    return msgspec.convert(decode_any(result, "answer of a mover"), Upgrade)


async def move(ctx: Context, workflow: Runnable, *, is_dry: bool) -> Payload:
    """The body of a mover, or of a checker."""
    calls = CallsById(ctx)
    chosen = calls.chosen
    assert chosen is not None, "a mover is started under an id"
    version, tries = version_of(chosen.attributes), 0
    while True:
        state = await until_answered(partial(calls.state, chosen.copies))
        if state.state in OVER:
            raise WorkflowEnded(f"{workflow.name} {chosen.name!r} has ended ({state.state})", state=state.state)
        before = version_of(state.attributes)
        found = Upgrade(id=chosen.name, workflow=workflow.name, before=before, version=version, is_moved=True)
        if version and version == before:
            return encode_any(msgspec.to_builtins(found), "answer of a mover")
        replay = partial(_divergence, ctx, workflow, state, calls.payload)
        diverges = await of_one_round(replay, f"{workflow.name} {state.name!r}")
        is_busy = False
        if diverges or is_dry or not version:
            break
        try:
            await until_answered(partial(calls.move, state.id, version, state.attempts))
            break
        except WrongState:
            tries += 1
            is_busy = tries == _TRIES
            if is_busy:
                break
        await _pause(ctx)
    is_moved = bool(version) and not (diverges or is_busy or is_dry)
    found = msgspec.structs.replace(found, is_moved=is_moved, diverges=diverges, is_busy=is_busy)
    return encode_any(msgspec.to_builtins(found), "answer of a mover")


async def _divergence(ctx: Context, workflow: Runnable, state: InvocationState, payload: Payload) -> str:
    """Where this code does something else than what is recorded; "": nowhere."""
    history = await read_history(ctx.logbook, journal_tag(state.id))
    begun_with = history.continued.payload if history.continued is not None else payload
    try:
        Function.of(workflow).arguments(begun_with)
    except InvalidArgument as error:
        return f"recorded was another payload than the code takes: {error}"

    def look(machine: Any, _context: Any) -> str:
        if machine.diverged is None:
            return ""
        return "recorded was {recorded}, and the code {started}".format(**machine.diverged.details)

    return await at_the_end(ctx.logbook, workflow, state.id, state.name, history, begun_with, look)


async def _pause(ctx: Context) -> None:
    clock, over = clock_of(ctx), asyncio.Event()
    timer = clock.call_at(clock.now_us() + _PAUSE_US, over.set)
    try:
        with clock.waiting():
            await over.wait()
    finally:
        timer.cancel()
