"""Objects of one transaction that the log gives in another order in a replay."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from boki.libs.bokiflow import flow, workflow
from boki.libs.bokiflow.asking import Load
from boki.libs.bokistore.transactions import Transaction
from boki.libs.fold import steps
from tests.libs.bokiflow.crashes import Stuck, World


@workflow
async def counts_three_at_once(amount: int) -> list[int]:
    async with flow.store.transaction() as txn:
        return await asyncio.gather(*(txn.object(name).increment("", amount) for name in "abc"))


def loads_slowly(slow: str) -> Any:
    """The log gives that object after the others."""
    load = Load.ask

    def ask(question: Load, way: Any, position: int) -> Any:
        if slow in question._names:
            for _ in range(5):
                yield from steps.tail(None)
        return (yield from load(question, way, position))

    return patch.object(Load, "ask", ask)


@pytest.mark.parametrize("slow", ["a", "b", "c"])
async def test_objects_that_are_loaded_side_by_side_may_come_in_any_order(slow: str) -> None:
    """What a transaction writes is told in the order in which the code asks, so a replay in which another object comes
    last does not diverge.
    """
    world = World()
    assert await world.run(counts_three_at_once, 2) == [2, 2, 2]
    with loads_slowly(slow):
        assert await world.run(counts_three_at_once, 2) == [2, 2, 2]


@pytest.mark.parametrize("slow", ["a", "b", "c"])
async def test_a_record_of_the_time_when_the_order_was_the_logs_is_recognized(slow: str) -> None:
    """Until 2026-11-28 the record told the objects in the order in which they came: it is of the same work."""
    world = World()
    with loads_slowly(slow), patch.object(Transaction, "put_last", lambda *_: None):
        assert await world.run(counts_three_at_once, 2) == [2, 2, 2]
    assert await world.run(counts_three_at_once, 2) == [2, 2, 2]
    with pytest.raises(Stuck, match="with other arguments"):
        await world.run(counts_three_at_once, 3)
