"""A machine that loses its power at a chosen moment: a log, and the engine whose logged calls run workflows on it.

The moments are those at which anything becomes durable or happens: before and after each append, those of the book of
logged calls included (the acceptance of a workflow, its runs, its end), and before and after the body of each step or
commit. A run is in virtual time and passes the same moments each time. At any of them a workflow can be cancelled, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from boki import Context, DeadlineExceeded, FunctionFailed
from boki.api.append_gatherer import AppendGatherer
from boki.api.function import Function
from boki.extending import invocation_id_of
from boki.libs.bokiflow import Workflow
from boki.libs.bokiflow.hooks import Hooks, installed
from boki.libs.bokiflow.records import CancelRequested, encode_note, inbox_tag
from boki.log.chunk import Group, encode_chunk
from boki.log.metalog import Positions
from boki.log.operations import Answer, Append, Operation
from boki.protocol.calls import Call, Outcome, Payload
from boki.verify.sim import flow_work
from boki.verify.sim.call_promises import find_wrong_promises
from boki.verify.sim.flow_work import CallsOfEngine, context_of, run_on_engine
from tests.books.calls.call_world import CallWorld, Fault, FaultyPort, now_us, time_passes

FLOW = "trip"
"""The id of the workflow that a machine runs."""
_LONGEST_S = 600.0
_APPEND_S = 1.5
"""An append takes this long: a workflow that is faster than its first look at its inbox hears of no cancellation."""
_TIMEOUT_US = 10**12


class Machine(CallWorld):
    """One log, and one machine after the other that stands on it. `dies_at`, `cancels_at`: moments, counted from 1."""

    def __init__(self, *workflows: Workflow[Any, Any], dies_at: Collection[int] = (), cancels_at: int = 0) -> None:
        super().__init__()
        self.moments: list[str] = []
        """What each moment was."""
        self._workflows = workflows
        self._dies_at = dies_at
        self._cancels_at = cancels_at
        self._off = asyncio.Event()

    async def run(self, payload: object) -> Any:
        """Have the first of the workflows run until it has ended: what it returned, or the name of its error."""
        with self._prepared():
            while True:
                self._off.clear()
                await self.start()
                work = asyncio.create_task(self._use(payload))
                off = asyncio.create_task(self._off.wait())
                done, _ = await asyncio.wait([work, off], return_when=asyncio.FIRST_COMPLETED, timeout=_LONGEST_S)
                await self.kill()
                assert done, "the workflow is stuck"
                if off not in done:
                    return work.result()

    @property
    def losses(self) -> int:
        """How often the power was lost."""
        return self.incarnation - 1

    def wrong_promises(self) -> list[str]:
        """What is wrong in the book of logged calls."""
        return [str(each) for each in find_wrong_promises(self.records())]

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        known = {each.name: each for each in self._workflows}
        infos = {name: Function.of(each).info for name, each in known.items()}
        with (
            patch.dict(flow_work.WORKFLOWS, known),
            patch.dict(flow_work.WORKFLOWS_INFO, infos),
            installed(_Boundaries(self)),
        ):
            yield

    async def _use(self, payload: object) -> Any:
        """What a user does, again on the next machine: start the workflow under its id, and wait for its end."""
        user = Call("c" * 32, "user", Payload("json", b"null"), "user", _TIMEOUT_US)
        handle = await self._workflows[0].start(self._context(user), payload, id=FLOW)
        while True:
            try:
                with suppress(DeadlineExceeded):
                    return await handle.result()
            except FunctionFailed as error:
                return error.error_type

    async def _run(self, call: Call) -> Outcome:
        return await run_on_engine(self._context(call))

    def _context(self, call: Call) -> Context:
        return context_of(call, self.port, AppendGatherer(self.port), CallsOfEngine(self.calls), now_us)

    def new_port(self, faults: dict[int, Fault] | None) -> FaultyPort:
        return _Port(self, faults)

    # moments

    def passes(self, moment: str) -> bool:
        """A moment passes; whether the power is off."""
        if self.port.is_halted:
            return True
        self.moments.append(moment)
        if len(self.moments) == self._cancels_at:
            self._cancel()
        if len(self.moments) in self._dies_at:
            self.port.is_halted = True
            self._off.set()
        return self.port.is_halted

    def _cancel(self) -> None:
        """The request of `Handle.cancel` is in the log at this very moment."""
        info = Function.of(self._workflows[0]).info
        tag = inbox_tag(invocation_id_of(info.name, info.book, FLOW))
        row = (encode_note(CancelRequested("changed my mind")), (tag,))
        self.log.answer(Append(info.book, encode_chunk(info.book, [Group([row], [], None)])), now_us())


class _Port(FaultyPort):
    """A machine's way to its log."""

    def __init__(self, machine: Machine, faults: dict[int, Fault] | None) -> None:
        super().__init__(machine.log, faults)
        self._machine = machine

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        if not isinstance(operation, Append):
            return await super().request(operation, positions, timeout_s)
        await time_passes(_APPEND_S)
        await self._pass(f"before append to {operation.book}")
        try:
            return self.log.answer(operation, now_us())
        finally:
            await self._pass(f"after append to {operation.book}")

    async def _pass(self, moment: str) -> None:
        if self._machine.passes(moment):
            await asyncio.Event().wait()


class _Boundaries(Hooks):
    """Moments before and after the body of each step or commit."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def dies(self, moment: str, step: str) -> bool:
        return self._machine.passes(f"{moment} {step}")
