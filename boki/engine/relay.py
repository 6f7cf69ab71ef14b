"""The log for an engine process without the index: every operation is carried out by an engine that has it.

A relay asks one engine and stays with it, because that one's cache then holds what the relay's callers read. When it is
gone, or refuses for certain, another one is asked, by the rules of `boki.protocol.asking`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, assert_never

from boki.errors import BokiError, Overloaded
from boki.log.ids import NodeId, Term
from boki.log.membership import Member, Membership, Role
from boki.log.metalog import Positions
from boki.log.operations import Operation
from boki.protocol.asking import Asking, Ended, Question, Step, failure_of
from boki.protocol.call_messages import AbandonRead, CallAccepted, LogReply, TellCall
from boki.protocol.effects import Announce, Answer, Effect, EngineNews, Send, Token, kinds
from boki.protocol.messages import InstallMembership, InstallView, Ping, Pong

RelayInput = LogReply | CallAccepted | TellCall | InstallMembership | InstallView | Ping
"""What a relay hears."""
_MAX_PENDING: Final = 10_000
_SILENCE_US: Final = 1_000_000
"""What may be asked twice is asked again after so much silence beyond the time that it may take."""


class RelayCore:
    """One incarnation of a relay. It takes operations like `boki.engine.core.EngineCore`, within `buffer_bytes` of
    appends.
    """

    HEARS: ClassVar[frozenset[type]] = kinds(RelayInput)

    def __init__(self, node: NodeId, incarnation: int, *, buffer_bytes: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self._buffer_bytes = buffer_bytes
        self._held_bytes = 0
        self._asking = Asking(incarnation, self._choose, silence_us=_SILENCE_US, most_for_one=_MAX_PENDING)
        self._tokens: dict[Token, Question] = {}
        self._membership: Membership | None = None
        self._engines: dict[NodeId, Member] = {}
        self._preferred: NodeId | None = None
        self._known_term: Term = 0
        self._was_ready = False

    # what it is asked

    def submit(
        self, operation: Operation, positions: Positions, deadline_us: int, token: Token, now_us: int
    ) -> Iterable[Effect]:
        """Take in an operation that was checked at the edge. One `Answer` follows, by the deadline."""
        return self.ask(Question.of_operation(operation, positions, deadline_us, token), now_us)

    def ask(self, question: Question, now_us: int) -> Iterable[Effect]:
        """Ask an engine, also about a logged call. One `Answer` follows with its message, or with an error."""
        if len(self._tokens) >= _MAX_PENDING or self._held_bytes + question.size_bytes > self._buffer_bytes:
            full = Overloaded("too many operations wait for an engine with the index", retry_after_s=0.1)
            return [Answer(question.token, full, {})]
        self._held_bytes += question.size_bytes
        self._tokens[question.token] = question
        return self._perform(self._asking.ask(question, now_us))

    def give_up(self, token: Token) -> Iterable[Effect]:
        """The caller behind that token no longer waits for its read: neither does the engine that has it."""
        question = self._tokens.get(token)
        if question is None or question.changes:
            return
        if question.asked is not None:
            yield Send(question.asked, AbandonRead(question.number))
        self._asking.forget(question)
        self._forget(question)

    # events

    def receive(self, sender: NodeId, message: RelayInput, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`."""
        match message:
            case LogReply() | CallAccepted() | TellCall():
                return self._on_answer(sender, message, now_us)
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
        """See `boki.protocol.effects.Core`: deadlines, and what no engine has, or none has answered, is asked again."""
        return [*self.settle(now_us), *self._perform(self._asking.tick(now_us))]

    @property
    def is_ready(self) -> bool:
        """Whether an engine with the index is there."""
        return bool(self._engines)

    def status(self) -> dict[str, Any]:
        """Figures for operators, as JSON values."""
        return {
            "incarnation": self.incarnation,
            "relays_to": list(self._engines),
            "waiting_operations": len(self._tokens),
        }

    def _on_answer(self, sender: NodeId, answer: LogReply | CallAccepted | TellCall, now_us: int) -> list[Effect]:
        return self._perform(self._asking.answer(sender, answer.request, failure_of(answer), now_us), answer)

    def _on_membership(self, membership: Membership, now_us: int) -> list[Effect]:
        if self._membership is not None and membership.number <= self._membership.number:
            return []
        self._membership = membership
        before, self._engines = (
            self._engines,
            {
                member.node: member
                for member in membership.of(Role.ENGINE)
                if member.has_index and member.node != self.node
            },
        )
        steps: list[Step] = []
        for member in before.values():
            now = self._engines.get(member.node)
            if now is None or now.incarnation != member.incarnation:
                steps += self._asking.lose(member.node, "it is gone, or has lost the index", now_us)
        return self._perform(steps + self._asking.look_again(now_us))

    def _choose(self, question: Question) -> NodeId | None:
        left = [node for node in self._engines if node not in question.tried]
        if left and self._preferred not in left:
            self._preferred = left[self.incarnation % len(left)]
        return self._preferred if left else None

    def _perform(self, steps: Iterable[Step], answer: LogReply | CallAccepted | TellCall | None = None) -> list[Effect]:
        """What is asked goes out; what has ended goes to its caller, with the answer in hand if there is no error."""
        effects: list[Effect] = []
        for step in steps:
            match step:
                case Send():
                    effects.append(step)
                case Ended(question, error):
                    self._forget(question)
                    effects.append(_ended(question, error, answer))
                case _:
                    assert_never(step)
        return effects

    def _forget(self, question: Question) -> None:
        del self._tokens[question.token]
        self._held_bytes -= question.size_bytes


def _ended(question: Question, error: BokiError | None, answer: LogReply | CallAccepted | TellCall | None) -> Answer:
    if isinstance(answer, LogReply):
        return Answer(question.token, answer.answer if error is None else error, answer.positions)
    if error is None:
        assert answer is not None, "nothing else ends without an error"
        return Answer(question.token, answer, {})
    return Answer(question.token, error, {})
