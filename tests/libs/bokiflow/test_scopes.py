"""What a workflow numbers is unique in all its continuations, and in all its lives: step keys, and ids of children."""

from __future__ import annotations

import boki.testing
from boki.libs.bokiflow import flow, step, workflow
from tests.libs.bokiflow.crashes import World

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


KEY_OF: dict[str, str] = {}


@step(idempotent=True)
async def put_under_key(what: str) -> None:
    KEY_OF[what] = step.key


@step
async def act_under_key(what: str) -> None:
    KEY_OF[what] = step.key


@workflow
async def puts_or_acts(order: str) -> None:
    """What comes first depends on the message that comes first: it is not recorded before a `put`."""
    for what in order:
        await (act_under_key(what) if what == "c" else put_under_key(what))


async def test_a_step_that_waits_for_no_record_has_no_key_of_another_one() -> None:
    """After a crash its number may be another step's: a service that takes keys would take that one for done."""
    KEY_OF.clear()
    for order in "abc":
        await World().run(puts_or_acts, order)
    assert len(set(KEY_OF.values())) == 3
    assert len({key.split(":")[0] for key in KEY_OF.values()}) == 1
    before = dict(KEY_OF)
    await World().run(puts_or_acts, "a")
    assert before == KEY_OF
