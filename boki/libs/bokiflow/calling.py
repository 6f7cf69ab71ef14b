"""Carries out the calls of a workflow: child workflows and functions, each a logged call under an id of its own."""

from __future__ import annotations

import asyncio
from typing import Final

from boki import BokiError, Context, NoSuchInvocation, WrongState
from boki.extending import OVER, PINNED, REPLAYED, Attribute, CallsById, Failure, Function, InvocationState, version_of
from boki.libs.bokiflow.closing import ask_to_end, children_of, kill_tree
from boki.libs.bokiflow.gates.marks import gate_id_of
from boki.libs.bokiflow.history import Scopes
from boki.libs.bokiflow.joins import JoinRecord
from boki.libs.bokiflow.records import CODEC, Result, inbox_tag
from boki.libs.bokiflow.work import CHILD, JOINS, CallWork, child_of

_POLL_S: Final = 20.0
_PAUSE_S: Final = 0.3
_LOOKS: Final = 3
"""So often a call is looked for whose start nobody waited for."""


class Calling:
    """The calls of one execution. `scopes`: in what their names and numbers are unique."""

    def __init__(self, ctx: Context, scopes: Scopes) -> None:
        self._ctx = ctx
        self._calls = CallsById(ctx)
        self._run_id = ctx.invocation_id
        self._scopes = scopes
        chosen = self._calls.chosen
        self._version = 0 if chosen is None else version_of(chosen.attributes)
        self._own: set[str] = set()
        """Calls that are known to have been started by this workflow, when some of them are closed."""

    async def perform(self, work: CallWork, n: int) -> Result:
        """Start the call, unless that was done before, and wait for its end, as the work says."""
        try:
            if work.base is not None:
                data, tag = CODEC.encode(JoinRecord(work.base)), inbox_tag(work.invocation_id)
                await self._ctx.logbook.append(data, [tag], key=f"flow-join:{work.invocation_id}")
            if work.starts:
                await self._calls.start(
                    work.invocation_id,
                    work.target,
                    *work.sent,
                    book=work.book,
                    start=f"{self._scopes.at(n)} {work.name}",
                    name=work.call_name,
                    reports_to=self._run_id,
                    attributes=self._attributes_of(work, n),
                    watcher=self._watcher_of(work),
                )
            if not work.awaits:
                return Result()
            while True:
                state = await self._calls.state(work.invocation_id, wait_s=_POLL_S)
                if state.state in OVER:
                    return Result(state.result, state.failure)
        except BokiError as error:
            if error.retryable or (work.starts and isinstance(error, NoSuchInvocation)):
                raise  # a start was acknowledged, so the call is there: whoever was asked had not seen it yet
            return Result(None, Failure.of(error))

    def _attributes_of(self, work: CallWork, n: int) -> dict[str, Attribute]:
        """A child runs with the version of its parent, which knows how to call that one."""
        found: dict[str, Attribute] = {CHILD: f"{n} {work.closes_by}", PINNED: self._version}
        if work.is_workflow is None:
            found[REPLAYED] = False
        return found if work.base is None else {**found, JOINS: True}

    def _watcher_of(self, work: CallWork) -> str:
        """What lets workflows of that name begin waits for the ends of those that have a limit."""
        own = self._ctx.logbook.name
        if isinstance(work.target, str):
            return gate_id_of(work.target, work.book or own)
        if getattr(work.target, "limit", None) is None:
            return ""
        info = Function.of(work.target).info
        return gate_id_of(info.name, work.book or info.book or own)

    async def close(self, work: CallWork, keep_s: float) -> None:
        """The workflow has ended, and this call of it has not: do what its policy says. One of the same id that was
        started by another caller, and stood for the start, is left alone.
        """
        if work.parent_close == "abandon":
            return
        looks = 0
        while True:
            try:
                state = await self._calls.state(work.invocation_id)
                if state.state not in OVER and CHILD in state.attributes and await self._is_own(state.id):
                    await self._end(work, state, keep_s)
            except WrongState:
                pass  # it has ended meanwhile
            except NoSuchInvocation:  # the workflow ended before the start was accepted, which may still be under way
                looks += 1
                if looks < _LOOKS:
                    await asyncio.sleep(_PAUSE_S)
                    continue
            except BokiError as error:
                if not error.retryable and error.outcome != "unknown":
                    raise
                await asyncio.sleep(_PAUSE_S)  # all that it does may be repeated
                continue
            return

    async def _is_own(self, invocation_id: str) -> bool:
        if invocation_id not in self._own:
            self._own.update(await children_of(self._ctx, self._run_id))
        return invocation_id in self._own

    async def _end(self, work: CallWork, child: InvocationState, keep_s: float) -> None:
        is_known = work.is_workflow is not None  # else the place that has accepted it knows what it is
        if work.closes_by == "cancel" and (is_known or child_of(child.attributes)[1] != "kill"):
            await ask_to_end(self._ctx, child)
        else:
            await kill_tree(self._ctx, child.id, keep_s, child.life_us)
