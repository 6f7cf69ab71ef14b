"""Arguments of steps and children are those of the call, whatever the body does with its own objects afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import Retry
from boki.libs.bokiflow import flow, step, workflow
from tests.libs.bokiflow.test_rest import passes

pytestmark = pytest.mark.usefixtures("each_mode")

SENT: list[Any] = []


@pytest.fixture(autouse=True)
def forget() -> None:
    SENT.clear()


@step(retry=Retry(attempts=3, first_s=1, jitter=0))
async def send(batch: list[int]) -> list[int]:
    assert isinstance(step.ctx, boki.testing.Context)
    batch.append(step.attempt * 100)
    SENT.append(batch)
    await passes(step.ctx, 1)
    if step.attempt < 3:
        raise ValueError("again")
    return batch


@step
async def send_once(batch: list[int]) -> list[int]:
    return [*batch, *batch]


@workflow
async def changes(steps: int) -> list[Any]:
    batch = [1]

    async def change() -> None:
        for n in range(2, 5):
            batch.append(n)
            await flow.sleep(0.7)

    found = await asyncio.gather(send(batch) if steps > 1 else send_once(batch), change())
    return [found[0], batch]


@pytest.mark.parametrize(("steps", "expected"), [(3, [1, 300]), (1, [1, 1])])
async def test_a_step_gets_what_it_was_called_with(
    boki_context: boki.testing.Context, steps: int, expected: list[int]
) -> None:
    """In each attempt; its digest is of that, too. What the step changes, the body does not see."""
    assert await (await changes.start(boki_context, steps)).result() == [expected, [1, 2, 3, 4]]
    assert all(batch[0] == 1 and len(batch) == 2 for batch in SENT)


@workflow
async def child(given: dict[str, int]) -> dict[str, int]:
    return given


@workflow
async def parent(how: str) -> list[dict[str, int]]:
    given = {"n": 1}

    async def change() -> None:
        given["n"] = 2

    if how == "call":
        return [(await asyncio.gather(flow.call(child, given), change()))[0]]
    started, _ = await asyncio.gather(flow.start(child, given), change())
    await flow.sleep(10)
    given["n"] = 3
    return [await started.result()]


@pytest.mark.parametrize("how", ["call", "start"])
async def test_a_child_gets_what_it_was_called_with(boki_context: boki.testing.Context, how: str) -> None:
    """The body continued before the call was sent."""
    assert await (await parent.start(boki_context, how)).result() == [{"n": 1}]


class Unmoved:
    """No copy of it can be made."""

    def model_dump(self, mode: str) -> str:
        """As it is told apart from others."""
        return mode

    def __deepcopy__(self, _memo: object) -> Unmoved:
        raise RuntimeError("there is one of it")


@step
async def takes(_one: Unmoved) -> None: ...


@workflow
async def gives() -> str:
    try:
        await takes(Unmoved())
    except Exception as error:  # noqa: BLE001 - what is tested
        return str(error)
    return ""


async def test_an_argument_that_cannot_be_copied_is_an_error_of_the_step(boki_context: boki.testing.Context) -> None:
    """It is recorded, as all outcomes of steps are."""
    assert await (await gives.start(boki_context)).result() == "takes: RuntimeError: there is one of it"
