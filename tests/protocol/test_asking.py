"""Asking engines: one answer for each question, and no word of certainty about what an engine may have done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from random import Random

import pytest

from boki.errors import BokiError, ConnectionLost, DeadlineExceeded, DiskFull, Overloaded, Unavailable
from boki.log.ids import NodeId
from boki.log.operations import Failure, Read
from boki.protocol.asking import Asking, Ended, Question, Step
from boki.protocol.call_messages import AskStatus, LogRequest
from boki.protocol.effects import Send

A, B = NodeId("a"), NodeId("b")
SECOND = 1_000_000
CANNOT = Failure.of(Unavailable("it starts"))


class Asker:
    """An asker of two engines that notes the end of each question."""

    def __init__(self, *engines: NodeId, hold_us: int = 5 * SECOND, most: int = 10) -> None:
        self.engines = list(engines)
        self.now_us = SECOND
        self.attempts: dict[int, int] = {}
        """The question of each attempt, by its order."""
        self.asked: list[Question] = []
        self.sent: list[tuple[NodeId, int]] = []
        self.ended: list[tuple[Question, BokiError | None]] = []
        self.asking = Asking(1, self.choose, hold_us=hold_us, grace_us=SECOND, silence_us=SECOND, most_for_one=most)

    def choose(self, question: Question) -> NodeId | None:
        return next((engine for engine in self.engines if engine not in question.tried), None)

    def ask(self, *, deadline_us: int = 30 * SECOND, **how: bool) -> Question:
        order = len(self.asked)

        def make(number: int, _left_us: int) -> AskStatus:
            self.attempts[number] = order
            return AskStatus(number)

        question = Question(make, self.now_us + deadline_us, order, **how)  # type: ignore[arg-type] # flags alone
        self.asked.append(question)
        self.take(self.asking.ask(question, self.now_us))
        return question

    def answer(self, failure: Failure | None = None, attempt: int = -1) -> None:
        node, number = self.sent[attempt]
        self.take(self.asking.answer(node, number, failure, self.now_us))

    def passes(self, us: int) -> None:
        self.now_us += us
        self.take(self.asking.tick(self.now_us))

    def take(self, steps: list[Step]) -> None:
        for step in steps:
            if isinstance(step, Send):
                assert isinstance(step.message, AskStatus)
                self.sent.append((step.to, step.message.request))
            else:
                assert isinstance(step, Ended)
                self.ended.append((step.question, step.error))

    @property
    def error(self) -> BokiError:
        """How the only question has ended."""
        ((_, error),) = self.ended
        assert error is not None
        return error


def test_a_certain_refusal_leaves_it_to_the_next_engine() -> None:
    """Also what must not be done twice. When all have refused, they are asked again, until the asker gives up."""
    asker = Asker(A, B)
    asker.ask(changes=True)
    asker.answer(CANNOT)
    asker.answer(CANNOT)
    assert [node for node, _ in asker.sent] == [A, B]
    asker.passes(1)
    assert [node for node, _ in asker.sent] == [A, B, A]
    asker.answer()
    assert [error for _, error in asker.ended] == [None]
    assert len(asker.asking) == 0


def test_when_no_engine_takes_it_the_last_refusal_is_the_answer() -> None:
    """After the time for which the asker holds it; and at once after its own deadline."""
    asker = Asker(A)
    asker.ask()
    for _ in range(7):
        if not asker.ended:
            asker.answer(CANNOT)
        asker.passes(SECOND)
    assert isinstance(asker.error, Unavailable)
    assert "it starts" in str(asker.error)
    nobody = Asker()
    nobody.ask(deadline_us=SECOND)
    nobody.passes(2 * SECOND)
    assert (type(nobody.error), nobody.error.outcome) == (Unavailable, "not_applied")


def test_a_read_waits_at_the_next_engine_for_what_is_left() -> None:
    """However many engines are lost, it is answered when its wait is over; silence counts from there."""
    asking = Asker(A, B).asking
    question = Question.of_operation(Read("book", wait_us=5 * SECOND), {}, 30 * SECOND, "poll")
    asking.ask(question, SECOND)
    waits = []
    for now_us in (5_900_000, 6_500_000):
        (step,) = asking.lose(question.asked or A, "it is gone", now_us)
        assert isinstance(step, Send)
        assert isinstance(step.message, LogRequest)
        assert isinstance(step.message.operation, Read)
        waits.append(step.message.operation.wait_us)
        question.tried.clear()
    assert waits == [100_000, 0]
    assert asking.tick(7_500_000) == []
    asking.tick(7_500_001)
    assert question.tried


@pytest.mark.parametrize("is_repeatable", [True, False])
def test_a_lost_engine_may_have_done_it(is_repeatable: bool) -> None:
    """What may be done twice is asked of the next engine; all else is unknown."""
    asker = Asker(A, B)
    asker.ask(is_repeatable=is_repeatable, changes=True)
    asker.take(asker.asking.lose(A, "it is silent", asker.now_us))
    if is_repeatable:
        assert asker.sent[-1][0] == B
        assert not asker.ended
    else:
        assert (type(asker.error), asker.error.outcome) == (ConnectionLost, "unknown")


def test_a_refusal_says_nothing_of_who_was_asked_before() -> None:
    """The first engine may have done it; that the second certainly has not does not make it certain (hazard H11)."""
    for changes, outcome in ((True, "unknown"), (False, "not_applied")):
        asker = Asker(A, B)
        asker.ask(is_repeatable=True, changes=changes)
        asker.take(asker.asking.lose(A, "it is silent", asker.now_us))
        asker.answer(Failure.of(DiskFull("no room")))
        assert asker.error.outcome == outcome


def test_after_doubt_a_refusal_for_want_of_readiness_ends_as_lost() -> None:
    """At the deadline, and not after the shorter time for which an asker holds what nobody has."""
    asker = Asker(A, B)
    asker.ask(is_repeatable=True, changes=True)
    asker.take(asker.asking.lose(A, "it is silent", asker.now_us))
    asker.engines.clear()
    asker.answer(CANNOT)
    asker.passes(20 * SECOND)
    assert not asker.ended
    asker.passes(11 * SECOND)
    assert (type(asker.error), asker.error.outcome) == (ConnectionLost, "unknown")


def test_an_answer_to_an_attempt_that_was_given_up_means_nothing() -> None:
    """It comes too late, also from the engine that has the question again."""
    asker = Asker(A)
    asker.ask(is_repeatable=True)
    asker.passes(SECOND + 1)
    assert len(asker.sent) == 2
    asker.answer(attempt=0)
    assert not asker.ended
    asker.answer(attempt=1)
    assert len(asker.ended) == 1
    asker.answer(attempt=1)
    assert len(asker.ended) == 1


def test_the_deadline_ends_it_as_unknown_if_it_changes_something() -> None:
    """With the time of grace that an answer has to come."""
    for changes, outcome in ((True, "unknown"), (False, "not_applied")):
        asker = Asker(A)
        asker.ask(deadline_us=SECOND, changes=changes)
        asker.passes(2 * SECOND)
        assert not asker.ended
        asker.passes(1)
        assert (type(asker.error), asker.error.outcome) == (DeadlineExceeded, outcome)


def test_an_engine_that_does_not_know_a_question_is_asked_twice_whether_that_is_so() -> None:
    """The answer may have been on its way when it said so first."""
    asker = Asker(A, B)
    asker.ask(is_repeatable=True)
    _, number = asker.sent[0]
    assert asker.asking.asked_before(A, SECOND - 1, 5) == ()
    assert asker.asking.asked_before(A, SECOND, 5) == (number,)
    for _ in range(2):
        asker.take(asker.asking.lack(A, [number, 99], asker.now_us, for_us=SECOND))
        assert len(asker.sent) == 1
        asker.now_us += SECOND // 2
    asker.now_us += 1
    asker.take(asker.asking.lack(A, [number], asker.now_us, for_us=SECOND))
    assert asker.sent[-1][0] == B


def test_one_engine_is_asked_no_more_than_so_much() -> None:
    """What is beyond is refused before anything is sent."""
    asker = Asker(A, most=2)
    for _ in range(3):
        asker.ask()
    assert (len(asker.sent), type(asker.error)) == (2, Overloaded)


def test_a_stopped_asker_ends_all() -> None:
    """What an engine has is unknown; what waited for one is not applied."""
    asker = Asker(A)
    asker.ask(changes=True)
    asker.engines.clear()
    asker.ask(changes=True)
    asker.take(asker.asking.end_all("this gateway has stopped"))
    assert [error and error.outcome for _, error in asker.ended] == ["unknown", "not_applied"]


@pytest.mark.parametrize("seed", range(40))
def test_what_is_said_to_be_certain_is_certain(seed: int) -> None:
    """Requests and answers are lost, engines refuse and are lost: every question ends once; one that must not be done
    twice is not; and one that changes something and ends as not applied is never carried out, not even later.
    """
    rng = Random(seed)
    asker = Asker(A, B)
    done: dict[int, bool] = {}
    """By attempt: whether its engine has carried it out, or has refused it."""
    for _ in range(400):
        match rng.randrange(6):
            case 0:
                asker.ask(
                    is_repeatable=rng.random() < 0.5, changes=rng.random() < 0.7, deadline_us=rng.randrange(5 * SECOND)
                )
            case 1:
                asker.take(asker.asking.lose(rng.choice([A, B]), "it is gone", asker.now_us))
            case 2:
                asker.engines = rng.choice([[A, B], [B], [], [B, A]])
            case 3:
                asker.passes(rng.randrange(SECOND))
            case _ if asker.sent:
                node, number = rng.choice(asker.sent[-5:])
                carried_out = done.setdefault(number, rng.random() < 0.5)
                failure = None if carried_out else rng.choice([CANNOT, Failure.of(DiskFull("no room"))])
                if rng.random() < 0.7:  # else the answer is lost
                    asker.take(asker.asking.answer(node, number, failure, asker.now_us))
    for _ in range(40):
        asker.passes(SECOND)
    assert len(asker.asking) == 0
    assert sorted(question.token for question, _ in asker.ended) == list(range(len(asker.asked)))
    times: Counter[Hashable] = Counter(order for number, order in asker.attempts.items() if done.get(number, True))
    """Requests that are under way still are taken to arrive: late, and carried out."""
    for question, error in asker.ended:
        if error is not None and question.changes and error.outcome == "not_applied":
            assert times[question.token] == 0
        if not question.is_repeatable:
            assert times[question.token] <= 1
