"""Engines in the simulator, with the index and without: the core, the shell that answers gateways, and calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, assert_never, cast

import msgspec

from boki.dispatch.server.streams import Streams
from boki.engine.checkpoint.bootstrap import Bootstrap
from boki.engine.core import EngineConfig, EngineCore
from boki.engine.relay import RelayCore
from boki.engine.server.port import Finish
from boki.engine.server.remote_requests import EngineService
from boki.errors import BokiError, Unavailable
from boki.host.links import Diversion
from boki.log.ids import NodeId
from boki.log.limits import DEFAULT_LIMITS
from boki.log.membership import Member, Membership, Role
from boki.log.metalog import Positions
from boki.log.operations import Answer, Failure, Operation, Read
from boki.protocol.call_messages import FOR_ENGINE_SHELL, LogReply, LogRequest
from boki.protocol.calls import Call, FunctionInfo, ModuleInfo, Outcome, Payload, TakeChunk
from boki.protocol.effects import Announce, Core, EngineNews, RoleEffect
from boki.protocol.effects import Answer as Ended
from boki.protocol.messages import InstallMembership
from boki.verify.sim.calls import LoggedEngine
from boki.verify.sim.coordinator import News
from boki.verify.sim.links import LifeLinks
from boki.verify.sim.loops import SimulatedLoop
from boki.verify.sim.nodes import Done, Node, World

_FOR_SHELL: Final = frozenset(FOR_ENGINE_SHELL)
_DRAIN_S: Final = 0.5


class EngineNode(Node):
    """An engine with the index, and the shell that answers gateways and runs calls."""

    role = Role.ENGINE

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.is_ready = False
        self.logged: LoggedEngine | None = None
        self.on_death: list[Callable[[], None]] = []
        """Called when this incarnation ends: what runs on the engine ends with it."""
        self.loop: SimulatedLoop
        self._links: LifeLinks | None = None
        self._service: EngineService | None = None
        self._membership: Membership | None = None

    def _begin_generation(self) -> None:
        """What the shell needs from the first moment on."""
        self._waiting_reads: dict[Callable[[Any, Positions], None], Callable[[Any, Positions], None]] = {}
        """By who waits: the token that the core knows it by."""
        self.is_ready = False
        self._membership = None
        self._service = None
        self.loop = SimulatedLoop(self.clock, lambda: self.is_paused)  # type: ignore[abstract] # no sockets in there
        self.loop.raised = self.world.raised
        self._links = LifeLinks(self.send)

    def make_core(self) -> Core[Any]:
        """See `Node`."""
        self._begin_generation()
        options = self.world.options
        config = EngineConfig(
            index_memory_bytes=options.index_memory_bytes,
            cache_bytes=options.cache_bytes,
            aux_cache_bytes=1 << 20,
            append_buffer_bytes=options.buffer_bytes,
            batch_bytes=options.batch_bytes,
            limits=DEFAULT_LIMITS,
            checkpoint_us=options.checkpoint_us,
            checkpoint_page_bytes=options.checkpoint_page_bytes,
        )
        self._bootstrap = Bootstrap(self.name, self.incarnation, self.disk, config)
        return self._bootstrap

    @property
    def engine(self) -> EngineCore | None:
        """The core, once it is decided which index it begins from."""
        return self._bootstrap.engine

    @property
    def has_come(self) -> bool:
        """Whether it carries operations out."""
        return self.core is not None and self.is_ready and self.engine is not None and self.engine.is_ready

    def _begin_shell(self) -> None:
        """See `boki.node.engine`: what stands beside the core, once that is decided."""
        assert self._links is not None
        self._service = EngineService(
            Diversion(self._links, FOR_ENGINE_SHELL),
            self.name,
            _Log(self),
            _Functions(self),
            self.logged.calls if self.logged is not None else None,
            incarnation=self.incarnation,
            is_ready=lambda: self.is_ready and (self.logged is None or self.logged.is_open),
            status=dict,
            clock=self.now_us,
        )
        self._links.attach(self.name, self._service.deliver)
        self.loop.call_soon(self._service.start)

    def _die(self) -> None:
        if self.logged is not None:
            self.logged.die()
            self.logged = None
        while self.on_death:
            self.on_death.pop()()
        if self._links is not None:
            self._links.close()
            self.loop.end()
        super()._die()

    def hear_news(self, news: News) -> None:
        """See `Played`."""
        if self.logged is not None and isinstance(news, InstallMembership):
            self.logged.on_membership(news.membership)
        self._membership = news.membership if isinstance(news, InstallMembership) else self._membership
        super().hear_news(news)

    def end(self) -> None:
        """See `Node`."""
        if self._links is not None:
            self.loop.end()

    def fence(self, incarnation: int, timeout_us: int, done: Callable[[Any, Positions], None]) -> None:
        """Shut another incarnation of an engine out of the log."""
        if self.engine is not None:
            self._run(self.engine.fence, incarnation, self.now_us() + timeout_us, done)
            if not self._is_scheduled and not self.is_paused:
                self._schedule()

    def watch(self, book: str, tag: str, min_seqnum: int, done: Callable[[Any, Positions], None]) -> None:
        """Wait for a record of that tag, for as long as it takes."""
        if self.engine is not None:
            self._run(self.engine.watch, book, tag, min_seqnum, done)

    def member(self) -> Member:
        """See `Node`."""
        return msgspec.structs.replace(super().member(), has_index=self.is_ready)

    def save(self) -> None:
        """See `Node`."""
        if self.core is not None and self.engine is not None:
            self._run(self.engine.checkpoint)

    def drain(self) -> None:
        """See `Played`: its shards are closed first, if that does not take too long."""
        self.clock.after(2_000_000, self._stopped, self.generation)
        self.loop.create_task(self._drain_shell(self.generation))

    async def _drain_shell(self, generation: int) -> None:
        """What came in may end, and gateways are told to ask others; then the shards are closed."""
        if self._service is not None:
            await self._service.drain(_DRAIN_S)
        if self.engine is not None and generation == self.generation:
            self.engine.close()

    def _stopped(self, generation: int) -> None:
        if generation == self.generation:
            self.save()
            self.clock.after(100_000, self._if_alive, generation, self.host.stopped, self)

    def submit(
        self,
        operation: Operation,
        positions: Positions,
        timeout_us: int,
        done: Callable[[Any, Positions], None],
    ) -> None:
        """Carry out an operation for somebody in this process."""
        assert self.core is not None
        if self.engine is None:
            done(Unavailable("this engine has no index yet"), {})
            return
        token = self.world.coverage.across_terms(operation, self.engine.appends.term, done)
        if isinstance(operation, Read) and operation.wait_us:
            self._waiting_reads[done] = token
        self._submit_to(self.engine, operation, positions, timeout_us, token)

    def abandon(self, done: Callable[[Any, Positions], None]) -> None:
        """Nobody in this process waits any more for the read that was submitted with this `done`."""
        token = self._waiting_reads.pop(done, None)
        reader = self._reader if self.core is not None and not self.is_paused else None
        if token is not None and reader is not None:
            self.clock.sometimes("a read that waited was abandoned")
            self._run(reader.give_up, token)

    @property
    def _reader(self) -> EngineCore | RelayCore | None:
        """What carries reads out."""
        return self.engine

    def _submit_to(
        self,
        core: EngineCore | RelayCore,
        operation: Operation,
        positions: Positions,
        timeout_us: int,
        done: Callable[[Any, Positions], None],
    ) -> None:
        now_us = self.now_us()
        self._run(core.submit, operation, positions, now_us + timeout_us, done, now_us)
        if not self._is_scheduled and not self.is_paused:
            self._schedule()

    def hand(self, sender: NodeId, message: Any) -> None:
        """See `Node`: the shell is told at once."""
        if type(message) in _FOR_SHELL and self.core is not None and not self.is_paused:
            self._take(sender, message)
        else:
            super().hand(sender, message)

    def _take(self, sender: NodeId, message: Any) -> None:
        if type(message) not in _FOR_SHELL:
            super()._take(sender, message)
        elif self._links is not None:
            self.clock.note(f"{sender} > {self.name}: {type(message).__name__}", message)
            self._run(self._links.deliver, sender, message)

    def carry_out(self, effect: RoleEffect) -> None:
        """See `Node`."""
        match effect:
            case Ended(token, answer, positions):
                # what a relay was told has come as a value
                cast("Done", token)(answer.error() if isinstance(answer, Failure) else answer, positions)
            case Announce(news):
                self._note(news)
            case _:
                super().carry_out(effect)

    def _note(self, news: EngineNews) -> None:
        match news:
            case EngineNews.READY:
                self.is_ready = True
                self.host.register(self)
                if self.logged is not None and self.world.options.logs_calls:
                    self.logged.start()
            case EngineNews.FENCED:
                self.clock.sometimes("an engine was fenced and stopped")
                self.clock.after(0, self._end, self.generation, "it was fenced")
            case EngineNews.STALE:
                self.clock.sometimes("an engine whose index was stale took another one")
                self.clock.after(0, self._end, self.generation, "its index was stale")
            case EngineNews.CLOSED:
                self.clock.sometimes("an engine closed its shards and stopped")
                self.clock.after(0, self._stopped, self.generation)
            case EngineNews.BOOTED:
                self.logged = LoggedEngine(self)
                if self._membership is not None:
                    self.logged.on_membership(self._membership)
                self._begin_shell()
            case EngineNews.SAVED:
                pass
            case _:
                assert_never(news)

    def _end(self, generation: int, why: str) -> None:
        if generation == self.generation:
            self.restart(why)


class RelayNode(EngineNode):
    """An engine without the index: what it is asked is carried out by one that has it."""

    def make_core(self) -> Core[Any]:
        """See `Node`."""
        self._begin_generation()
        self._asked: dict[int, NodeId] = {}
        self._relay = RelayCore(self.name, self.incarnation, buffer_bytes=self.world.options.buffer_bytes)
        self._begin_shell()
        return self._relay

    def member(self) -> Member:
        """See `Node`."""
        return msgspec.structs.replace(super().member(), has_index=False)

    @property
    def engine(self) -> None:
        """It has no index."""
        return None

    @property
    def _reader(self) -> RelayCore:
        """See `EngineNode`."""
        return self._relay

    @property
    def has_come(self) -> bool:
        """See `EngineNode`."""
        return self.core is not None and self.is_ready and self._relay.is_ready

    def submit(
        self,
        operation: Operation,
        positions: Positions,
        timeout_us: int,
        done: Callable[[Any, Positions], None],
    ) -> None:
        """See `EngineNode`."""

        def look(answer: Any, seen: Positions) -> None:
            self._asked.pop(id(operation), None)
            done(answer, seen)

        if isinstance(operation, Read) and operation.wait_us:
            self._waiting_reads[done] = look
        self._submit_to(self._relay, operation, positions, timeout_us, look)

    def send(self, to: NodeId, message: Any) -> None:
        """See `Node`."""
        if isinstance(message, LogRequest) and self._asked.setdefault(id(message.operation), to) != to:
            self.clock.sometimes("an engine without the index asked a second one")
        super().send(to, message)


class _Log:
    """The log as the shell of an engine has it (`boki.engine.server.port.EnginePort`)."""

    def __init__(self, node: EngineNode) -> None:
        self._node = node
        self._waiting_reads: dict[Finish, Callable[[Any, Positions], None]] = {}

    def abandon(self, finish: Finish) -> None:
        """See `LogDoor`."""
        done = self._waiting_reads.pop(finish, None)
        if done is not None:
            self._node.abandon(done)

    def submit(self, operation: Operation, positions: Positions, timeout_us: int, finish: Finish) -> None:
        """Carry out an operation."""

        def done(answer: Any, seen: Positions) -> None:
            self._waiting_reads.pop(finish, None)
            finish(Failure.of(answer) if isinstance(answer, BokiError) else answer, seen)

        if isinstance(operation, Read) and operation.wait_us:
            self._waiting_reads[finish] = done
        self._node.submit(operation, positions, timeout_us, done)


class _Functions:
    """What plain calls run: one function, which does to the log what it is given. Logged calls run
    `boki.verify.sim.calls`.
    """

    functions_number = 1
    modules: tuple[ModuleInfo, ...] = ()

    def __init__(self, node: EngineNode) -> None:
        self._log = _Log(node)
        self.call_count = 0
        self.functions = {"perform": FunctionInfo(name="perform", module="simulated", is_async=True)}
        self.streams = Streams(lambda _worker, _frame: None)

    def cancel_call(self, ticket: int) -> None:
        """See `boki.engine.server.remote_requests.Functions`: nothing here is cancelled."""

    def start_call(self, call: Call, done: Callable[[Outcome], None], *, take: TakeChunk | None = None) -> int:  # noqa: ARG002
        """See `boki.engine.server.remote_requests.Functions`."""

        def end(answer: Answer, seen: Positions) -> None:
            self.call_count -= 1
            done(Outcome(Payload("bytes", msgspec.msgpack.encode(LogReply(0, {}, answer))), None, seen))

        self.call_count += 1
        request = _request_decoder.decode(call.payload.data)
        self._log.submit(request.operation, dict(call.positions), call.timeout_us, end)
        return 0


_request_decoder: Final = msgspec.msgpack.Decoder(LogRequest)
