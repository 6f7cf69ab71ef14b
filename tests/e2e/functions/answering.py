"""Functions that make the whole answer to their HTTP caller."""

from __future__ import annotations

from collections.abc import AsyncIterator

from boki import Context, Response, function


@function(http=["GET /echo/{name}"])
async def echo(ctx: Context, name: str) -> Response:
    """What the request says, under a status and a header of its own."""
    assert ctx.request is not None
    return Response([name, ctx.request.path, ctx.request.query.all("more")], status=203, headers={"X-Mine": name})


@function(http=["GET /lines/{count}"])
async def lines(ctx: Context, count: int) -> AsyncIterator[str]:
    """Lines of text; a negative number of them never ends."""
    for number in range(abs(count)):
        yield f"line {number}\n"
    if count < 0:
        await ctx.logbook.read_next("never", wait_s=3600)
