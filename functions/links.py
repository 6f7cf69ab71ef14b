"""A URL shortener over HTTP: routes of its own, redirects, and a stream of visits.

curl -d '{"url": "https://example.com"}' http://127.0.0.1:8080/links
curl -i http://127.0.0.1:8080/u/CODE
curl -N http://127.0.0.1:8080/links/CODE/visits
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256

from boki import Context, Event, Response, function


@dataclass
class Link:
    """What is to be shortened."""

    url: str


@function(book="links", http=["POST /links"])
async def shorten(ctx: Context, link: Link) -> Response:
    """Keep a link, and answer its short path. The same link has one code, however often it is sent."""
    code = sha256(link.url.encode()).hexdigest()[:8]
    await ctx.logbook.append(link.url.encode(), tags=[f"code:{code}"], key=f"link:{code}")
    return Response({"path": f"/u/{code}"}, status=201, headers={"Location": f"/u/{code}"})


@function(book="links", http=["GET /u/{code}"])
async def follow(ctx: Context, code: str) -> Response:
    """Redirect to the link of a code, and note the visit."""
    link = await ctx.logbook.read_prev(f"code:{code}")
    if link is None:
        return Response("no such link\n", status=404)
    agent = ctx.request.headers.get("user-agent", "") if ctx.request is not None else ""
    await ctx.logbook.append(agent.encode(), tags=[f"visit:{code}"])
    return Response.redirect(link.data.decode())


@function(book="links", timeout_s=3600, http=["GET /links/{code}/visits"])
async def visits(ctx: Context, code: str) -> AsyncIterator[Event]:
    """All visits of a link, and those to come, as server-sent events."""
    async for record in ctx.logbook.subscribe(f"visit:{code}"):
        yield Event({"agent": record.data.decode(), "time_us": record.time}, id=str(record.seqnum))
