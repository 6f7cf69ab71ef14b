"""Engines in the simulator: the core, and the little of its shell that answers gateways and runs calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from boki.effects import Core
from boki.engine.bootstrap import BOOTED, Bootstrap
from boki.engine.core import CLOSED, FENCED, READY, SAVED, STALE, Answered, EngineConfig, EngineCore
from boki.errors import BokiError, Unavailable
from boki.log.ids import NodeId
from boki.log.limits import DEFAULT_LIMITS
from boki.log.membership import Member, Membership, Role
from boki.log.metalog import Positions
from boki.log.operations import Failure, Operation
from boki.messages import InstallMembership
from boki.remote import LogReply, LogRequest
from boki.sim.calls import LoggedEngine
from boki.sim.coordinator import News
from boki.sim.nodes import Node


class EngineNode(Node):
    """An engine with the index, and the shell that answers gateways and runs calls."""

    role = Role.ENGINE

    def make_core(self) -> Core:
        """See `Node`."""
        options = self.world.options
        config = EngineConfig(
            index_memory_bytes=options.index_memory_bytes,
            cache_bytes=options.cache_bytes,
            aux_cache_bytes=1 << 20,
            append_buffer_bytes=options.buffer_bytes,
            batch_bytes=options.batch_bytes,
            limits=DEFAULT_LIMITS,
        )
        self.is_ready = False
        self.logged: LoggedEngine | None = None
        self.on_death: list[Callable[[], None]] = []
        """Called when this life ends: what runs on the engine ends with it."""
        self._membership: Membership | None = None
        self._asked: set[tuple[NodeId, int]] = set()
        self._bootstrap = Bootstrap(self.name, self.incarnation, self.disk, config)
        return self._bootstrap

    @property
    def engine(self) -> EngineCore | None:
        """The core, once it is decided which index it begins from."""
        return self._bootstrap.engine

    def _die(self) -> None:
        if self.logged is not None:
            self.logged.die()
            self.logged = None
        while self.on_death:
            self.on_death.pop()()
        super()._die()

    def _on_news(self, news: News) -> None:
        if self.logged is not None and isinstance(news, InstallMembership):
            self.logged.on_membership(news.membership)
        self._membership = news.membership if isinstance(news, InstallMembership) else self._membership
        super()._on_news(news)

    def _begin_calls(self) -> None:
        """See `boki.node.engine`: once the index is there, and everybody is known."""
        if self.world.options.calls and self.logged is None:
            self.logged = LoggedEngine(self)
            if self._membership is not None:
                self.logged.on_membership(self._membership)

    def fence(self, incarnation: int, timeout_us: int, done: Callable[[Any, Positions], None]) -> None:
        """Shut another incarnation of an engine out of the log."""
        if self.engine is not None:
            self._run(self.engine.fence, incarnation, self.now_us() + timeout_us, done)
            if not self._is_scheduled and not self.is_paused:
                self._schedule()

    def member(self) -> Member:
        """See `Node`."""
        return Member(node=self.name, role=self.role, incarnation=self.incarnation, has_index=self.is_ready)

    def save(self) -> None:
        """See `Node`."""
        if self.core is not None and self.engine is not None:
            self._run(self.engine.checkpoint)

    def stop(self) -> None:
        """See `Node`: its shards are closed first, if that does not take too long."""
        if self.core is not None and not self.is_paused:
            if self.engine is not None:
                self.engine.close()
            self.clock.after(2_000_000, self._stopped, self._life)

    def _stopped(self, life: int) -> None:
        if life == self._life:
            self.save()
            self.clock.after(100_000, self._if_alive, life, self.begin_anew, "it was told to")

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
        now_us = self.now_us()
        done = self.world.sightings.across_terms(operation, self.engine.appends.term, done)
        self._run(self.engine.submit, operation, positions, now_us + timeout_us, done, now_us)
        if not self._is_scheduled and not self.is_paused:
            self._schedule()

    def _take(self, sender: NodeId, message: Any) -> None:
        if not isinstance(message, LogRequest):
            super()._take(sender, message)
            return
        self.clock.note(f"{sender} > {self.name}: LogRequest", message)
        key = (sender, message.request)
        if key in self._asked:
            return
        self._asked.add(key)

        def done(answer: Any, positions: Positions) -> None:
            told = Failure.of(answer) if isinstance(answer, BokiError) else answer
            self.send(sender, LogReply(message.request, positions, told))

        self.submit(message.operation, message.positions, message.timeout_us, done)

    def answer(self, token: Any, value: Any) -> None:
        """See `Node`."""
        if token is READY:
            self.is_ready = True
            assert self.session is not None
            self.world.coordinator.register(self.session, self.member())
            self._begin_calls()
        elif token is FENCED:
            self.clock.sometimes("an engine was fenced and stopped")
            self.clock.after(0, self._end, self._life, "it was fenced")
        elif token is STALE:
            self.clock.sometimes("an engine whose index was stale took another one")
            self.clock.after(0, self._end, self._life, "its index was stale")
        elif token is CLOSED:
            self.clock.sometimes("an engine closed its shards and stopped")
            self.clock.after(0, self._stopped, self._life)
        elif token not in (SAVED, BOOTED):
            assert isinstance(value, Answered)
            token(value.answer, value.positions)

    def _end(self, life: int, why: str) -> None:
        if life == self._life:
            self.begin_anew(why)
