"""Gateways and engines as processes of their own: a `ClusterBackend` and several `EngineService`s over links.

In virtual time; links lose what the test says. Functions and logs are stand-ins, the messages are the real ones, and
each goes through the codec's bytes and back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Union

import msgspec
import pytest

import boki.remote
from boki.calls import Call, FunctionInfo, InvocationState, Outcome
from boki.engine.service import EngineService
from boki.errors import (
    BokiError,
    CallLost,
    ConnectionLost,
    DeadlineExceeded,
    NoSuchInvocation,
    Overloaded,
    Unavailable,
)
from boki.gateway.cluster import ClusterBackend
from boki.gateway.core import Standing
from boki.host.links import Diversion, Links
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId
from boki.log.limits import Limits
from boki.log.membership import Member, Membership, Role
from boki.log.memory import MemoryLog
from boki.log.operations import Append, Appended, Failure, Found, Operation, Read, Sync, TrimBook
from boki.messages import Message
from tests.engine.call_world import EPOCH_US, a_call, now_us, run, time_passes

GATEWAY = NodeId("gateway-1")
A, B = NodeId("engine-1"), NodeId("engine-2")
_messages = [kind for kind in vars(boki.remote).values() if isinstance(kind, type) and issubclass(kind, Message)]
_decoder = msgspec.msgpack.Decoder(Union[tuple(kind for kind in _messages if kind is not Message)])  # noqa: UP007


class Wire(Links):
    """Links over bytes. `loses(sender, to, message)` says what gets lost."""

    def __init__(self) -> None:
        super().__init__()
        self.loses: Callable[[NodeId, NodeId, Message], bool] = lambda *_: False
        self.sent: list[tuple[NodeId, NodeId, Message]] = []

    def send(self, sender: NodeId, to: NodeId, message: Any) -> None:
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

    @property
    def call_count(self) -> int:
        return len(self.hanging)

    def start_call(self, call: Call, done: Callable[[Outcome], None]) -> int:
        self.started.append(call)
        if call.function == "echo":
            done(Outcome(call.payload, None, {0: 7}))
        else:
            self.hanging[call.id] = done
        return 1

    def end(self, call: Call) -> None:
        self.hanging.pop(call.id)(Outcome(call.payload, None))


class Log:
    """A stand-in for `LogService`: one log for all engines; `holds` keeps answers back."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.holds = False
        self.operations: list[Operation] = []
        self.refusal: BokiError | None = None

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
            id=invocation_id, function="f", book="b", state="accepted", accepted_us=1, due_us=int(wait_s * 1e6)
        )


class Engine:
    """One engine of the cluster."""

    def __init__(self, wire: Wire, node: NodeId, incarnation: int, log: MemoryLog, **options: Any) -> None:
        self.node, self.incarnation = node, incarnation
        self.functions, self.log, self.ledger = Functions("echo", "hang"), Log(log), Ledger()
        self.is_ready = True
        self.core: list[Any] = []
        self.wire = wire
        self.links = Diversion(wire, boki.remote.FOR_ENGINE_SHELL)
        self.links.attach(node, lambda _sender, message: self.core.append(message))
        self.service = EngineService(
            self.links,
            node,
            self.log,  # type: ignore[arg-type]
            self.functions,  # type: ignore[arg-type]
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
        self.backend = ClusterBackend(self.wire, GATEWAY, asyncio.get_running_loop(), clock=now_us)
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
    node = cluster.backend.roster.for_book(book, ())
    assert node is not None
    return cluster.engines[node], cluster.engines[B if node == A else A]


# Calls


def test_a_call_runs_at_the_engine_it_was_given_to() -> None:
    """With its payload, whatever its size, and what it has seen of the logs on both ways."""

    async def scenario(cluster: Cluster) -> None:
        call = msgspec.structs.replace(a_call(data=b"1" * 4_000_000), positions={0: 3})
        outcome = await cluster.call(B, call)
        assert (outcome.result, outcome.positions) == (call.payload, {0: 7})
        assert cluster.engines[B].functions.started == [call]
        assert not cluster.engines[A].functions.started

    in_cluster(scenario)


def test_the_calls_of_an_engine_that_is_gone_end_as_unknown() -> None:
    """At once when it is registered no more, or as another incarnation; the other's go on."""

    async def scenario(cluster: Cluster) -> None:
        first, second = cluster.call(A, a_call(1, "hang")), cluster.call(B, a_call(2, "hang"))
        await time_passes(0.1)
        cluster.register(B)
        failure = (await first).failure
        assert failure is not None
        assert (failure.code, failure.outcome) == (CallLost.code, "unknown")
        assert set(cluster.watcher.standings) == {B}
        cluster.engines[B].functions.end(a_call(2, "hang"))
        assert (await second).failure is None

    in_cluster(scenario)


def test_the_calls_of_a_silent_engine_end_as_unknown_after_seconds() -> None:
    """Its answers, which come when it wakes, find nobody; it gets new calls then."""

    async def scenario(cluster: Cluster) -> None:
        lost = cluster.call(A, a_call(1, "hang"))
        await time_passes(0.1)
        cluster.wire.loses = lambda sender, to, _message: A in (sender, to)
        await time_passes(1.0)
        assert not cluster.watcher.standings[A].takes_calls
        assert not lost.done()
        await time_passes(3.0)
        assert lost.result().failure is not None
        cluster.wire.loses = lambda *_: False
        await time_passes(1.0)
        assert cluster.watcher.standings[A].takes_calls
        cluster.engines[A].functions.end(a_call(1, "hang"))
        assert (await cluster.call(A, a_call(3))).failure is None

    in_cluster(scenario)


@pytest.mark.parametrize("kind", [boki.remote.StartCall, boki.remote.CallEnded])
def test_a_call_that_is_lost_on_the_way_ends_as_unknown_soon(kind: type[Message]) -> None:
    """The engine says that it has no such call: nobody waits for the call's own deadline."""

    async def scenario(cluster: Cluster) -> None:
        cluster.wire.loses = lambda _sender, _to, message: isinstance(message, kind)
        outcome = await asyncio.wait_for(cluster.call(A, a_call(timeout_s=3600)), 5.0)
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.outcome) == (CallLost.code, "unknown")
        assert len(cluster.engines[A].functions.started) == (kind is boki.remote.CallEnded)

    in_cluster(scenario)


def test_a_message_that_comes_twice_runs_once() -> None:
    """Also when the call has ended in between."""

    async def scenario(cluster: Cluster) -> None:
        engine = cluster.engines[A]
        for call in (a_call(1, "hang"), a_call(2, "echo")):
            for _ in range(3):
                engine.service.deliver(GATEWAY, boki.remote.StartCall(77 + int(call.id, 16), call))
        assert [call.function for call in engine.functions.started] == ["hang", "echo"]
        engine.functions.end(a_call(1, "hang"))
        engine.service.deliver(GATEWAY, boki.remote.StartCall(78, a_call(1, "hang")))
        assert len(engine.functions.started) == 2

    in_cluster(scenario)


def test_an_engine_takes_so_many_calls_and_refuses_more() -> None:
    """At once, as not applied; what it has it says in its load."""

    async def scenario(cluster: Cluster) -> None:
        held = [cluster.call(A, a_call(number, "hang")) for number in (1, 2)]
        failure = (await cluster.call(A, a_call(3, "hang"))).failure
        assert failure is not None
        assert (failure.code, failure.outcome) == (Overloaded.code, "not_applied")
        await time_passes(0.2)
        assert (cluster.watcher.standings[A].running, cluster.watcher.standings[A].capacity) == (2, 2)
        for number in (1, 2):
            cluster.engines[A].functions.end(a_call(number, "hang"))
        await asyncio.gather(*held)
        assert (await cluster.call(A, a_call(4))).failure is None

    in_cluster(scenario, capacity=2)


def test_an_engine_that_drains_finishes_what_it_has_and_refuses_what_is_new() -> None:
    """The gateway knows it at once, and what was on its way is refused as not begun."""

    async def scenario(cluster: Cluster) -> None:
        held = cluster.call(A, a_call(1, "hang"))
        await time_passes(0.1)
        draining = asyncio.create_task(cluster.engines[A].service.drain(60))
        await time_passes(0.01)
        assert not cluster.watcher.standings[A].takes_calls
        failure = (await cluster.call(A, a_call(2))).failure
        assert failure is not None
        assert (failure.code, failure.outcome, failure.retryable) == (Unavailable.code, "not_applied", True)
        assert not draining.done()
        cluster.engines[A].functions.end(a_call(1, "hang"))
        await draining
        assert (await held).failure is None

    in_cluster(scenario)


def test_an_engine_that_is_not_ready_is_not_asked() -> None:
    """The gateway is ready while any other is."""

    async def scenario(cluster: Cluster) -> None:
        cluster.engines[A].is_ready = False
        await time_passes(0.2)
        assert not cluster.watcher.standings[A].takes_calls
        assert cluster.backend.ready
        cluster.engines[B].is_ready = False
        await time_passes(0.2)
        assert not cluster.backend.ready
        assert set(cluster.backend.functions) == {"echo", "hang"}

    in_cluster(scenario)


# The log


def test_a_books_operations_go_to_one_engine_and_carry_positions() -> None:
    """What the caller has seen goes along, and what it has seen then comes back."""

    async def scenario(cluster: Cluster) -> None:
        seen = {0: 4}
        answer = await cluster.backend.request(append(b"1"), seen, 5.0)
        assert isinstance(answer, Appended)
        found = await cluster.backend.request(Read("book", "t"), seen, 5.0)
        assert isinstance(found, Found)
        assert len(found.slabs) == 1
        assert seen == {0: 9}
        first, second = home(cluster)
        assert (len(first.log.operations), len(second.log.operations)) == (2, 0)

    in_cluster(scenario)


@pytest.mark.parametrize("operation", [Read("book", "t"), Sync("book"), append(b"2", key="k")])
def test_what_may_be_repeated_is_asked_of_another_engine(operation: Operation) -> None:
    """Reads and appends under a key survive an engine's death and its silence, well within their time."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        first.log.holds = True
        asked = asyncio.create_task(cluster.backend.request(operation, {}, 30.0))
        await time_passes(0.05)
        cluster.wire.loses = lambda sender, to, _message: first.node in (sender, to)
        await asyncio.wait_for(asked, 1.5)
        assert second.log.operations == [operation]

    in_cluster(scenario)


@pytest.mark.parametrize("operation", [append(b"1"), TrimBook("book", 7)])
def test_what_must_not_be_repeated_ends_as_unknown(operation: Operation) -> None:
    """An append without a key may be in the log already, and a trim must not be carried out late."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        first.log.holds = True
        asked = asyncio.create_task(cluster.backend.request(operation, {}, 30.0))
        await time_passes(0.05)
        cluster.register(second.node)
        with pytest.raises(ConnectionLost) as caught:
            await asked
        assert caught.value.outcome == "unknown"
        assert not second.log.operations

    in_cluster(scenario)


def test_a_definite_refusal_for_want_of_readiness_is_tried_elsewhere() -> None:
    """Also an append: nothing has happened. If nobody can, the refusal is the answer."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        first.log.refusal = Unavailable("no primary yet")
        assert isinstance(await cluster.backend.request(append(b"1"), {}, 5.0), Appended)
        second.log.refusal = Unavailable("nor here")
        with pytest.raises(Unavailable, match="nor here"):
            await cluster.backend.request(append(b"1"), {}, 5.0)

    in_cluster(scenario)


def test_an_engine_that_does_not_answer_in_time_is_an_unknown_outcome() -> None:
    """It is there, and says so: the operation's own deadline decides, and a second of grace."""

    async def scenario(cluster: Cluster) -> None:
        home(cluster)[0].log.holds = True
        with pytest.raises(DeadlineExceeded):
            await cluster.backend.request(append(b"1"), {}, 5.0)
        assert EPOCH_US + 6_000_000 <= now_us() <= EPOCH_US + 6_500_000

    in_cluster(scenario)


def test_a_read_whose_answer_is_lost_is_asked_again() -> None:
    """Some seconds later at the latest, and the reader hears nothing of it."""

    async def scenario(cluster: Cluster) -> None:
        lost: list[Message] = []

        def loses(_sender: NodeId, _to: NodeId, message: Message) -> bool:
            if isinstance(message, boki.remote.LogReply) and not lost:
                lost.append(message)
                return True
            return False

        cluster.wire.loses = loses
        assert isinstance(await asyncio.wait_for(cluster.backend.request(Read("book"), {}, 30.0), 5.0), Found)
        assert lost

    in_cluster(scenario)


def test_without_an_engine_requests_are_refused_at_once() -> None:
    """As not applied."""

    async def scenario(cluster: Cluster) -> None:
        cluster.register()
        with pytest.raises(Unavailable, match="no engine is up"):
            await cluster.backend.request(Read("book"), {}, 30.0)

    in_cluster(scenario)


# Logged calls


def test_logged_calls_are_accepted_and_told_by_any_engine_with_the_index() -> None:
    """With key and delay; what the engine refuses is raised."""

    async def scenario(cluster: Cluster) -> None:
        call = a_call(1)
        assert await cluster.backend.ledger.accept(call, key="k", delay_s=2.5) == call.id
        first, _ = home(cluster, call.id)
        assert first.ledger.accepted == [(call.id, "k", 2.5)]
        state = await cluster.backend.ledger.state(call.id, 3.0)
        assert 2_900_000 <= state.due_us <= 3_000_000
        with pytest.raises(NoSuchInvocation):
            await cluster.backend.ledger.state(a_call(2).id)

    in_cluster(scenario)


def test_a_call_under_a_key_goes_on_at_another_engine() -> None:
    """The same call, with the time that is left; its caller sees nothing but its end."""

    async def scenario(cluster: Cluster) -> None:
        call = a_call(1)
        first, second = home(cluster, call.id)
        waiting = asyncio.create_task(cluster.backend.ledger.call_once(call, "k"))
        await time_passes(1.0)
        cluster.register(second.node)
        await time_passes(1.0)
        assert second.ledger.accepted == first.ledger.accepted == [(call.id, "k", 0.0)]
        second.ledger.ends.set()
        assert (await waiting)[0] == call.id

    in_cluster(scenario)


def test_an_engine_without_the_index_leaves_logged_calls_to_one_that_has_it() -> None:
    """Whoever is asked first."""

    async def scenario(cluster: Cluster) -> None:
        cluster.engines[A].service.calls = None
        for number in range(1, 9):
            await cluster.backend.ledger.accept(a_call(number))
        assert len(cluster.engines[B].ledger.accepted) == 8

    in_cluster(scenario)


# What they say of themselves


def test_status_gathers_what_every_member_says() -> None:
    """One that does not answer is there with that, after a second."""

    async def scenario(cluster: Cluster) -> None:
        cluster.wire.loses = lambda _sender, to, message: to == B and isinstance(message, boki.remote.AskStatus)
        status = await cluster.backend.status()
        assert status["nodes"][A] == {"node": A}
        assert "did not answer" in status["nodes"][B]["error"]
        assert [member["node"] for member in status["members"]] == [A, B]

    in_cluster(scenario)


def test_messages_of_the_core_pass_by_the_shell() -> None:
    """And what the gateway sends reaches only the shell."""

    async def scenario(cluster: Cluster) -> None:
        cluster.wire.send(GATEWAY, A, boki.remote.LogReply(1, {}, Failure("a", "b", "unknown", True)))
        await time_passes(0.1)
        assert [type(message) for message in cluster.engines[A].core] == [boki.remote.LogReply]

    in_cluster(scenario)


def test_a_description_that_is_too_large_goes_without_schemas() -> None:
    """The names are what calls need."""

    async def scenario(cluster: Cluster) -> None:
        functions = cluster.engines[A].functions
        schema = {"description": "x" * 3_000_000}
        functions.functions["large"] = FunctionInfo(name="large", module="m", is_async=True, payload_schema=schema)
        functions.functions_number += 1
        await time_passes(1.0)
        assert cluster.backend.functions["large"].payload_schema == {}

    in_cluster(scenario)


def test_who_may_send_what_is_said_for_every_message() -> None:
    """So that links can refuse what comes from the wrong role."""
    sendable = {kind for kind in _messages if kind is not Message}
    assert set(boki.remote.SENDERS) == sendable
    assert all(
        Role.STORAGE not in roles for kind, roles in boki.remote.SENDERS.items() if kind.__name__ != "TellStatus"
    )
