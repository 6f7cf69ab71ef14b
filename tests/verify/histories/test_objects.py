"""What users of objects rely on beyond the order of transactions: the checkers find what is wrong, and nothing else."""

from __future__ import annotations

import pytest

from boki.verify.histories.objects import Counted, find_torn_commits, find_wrong_counts


def ok(number: int, asked: float, told_at: float) -> Counted:
    return Counted("c", asked, "ok", number, told_at)


def test_counts_that_are_right_are_not_accused() -> None:
    """Concurrent increments in any order, a refused one, and one of which nobody knows, counted or not."""
    rows = [ok(2, 1, 5), ok(1, 2, 4), ok(4, 6, 7), Counted("c", 3), Counted("c", 8, "fail")]
    assert list(find_wrong_counts(rows, {"c": 4})) == []
    assert list(find_wrong_counts(rows[:2] + rows[3:], {"c": 2})) == []
    assert list(find_wrong_counts([], {"never used": 0})) == []


@pytest.mark.parametrize(
    ("rows", "final", "text"),
    [
        ([ok(1, 1, 2), ok(2, 3, 4)], 1, "2 increments were acknowledged"),
        ([ok(1, 1, 2)], 2, "1 possible"),
        ([ok(1, 1, 2), Counted("c", 3, "fail")], 2, "1 possible"),
        ([ok(1, 1, 4), ok(1, 2, 3)], 2, "2 increments were told 1"),
        ([ok(3, 1, 2), Counted("c", 1)], 2, "told 3"),
        ([ok(2, 1, 2), ok(1, 3, 4)], 2, "began when 2 was known"),
    ],
)
def test_wrong_counts_are_found(rows: list[Counted], final: int, text: str) -> None:
    """Lost, counted twice, told twice, told what is not there, or against the order of time."""
    assert any(text in found for found in find_wrong_counts(rows, {"c": final}))


def test_records_that_stand_where_their_transaction_does_are_not_accused() -> None:
    """One of which nobody knows may stand or not, if both its parts agree."""
    assert list(find_torn_commits([1, 3], {1}, {2}, {1: True, 2: False, 3: True, 4: False})) == []


@pytest.mark.parametrize(
    ("effects", "text"),
    [([1, 1], "stands 2 times"), ([1, 2], "2 was aborted"), ([], "1 was committed"), ([1, 4], "of transaction 4")],
)
def test_torn_commits_are_found(effects: list[int], text: str) -> None:
    """Doubled, of an aborted transaction, missing, or without the writes of the same transaction."""
    assert any(text in found for found in find_torn_commits(effects, {1}, {2}, {1: True, 4: False}))
