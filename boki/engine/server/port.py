"""The engine's shell: log operations come in from this process, and go through the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from boki.engine.core import EngineCore
from boki.engine.relay import RelayCore
from boki.errors import BokiError, DeadlineExceeded, Unavailable
from boki.host.clock import now_us
from boki.host.host import Host
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Failure, Operation
from boki.protocol.asking import Question
from boki.protocol.effects import Answer as Ended
from boki.protocol.messages import Message

Finish = Callable[[Answer, Positions], None]

_GRACE_S = 1.0
"""The core answers at the deadline; its caller waits this much longer."""


class EnginePort:
    """Log operations for an engine of this process: `submit` with a callback, `request` for coroutines.

    Operations must have been checked (`boki.log.checks`) by whoever took them from a worker or a client.
    """

    def __init__(self) -> None:
        self._host: Host | None = None
        self._core: EngineCore | RelayCore | None = None

    def attach(self, host: Host, core: EngineCore | RelayCore) -> None:
        """From now on operations go to this engine, or through this relay to others."""
        self._host, self._core = host, core

    @property
    def is_ready(self) -> bool:
        """Whether the engine has caught up with its logs."""
        return self._core is not None and self._host is not None and not self._host.stopped and self._core.is_ready

    def submit(self, operation: Operation, positions: Positions, timeout_us: int, finish: Finish) -> None:
        """Carry out an operation; `finish(answer, positions)` is called once, in this loop, maybe before returning."""
        if self._host is None or self._core is None or self._host.stopped:
            error = Unavailable("the engine does not run: it is starting, stopping, or its disk has failed")
            finish(Failure.of(error), {})
            return
        now = now_us()
        self._host.perform(self._core.submit(operation, positions, now + timeout_us, finish, now))
        self._host.settle_soon()

    def abandon(self, finish: Finish) -> None:
        """Nobody waits any more for the read that was submitted with this `finish`, which is not called from now on.

        What writes is carried out all the same. Repeatable.
        """
        if self._host is not None and self._core is not None and not self._host.stopped:
            self._host.perform(self._core.give_up(finish))

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""
        return await self._wait(
            lambda finish: self.submit(operation, dict(positions), int(timeout_s * 1_000_000), finish),
            positions,
            timeout_s,
        )

    def begin_request(self, operation: Operation, positions: Positions, timeout_s: float, told: Finish) -> bool:
        """See `boki.api.port.BeginningPort`."""
        timer: asyncio.TimerHandle | None = None
        is_told = False

        def finish(answer: Answer, seen: Positions) -> None:
            nonlocal is_told
            if not is_told:
                is_told = True
                if timer is not None:
                    timer.cancel()
                told(answer, seen)

        self.submit(operation, dict(positions), int(timeout_s * 1_000_000), finish)
        if not is_told:
            late = Failure.of(_too_late(timeout_s))
            timer = asyncio.get_running_loop().call_later(timeout_s + _GRACE_S, finish, late, {})
        return True

    def watch(self, book: str, tag: str, min_seqnum: int, finish: Finish) -> None:
        """Call `finish` once, maybe before returning, when the tag has a record at or above `min_seqnum`.

        Only where the index is. It lasts until then, until `unwatch`, or until this engine ends; many cost little.
        """
        if self._host is not None and not self._host.stopped and isinstance(self._core, EngineCore):
            self._host.perform(self._core.watch(book, tag, min_seqnum, finish))

    def unwatch(self, book: str, tag: str, finish: Finish) -> None:
        """End the watch of that `finish`, if there still is one."""
        if isinstance(self._core, EngineCore):
            self._core.watches.remove(book, tag, finish)

    async def fence(self, incarnation: int, timeout_s: float) -> None:
        """Ensure that this incarnation of an engine appends nothing more; then all that it had is applied here."""
        await self._wait(lambda finish: self._fence(incarnation, int(timeout_s * 1_000_000), finish), {}, timeout_s)

    def _fence(self, incarnation: int, timeout_us: int, finish: Finish) -> None:
        if self._host is None or self._host.stopped or not isinstance(self._core, EngineCore):
            finish(Failure.of(Unavailable("no engine with the index runs here")), {})
            return
        self._host.perform(self._core.fence(incarnation, now_us() + timeout_us, finish))
        self._host.settle_soon()

    async def ask(
        self, make: Callable[[int, int], Message], timeout_s: float, *, changes: bool, wait_s: float = 0.0
    ) -> Message:
        """What an engine with the index answers to a message about a logged call; from an engine without the index.

        Calls are logged under their ids, so several engines may be asked. The engine may take `wait_s` on purpose.
        """

        def begin(finish: Finish) -> None:
            if self._host is None or self._host.stopped or not isinstance(self._core, RelayCore):
                finish(Failure.of(Unavailable("this engine is starting or stopping")), {})
                return
            now = now_us()
            question = Question(
                make,
                now + int(timeout_s * 1e6),
                finish,
                is_repeatable=True,
                changes=changes,
                wait_us=int(wait_s * 1e6),
            )
            self._host.perform(self._core.ask(question, now))

        return cast("Message", await self._wait(begin, {}, timeout_s))

    async def _wait(self, begin: Callable[[Finish], None], positions: Positions, timeout_s: float) -> Answer:
        """Begin something that ends by its callback, and wait for that."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def finish(answer: Answer, seen: Positions) -> None:
            merge_positions(positions, seen)
            if not future.done():
                future.set_result(answer)

        begin(finish)
        if future.done():
            answer = future.result()
        else:
            timer = asyncio.get_running_loop().call_later(timeout_s + _GRACE_S, _give_up, future, timeout_s)
            try:
                answer = await future
            except asyncio.CancelledError:
                self.abandon(finish)
                raise
            finally:
                timer.cancel()
        if isinstance(answer, Failure):
            raise answer.error()
        return answer


def _give_up(future: asyncio.Future[Answer], timeout_s: float) -> None:
    if not future.done():
        future.set_exception(_too_late(timeout_s))


def _too_late(timeout_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"the engine did not answer within {timeout_s:g} s")


def answer_waiter(effect: Ended) -> None:
    """Call the `Finish` that is the token. Errors travel as `Failure`s."""
    answer = effect.answer
    told = Failure.of(answer) if isinstance(answer, BokiError) else answer
    cast("Callable[[object, Positions], None]", effect.token)(told, effect.positions)
