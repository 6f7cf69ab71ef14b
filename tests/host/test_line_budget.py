"""The bound on lines of one kind. A window is one turn of the event loop here."""

from __future__ import annotations

import asyncio

import pytest

from boki.host import line_budget
from boki.host.line_budget import LineBudget


def test_what_a_second_has_no_room_for_is_told_as_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines, then one summary, which is the first line of the next second; without events nothing is written."""
    monkeypatch.setattr(line_budget, "WINDOW_S", 0.0)

    async def scenario() -> None:
        summaries: list[int] = []
        budget = LineBudget(2, summaries.append)
        assert [budget.admit() for _ in range(5)] == [True, True, False, False, False]
        for _ in range(2):
            await asyncio.sleep(0)
        assert summaries == [3]
        assert [budget.admit() for _ in range(2)] == [True, False]
        for _ in range(6):
            await asyncio.sleep(0)
        assert summaries == [3, 1]
        assert [budget.admit() for _ in range(3)] == [True, True, False]
        budget.close()
        assert summaries == [3, 1, 1]

    asyncio.run(scenario())
