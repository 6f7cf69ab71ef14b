"""What the demo of objects calls a match: balances as the transfers leave them, one total, each post once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from boki.demo.store_act import EACH, Judged, Move, balances_after, moves_of

RIGHT = Judged(5, 1, 2, [], [400, 400], 400, Counter(["a", "b"]), 2)


def test_balances_follow_from_what_is_done() -> None:
    """Whatever was refused moves nothing."""
    moves = [Move(0, 1, 30), Move(1, 2, 50), Move(2, 0, 7)]
    assert balances_after(moves, [True, False, True], accounts=3) == [EACH - 23, EACH + 30, EACH - 7]
    assert all(move.source != move.target for move in moves_of(Random(1)))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (replace(RIGHT, wrong_accounts=[3]), "a balance differs"),
        (replace(RIGHT, totals=[400, 399]), "money was lost at a moment"),
        (replace(RIGHT, posts=Counter(["a", "a", "b"])), "a post is there twice"),
        (replace(RIGHT, posts=Counter(["a"])), "a post is missing"),
    ],
)
def test_everything_that_differs_fails_the_demo(wrong: Judged, why: str) -> None:
    """One thing is enough."""
    assert RIGHT.matches
    assert not wrong.matches, why
