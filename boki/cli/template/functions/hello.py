"""The first function of this project: it keeps a guest book in a LogBook."""

from __future__ import annotations

from boki import Context, function


@function(book="guests")
async def greet(ctx: Context, who: str) -> str:
    """Write the guest down, and say hello with the number of visits so far."""
    await ctx.logbook.append(who.encode(), tags=[f"guest:{who}"])
    visits, page = 0, await ctx.logbook.read(f"guest:{who}")
    while page.records:  # a page may be short, but is never empty before the end
        visits += len(page.records)
        page = await ctx.logbook.read(f"guest:{who}", start=page.next_start)
    return f"Hello {who}, this is visit number {visits}!"
