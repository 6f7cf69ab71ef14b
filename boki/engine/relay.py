"""The log for an engine process without the index: every operation is carried out by an engine that has it.

A relay asks one engine and stays with it, because that one's cache then holds what the relay's callers read. When it is
gone, or refuses for certain, another one is asked. What may have been carried out by an engine that is lost is asked
again only if that does no harm: reads and appends under keys. Any other append ends as unknown; so does a trim, because
one that is carried out again, later, may take what was appended after it had been acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, assert_never

import msgspec

from boki.errors import BokiError, ConnectionLost, DeadlineExceeded, Overloaded, Unavailable
from boki.log.chunk import Chunk
from boki.log.ids import NodeId, Term
from boki.log.membership import Member, Membership, Role
from boki.log.metalog import Positions
from boki.log.operations import Answer as OperationAnswer
from boki.log.operations import Append, Failure, Operation, Read, TrimBook
from boki.protocol.call_messages import AbandonRead, LogReply, LogRequest
from boki.protocol.effects import Announce, Answer, Effect, EngineNews, Send, Token, kinds
from boki.protocol.messages import InstallMembership, InstallView, Ping, Pong

RelayInput = LogReply | InstallMembership | InstallView | Ping
"""What a relay hears."""
_LIFE_BITS: Final = 32
_MAX_PENDING: Final = 10_000
_PATIENCE_US: Final = 1_000_000
"""What may be asked twice is asked again after so much silence beyond the time that it may take."""


@dataclass(slots=True)
class _Pending:
    """An operation that has not been answered."""

    operation: Operation
    positions: Positions
    deadline_us: int
    token: Token
    size_bytes: int
    is_repeatable: bool
    number: int = 0
    asked: Member | None = None
    """Who may be carrying it out; None if nobody is, for certain."""
    asked_at: int = 0
    is_in_doubt: bool = False
    """It may have been carried out by somebody who was asked before."""


class RelayCore:
    """One life of a relay. It takes operations like `boki.engine.core.EngineCore`, within `buffer_bytes` of appends."""

    HEARS: ClassVar[frozenset[type]] = kinds(RelayInput)

    def __init__(self, node: NodeId, incarnation: int, *, buffer_bytes: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self._buffer_bytes = buffer_bytes
        self._held_bytes = 0
        self._numbers = incarnation << _LIFE_BITS
        self._pending: dict[int, _Pending] = {}
        self._waiting: list[_Pending] = []
        """Those that nobody carries out: the next tick finds somebody."""
        self._membership: Membership | None = None
        self._engines: Sequence[Member] = ()
        self._turn = incarnation
        self._known_term: Term = 0
        self._was_ready = False

    # operations

    def submit(
        self, operation: Operation, positions: Positions, deadline_us: int, token: Token, now_us: int
    ) -> Iterable[Effect]:
        """Take in an operation that was checked at the edge. One `Answer` follows, by the deadline."""
        size_bytes = len(operation.chunk) if isinstance(operation, Append) else 0
        if (
            len(self._pending) + len(self._waiting) >= _MAX_PENDING
            or self._held_bytes + size_bytes > self._buffer_bytes
        ):
            full = Overloaded("too many operations wait for an engine with the index", retry_after_s=0.1)
            return [Answer(token, full, {})]
        self._held_bytes += size_bytes
        is_repeatable = not isinstance(operation, Append | TrimBook) or _is_keyed(operation)
        return self._ask(_Pending(operation, positions, deadline_us, token, size_bytes, is_repeatable), now_us)

    def give_up(self, token: Token) -> Iterable[Effect]:
        """The caller behind that token no longer waits for its read: neither does the engine that has it."""
        for pending in [p for p in (*self._pending.values(), *self._waiting) if p.token == token and not _writes(p)]:
            asked = pending.asked
            self._forget(pending)
            if asked is not None:
                yield Send(asked.node, AbandonRead(pending.number))

    def _ask(self, pending: _Pending, now_us: int) -> list[Effect]:
        """Ask the engine whose turn it is, under a new number: an answer to an old one comes too late."""
        if not self._engines:
            self._waiting.append(pending)
            return []
        engine = self._engines[self._turn % len(self._engines)]
        self._numbers += 1
        pending.number, pending.asked, pending.asked_at = self._numbers, engine, now_us
        self._pending[pending.number] = pending
        left_us = max(0, pending.deadline_us - now_us)
        return [Send(engine.node, LogRequest(pending.number, pending.positions, left_us, pending.operation))]

    # events

    def receive(self, sender: NodeId, message: RelayInput, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`."""
        match message:
            case LogReply():
                return self._on_reply(sender, message)
            case InstallMembership(membership):
                return self._on_membership(membership, now_us)
            case InstallView(views):
                self._known_term = max([self._known_term, *(view.term for view in views)])
            case Ping(number):
                return (Send(sender, Pong(number, self._known_term, self.incarnation)),)
            case _:
                assert_never(message)
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:  # noqa: ARG002 - the shape of every core
        """See `boki.protocol.effects.Core`."""
        if self._engines and not self._was_ready:
            self._was_ready = True
            return (Announce(EngineNews.READY),)
        return ()

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: deadlines, and what nobody carries out, or nobody has answered, is asked
        again.
        """
        effects = list(self.settle(now_us))
        for pending in [p for p in (*self._pending.values(), *self._waiting) if p.deadline_us < now_us]:
            effects.append(self._end(pending, _late(pending)))
        waiting, self._waiting = self._waiting, []
        for pending in [p for p in self._pending.values() if p.is_repeatable and _is_silent(p, now_us)]:
            self._give_up(pending)
            self._turn += 1
            waiting.append(pending)
        for pending in waiting:
            effects += self._ask(pending, now_us)
        return effects

    @property
    def is_ready(self) -> bool:
        """Whether an engine with the index is there."""
        return bool(self._engines)

    def status(self) -> dict[str, Any]:
        """Figures for operators, as JSON values."""
        return {
            "incarnation": self.incarnation,
            "relays_to": [engine.node for engine in self._engines],
            "waiting_operations": len(self._pending) + len(self._waiting),
        }

    def _on_reply(self, sender: NodeId, reply: LogReply) -> list[Effect]:
        pending = self._pending.get(reply.request)
        if pending is None or pending.asked is None or pending.asked.node != sender:
            return []
        answer = reply.answer
        if isinstance(answer, Failure) and answer.code in (Unavailable.code, ConnectionLost.code):
            is_definite = answer.outcome == "not_applied"
            if is_definite or pending.is_repeatable:
                del self._pending[pending.number]
                pending.asked = None
                pending.is_in_doubt |= not is_definite
                if len(self._engines) > 1 and self._engines[self._turn % len(self._engines)].node == sender:
                    self._turn += 1
                self._waiting.append(pending)  # the next tick asks: not faster, or two that refuse would spin
                return []
        if isinstance(answer, Failure) and answer.outcome == "not_applied" and pending.is_in_doubt and _writes(pending):
            # that is this engine's word for itself: whoever was asked before may have carried it out
            answer = msgspec.structs.replace(answer, outcome="unknown")
        return [self._end(pending, answer, reply.positions)]

    def _on_membership(self, membership: Membership, now_us: int) -> list[Effect]:
        if self._membership is not None and membership.number <= self._membership.number:
            return []
        self._membership = membership
        self._engines = [
            member for member in membership.of(Role.ENGINE) if member.has_index and member.node != self.node
        ]
        lives = {(member.node, member.incarnation) for member in self._engines}
        effects: list[Effect] = []
        for pending in list(self._pending.values()):
            assert pending.asked is not None
            if (pending.asked.node, pending.asked.incarnation) in lives:
                continue
            if pending.is_repeatable:
                self._give_up(pending)
                effects += self._ask(pending, now_us)
            else:
                effects.append(self._end(pending, _lost(pending.asked.node)))
        waiting, self._waiting = self._waiting, []
        for pending in waiting:
            effects += self._ask(pending, now_us)
        return effects

    def _give_up(self, pending: _Pending) -> None:
        """Whoever was asked does not answer; it may have carried it out all the same."""
        del self._pending[pending.number]
        pending.asked = None
        pending.is_in_doubt = True

    def _end(
        self, pending: _Pending, answer: OperationAnswer | BokiError, positions: Positions | None = None
    ) -> Effect:
        self._forget(pending)
        return Answer(pending.token, answer, positions or {})

    def _forget(self, pending: _Pending) -> None:
        if pending.asked is not None:
            del self._pending[pending.number]
        else:
            self._waiting.remove(pending)
        self._held_bytes -= pending.size_bytes


def _writes(pending: _Pending) -> bool:
    """Whether it changes the log, so that it matters whether it was carried out."""
    return isinstance(pending.operation, Append | TrimBook)


def _is_keyed(operation: Append | TrimBook) -> bool:
    """Whether each of its groups has a key, so that doing it twice does it once."""
    return isinstance(operation, Append) and all(span.key_tag is not None for span in Chunk(operation.chunk).groups())


def _is_silent(pending: _Pending, now_us: int) -> bool:
    operation = pending.operation
    may_take_us = operation.wait_us if isinstance(operation, Read) else 0
    return now_us - pending.asked_at > may_take_us + _PATIENCE_US


def _late(pending: _Pending) -> BokiError:
    """What its caller is told at the deadline."""
    is_unknown = _writes(pending) and (pending.is_in_doubt or pending.asked is not None)
    return DeadlineExceeded(
        "no engine with the index answered in time"
        + ("; it may have been carried out: repeat it only under the same key" if is_unknown else ""),
        outcome="unknown" if is_unknown else "not_applied",
    )


def _lost(engine: NodeId) -> BokiError:
    return ConnectionLost(
        f"{engine} was lost, or lost the index, while it carried this out; repeat it only under the same key"
    )
