"""Later calls that are refused, or end with what no record holds: `boki.testing` raises in the caller what a running
system raises there.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

import boki.testing
from boki import Context, Retry, TooLarge, function
from boki.client import Client
from boki.config.loading import DevConfig
from boki.launch.dev import Dev
from tests.testing.functions.later_refusals import CODES, FUNCTIONS, HUGE, try_huge, try_later, try_later_blocking

EXPECTED = [*CODES, "tea"]


async def test_a_context_refuses_them() -> None:
    """Of both kinds; a refused call takes no key."""
    async with boki.testing.context(functions=FUNCTIONS) as ctx:
        assert await try_later(ctx) == EXPECTED
    async with boki.testing.context(functions=FUNCTIONS) as ctx:
        assert await ctx.invoke(try_later_blocking) == EXPECTED


async def test_a_context_refuses_what_no_record_of_a_call_holds() -> None:
    """A payload in the caller, a result as the failure of its call, which is not tried again."""
    async with boki.testing.context(functions=FUNCTIONS) as ctx:
        assert await try_huge(ctx) == HUGE
    assert await _runs_of_a_huge_result() == 1


async def _runs_of_a_huge_result() -> int:
    runs = 0

    @function
    async def grows(ctx: Context) -> str:
        nonlocal runs
        runs += 1
        return "x" * 2_000_000

    async with boki.testing.context(functions=[grows]) as ctx:
        call = await ctx.invoke_later("grows", retry=Retry(attempts=3))
        with pytest.raises(TooLarge, match="its result has 2,000,000 bytes"):
            await ctx.result_of(call)
    return runs


def test_a_running_system_refuses_them(tmp_path: Path) -> None:
    """The same functions, in its workers."""

    async def scenario() -> None:
        functions = Path(__file__).parent / "functions"
        dev = await Dev.start(DevConfig(data=tmp_path, functions=functions, port=0, reload=False))
        try:
            async with Client(dev.url) as client:
                assert await client.invoke("try_later", book="a") == EXPECTED
                assert await client.invoke("try_later_blocking", book="b") == EXPECTED
                assert await client.invoke("try_huge", book="c") == HUGE
        finally:
            await dev.stop(5)

    uvloop.run(scenario())
