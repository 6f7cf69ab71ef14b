"""Engines that wait for a slot for an index, or hold one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from boki.node.engine import EngineIncarnation
from boki.node.incarnation import Ending


@pytest.mark.parametrize(
    ("waits", "answers", "ending"), [(True, [None, 0], Ending.PROMOTED), (False, [0, None], Ending.DEMOTED)]
)
def test_a_change_during_a_claim_is_not_missed(waits: bool, answers: list[int | None], ending: Ending) -> None:
    """Slots change after the claim has looked at them and before its answer is here."""
    listeners: list[Callable[[], None]] = []
    endings: list[Ending] = []

    async def watch(on_change: Callable[[], None]) -> None:
        listeners.append(on_change)
        on_change()

    async def claim(*_: object) -> int | None:
        listeners[0]()
        return answers.pop(0)

    engine: Any = SimpleNamespace(
        coordinator=SimpleNamespace(watch_index_slots=watch, claim_index_slot=claim),
        node="engine-1",
        end=endings.append,
        _index_replicas=1,
    )
    engine._claim = partial(EngineIncarnation._claim, engine)
    engine._claim_until = partial(EngineIncarnation._claim_until, engine)
    body = EngineIncarnation._await_slot if waits else EngineIncarnation._keep_slot
    asyncio.run(asyncio.wait_for(body(engine), 10))
    assert endings == [ending]
