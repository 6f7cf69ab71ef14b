"""The checker of queues notices each way to break their promises, and nothing else."""

from __future__ import annotations

import pytest

from boki.verify.chaos.queue_watch import violations_of
from boki.verify.chaos.queue_work import JOBS, TICKETS, Line
from boki.verify.histories.queues import (
    BURIED,
    Endings,
    Leased,
    Pushed,
    find_lost_and_doubled,
    find_wrong_endings,
    find_wrong_leases,
)

PUSHED = [
    *(Line(TICKETS, "p", f"t{number}") for number in range(4)),
    *(Line(TICKETS, "p", f"t{number}", f"{10 + number}-0") for number in range(3)),
    *(Line(JOBS, "p", f"j{number}", f"{30 + number}-0") for number in range(2)),
]
TAKEN = [
    Line(TICKETS, "a", "t0", "10-0", "a-0"),
    Line(TICKETS, "b", "t1", "11-0", "b-0"),
    Line(TICKETS, "a", "t2", "12-0", "a-1"),
    Line(TICKETS, "a", "t2", "12-0", "a-1"),
]
RESULTS = ["j1", "j0"]


def test_a_run_that_keeps_every_promise_passes() -> None:
    """Also with a push that was not acknowledged and did not happen, and an op that was given its message twice."""
    assert violations_of([*PUSHED, *TAKEN], RESULTS, RESULTS) == []
    assert violations_of([*PUSHED, *TAKEN, Line(TICKETS, "b", "t3", "13-0", "b-1")], RESULTS, RESULTS) == []


@pytest.mark.parametrize(
    ("lines", "results", "passed_on", "what"),
    [
        ([*PUSHED, *TAKEN[:2]], RESULTS, RESULTS, "never came out: t2"),
        ([*PUSHED, *TAKEN, Line(TICKETS, "b", "t0", "10-0", "b-1")], RESULTS, RESULTS, "t0 was given to op a-0 and"),
        ([*PUSHED, *TAKEN, Line(TICKETS, "a", "t3", "13-0", "a-1")], RESULTS, RESULTS, "op a-1 was given t2, and then"),
        ([*PUSHED, *TAKEN, Line(TICKETS, "a", "t3", "9-0", "a-2")], RESULTS, RESULTS, "a was given 9-0 after 12-0"),
        ([*PUSHED, *TAKEN, Line(TICKETS, "b", "t9", "19-0", "b-1")], RESULTS, RESULTS, "nobody has pushed: t9"),
        ([*PUSHED, *TAKEN], ["j0"], ["j0"], "never came out: j1"),
        ([*PUSHED, *TAKEN], ["j0", "j1", "j0"], RESULTS, "more than once: j0"),
        ([*PUSHED, *TAKEN], RESULTS, ["j0"], "2 results and 1 messages passed on"),
        ([*PUSHED[:-2], *TAKEN], [], [], "not one push was acknowledged"),
    ],
)
def test_each_way_to_break_a_promise_is_noticed(
    lines: list[Line], results: list[str], passed_on: list[str], what: str
) -> None:
    """Lost, doubled, given to two, changed, out of order, invented, half committed; and a run that shows nothing."""
    found = violations_of(lines, results, passed_on)
    assert any(what in each for each in found), found


def lease(payload: str, token: int, taken_us: int, until_us: int, **more: object) -> Leased:
    """Payloads are named after the place where they stand."""
    return Leased(JOBS, payload, f"{payload[1:]}-0", 0, token, taken_us, until_us, **more)  # type: ignore[arg-type]


def test_leases_that_end_before_others_begin_pass() -> None:
    """Run out, given up, of other keys, of the same key one after the other, delayed ones later than their place."""
    rows = [
        lease("j1", 20, 100, 200),
        lease("j1", 21, 200, 300, is_given_up=True),
        lease("j1", 22, 250, 350),
        lease("j2", 23, 260, 360, key="a", is_given_up=True),
        lease("j3", 24, 261, 361, key="b"),
        lease("j4", 25, 270, 370, key="a", is_delayed=True, due_us=265),
        lease("j5", 26, 370, 470, key="a", is_given_up=True),
        lease("j4", 27, 380, 480, key="a", is_delayed=True, due_us=265),
    ]
    assert list(find_wrong_leases(rows)) == []


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        ([lease("j1", 20, 100, 200), lease("j1", 21, 199, 300)], "j1 was given at 21, while j1 was leased since 20"),
        ([lease("j1", 20, 1, 9, key="a"), lease("j2", 21, 5, 15, key="a")], "j2 was given at 21, while j1 was leased"),
        ([lease("j2", 20, 1, 9, key="a"), lease("j1", 21, 9, 15, key="a")], "j1 (1-0) of key a was given after j2"),
        ([lease("j1", 20, 1, 9, due_us=4)], "given 3 µs before it was due"),
        ([lease("j1", 20, 1, 9, is_done=True), lease("j1", 21, 9, 15)], "was done under the lease of 20"),
    ],
)
def test_each_wrong_lease_is_noticed(rows: list[Leased], what: str) -> None:
    """Given while another has it, two of one key, a key out of order, too early, done by one who has lost it."""
    found = list(find_wrong_leases(reversed(rows)))
    assert any(what in each for each in found), found


JOB_PUSHES = [Pushed(JOBS, f"j{number}", f"{number}-0" if number < 5 else "") for number in range(6)]


def endings() -> Endings:
    return Endings(results=["j0", "j1"], committed={"j1"}, acked=["j2"], maybe_acked=["j3"], dead={"j4": ("poison", 3)})


def test_messages_that_end_once_pass() -> None:
    """Also those that nobody was told the end of, and one that a consumer has buried at once."""
    assert list(find_wrong_endings(JOBS, JOB_PUSHES, endings(), 3)) == []
    buried = endings()
    buried.dead["j4"] = (f"{BURIED}hopeless", 1)
    assert list(find_wrong_endings(JOBS, JOB_PUSHES, buried, 3)) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"results": ["j0", "j1", "j1"]}, "effects happened more than once: j1"),
        ({"acked": ["j2", "j2"]}, "acks counted more than once: j2"),
        ({"acked": ["j2", "j0"]}, "messages ended in two ways: j0"),
        ({"committed": {"j2"}}, "committed effects are not there: j2"),
        ({"maybe_acked": []}, "acknowledged messages have no end: j3"),
        ({"acked": ["j2", "j9"]}, "messages ended that nobody has pushed: j9"),
        ({"dead": {"j4": ("", 3)}}, "dead letter j4 does not say why"),
        ({"dead": {"j4": ("poison", 2)}}, "j4 became a dead letter after 2 of 3 deliveries"),
    ],
)
def test_each_wrong_ending_is_noticed(changes: dict[str, object], what: str) -> None:
    """Twice, in two ways, not at all, without a reason or too early."""
    wrong = endings()
    for name, value in changes.items():
        setattr(wrong, name, value)
    found = list(find_wrong_endings(JOBS, JOB_PUSHES, wrong, 3))
    assert any(what in each for each in found), found


def test_pops_that_nobody_heard_the_end_of_may_have_taken_a_message_each() -> None:
    """Without an op a message is taken at most once: as many may be lost, and no more; never is one doubled."""
    pushed = [Pushed(JOBS, "j1", "1-0"), Pushed(JOBS, "j2", "2-0")]
    assert list(find_lost_and_doubled(JOBS, pushed, [], unheard=2)) == []
    assert any("never came out: j1, j2" in each for each in find_lost_and_doubled(JOBS, pushed, [], unheard=1))
    assert list(find_lost_and_doubled(JOBS, pushed, ["j1", "j1"], unheard=9)) != []
