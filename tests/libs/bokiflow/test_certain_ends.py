"""What the end of a workflow does to its children waits until that end is certain."""

from __future__ import annotations

from typing import Any

from boki.libs.bokiflow import flow, step, workflow
from tests.books.calls.call_world import run
from tests.libs.bokiflow.machines import Machine

LOOKS: list[bool] = []
"""What the next looks find; behind the last one: no."""


@step(pure=True)
async def is_there() -> bool:
    return LOOKS.pop() if LOOKS else False


@workflow
async def kid() -> str:
    await flow.sleep(100)
    return "grown"


@workflow
async def parent(_: Any) -> str:
    child = await flow.start(kid)
    return "left" if await is_there() else await child.result()


async def _try_out(*dies_at: int) -> tuple[Machine, str]:
    LOOKS[:] = [True]
    machine = Machine(parent, kid, dies_at=dies_at)
    return machine, await machine.run(None)


def test_no_child_is_closed_by_a_look_that_is_lost() -> None:
    """The parent leaves because a pure step says so, whose result waits for nothing. It was lost with the machine, when
    the child was asked to cancel already: the second look said otherwise, and the parent failed for want of its child.
    """
    machine, _ = run(_try_out())
    ends = {run(_try_out(moment))[1] for moment in range(1, len(machine.moments) + 1)}
    assert ends == {"left", "grown"}
