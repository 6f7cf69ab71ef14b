"""The seams between what a function holds (LogBook, Context) and whatever carries its wishes to a log or an engine.

Four implementations justify them: a worker's socket, HTTP, an engine in this process, and a `MemoryLog`. A port carries
values and raises errors; what the values mean stands in `boki.log.operations` and `boki.protocol.calls`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, runtime_checkable

from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation
from boki.protocol.calls import Begun, Call, CallChange, InvocationState, Outcome

Told = Callable[[Answer, Positions], None]
"""Is told the answer, a `Failure` included, and what has been seen then. It does not raise."""
Begin = Callable[[Operation, Positions, float, Told], bool]
"""See `BeginningPort.begin_request`."""


class LogPort(Protocol):
    """A way to a log for `async` code: a worker's socket, HTTP, an engine in this process, or a `MemoryLog`."""

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """Carry out the operation for a caller that has seen `positions`, and raise them to what it has seen then.

        Raises the `BokiError` that the log answers; `DeadlineExceeded` after `timeout_s`; `ConnectionLost` if the way
        to the log breaks before the answer.
        """


class BeginningPort(Protocol):
    """What a `LogPort` may offer besides: requests without a task. Each wake-up of one costs as much as the request."""

    def begin_request(self, operation: Operation, positions: Positions, timeout_s: float, told: Told) -> bool:
        """Carry out the operation for a caller that has seen `positions`; `told` is called once, maybe before this
        returns. False: not now, make a `request`.

        If the way to the log breaks it is told so, or its process ends.
        """


class BlockingLogPort(Protocol):
    """The same for blocking code; several threads of one function may use it at once."""

    def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `LogPort.request`."""


@runtime_checkable
class GatewayPort(Protocol):
    """A `LogPort` that goes through a gateway, and so reaches the gateway's part of a library."""

    async def ask_gateway(self, target: str, body: bytes, positions: Positions, timeout_s: float) -> bytes:
        """Post JSON to a route of a library, for a caller that has seen `positions`, and raise them to what it has seen
        then: the JSON that it answers. Raises the `BokiError` that it answers.
        """


@runtime_checkable
class BlockingGatewayPort(Protocol):
    """The same for blocking code."""

    def ask_gateway(self, target: str, body: bytes, positions: Positions, timeout_s: float) -> bytes:
        """See `GatewayPort.ask_gateway`."""


class CallPort(Protocol):
    """A way to call functions for `async` code. The caller has filled in everything of the `Call` but defaults."""

    async def invoke(self, call: Call) -> Outcome:
        """Run the call and wait for its end, at most `call.timeout_us`.

        What the function did, also that it failed or was lost, is in the `Outcome`. Raises `ConnectionLost` or
        `DeadlineExceeded` if no outcome came.
        """

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """Put the call into the log, to be run after `delay_s`; its invocation id, once it is durable.

        Under a `key` that was used before, the id of the first call, and nothing is logged. Raises the `BokiError` that
        the engine answers, `ConnectionLost` or `DeadlineExceeded`.
        """

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """What is known of a logged call, after waiting at most `wait_s` for its end, or after a change to it.

        Raises the `BokiError` that the engine answers, such as `NoSuchInvocation`.
        """


BeginCall = Callable[[Call, float, str | None], Awaitable[Begun]]
"""The method `begin_call` of those call ports that may be told of a call's result with its acceptance; else like
`CallPort.invoke_later`."""


class BlockingCallPort(Protocol):
    """The same for blocking code; several threads of one function may use it at once."""

    def invoke(self, call: Call) -> Outcome:
        """See `CallPort.invoke`."""

    def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        """See `CallPort.invoke_later`."""

    def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        """See `CallPort.ask_call`."""
