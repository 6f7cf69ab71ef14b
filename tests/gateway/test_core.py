"""What the gateway lets in and who gets it: the pure core."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.calls import Outcome
from boki.effects import Answer
from boki.errors import Overloaded, Unavailable
from boki.gateway.core import Budget, GatewayCore
from boki.log.ids import NodeId

A, B = NodeId("a"), NodeId("b")


def core(*engines: NodeId, **budget: int) -> GatewayCore:
    made = GatewayCore(Budget(**budget))
    for engine in engines:
        made.add_engine(engine)
    return made


def failure_code(answer: Answer) -> str:
    outcome = answer.value
    assert isinstance(outcome, Outcome)
    assert outcome.failure is not None
    assert outcome.failure.outcome == "unknown"
    return outcome.failure.code


def test_calls_go_to_the_engine_with_the_fewest() -> None:
    """And of equals to the one that was idle longest."""
    gateway = core(A, B)
    assert [gateway.start(str(n), 0, 1) for n in range(4)] == [A, B, A, B]
    gateway.finish("1")
    gateway.finish("3")
    assert [gateway.start(str(n), 0, 1) for n in (4, 5)] == [B, B]
    assert gateway.engines() == {A: 2, B: 2}


def test_the_calls_of_a_lost_engine_end_as_unknown() -> None:
    """Each ends once; the other engine's go on, and nothing is sent to the lost one any more."""
    gateway = core(A, B)
    for n in range(4):
        gateway.start(str(n), 10, 1)
    answers = gateway.lose_engine(A)
    assert {answer.token: failure_code(answer) for answer in answers} == {"0": "call_lost", "2": "call_lost"}
    assert gateway.lose_engine(A) == []
    assert not gateway.finish("0")
    assert gateway.finish("1")
    assert (gateway.call_count, gateway.bytes_in_flight) == (1, 10)
    assert gateway.start("5", 0, 1) == B


def test_without_an_engine_calls_are_refused() -> None:
    """The error says that it did not happen, and when to come again."""
    with pytest.raises(Unavailable) as caught:
        core().start("1", 0, 1)
    assert (caught.value.outcome, caught.value.retryable) == ("not_applied", True)


def test_an_engine_that_says_nothing_is_given_up_after_the_grace() -> None:
    """The engine ends overdue calls itself; only one that was lost on the way is ended here, and only once."""
    gateway = core(A, grace_us=100)
    gateway.start("1", 0, 1000)
    assert gateway.tick(1100) == []
    (answer,) = gateway.tick(1101)
    assert (answer.token, failure_code(answer)) == ("1", "deadline_exceeded")
    assert gateway.tick(5000) == []
    assert not gateway.finish("1")


@pytest.mark.parametrize(
    ("budget", "begin"),
    [
        ({"calls": 2}, lambda gateway, n: gateway.start(str(n), 0, 1)),
        ({"requests": 2}, lambda gateway, n: gateway.begin_request(0)),
        ({"streams": 2}, lambda gateway, n: gateway.begin_stream()),
        ({"bytes_in_flight": 100}, lambda gateway, n: gateway.start(str(n), 50, 1)),
        ({"bytes_in_flight": 100}, lambda gateway, n: gateway.begin_request(50)),
    ],
)
def test_what_does_not_fit_the_budget_is_refused_with_a_time_to_come_again(budget: dict[str, int], begin) -> None:  # type: ignore[no-untyped-def]
    """Calls, requests, subscriptions and bytes each have their bound, which the message names."""
    gateway = core(A, **budget)
    begin(gateway, 1)
    begin(gateway, 2)
    with pytest.raises(Overloaded, match=str(next(iter(budget.values())))) as caught:
        begin(gateway, 3)
    assert caught.value.retry_after_s == 1


def test_a_draining_gateway_refuses_what_is_new_and_keeps_what_it_has() -> None:
    """It is idle once everything that was let in is out."""
    gateway = core(A)
    gateway.start("1", 5, 1)
    gateway.begin_request(5)
    gateway.begin_stream()
    gateway.drain()
    for begin in (lambda: gateway.start("2", 0, 1), lambda: gateway.begin_request(0), gateway.begin_stream):
        with pytest.raises(Unavailable, match="shutting down"):
            begin()
    assert not gateway.is_idle
    gateway.finish("1")
    gateway.end_request(5)
    gateway.end_stream()
    assert gateway.is_idle
    assert gateway.bytes_in_flight == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=60))
def test_the_books_balance_whatever_happens(events: list[tuple[int, int]]) -> None:
    """After any history, the counts are those of the calls that are still there, and ending all leaves nothing."""
    gateway = core(A, B, calls=4, bytes_in_flight=20)
    live: dict[str, int] = {}
    for kind, n in events:
        token = str(n)
        if kind == 0 and token not in live:
            try:
                gateway.start(token, n, n)
                live[token] = n
            except (Overloaded, Unavailable):
                assert len(live) == 4 or sum(live.values()) + n > 20 or not gateway.engines()
        elif kind == 1:
            assert gateway.finish(token) == (live.pop(token, None) is not None)
        elif kind == 2:
            for answer in gateway.lose_engine((A, B)[n % 2]):
                del live[answer.token]
        elif kind == 3:
            gateway.add_engine((A, B)[n % 2])
        else:
            for answer in gateway.tick(1_000_000 + n):
                assert live.pop(answer.token) < n
        assert (gateway.call_count, gateway.bytes_in_flight) == (len(live), sum(live.values()))
        assert sum(gateway.engines().values()) == len(live)
    for token in list(live):
        assert gateway.finish(token)
    assert gateway.is_idle
