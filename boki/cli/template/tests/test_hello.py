"""A test needs no server: the log of `boki_context` is in memory, and its time is virtual."""

from __future__ import annotations

import pytest
from hello import greet

import boki.testing


@pytest.mark.boki(book="guests")
async def test_every_visit_is_written_down_and_counted(boki_context: boki.testing.Context) -> None:
    """The guest book knows each guest's visits, and nobody else's."""
    ctx = boki_context
    assert await greet(ctx, "Ada") == "Hello Ada, this is visit number 1!"
    assert await greet(ctx, "Grace") == "Hello Grace, this is visit number 1!"
    assert await greet(ctx, "Ada") == "Hello Ada, this is visit number 2!"
    record = await ctx.logbook.check_tail("guest:Grace")
    assert record is not None
    assert record.data == b"Grace"
