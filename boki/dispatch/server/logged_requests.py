"""What workers ask of logged calls: that one be logged, and what is known of one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from boki.dispatch.server.own_tries import OwnTry
from boki.dispatch.server.worker_link import WorkerLink
from boki.errors import BokiError
from boki.log.operations import Failure
from boki.protocol.calls import Begun, Call, CallChange, InvocationState
from boki.worker.frames import Accepted, AskCall, CallTold, InvokeLater

Later = Callable[[Call, float, str | None], Awaitable[Begun]]
"""Logs a call that is to be run after this many seconds, under an idempotency key; what is known once it is durable.
Raises the `BokiError` that refuses it."""

Ask = Callable[[str, float, CallChange], Awaitable[InvocationState]]
"""What is known of a logged call, after waiting this many seconds at most for its end, or after a change to it. Raises
the `BokiError` that refuses it."""


class LoggedRequests:
    """Answers the requests of an engine's workers."""

    def __init__(self, later: Later, ask: Ask) -> None:
        self._later = later
        self._ask = ask

    async def accept(self, link: WorkerLink, frame: InvokeLater, call: Call, tried: OwnTry | None) -> None:
        """Log the call of that frame, as it is to be logged. `tried`: the worker's own try of it."""
        try:
            begun = await self._later(call, frame.delay_s, frame.key)
            has_taken_try = tried is not None and tried.is_taken
            answer = Accepted(frame.id, begun.id, None, begun.result, has_taken_try)
        except BokiError as error:
            answer = Accepted(frame.id, "", Failure.of(error))
        link.send(answer)

    async def tell(self, frame: AskCall, send: Callable[[CallTold], None]) -> None:
        """Tell what is known of a call. It may take long, so the worker may be gone by then."""
        try:
            answer = CallTold(frame.id, await self._ask(frame.invocation, frame.wait_s, frame.change))
        except BokiError as error:
            answer = CallTold(frame.id, None, Failure.of(error))
        send(answer)
