"""The gateway's routing of log operations, without its HTTP: as `boki.gateway.cluster` does it, under virtual time.

An answer ends a request. A request that an engine does not answer is asked of another one if it does no harm twice;
else, when its engine is lost, it ends with an unknown outcome. A refusal that is certain and may pass is tried again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from boki.effects import Answer, Core, Effect, Send
from boki.errors import BokiError, ConnectionLost, DeadlineExceeded, Unavailable
from boki.log.chunk import Chunk
from boki.log.ids import NodeId
from boki.log.membership import Membership, Role
from boki.log.metalog import Positions
from boki.log.operations import Append, Failure, Operation, TrimBook
from boki.messages import InstallMembership
from boki.remote import LogReply, LogRequest
from boki.sim.nodes import Node, World

_QUIET_US: Final = 750_000
_GRACE_US: Final = 1_000_000
_RETRY_US: Final = 100_000


@dataclass(slots=True)
class _Pending:
    operation: Operation
    positions: Positions
    deadline_us: int
    token: Any
    is_repeatable: bool
    engine: NodeId | None = None
    incarnation: int = 0
    sent_us: int = 0
    numbers: list[int] = field(default_factory=list)
    retry_us: int = 0


class Routing:
    """A gateway's requests. `request` takes one in; `Answer(token, (answer or error, positions))` follows, once."""

    def __init__(self, incarnation: int, rng: Random) -> None:
        self._rng = rng
        self._number = incarnation << 32
        self._membership = Membership(number=-1)
        self._pending: dict[int, _Pending] = {}

    def request(
        self, operation: Operation, positions: Positions, deadline_us: int, token: Any, now_us: int
    ) -> Iterable[Effect]:
        """Have an operation carried out by some engine."""
        pending = _Pending(operation, positions, deadline_us, token, _is_repeatable(operation))
        return self._send(pending, now_us)

    def _send(self, pending: _Pending, now_us: int) -> list[Effect]:
        engines = [member for member in self._membership.of(Role.ENGINE) if member.has_index]
        others = [member for member in engines if member.node != pending.engine]
        pending.sent_us = now_us
        self._number += 1
        self._pending[self._number] = pending
        pending.numbers.append(self._number)
        if not engines:
            pending.engine, pending.retry_us = None, now_us + _RETRY_US
            return []
        member = self._rng.choice(others or engines)
        pending.engine, pending.incarnation, pending.retry_us = member.node, member.incarnation, 0
        left_us = max(1, pending.deadline_us - now_us)
        return [Send(member.node, LogRequest(self._number, pending.positions, left_us, pending.operation))]

    def _end(self, pending: _Pending, answer: Any, positions: Positions) -> list[Effect]:
        for number in pending.numbers:
            self._pending.pop(number, None)
        return [Answer(pending.token, (answer, positions))]

    def receive(self, sender: NodeId, message: Any, now_us: int) -> Iterable[Effect]:  # noqa: ARG002
        """See `boki.effects.Core`."""
        match message:
            case LogReply(number, positions, answer):
                pending = self._pending.get(number)
                if pending is None:
                    return ()
                if isinstance(answer, Failure):
                    error = answer.error()
                    can_wait = pending.deadline_us - now_us > 2 * _RETRY_US
                    if error.retryable and error.outcome == "not_applied" and can_wait:
                        if number == pending.numbers[-1]:
                            pending.retry_us = now_us + _RETRY_US
                        return ()
                    return self._end(pending, error, positions)
                return self._end(pending, answer, positions)
            case InstallMembership(membership):
                self._membership = membership
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:  # noqa: ARG002
        """See `boki.effects.Core`."""
        return ()

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.effects.Core`."""
        effects: list[Effect] = []
        for number, pending in list(self._pending.items()):
            if number == pending.numbers[-1] and number in self._pending:
                effects += self._look_after(pending, now_us)
        return effects

    def _look_after(self, pending: _Pending, now_us: int) -> Iterable[Effect]:
        if now_us > pending.deadline_us + (_GRACE_US if pending.engine is not None else 0):
            return self._end(pending, _late(pending), {})
        if pending.retry_us:
            return self._send(pending, now_us) if now_us >= pending.retry_us else ()
        member = self._membership.find(pending.engine) if pending.engine is not None else None
        is_lost = member is None or member.incarnation != pending.incarnation
        if pending.is_repeatable:
            is_due = is_lost or now_us - pending.sent_us > _QUIET_US
            return self._send(pending, now_us) if is_due and now_us < pending.deadline_us else ()
        if is_lost:
            return self._end(pending, ConnectionLost("the engine is lost"), {})
        return ()


def _late(pending: _Pending) -> BokiError:
    if pending.engine is None and len(pending.numbers) == 1:
        return Unavailable("no engine is there")
    if pending.is_repeatable and not isinstance(pending.operation, Append):
        return DeadlineExceeded("no engine answered", outcome="not_applied")
    return ConnectionLost("no engine answered")


def _is_repeatable(operation: Operation) -> bool:
    if isinstance(operation, Append):
        return all(span.key_tag is not None for span in Chunk(operation.chunk).groups())
    return not isinstance(operation, TrimBook)


class GatewayNode(Node):
    """A gateway. Its clients are those of `boki.sim.clients`."""

    role = Role.GATEWAY

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._routing: Routing | None = None

    def make_core(self) -> Core:
        """See `Node`. A gateway keeps its requests over a lost session."""
        if self._routing is None:
            self._routing = Routing(self.incarnation, self.clock.schedule_rng)
        return self._routing

    def submit(self, operation: Operation, positions: Positions, timeout_us: int, done: Any) -> None:
        """Carry out an operation for a client."""
        now_us = self.now_us()
        assert self._routing is not None
        self.perform(self._routing.request(operation, positions, now_us + timeout_us, done, now_us))

    def answer(self, token: Any, value: Any) -> None:
        """See `Node`."""
        token(*value)
