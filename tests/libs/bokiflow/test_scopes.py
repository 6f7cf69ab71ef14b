"""What a workflow numbers is unique in all its continuations, and in all its lives: step keys, and ids of children."""

from __future__ import annotations

import boki.testing
from boki.libs.bokiflow import flow, step, workflow

KEYS: list[str] = []


@step
async def effect() -> str:
    KEYS.append(step.key)
    return step.key


@workflow
async def child(number: int) -> int:
    return number * 10


@workflow
async def rounds(number: int) -> list[int]:
    await effect()
    found = [await flow.call(child, number)]
    if number < 3:
        flow.continue_as_new(number + 1)
    return found


async def test_a_continuation_has_keys_and_children_of_its_own(boki_context: boki.testing.Context) -> None:
    """Else a service that takes step keys would drop the effects of every round but the first."""
    KEYS.clear()
    assert await (await rounds.start(boki_context, 1)).result() == [30]
    assert len(KEYS) == len(set(KEYS)) == 3


async def test_a_life_has_keys_of_its_own(boki_context: boki.testing.Context) -> None:
    """A workflow that is started again under its id does everything again."""
    KEYS.clear()
    for _ in range(2):
        handle = await rounds.start(boki_context, 3, id="again", if_ended="again")
        assert await handle.result() == [30]
    assert len(KEYS) == len(set(KEYS)) == 2
