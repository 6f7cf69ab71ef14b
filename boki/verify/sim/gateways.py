"""Gateways: what production has behind its HTTP (`boki.gateway.server.cluster`), over the simulated network.

A gateway has no core and keeps nothing. It is a process like others, and dies like others: what it was asked and had
not answered ends as unknown for its clients, who see their connection break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

import msgspec

from boki.errors import BokiError, CallLost, ConnectionLost, DeadlineExceeded, Unavailable
from boki.gateway.engine_registry import POLL_US
from boki.gateway.server.cluster import ClusterBackend
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.log.metalog import Positions
from boki.log.operations import Append, Failure, Operation, Read
from boki.net.traffic import RULES
from boki.protocol.call_messages import Load, LogReply, LogRequest
from boki.protocol.calls import Call, Outcome, Payload
from boki.protocol.effects import Core, Effect, Send
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import InstallMembership, Ping, Pong
from boki.verify.sim.links import LifeLinks
from boki.verify.sim.loops import SimulatedLoop
from boki.verify.sim.nodes import Node, World

Done = Callable[[Any, Positions], None]
_NOTHING: Final[tuple[Effect, ...]] = ()
_GRACE_S: Final = 1.0
_reply_decoder: Final = msgspec.msgpack.Decoder(LogReply)


class GatewayNode(Node):
    """A gateway, through all its incarnations."""

    role = Role.GATEWAY

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.loop: SimulatedLoop
        self.backend: ClusterBackend
        self._links: LifeLinks | None = None
        self._open: dict[int, Done] = {}
        """Who waits for an answer of this incarnation."""
        self._asked: dict[int, NodeId] = {}
        """By the identity of an operation that is carried out: the engine that was first asked."""
        self._number = 0
        self._reading: dict[Done, tuple[int, asyncio.Task[None]]] = {}
        """Clients that wait for records to come."""

    def make_core(self) -> Core[Any]:
        """See `Node`. A new incarnation of `boki.node.gateway`."""
        self.loop = SimulatedLoop(self.clock, lambda: self.is_paused)  # type: ignore[abstract] # no sockets in there
        self.loop.raised = self.world.raised
        self._links = LifeLinks(self._send)
        self.backend = ClusterBackend(
            self._links,
            self.name,
            self.loop,
            incarnation=self.incarnation,
            clock=self.now_us,
            idle_poll_us=POLL_US,  # runs last seconds, and more polls lose more of them
        )
        self.backend.start()
        return _Shell(self.backend, self._links, self.incarnation)

    def _tick(self, generation: int) -> None:
        """The shell has timers of its own."""

    def arrive(self, sender: NodeId, message: Any, incarnation: int) -> None:
        """See `Node`: a shell takes in each message as it comes."""
        if incarnation == self.incarnation:
            self.hand(sender, message)

    def hand(self, sender: NodeId, message: Any) -> None:
        """See `Node`."""
        if self.core is None:
            return
        if self.is_paused:
            self._inbox.append((sender, message))
        else:
            self._take(sender, message)

    def _die(self) -> None:
        if self._links is not None:
            self._links.close()
            self.loop.end()
        for done in self._open.values():
            self.clock.after(0, done, ConnectionLost(f"{self.name} is gone"), {})
        if self._open:
            self.clock.sometimes("a gateway died while clients waited for it")
        self._open.clear()
        self._asked.clear()
        super()._die()

    def end(self) -> None:
        """See `Node`."""
        if self._links is not None:
            self.loop.end()

    def submit(self, operation: Operation, positions: Positions, timeout_us: int, done: Done) -> None:
        """Carry out an operation for a client."""
        if self.core is None:
            self.clock.after(0, done, ConnectionLost(f"{self.name} is not there"), {})
            return
        self._number += 1
        self._open[self._number] = done
        task = self.loop.create_task(self._carry_out(operation, dict(positions), timeout_us, self._number))
        if isinstance(operation, Read) and operation.wait_us:
            self._reading[done] = self._number, task
            task.add_done_callback(lambda _task: self._reading.pop(done, None))

    def abandon(self, done: Done) -> None:
        """The client of the read that was submitted with this `done` has left."""
        number, task = self._reading.pop(done, (0, None))
        if task is not None and not self.is_paused:
            self._open.pop(number, None)
            task.cancel()

    async def _carry_out(self, operation: Operation, positions: Positions, timeout_us: int, number: int) -> None:
        answer: object
        try:
            answer = await self.backend.request(operation, positions, timeout_us / 1e6)
        except BokiError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - a bug of ours: the process would answer 500, and continue
            self._raised(error)
            return
        if isinstance(answer, ConnectionLost) and isinstance(operation, Append):
            self.clock.sometimes("an append was lost with the engine that a gateway had asked")
        if isinstance(answer, BokiError) and answer.outcome == "unknown" != answer.default_outcome:
            self.clock.sometimes("an engine refused what a lost one may have done")
        self._asked.pop(id(operation), None)
        self._answer(number, answer, positions)

    def _answer(self, number: int, answer: object, positions: Positions) -> None:
        done = self._open.pop(number, None)
        if done is not None:
            done(answer, positions)

    def call(self, operation: Operation, positions: Positions, timeout_us: int, done: Done) -> None:
        """Have a function do that to the log: a plain call, on any engine that is up. The choice is not production."""
        if self.core is None:
            self.clock.after(0, done, ConnectionLost(f"{self.name} is not there"), {})
            return
        self._number += 1
        self._open[self._number] = done
        payload = Payload("bytes", msgspec.msgpack.encode(LogRequest(0, {}, timeout_us, operation)))
        token = f"{self.incarnation:016x}{self._number:016x}"
        call = Call(token, "perform", payload, "", timeout_us, positions=positions)
        self.loop.call_soon(self._start_call, call, self._number)

    def _start_call(self, call: Call, number: int) -> None:
        up = self.backend.registry.up
        if not up:
            self._answer(number, Unavailable("no engine is up that takes calls"), {})
            return

        def ended(outcome: Outcome) -> None:
            timer.cancel()
            if outcome.failure is None:
                assert outcome.result is not None
                answer: object = _reply_decoder.decode(outcome.result.data).answer
                self._answer(number, answer.error() if isinstance(answer, Failure) else answer, outcome.positions)
                return
            if outcome.failure.code == CallLost.code:
                self.clock.sometimes("a call was lost with its engine")
            self._answer(number, outcome.failure.error(), {})

        late = Outcome(None, Failure.of(DeadlineExceeded("the call's engine has not answered")))
        timer = self.loop.call_later(call.timeout_us / 1e6 + _GRACE_S, ended, late)
        self.backend.start_call(self.clock.schedule_rng.choice(up), call, ended)

    def _send(self, to: NodeId, message: Any) -> None:
        if isinstance(message, LogRequest):
            if self._asked.setdefault(id(message.operation), to) != to:
                self.clock.sometimes("a gateway asked a second engine")
            if to.startswith("relay"):
                self.clock.sometimes("a gateway asked an engine without the index")
        self.send(to, message)

    def _take(self, sender: NodeId, message: Any) -> None:
        if isinstance(message, Load | InstallMembership):
            self._look_for_returns(sender, message)
        super()._take(sender, message)

    def _look_for_returns(self, sender: NodeId, message: Load | InstallMembership) -> None:
        """An engine that something is asked of is about to be known as another incarnation."""
        known = self.backend.registry._engines  # noqa: SLF001 - a look from outside
        for node in self.backend.asking.waits_for:
            if isinstance(message, Load):
                incarnation = message.incarnation if sender == node else 0
            else:
                member = message.membership.find(node)
                incarnation = member.incarnation if member is not None else 0
            if node in known and incarnation > known[node].incarnation:
                self.clock.sometimes("an engine came back as another incarnation while a gateway waited for it")


class _Shell:
    """What of `boki.node.gateway` is between the links and the backend, in the shape of a core."""

    HEARS: ClassVar[frozenset[type]] = frozenset(RULES) | {InstallMembership}

    def __init__(self, backend: ClusterBackend, links: LifeLinks, incarnation: int) -> None:
        self._backend = backend
        self._links = links
        self._incarnation = incarnation

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:  # noqa: ARG002
        """See `Core`."""
        if isinstance(message, InstallMembership):
            self._backend.on_membership(message.membership)
        elif isinstance(message, Ping):
            return (Send(sender, Pong(message.number, 0, self._incarnation)),)
        elif sender != COORDINATOR:
            self._links.deliver(sender, message)
        return _NOTHING

    def settle(self, now_us: int) -> Iterable[Effect]:  # noqa: ARG002
        """See `Core`."""
        return _NOTHING

    def tick(self, now_us: int) -> Iterable[Effect]:  # noqa: ARG002
        """See `Core`."""
        return _NOTHING
