"""Functions that are reached over HTTP as HTTP has it: routes, responses, the request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import msgspec
import pydantic

from boki import Context, Response, blocking, function


@dataclass
class Search:
    """Filled from the path, the query and the body."""

    shop: str
    count: int = 1
    tags: list[str] | None = None
    day: date | None = None
    note: str = ""


class Model(pydantic.BaseModel):
    """The same with pydantic's own conversions."""

    shop: str
    count: int = 1


@function(http=["GET /shops/{shop}/items", "POST /shops/{shop}/items"])
async def search(ctx: Context, search: Search) -> Search:
    """Show what was understood."""
    return search


@function(http=["GET /models/{shop}"])
def modelled(ctx: blocking.Context, search: Model) -> Model:
    """The same, blocking."""
    return search


@function(http=["GET /square"])
async def square(ctx: Context, number: int) -> int:
    """A payload without fields, filled by its name."""
    return number * number


@function(http=["GET /u/{code}", "GET /u/new"])
async def follow(ctx: Context, code: str = "new") -> Response:
    """Redirect."""
    if code == "empty":
        return Response({})
    if code == "gone":
        return Response({"why": "gone"}, status=410, headers=[("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
    return Response.redirect(f"https://example.com/{code}")


@function(http=["GET /seen/{name}"])
async def seen(ctx: Context, name: str = "") -> dict[str, Any] | None:
    """Show the request."""
    request = ctx.request
    if request is None:
        return None
    return {
        "method": request.method,
        "path": request.path,
        "route": request.route,
        "name": request.path_values.get("name"),
        "tags": request.query.all("tag"),
        "agent": request.headers["user-agent"],
        "secrets": sorted(name for name in request.headers if "auth" in name),
        "client": request.client,
    }


@function
def seen_blocking(ctx: blocking.Context) -> str | Response:
    """The same, blocking, and as a response of text."""
    method = ctx.request.method if ctx.request is not None else "none"
    return Response(f"<p>{method}</p>", content_type="text/html; charset=utf-8")


@function
async def parent(ctx: Context) -> list[Any]:
    """What another function gets of a response, by object and by name; and no request of its parent's."""
    by_object = await ctx.invoke(follow, "x")
    by_name = await ctx.invoke("follow", "gone")
    return [by_object.status, by_object.header("location"), by_name.status, by_name.body, await ctx.invoke(seen, "x")]


@function
async def careless(ctx: Context, header: str) -> Response:
    """Try to send a header that belongs to the gateway."""
    return Response(b"", headers={header: "1"})


@function
async def wrong(ctx: Context) -> Response:
    """Return something else."""
    return "text"  # type: ignore[return-value]


@function
async def anything(ctx: Context, payload):  # type: ignore[no-untyped-def]
    """Without annotations everything may be returned."""
    return Response(msgspec.json.encode(payload), status=201, content_type="application/vnd.mine+json")


@function(http=["GET /long"])
async def long(ctx: Context) -> Response:
    """An answer of more bytes than go out in one piece."""
    return Response("x" * 50_000, headers={"X-Mine": "1"})
