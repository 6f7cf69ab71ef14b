"""A Restate service of virtual objects that count, served by hypercorn: `hypercorn restate_counters:app`."""

from __future__ import annotations

import restate

counter = restate.VirtualObject("Counter")


@counter.handler()
async def add(ctx: restate.ObjectContext, by: int) -> int:
    """Add to the object's number; the new one."""
    number: int = (await ctx.get("hits", type_hint=int) or 0) + by
    ctx.set("hits", number)
    return number


app = restate.app([counter])
