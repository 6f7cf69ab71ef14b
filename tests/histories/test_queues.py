"""The checker of queues notices each way to break their promises, and nothing else."""

from __future__ import annotations

import pytest

from boki.chaos.queue_watch import violations_of
from boki.chaos.queue_work import JOBS, TICKETS, Line

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
