"""Runs work of a user against one process that dies at random moments: the next one continues on the same log.

The moments are those of `machines`: before and after each append, those of the book of logged calls included, and
before and after the body of each step. The user stays: what it has asked of a process that dies is not answered, and it
asks the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Final

from boki import ConnectionLost, Context
from boki.api.append_gatherer import AppendGatherer
from boki.api.call_state import UNHURRIED_US
from boki.libs.bokiflow import Workflow
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation
from boki.protocol.calls import Call, CallChange, InvocationState, Outcome, Payload
from boki.verify.sim.flow_work import CallsOfEngine, context_of
from tests.books.calls.call_world import VirtualLoop, now_us, time_passes
from tests.libs.bokiflow.machines import Machine

_IS_USER: Final[ContextVar[bool]] = ContextVar("is_user", default=False)


class MortalProcess(Machine):
    """One process after the other, with a user that outlives them. `losses`: how many have died."""

    def __init__(self, *workflows: Workflow[Any, Any], dies_at: Collection[int]) -> None:
        super().__init__(*workflows, dies_at=dies_at)
        self._users: set[asyncio.Task[Any]] = set()
        self._stands = asyncio.Event()

    def serve(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        """Do the work of the user, whatever dies meanwhile. Raises what it raises."""
        loop = VirtualLoop()
        loop.set_task_factory(self._new_task)
        try:
            loop.run_until_complete(self._serve(work))
        finally:
            loop.close()

    def _new_task(self, loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        context = options.get("context")
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        if _IS_USER.get() if context is None else context.get(_IS_USER):
            self._users.add(task)
            task.add_done_callback(self._users.discard)
        return task

    async def _serve(self, work: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        of_user = copy_context()
        of_user.run(_IS_USER.set, True)
        with self._prepared():
            user = asyncio.get_running_loop().create_task(work(_UserContext(self)), context=of_user)
            while not user.done():
                self._off = asyncio.Event()
                off = asyncio.create_task(self._off.wait())
                start = asyncio.create_task(self.start())
                await asyncio.wait([start, off], return_when=asyncio.FIRST_COMPLETED)
                if not self._off.is_set():
                    start.result()
                    self._stands.set()
                    await asyncio.wait([user, off], return_when=asyncio.FIRST_COMPLETED)
                    self._stands.clear()
                await self.kill()
            user.result()

    def _doomed(self) -> set[asyncio.Task[Any]]:
        return super()._doomed() - self._users

    async def ask(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What the process that stands answers to the user. `ConnectionLost`: it has died first."""
        await self._stands.wait()
        off = asyncio.create_task(self._off.wait())
        within = asyncio.get_running_loop().create_task(make(), context=_OF_PROCESS.copy())
        try:
            await asyncio.wait([within, off], return_when=asyncio.FIRST_COMPLETED)
            if self.port.is_halted or not within.done():
                raise ConnectionLost("the process has died")
            return within.result()
        finally:
            off.cancel()
            within.cancel()


_OF_PROCESS: Final = copy_context()


class _UserContext(Context):
    """The user's context, which finds the process that stands."""

    __slots__ = ("clock",)

    def __init__(self, process: MortalProcess) -> None:
        call = Call("c" * 32, "user", Payload("json", b"null"), "user", UNHURRIED_US)
        port = _Port(process)
        made = context_of(call, port, AppendGatherer(port), _Calls(process), now_us)
        super().__init__(made._state, port, AppendGatherer(port), _Calls(process))
        self.clock = _Clock()


class _Clock:
    """The clock of `boki.testing`, as far as a user of programs needs it."""

    async def advance(self, seconds: float) -> None:
        """Let time pass."""
        await time_passes(seconds)


class _Port:
    """The user's way to the log."""

    def __init__(self, process: MortalProcess) -> None:
        self._process = process

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `LogPort`."""
        answer: Answer = await self._process.ask(lambda: self._process.port.request(operation, positions, timeout_s))
        return answer


class _Calls:
    """The logged calls of the process that stands, for the user."""

    def __init__(self, process: MortalProcess) -> None:
        self._process = process

    async def invoke(self, call: Call) -> Outcome:
        """See `CallPort`."""
        raise AssertionError(f"{call.function} was called without being logged")

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """See `CallPort`."""
        accepted: str = await self._process.ask(
            lambda: CallsOfEngine(self._process.calls).invoke_later(call, delay_s, key)
        )
        return accepted

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `CallPort`. For as long as is asked: a user that polled for days would take long to run."""
        process = self._process
        state: InvocationState = await process.ask(lambda: process.calls.asked(invocation_id, wait_s, change))
        return state
