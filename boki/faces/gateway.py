"""What a library brings to a gateway, and what it is given there.

A library answers routes of its own, counts in metrics of its own, and calls functions by a driver. It reaches the log
and the functions through `GatewayPort` and through nothing else of the gateway. What parses requests and makes answers
are the functions of `boki.gateway.server.http.arguments`, `bodies` and `answers`, as for the gateway's own routes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from boki.api.logbook import LogSession
from boki.errors import Outcome
from boki.log.limits import Limits
from boki.protocol.calls import Call, CallFilter, CallPage, FunctionInfo, InvocationState
from boki.protocol.calls import Outcome as CallOutcome

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse
    from prometheus_client.registry import Collector

Handler = Callable[..., Awaitable["StreamResponse"]]
"""Takes the request and the variable parts of its path. A `BokiError` that it raises becomes the answer."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path such as `/logbook/{book}/append`, and the handler of its requests."""

    method: str
    template: str
    handler: Handler
    is_open: bool = False
    """Whether it needs no token."""
    is_call: bool = False
    """Whether its first variable part is a function that is called, and so counted by its name."""


class Ledger(Protocol):
    """Logged calls, as the face of a library sees them."""

    async def accept(self, call: Call, *, key: str | None = None, delay_s: float = 0.0) -> str:
        """Log a call that `FunctionInfo.to_be_logged` has made, to be run after `delay_s`: its id, once it is durable.

        `KeyReused` or `AlreadyExists` as its key, or the id that it was given (`Call.chosen`), demands.
        """

    async def state(self, invocation_id: str, wait_s: float = 0.0) -> InvocationState:
        """What is known of a logged call, after waiting `wait_s` at most for its end. `NoSuchInvocation`."""

    async def page(self, wanted: CallFilter) -> CallPage:
        """A page of the logged calls that match, those that changed last first."""

    async def cancel(self, invocation_id: str, life_us: int = 0) -> InvocationState:
        """End a logged call: one that has not begun never runs. `WrongState` if it has ended, or was started again
        since it had that `life_us` (0: whichever it has). `NoSuchInvocation`.
        """


class EventSink(Protocol):
    """Server-sent events to one client, no faster than it reads. One that stalls is cut off."""

    is_head: bool
    """Whether the client wants the head only: then no event follows."""

    @property
    def response(self) -> StreamResponse:
        """What the handler returns."""

    async def begin(self) -> None:
        """Send the head. After it nothing can be refused."""

    async def send(self, events: bytes) -> None:
        """Send events. `ConnectionResetError` if the client has left."""

    async def follow(self, events: AsyncIterator[bytes]) -> None:
        """Send events as they come, and heartbeats while none does."""


class GatewayPort(Protocol):
    """The gateway, as the face of a library sees it."""

    @property
    def limits(self) -> Limits:
        """The limits of records, tags and requests."""

    @property
    def functions(self) -> Mapping[str, FunctionInfo]:
        """The registered functions by name; each reading gives the current ones.

        A gateway that has just started, or has lost all its engines, does not know them all.
        """

    async def look_for(self, request: BaseRequest, function: str) -> FunctionInfo | None:
        """The function of that name; None if there is none.

        Waits while the gateway does not know ("": while it knows none at all). `Unavailable` if that takes too long,
        `Overloaded` if too many wait.
        """

    async def run(self, call: Call) -> CallOutcome:
        """Run a call within the gateway's budget. Raises the `BokiError` that refuses it.

        The outcome is there by the call's deadline. The call is not logged: it is lost with this gateway.
        """

    @property
    def ledger(self) -> Ledger:
        """Logged calls. A request asks for them inside of `admitted`."""

    # One request

    def admitted(self, size_bytes: int = 0, *, waits: bool = False) -> AbstractContextManager[None]:
        """Take the request, and an answer of that size, into the gateway's budget. `Overloaded` if there is no room.

        `waits`: it is a long poll, of which there may be more.
        """

    async def body(self, request: BaseRequest, max_bytes: int | None = None, too_large: str = ...) -> bytes:
        """Read the whole body. `TooLarge` above `max_bytes`, or above the gateway's own limit without it.

        `too_large`: what that error says, with `{limit:,}` for the bytes.
        """

    def session(self, request: BaseRequest, wait_s: float = 0.0) -> LogSession:
        """The log for one request: with the positions that its caller has seen, and its deadline.

        `wait_s` is added to the deadline of a request that names none. Reads that wait end when the gateway drains.
        """

    def lasting_session(self, request: BaseRequest, wait_s: float = 0.0) -> LogSession:
        """The same for a request that must finish what it has begun while the gateway drains. It waits in `polling`."""

    def polling(self, outcome: Outcome) -> AbstractContextManager[None]:
        """Cancel what is awaited inside when the gateway drains: then it ends as `Unavailable` with that outcome."""

    def connected(self, request: BaseRequest) -> AbstractContextManager[None]:
        """Cancel what is awaited inside when the client disconnects."""

    def events(self, request: BaseRequest) -> AbstractContextManager[EventSink]:
        """Take a stream of server-sent events into the gateway's budget. `Overloaded` if there are too many."""

    # Drivers

    def own_session(self) -> LogSession:
        """The log for a driver: without a deadline, and until the gateway has stopped, also while it drains."""


class Driver(Protocol):
    """Calls functions on behalf of a library, from `start` to `finish`."""

    def start(self) -> None:
        """Begin, inside the gateway's event loop."""

    def stop(self) -> None:
        """Begin no more calls. Those under way continue. May be called twice."""

    async def finish(self) -> None:
        """Wait, after `stop`, until the calls under way have ended and are recorded.

        It is cancelled when the gateway waits no longer.
        """


@dataclass(frozen=True, slots=True)
class GatewayPart:
    """What one library brings to one gateway."""

    routes: Sequence[Route] = ()
    driver: Driver | None = None
    metrics: Collector | None = None
    """Families whose names begin with `boki_` and the library's name. Labels are bounded: functions, not requests."""
