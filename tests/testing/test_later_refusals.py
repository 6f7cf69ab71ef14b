"""Later calls that are refused: `boki.testing` raises in the caller what a running system raises there."""

from __future__ import annotations

from pathlib import Path

import uvloop

import boki.testing
from boki.client import Client
from boki.config.loading import DevConfig
from boki.launch.dev import Dev
from tests.testing.functions.later_refusals import CODES, FUNCTIONS, try_later, try_later_blocking

EXPECTED = [*CODES, "tea"]


async def test_a_context_refuses_them() -> None:
    """Of both kinds; a refused call takes no key."""
    async with boki.testing.context(functions=FUNCTIONS) as ctx:
        assert await try_later(ctx) == EXPECTED
    async with boki.testing.context(functions=FUNCTIONS) as ctx:
        assert await ctx.invoke(try_later_blocking) == EXPECTED


def test_a_running_system_refuses_them(tmp_path: Path) -> None:
    """The same functions, in its workers."""

    async def scenario() -> None:
        functions = Path(__file__).parent / "functions"
        dev = await Dev.start(DevConfig(data=tmp_path, functions=functions, port=0, reload=False))
        try:
            async with Client(dev.url) as client:
                assert await client.invoke("try_later", book="a") == EXPECTED
                assert await client.invoke("try_later_blocking", book="b") == EXPECTED
        finally:
            await dev.stop(5)

    uvloop.run(scenario())
