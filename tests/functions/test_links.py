"""The URL shortener: a link is kept once, followed by its code, and its visits are streamed."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import boki.testing
from boki import Request
from functions.links import Link, follow, shorten, visits


def test_a_link_is_followed_and_its_visits_are_streamed() -> None:
    """Shortened twice it is one record; an unknown code is a 404, and no visit."""

    async def scenario() -> None:
        request = Request("GET", "/u/x", headers={"User-Agent": "me"})
        async with boki.testing.context("links", request=request) as ctx:
            made = await shorten(ctx, Link("https://example.com/a"))
            assert await shorten(ctx, Link("https://example.com/a")) == made
            code = made.header("location").removeprefix("/u/")
            assert (made.status, made.body) == (201, {"path": f"/u/{code}"})
            assert len((await ctx.logbook.read(f"code:{code}")).records) == 1
            there = await follow(ctx, code)
            assert (there.status, there.header("location")) == (302, "https://example.com/a")
            assert (await follow(ctx, "none")).status == 404
            async with aclosing(visits(ctx, code)) as stream:
                visit = await anext(stream)
            assert visit.data["agent"] == "me"

    asyncio.run(scenario())
