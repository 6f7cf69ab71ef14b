"""A Restate service with a handler of n durable steps, served by hypercorn: `hypercorn restate_steps:app`."""

from __future__ import annotations

import restate

steps = restate.Service("Steps")


async def _step(number: int) -> int:
    return number


@steps.handler()
async def run(ctx: restate.Context, count: int) -> int:
    """The sum of the results of `count` steps, one after the other."""
    total = 0
    for number in range(count):
        total += await ctx.run_typed(f"step {number}", _step, number=number)
    return total


app = restate.app([steps])
