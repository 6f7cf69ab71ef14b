"""A gateway and two engines over links, in virtual time. The links lose what a test says.

Functions and logs are stand-ins; the messages are the real ones, and each goes through bytes and back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Union

import msgspec

import boki.protocol.call_messages
from boki.dispatch.server.streams import Streams
from boki.engine.server.remote_requests import EngineService
from boki.errors import (
    BokiError,
    NoSuchInvocation,
    WrongState,
)
from boki.gateway.core import Standing
from boki.gateway.server.cluster import ClusterBackend
from boki.host.links import Diversion, Links
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId
from boki.log.limits import Limits
from boki.log.membership import Member, Membership, Role
from boki.log.memory import MemoryLog
from boki.log.operations import Append, Failure, Operation
from boki.protocol.calls import (
    Call,
    CallChange,
    CallFilter,
    CallPage,
    FunctionInfo,
    InvocationState,
    Outcome,
    TakeChunk,
)
from boki.protocol.messages import Message
from boki.worker.frames import Frame
from tests.books.calls.call_world import now_us, run, time_passes

GATEWAY = NodeId("gateway-1")
A, B = NodeId("engine-1"), NodeId("engine-2")
MESSAGES = [
    kind for kind in vars(boki.protocol.call_messages).values() if isinstance(kind, type) and issubclass(kind, Message)
]
_decoder = msgspec.msgpack.Decoder(Union[tuple(kind for kind in MESSAGES if kind is not Message)])  # noqa: UP007


class Wire(Links):
    """Links over bytes. `loses(sender, to, message)` says what gets lost."""

    def __init__(self) -> None:
        super().__init__()
        self.loses: Callable[[NodeId, NodeId, Message], bool] = lambda *_: False
        self.sent: list[tuple[NodeId, NodeId, Message]] = []

    def send(self, sender: NodeId, to: NodeId, message: Any, *, can_wait: bool = False) -> None:
        self.sent.append((sender, to, message))
        if not self.loses(sender, to, message):
            message = _decoder.decode(msgspec.msgpack.encode(message))
            asyncio.get_running_loop().call_soon(super().send, sender, to, message)

    def of(self, kind: type[Message]) -> list[tuple[NodeId, NodeId]]:
        return [(sender, to) for sender, to, message in self.sent if isinstance(message, kind)]


class Functions:
    """A stand-in for `FunctionHost`: "echo" answers at once, anything else when the test says so."""

    def __init__(self, *names: str) -> None:
        self.functions = {name: FunctionInfo(name=name, module="m", is_async=True) for name in names}
        self.modules = ()
        self.functions_number = 1
        self.hanging: dict[str, Callable[[Outcome], None]] = {}
        self.started: list[Call] = []
        self.cancelled: list[int] = []
        self.told: list[Frame] = []
        self.streams = Streams(lambda _worker, frame: self.told.append(frame))

    @property
    def call_count(self) -> int:
        return len(self.hanging)

    def cancel_call(self, ticket: int) -> None:
        self.cancelled.append(ticket)

    def start_call(self, call: Call, done: Callable[[Outcome], None], *, take: TakeChunk | None = None) -> int:
        self.started.append(call)
        self.streams.open(len(self.started), take)
        if call.function == "echo":
            done(Outcome(call.payload, None, {0: 7}))
        else:
            self.hanging[call.id] = done
        return len(self.started)

    def end(self, call: Call) -> None:
        self.hanging.pop(call.id)(Outcome(call.payload, None))


class Log:
    """A stand-in for `LogService`: one log for all engines; `holds` keeps answers back."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.holds = False
        self.operations: list[Operation] = []
        self.refusal: BokiError | None = None
        self.abandoned: list[Any] = []

    def abandon(self, finish: Any) -> None:
        self.abandoned.append(finish)

    def submit(self, operation: Operation, positions: Any, timeout_us: int, finish: Any) -> None:
        self.operations.append(operation)
        if self.refusal is not None:
            finish(Failure.of(self.refusal), {})
            return
        answer = self.log.answer(operation, now_us())
        if not self.holds:
            finish(answer, {0: 9})


class Ledger:
    """A stand-in for `LoggedCalls`: knows what was accepted, and ends it when the test says so."""

    def __init__(self) -> None:
        self.accepted: list[tuple[str, str | None, float]] = []
        self.ends = asyncio.Event()
        self.owner: NodeId | None = None
        self.known = "accepted"
        self.filters: list[CallFilter] = []

    def other_owner(self, invocation_id: str) -> NodeId | None:
        return self.owner

    async def accept(self, call: Call, *, key: str | None = None, delay_s: float = 0.0) -> str:
        self.accepted.append((call.id, key, delay_s))
        return call.id

    async def call_once(self, call: Call, key: str) -> tuple[str, Outcome]:
        self.accepted.append((call.id, key, 0.0))
        await self.ends.wait()
        return call.id, Outcome(call.payload, None)

    async def state(self, invocation_id: str, wait_s: float = 0.0) -> InvocationState:
        if not any(invocation_id == known for known, _, _ in self.accepted):
            raise NoSuchInvocation("no such call")
        return InvocationState(
            id=invocation_id, function="f", book="b", state=self.known, accepted_us=1, due_us=int(wait_s * 1e6)
        )

    async def asked(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        assert (wait_s, change) in ((0.0, "cancel"), (0.0, "retry"))
        return await self._changed(invocation_id, "cancelled" if change == "cancel" else "accepted")

    async def _changed(self, invocation_id: str, state: str) -> InvocationState:
        known = await self.state(invocation_id)
        if self.known == "done":
            raise WrongState("it has ended", state="done")
        return msgspec.structs.replace(known, state=state)

    async def page(self, wanted: CallFilter) -> CallPage:
        self.filters.append(wanted)
        return CallPage(tuple([await self.state(known) for known, _, _ in self.accepted][: wanted.limit]), 7)


class Engine:
    """One engine of the cluster."""

    def __init__(self, wire: Wire, node: NodeId, incarnation: int, log: MemoryLog, **options: Any) -> None:
        self.node, self.incarnation = node, incarnation
        self.functions, self.log, self.ledger = Functions("echo", "hang"), Log(log), Ledger()
        self.is_ready = True
        self.core: list[Any] = []
        self.wire = wire
        self.links = Diversion(wire, boki.protocol.call_messages.FOR_ENGINE_SHELL)
        self.links.attach(node, lambda _sender, message: self.core.append(message))
        self.service = EngineService(
            self.links,
            node,
            self.log,
            self.functions,
            self.ledger,  # type: ignore[arg-type]
            incarnation=incarnation,
            is_ready=lambda: self.is_ready,
            status=lambda: {"node": node},
            clock=now_us,
            **options,
        )
        self.service.start()

    async def kill(self) -> None:
        await self.service.stop()
        self.links.detach(self.node)

    @property
    def member(self) -> Member:
        return Member(node=self.node, role=Role.ENGINE, incarnation=self.incarnation)


class Watcher:
    """The gateway's side of `EngineWatcher`."""

    def __init__(self) -> None:
        self.standings: dict[NodeId, Standing] = {}

    def engine_changed(self, engine: NodeId, standing: Standing) -> None:
        self.standings[engine] = standing

    def engine_lost(self, engine: NodeId) -> None:
        del self.standings[engine]


class Cluster:
    """A gateway and two engines, all up."""

    def __init__(self, **options: Any) -> None:
        self.wire = Wire()
        self.log = MemoryLog(Limits())
        self.engines = {
            node: Engine(self.wire, node, number, self.log, **options) for number, node in enumerate((A, B), 5)
        }
        self.watcher = Watcher()
        self.backend = ClusterBackend(self.wire, GATEWAY, asyncio.get_running_loop(), incarnation=9, clock=now_us)
        self.backend.watch(self.watcher)
        self.number = 0

    async def start(self) -> None:
        self.backend.start()
        self.register(A, B)
        await time_passes(0.2)
        assert set(self.watcher.standings) == {A, B}

    def register(self, *nodes: NodeId) -> None:
        self.number += 1
        members = tuple(self.engines[node].member for node in nodes)
        self.backend.on_membership(Membership(number=self.number, members=members))

    async def stop(self) -> None:
        self.backend.stop()
        for engine in self.engines.values():
            await engine.service.stop()

    def call(self, engine: NodeId, call: Call) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self.backend.start_call(engine, call, future.set_result)
        return future


def in_cluster(scenario: Callable[[Cluster], Any], **options: Any) -> None:
    async def whole() -> None:
        cluster = Cluster(**options)
        await cluster.start()
        try:
            await scenario(cluster)
        finally:
            await cluster.stop()

    run(whole())


def append(data: bytes, key: str | None = None) -> Append:
    return Append("book", encode_chunk("book", [Group([(data, ("t",))], (), key)]))


def home(cluster: Cluster, book: str = "book") -> tuple[Engine, Engine]:
    """The engine that gets the book's operations, and the other one."""
    node = cluster.backend.registry.for_book(book, ())
    assert node is not None
    return cluster.engines[node], cluster.engines[B if node == A else A]
