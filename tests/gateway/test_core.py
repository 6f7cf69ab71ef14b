"""What the gateway lets in and who gets it: the pure core."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.errors import Overloaded, Unavailable
from boki.gateway.core import Budget, CallGivenUp, GatewayCore, Standing
from boki.log.ids import NodeId

A, B = NodeId("a"), NodeId("b")


def core(*engines: NodeId, **budget: int) -> GatewayCore:
    made = GatewayCore(Budget(**budget))
    for engine in engines:
        made.note_engine(engine, Standing())
    return made


def begin(gateway: GatewayCore, token: str, size_bytes: int = 0) -> NodeId:
    """Let a call in and choose its engine."""
    gateway.start(token, size_bytes, 1)
    engine = gateway.dispatch(token, "f", 1)
    assert engine is not None
    return engine


def failure_code(answer: CallGivenUp) -> str:
    outcome = answer.outcome
    assert outcome.failure is not None
    assert outcome.failure.outcome == ("not_applied" if outcome.failure.code == "unavailable" else "unknown")
    return outcome.failure.code


def test_calls_go_to_the_engine_with_the_fewest() -> None:
    """And of equals to the one that was idle longest."""
    gateway = core(A, B)
    assert [begin(gateway, str(n)) for n in range(4)] == [A, B, A, B]
    gateway.finish("1")
    gateway.finish("3")
    assert [begin(gateway, str(n)) for n in (4, 5)] == [B, B]
    assert gateway.engines() == {A: 2, B: 2}


def test_the_calls_of_a_lost_engine_end_as_unknown() -> None:
    """Each ends once; the other engine's continue, and nothing is sent to the lost one any more."""
    gateway = core(A, B)
    for n in range(4):
        begin(gateway, str(n), 10)
    answers = gateway.lose_engine(A)
    assert {answer.token: failure_code(answer) for answer in answers} == {"0": "call_lost", "2": "call_lost"}
    assert gateway.lose_engine(A) == []
    assert not gateway.finish("0")
    assert gateway.finish("1")
    assert (gateway.call_count, gateway.bytes_in_flight) == (1, 10)
    assert begin(gateway, "5") == B


def test_a_call_whose_body_is_still_read_is_not_lost_with_an_engine() -> None:
    """It has no engine before it is dispatched, and then gets one that is up."""
    gateway = core(A, B)
    gateway.start("1", 10, 7)
    assert gateway.lose_engine(A) == []
    assert gateway.dispatch("1", "f", 1) == B
    assert (gateway.left_us("1", 4), gateway.left_us("1", 9)) == (3, 1)


def test_other_gateways_calls_count_and_full_engines_get_no_more() -> None:
    """An engine says how many it has; when all have as many as they take, callers are told to come again."""
    gateway = core()
    gateway.note_engine(A, Standing(running=5, capacity=6))
    gateway.note_engine(B, Standing(running=3, capacity=4))
    assert begin(gateway, "1") == B
    gateway.note_engine(B, Standing(running=4, capacity=4))
    assert begin(gateway, "2") == A
    gateway.note_engine(A, Standing(running=6, capacity=6))
    with pytest.raises(Overloaded, match="as many calls as it takes"):
        begin(gateway, "3")
    assert gateway.finish("3")


def test_an_engine_without_the_index_counts_as_twice_as_busy() -> None:
    """Its log operations take a way more; yet it takes its share."""
    gateway = core()
    gateway.note_engine(A, Standing(has_index=False))
    gateway.note_engine(B, Standing())
    assert [begin(gateway, str(n)) for n in range(6)].count(B) == 4


def test_of_equals_an_engine_beside_a_primary_is_taken() -> None:
    """Calls that come one after the other append there; what comes at the same time is spread."""
    gateway = core()
    gateway.note_engine(A, Standing())
    gateway.note_engine(B, Standing(is_near=True))
    for number in range(3):
        assert begin(gateway, str(number)) == B
        assert gateway.finish(str(number))
    assert [begin(gateway, str(n)) for n in range(6)] == [B, A, B, A, B, A]


def test_an_engine_whose_node_stops_gets_what_no_other_one_takes() -> None:
    """Calls that it has may end; what begins there now has less time before it is cut off."""
    gateway = core()
    gateway.note_engine(A, Standing(is_leaving=True, is_near=True))
    gateway.note_engine(B, Standing(capacity=2))
    assert [begin(gateway, str(number)) for number in range(4)] == [B, B, A, A]


def test_calls_go_where_their_function_is() -> None:
    """While engines take over a new version; if no engine has it, any may say so."""
    gateway = core()
    gateway.note_engine(A, Standing(functions={"f", "new"}))
    gateway.note_engine(B, Standing(functions={"f"}))
    for number in range(4):
        gateway.start(str(number), 0, 1)
        assert gateway.dispatch(str(number), "new", 1) == A
    gateway.start("5", 0, 1)
    assert gateway.dispatch("5", "nowhere", 1) == B


def test_a_call_that_was_refused_unbegun_goes_to_another_engine_once() -> None:
    """And engines that drain get nothing new."""
    gateway = core(A, B)
    assert begin(gateway, "1") == A
    assert gateway.dispatch("1", "f", 1) == B
    assert gateway.dispatch("1", "f", 1) is None
    assert gateway.engines() == {A: 0, B: 0}
    gateway.note_engine(A, Standing(takes_calls=False))
    assert begin(gateway, "2") == B


def test_a_call_that_no_engine_takes_is_held_until_one_does() -> None:
    """One that has refused it may be ready now; an engine that takes no calls changes nothing."""
    gateway = core(A)
    gateway.start("1", 0, 1_000_000)
    assert gateway.dispatch("1", "f", 1) == A
    assert gateway.dispatch("1", "f", 2) is None
    assert gateway.note_engine(A, Standing(takes_calls=False)) == []
    assert gateway.note_engine(A, Standing()) == ["1"]
    assert gateway.dispatch("1", "f", 3) == A
    assert gateway.note_engine(A, Standing()) == []
    assert gateway.tick(500_000) == []


@pytest.mark.parametrize(("deadline_us", "given_up_us"), [(9_000, 1_007), (500, 500)])
def test_a_call_is_not_held_for_longer_than_it_may(deadline_us: int, given_up_us: int) -> None:
    """The error says that it did not happen, and when to come again; coming and going engines win it no time."""
    gateway = core(hold_us=1_000)
    gateway.start("1", 5, deadline_us)
    assert gateway.dispatch("1", "f", 7) is None
    gateway.note_engine(A, Standing())
    gateway.note_engine(A, Standing(takes_calls=False))
    assert gateway.dispatch("1", "f", 300) is None
    assert gateway.tick(given_up_us - 1) == []
    (answer,) = gateway.tick(given_up_us)
    assert (answer.token, failure_code(answer)) == ("1", "unavailable")
    assert gateway.is_idle
    assert gateway.note_engine(A, Standing()) == []


def test_an_engine_that_says_nothing_is_given_up_after_the_grace() -> None:
    """The engine ends overdue calls itself; only one that was lost on the way is ended here, and only once."""
    gateway = core(A, grace_us=100)
    gateway.start("1", 0, 1000)
    gateway.dispatch("1", "f", 1)
    assert gateway.tick(1100) == []
    (answer,) = gateway.tick(1101)
    assert (answer.token, failure_code(answer)) == ("1", "deadline_exceeded")
    assert gateway.tick(5000) == []
    assert not gateway.finish("1")


@pytest.mark.parametrize(
    ("budget", "admit"),
    [
        ({"calls": 2}, lambda gateway, n: gateway.start(str(n), 0, 1)),
        ({"requests": 2}, lambda gateway, n: gateway.begin_request(0)),
        ({"streams": 2}, lambda gateway, n: gateway.begin_stream()),
        ({"bytes_in_flight": 100}, lambda gateway, n: gateway.start(str(n), 50, 1)),
        ({"bytes_in_flight": 100}, lambda gateway, n: gateway.begin_request(50)),
    ],
)
def test_what_does_not_fit_the_budget_is_refused_with_a_time_to_come_again(budget: dict[str, int], admit) -> None:  # type: ignore[no-untyped-def]
    """Calls, requests, subscriptions and bytes each have their bound, which the message names."""
    gateway = core(A, **budget)
    admit(gateway, 1)
    admit(gateway, 2)
    with pytest.raises(Overloaded, match=str(next(iter(budget.values())))) as caught:
        admit(gateway, 3)
    assert caught.value.retry_after_s == 1


def test_a_draining_gateway_refuses_what_is_new_and_keeps_what_it_has() -> None:
    """It is idle once everything that was let in is out."""
    gateway = core(A)
    gateway.start("1", 5, 1)
    gateway.begin_request(5)
    gateway.begin_stream()
    gateway.drain()
    for admit in (lambda: gateway.start("2", 0, 1), lambda: gateway.begin_request(0), gateway.begin_stream):
        with pytest.raises(Unavailable, match="shutting down"):
            admit()
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
    held: set[str] = set()
    for kind, n in events:
        token = str(n)
        if kind == 0 and token not in live:
            try:
                gateway.start(token, n, n)
                live[token] = n
                if gateway.dispatch(token, "f", 0) is None:
                    assert not gateway.engines()
                    held.add(token)
            except Overloaded:
                assert len(live) == 4 or sum(live.values()) + n > 20
        elif kind == 1:
            assert gateway.finish(token) == (live.pop(token, None) is not None)
        elif kind == 2:
            for answer in gateway.lose_engine((A, B)[n % 2]):
                del live[answer.token]
        elif kind == 3:
            for token in gateway.note_engine((A, B)[n % 2], Standing()):
                gateway.dispatch(token, "f", 0)
                held.remove(token)
        else:
            for answer in gateway.tick(1_000_000 + n):
                assert live.pop(answer.token) < n or answer.token in held
        held &= live.keys()
        assert (gateway.call_count, gateway.bytes_in_flight) == (len(live), sum(live.values()))
        assert sum(gateway.engines().values()) == len(live) - len(held)
    for token in list(live):
        assert gateway.finish(token)
    assert gateway.is_idle
