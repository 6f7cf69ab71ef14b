"""Linearizable tails: what had been acknowledged to anybody before this question (design promise 3).

An acknowledged record's cut is durable on a majority of the sequencers. Any two majorities share one, so the largest
number of entries that a majority holds, asked of an unsealed term, covers every acknowledgement before the question.
Waiting for an index that has applied that much is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from boki.engine.waiter import Ended, Unstamped, Waiter
from boki.errors import DeadlineExceeded, Overloaded, Unavailable
from boki.log.ids import LogId, NodeId
from boki.log.operations import Read, Sync
from boki.log.view import View
from boki.protocol.effects import Send, Token
from boki.protocol.messages import AskTail, TellTail

_REPEAT_US: Final = 200_000
_MAX_QUESTIONS: Final = 10_000


@dataclass(slots=True)
class _Question:
    """A question that no majority has answered yet."""

    operation: Read | Sync
    waiter: Waiter
    deadline_us: int
    term: int
    answers: dict[NodeId, int] = field(default_factory=dict)


class Tails:
    """Questions under way."""

    def __init__(self, first_number: int = 0) -> None:
        self._questions: dict[int, _Question] = {}
        self._numbers = first_number
        self._repeat_at = 0

    def ask(self, view: View, operation: Read | Sync, waiter: Waiter, deadline_us: int) -> Iterable[Unstamped]:
        """Ask all sequencers; `tell` yields the operation again when a majority has answered. May be `Overloaded`."""
        if len(self._questions) >= _MAX_QUESTIONS:
            raise Overloaded(f"{_MAX_QUESTIONS} questions for the tail are under way", retry_after_s=0.1)
        self._numbers += 1
        self._questions[self._numbers] = _Question(operation, waiter, deadline_us, view.term)
        return self._ask(view, self._numbers)

    def _ask(self, view: View, number: int) -> Iterable[Unstamped]:
        log = view.log_of(self._questions[number].operation.book)
        return [Send(node, AskTail(number, log)) for node in view.sequencers]

    def tell(
        self, view: View, sender: NodeId, message: TellTail
    ) -> Iterator[tuple[Read | Sync, Waiter, LogId, int, int]]:
        """Take in an answer. → (operation, waiter, log, entries to wait for, deadline) of a question answered now"""
        question = self._questions.get(message.request)
        if question is None or message.sealed or message.term != view.term:
            return
        if view.incarnations.get(sender) != message.incarnation:
            return  # its disk is not the one that acknowledged: it may have forgotten
        if message.log != view.log_of(question.operation.book):
            return
        if question.term != view.term:
            question.term = view.term
            question.answers.clear()
        question.answers[sender] = message.stored_until
        if len(question.answers) >= view.sequencer_majority:
            del self._questions[message.request]
            entries = max(question.answers.values())
            yield question.operation, question.waiter, message.log, entries, question.deadline_us

    def give_up(self, token: Token) -> None:
        """The caller behind that token waits no more."""
        for number in [number for number, asked in self._questions.items() if asked.waiter.token == token]:
            del self._questions[number]

    @property
    def is_at_work(self) -> bool:
        """Whether a question is under way."""
        return bool(self._questions)

    def tick(self, view: View, now_us: int) -> Iterable[Unstamped]:
        """Repeat questions, and give up those whose deadline has passed."""
        for number in [number for number, question in self._questions.items() if question.deadline_us < now_us]:
            late = DeadlineExceeded("no majority of the sequencers answered in time", outcome="not_applied")
            yield Ended(self._questions.pop(number).waiter, late)
        if now_us >= self._repeat_at:
            self._repeat_at = now_us + _REPEAT_US
            yield from self.ask_again(view)

    def ask_again(self, view: View) -> Iterable[Unstamped]:
        """Repeat all questions: an answer may have been lost, or a new term has begun."""
        return [effect for number in self._questions for effect in self._ask(view, number)]

    def abandon(self) -> Iterable[Unstamped]:
        """This engine has been fenced: end all questions."""
        waiters = [question.waiter for question in self._questions.values()]
        self._questions.clear()
        return [Ended(waiter, Unavailable("this engine was fenced; ask another one")) for waiter in waiters]
