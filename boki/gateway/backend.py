"""The seam between the gateway and what runs functions and keeps logs: roles never import each other.

`boki dev` puts an engine of the same process behind it, `boki.gateway.server.cluster` those of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from boki.gateway.core import Standing
from boki.log.ids import NodeId
from boki.log.metalog import Positions
from boki.log.operations import Answer, Operation
from boki.protocol.calls import (
    Call,
    CallFilter,
    CallPage,
    FunctionInfo,
    InvocationState,
    ModuleInfo,
    Outcome,
    TakeChunk,
)
from boki.protocol.deployments import Deployment, VersionInfo


class CallLedger(Protocol):
    """Calls that are put into the log before they run."""

    async def accept(self, call: Call, *, key: str | None = None, delay_s: float = 0.0) -> str:
        """Log the call, to be run after `delay_s`: its invocation id, once the record is durable.

        Under a key that was used before for the same request, the id of the first call; for another: `KeyReused`.
        """

    async def call_once(self, call: Call, key: str) -> tuple[str, Outcome]:
        """Run the call and wait for its end: its invocation id and outcome.

        Under a key that was used before for the same request, those of the first call; for another: `KeyReused`.
        """

    async def state(self, invocation_id: str, wait_s: float = 0.0) -> InvocationState:
        """What is known of a logged call, after waiting `wait_s` at most for its end. `NoSuchInvocation`."""

    async def page(self, wanted: CallFilter) -> CallPage:
        """A page of the logged calls that match, those that changed last first."""

    async def cancel(self, invocation_id: str, life_us: int = 0) -> InvocationState:
        """End a logged call: one that has not begun never runs. `WrongState` if it has ended, or was started again
        since it had that `life_us` (0: whichever it has). `NoSuchInvocation`.
        """

    async def retry(self, invocation_id: str) -> InvocationState:
        """Run a logged call again that has failed or was cancelled, under its id; one that has not ended is left as it
        is. `WrongState` if it has ended well, `Trimmed` if its payload is gone, `NoSuchInvocation`.
        """


class Deployments(Protocol):
    """Versions of the functions, where they are deployed and not those of a folder."""

    async def versions(self) -> list[VersionInfo]:
        """The versions that are kept, the newest first."""

    async def deploy(self, bundle: bytes, *, is_forced: bool) -> Deployment:
        """Run the functions of a bundle (`boki.books.functions.bundle`) from now on; nothing happens if they do
        already.

        `InvalidArgument` if it is none, or, unless `is_forced`, with the errors of modules that cannot be loaded.
        """

    async def use(self, wanted: str) -> Deployment:
        """Run a version again, "previous" or a number. `NotFound` or `InvalidArgument`"""


class EngineWatcher(Protocol):
    """Who wants to know which engines are up: the gateway."""

    def engine_changed(self, engine: NodeId, standing: Standing) -> None:
        """The engine is up, and stands so from now on."""

    def engine_lost(self, engine: NodeId) -> None:
        """The engine is gone; how far its calls came is unknown."""


class StreamControl(Protocol):
    """The way back to a call that streams its result."""

    def taken(self, count: int) -> None:
        """The caller has taken this many chunks. Repeatable: call it again if nothing comes for a second."""

    def stop(self) -> None:
        """The caller has left: end the call. Its `done` need not be called."""


class Backend(Protocol):
    """Engines and logs, as the gateway sees them."""

    @property
    def ready(self) -> bool:
        """Whether calls and log operations would be carried out now."""

    def watch(self, watcher: EngineWatcher) -> None:
        """Tell which engines are up, at once and whenever that changes."""

    @property
    def functions(self) -> Mapping[str, FunctionInfo]:
        """The registered functions by name."""

    @property
    def knows_functions(self) -> bool:
        """Whether `functions` is complete; not while engines have yet to say what they run."""

    @property
    def modules(self) -> Sequence[ModuleInfo]:
        """The modules of the functions folder, the broken ones included."""

    @property
    def ledger(self) -> CallLedger:
        """Where logged calls go."""

    @property
    def deployments(self) -> Deployments:
        """The versions of the functions. `InvalidArgument` if they are those of a folder."""

    def start_call(
        self,
        engine: NodeId,
        call: Call,
        done: Callable[[Outcome], None],
        take: TakeChunk | None = None,
    ) -> StreamControl:
        """Hand the call to that engine. `done` is called once with its outcome, at the call's deadline at the latest.

        `take` is given what it streams before that, each chunk once and in order; None: it streams nothing.

        Raises the `BokiError` that refuses it; `done` is then never called.
        """

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""

    def check_positions(self, positions: Positions) -> None:
        """`InvalidArgument` if a position is known to lie in a log or a term that does not exist."""

    async def status(self) -> dict[str, Any]:
        """What an operator wants to know, as JSON values."""
