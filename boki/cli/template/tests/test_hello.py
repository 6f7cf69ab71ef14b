"""A test needs no server: the context's log is in memory, and its time is virtual."""

from __future__ import annotations

import asyncio

from hello import greet

import boki.testing


def test_every_visit_is_written_down_and_counted() -> None:
    """The guest book knows each guest's visits, and nobody else's."""

    async def visits() -> None:
        async with boki.testing.context(book="guests") as ctx:
            assert await greet(ctx, "Ada") == "Hello Ada, this is visit number 1!"
            assert await greet(ctx, "Grace") == "Hello Grace, this is visit number 1!"
            assert await greet(ctx, "Ada") == "Hello Ada, this is visit number 2!"
            record = await ctx.logbook.check_tail("guest:Grace")
            assert record is not None
            assert record.data == b"Grace"

    asyncio.run(visits())
