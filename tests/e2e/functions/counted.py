"""Functions whose runs can be counted afterwards: each leaves a record in a book before it does anything else."""

from __future__ import annotations

from boki import Context, function


@function
async def count(ctx: Context, name: str) -> str:
    """Leave a record in `runs` and answer with the name."""
    await ctx.logbook_named("runs").append(name.encode(), tags=[name])
    return f"did {name}"


@function
async def hang(ctx: Context, name: str) -> str:
    """The first run of a name never ends; later ones do."""
    runs = ctx.logbook_named("runs")
    await runs.append(name.encode(), tags=[name])
    start = count = 0
    while (page := await runs.read(name, start=start)).records:
        start, count = page.next_start, count + len(page.records)
    if count == 1:
        await runs.read_next("never", wait_s=3600)
    return f"did {name}"


@function
async def later(ctx: Context, name: str) -> str:
    """Have `count` run some time after."""
    return await ctx.invoke_later(count, name, delay_s=0.2)
