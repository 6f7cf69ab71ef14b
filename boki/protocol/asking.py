"""Asking engines: a question is put to one engine after the other until one has answered it. Pure.

A process without the index, a gateway or an engine, has everything carried out by an engine that has it. Engines
stop, are lost and refuse; messages are lost. These rules decide what a caller is told then:

1. A question is with at most one engine at a time. Each attempt has a number of its own, so an answer to an attempt
   that was given up comes too late and means nothing.
2. An engine that refuses for certain, because it cannot do it now, leaves the question to the next one.
3. An engine that is lost may have carried it out. What may be done twice without harm (reads, appends under a key,
   logged calls) is then asked of the next one; all else ends as `ConnectionLost`, whose outcome is unknown.
4. Each engine speaks for itself alone. Once a lost engine may have made the change, no refusal by another one is
   certain: its outcome becomes unknown.
5. When every engine has refused, or none is up, the question waits for the next tick or the next news of engines, for
   as long as its asker holds it. Nothing waits beyond its deadline, and beyond it no other engine is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final

import msgspec

from boki.errors import BokiError, ConnectionLost, DeadlineExceeded, Overloaded, Unavailable
from boki.log.chunk import Chunk
from boki.log.ids import NodeId
from boki.log.metalog import Positions
from boki.log.operations import Append, Failure, ListBooks, Operation, Read, SetRetention, TrimBook
from boki.protocol.call_messages import LogReply, LogRequest
from boki.protocol.effects import Send, Token
from boki.protocol.messages import Message

_LIFE_BITS: Final = 32
_RETRY_AFTER_S: Final = 0.1
NO_DEADLINE_US: Final = 1 << 62


@dataclass(slots=True, eq=False)
class Question:
    """What is asked, and how far that has come."""

    make: Callable[[int, int], Message]
    """The message of an attempt, from its number and the microseconds that are left."""
    deadline_us: int
    token: Token
    """The asker's name for it."""
    is_repeatable: bool = False
    """Whether it does no harm to ask two engines."""
    changes: bool = False
    """Whether it matters if it was carried out."""
    book: str = ""
    only: NodeId | None = None
    """Asked of this node or of none."""
    first: NodeId | None = None
    """Asked of this engine first, if it is up."""
    wait_us: int = 0
    """How long an engine may take before it begins to answer: a read may wait for records, at the next engine for what
    is left of its wait.
    """
    size_bytes: int = 0

    began_at_us: int = 0
    number: int = 0
    asked: NodeId | None = None
    """The engine that has it now. None: it waits for one."""
    asked_at_us: int = 0
    lacking_since_us: int = 0
    """When the engine first said that it knows nothing of it."""
    tried: set[NodeId] = field(default_factory=set)
    """Engines that have refused it or were lost, since the last time that all had."""
    doubt: ConnectionLost | None = None
    """Why it may have been carried out by an engine that was asked before."""
    refusal: BokiError | None = None

    @classmethod
    def of_operation(cls, operation: Operation, positions: Positions, deadline_us: int, token: Token) -> Question:
        """A log operation whose asker has seen these positions."""
        return cls(
            lambda number, left_us: LogRequest(number, positions, left_us, operation),
            deadline_us,
            token,
            is_repeatable=is_repeatable(operation),
            changes=is_change(operation),
            book="" if isinstance(operation, ListBooks) else operation.book,
            wait_us=operation.wait_us if isinstance(operation, Read) else 0,
            size_bytes=len(operation.chunk) if isinstance(operation, Append) else 0,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """The question is over: with the answer in hand, or with this error."""

    question: Question
    error: BokiError | None


Step = Send | Ended


class Asking:
    """The open questions of one incarnation of an asker. `choose` names the engine to ask: up, and not among the tried
    ones.

    `hold_us`: how long a question waits for an engine that takes it while none can have carried it out.
    `grace_us`: an engine answers at the deadline, and its answer has this much longer to come. `silence_us`: what is
    repeatable is given up after so much silence beyond its `wait_us`; without it the asker says who is lost.
    `most_for_one`: questions that may be with one engine.
    """

    def __init__(
        self,
        incarnation: int,
        choose: Callable[[Question], NodeId | None],
        *,
        hold_us: int = NO_DEADLINE_US,
        grace_us: int = 0,
        silence_us: int = NO_DEADLINE_US,
        most_for_one: int,
    ) -> None:
        # No number of this incarnation is one of an earlier incarnation: late answers to that one mean nothing here,
        # and an engine takes in no number twice.
        self._numbers = incarnation << _LIFE_BITS
        self._choose = choose
        self._hold_us = hold_us
        self._grace_us = grace_us
        self._silence_us = silence_us
        self._most_for_one = most_for_one
        self._asked: dict[NodeId, dict[int, Question]] = {}
        self._waiting: dict[Question, None] = {}

    def __len__(self) -> int:
        return len(self._waiting) + sum(len(asked) for asked in self._asked.values())

    def __iter__(self) -> Iterator[Question]:
        for asked in self._asked.values():
            yield from asked.values()
        yield from self._waiting

    def find(self, node: NodeId, number: int) -> Question | None:
        """The question that this node has under this number."""
        return self._asked.get(node, {}).get(number)

    def count_at(self, node: NodeId) -> int:
        """How many questions the node has."""
        return len(self._asked.get(node, ()))

    @property
    def waits_for(self) -> set[NodeId]:
        """The nodes that have questions."""
        return set(self._asked)

    # what the asker does

    def ask(self, question: Question, now_us: int) -> list[Step]:
        """Put it to an engine, or keep it until there is one."""
        question.began_at_us = now_us
        return self._ask_next(question, now_us)

    def forget(self, question: Question) -> None:
        """Its asker no longer wants to know. Repeatable."""
        self._waiting.pop(question, None)
        if question.asked is not None:
            self._take_back(question)

    def end_all(self, why: str) -> list[Step]:
        """Nothing will be answered any more."""
        return [
            self._lost_for_good(question, ConnectionLost(f"{why}; it may have been done")) for question in list(self)
        ]

    # what comes

    def answer(self, node: NodeId, number: int, failure: Failure | None, now_us: int) -> list[Step]:
        """An answer has come. Nothing follows if no attempt waits for it; `Ended` without an error says that it is the
        answer.
        """
        question = self.find(node, number)
        if question is None:
            return []
        if failure is None:
            return [self._end(question, None)]
        error = failure.error()
        if failure.code in (Unavailable.code, ConnectionLost.code):
            if failure.outcome == "not_applied":
                question.refusal = error
                return self._pass_on(question, now_us)
            if question.is_repeatable:
                question.doubt = ConnectionLost(str(error), node=node)
                return self._pass_on(question, now_us)
        if question.changes and question.doubt is not None and error.outcome == "not_applied":
            error.outcome = "unknown"
        return [self._end(question, error)]

    def lose(self, node: NodeId, why: str, now_us: int, *, only_repeatable: bool = False) -> list[Step]:
        """The node is lost, or (`only_repeatable`) silent for so long that another one is asked what may be."""
        steps: list[Step] = []
        for question in list(self._asked.get(node, {}).values()):
            if question.is_repeatable or not only_repeatable:
                steps += self._lose_attempt(question, why, now_us)
        return steps

    def lack(self, node: NodeId, numbers: Iterable[int], now_us: int, *, for_us: int) -> list[Step]:
        """The node knows nothing of these. An answer may still be on its way, so it must say so for a while."""
        steps: list[Step] = []
        for number in numbers:
            question = self.find(node, number)
            if question is None:
                continue
            if not question.lacking_since_us:
                question.lacking_since_us = now_us
            elif now_us - question.lacking_since_us >= for_us:
                steps += self._lose_attempt(question, "the request or its answer was lost on the way", now_us)
        return steps

    def asked_before(self, node: NodeId, before_us: int, most: int) -> tuple[int, ...]:
        """Numbers that the node has had since then, at most `most` of them: it may be asked whether it knows them."""
        old = takewhile(lambda question: question.asked_at_us <= before_us, self._asked.get(node, {}).values())
        return tuple(question.number for question in islice(old, most))

    def look_again(self, now_us: int) -> list[Step]:
        """There is news of engines: whatever waits is asked."""
        waiting, self._waiting = self._waiting, {}
        return [step for question in waiting for step in self._ask_next(question, now_us)]

    def tick(self, now_us: int) -> list[Step]:
        """Deadlines, silence, and what waits."""
        steps: list[Step] = []
        for question in [q for q in self if q.asked is not None]:
            if now_us > question.deadline_us + self._grace_us:
                steps.append(self._end(question, _late(question)))
            elif question.is_repeatable and now_us - question.asked_at_us > question.wait_us + self._silence_us:
                steps += self._lose_attempt(question, "it was silent", now_us)
        return steps + self.look_again(now_us)

    # one attempt

    def _ask_next(self, question: Question, now_us: int) -> list[Step]:
        left_us = question.deadline_us - now_us
        node = question.only or self._choose(question)
        if node is None:
            question.tried.clear()
            holds_until_us = question.deadline_us if question.doubt else question.began_at_us + self._hold_us
            if now_us > min(holds_until_us, question.deadline_us):
                return [Ended(question, question.doubt or question.refusal or _no_engine())]
            self._waiting[question] = None
            return []
        asked = self._asked.setdefault(node, {})
        if question.only is None and len(asked) >= self._most_for_one:
            return [Ended(question, question.doubt or self._too_many(node))]
        self._numbers += 1
        question.number, question.asked = self._numbers, node
        question.asked_at_us, question.lacking_since_us = now_us, 0
        asked[question.number] = question
        message = question.make(question.number, max(left_us, 1))
        waited_us = now_us - question.began_at_us
        if waited_us and isinstance(message, LogRequest) and isinstance(message.operation, Read):
            question.wait_us = max(message.operation.wait_us - waited_us, 0)
            read = msgspec.structs.replace(message.operation, wait_us=question.wait_us)
            message = msgspec.structs.replace(message, operation=read)
        return [Send(node, message)]

    def _lose_attempt(self, question: Question, why: str, now_us: int) -> list[Step]:
        node = question.asked
        error = ConnectionLost(
            f"{node} was lost before it answered: {why}"
            + ("; repeat it only under the same key" if question.changes and not question.is_repeatable else ""),
            node=node,
        )
        if not question.is_repeatable or question.only is not None:
            return [self._end(question, error)]
        question.doubt = error
        return self._pass_on(question, now_us)

    def _pass_on(self, question: Question, now_us: int) -> list[Step]:
        """The engine that has it will not answer: another one may, while there is time."""
        node = self._take_back(question)
        question.tried.add(node)
        if question.only is not None or (question.doubt is not None and now_us >= question.deadline_us):
            return [Ended(question, question.doubt or question.refusal)]
        return self._ask_next(question, now_us)

    def _lost_for_good(self, question: Question, error: ConnectionLost) -> Ended:
        was_asked = question.asked is not None or question.doubt is not None
        return self._end(question, error if was_asked else _no_engine())

    def _end(self, question: Question, error: BokiError | None) -> Ended:
        self.forget(question)
        return Ended(question, error)

    def _take_back(self, question: Question) -> NodeId:
        node = question.asked
        assert node is not None, "it is with an engine"
        asked = self._asked[node]
        del asked[question.number]
        if not asked:
            del self._asked[node]
        question.asked = None
        return node

    def _too_many(self, node: NodeId) -> Overloaded:
        return Overloaded(
            f"{self._most_for_one} requests wait for engine {node}, as many as may",
            retry_after_s=_RETRY_AFTER_S,
            limit=self._most_for_one,
        )


def is_repeatable(operation: Operation) -> bool:
    """Whether it does no harm to ask two engines. A trim that is carried out late takes what was appended since."""
    if isinstance(operation, Append):
        return all(span.key_tag is not None for span in Chunk(operation.chunk).groups())
    return not isinstance(operation, TrimBook | SetRetention)


def is_change(operation: Operation) -> bool:
    """Whether it matters if it was carried out."""
    return isinstance(operation, Append | TrimBook | SetRetention)


def failure_of(answer: Message) -> Failure | None:
    """Why the engine has not done what it was asked, if it has not."""
    failure = answer.answer if isinstance(answer, LogReply) else getattr(answer, "failure", None)
    return failure if isinstance(failure, Failure) else None


def _no_engine() -> Unavailable:
    return Unavailable("no engine is up", retry_after_s=_RETRY_AFTER_S)


def _late(question: Question) -> DeadlineExceeded:
    """With an engine at the deadline: it may be carrying it out."""
    return DeadlineExceeded(
        f"{question.asked} did not answer in time"
        + ("; it may have been carried out: repeat it only under the same key" if question.changes else ""),
        outcome="unknown" if question.changes else "not_applied",
    )
