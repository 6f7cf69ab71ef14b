"""`logbook.session`: what libraries need beside the records of a book, in both kinds of functions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import DeadlineExceeded, InvalidArgument, TooLarge


class Kept:
    """What a library keeps."""


class Other:
    """What another one keeps."""


def check_session(ctx: Any) -> None:
    """What holds for the sessions of `async` and of plain functions."""
    session = ctx.logbook.session
    assert ctx.logbook_named("other").session.shared(Kept) is session.shared(Kept)
    assert session.logbook("other", detached=True).session.shared(Kept) is session.shared(Kept)
    assert isinstance(session.shared(Other), Other)
    assert session.logbook("other").name == "other"
    session.check(b"fits", ["tag"])
    with pytest.raises(TooLarge):
        session.check(bytes(2 << 20))
    with pytest.raises(InvalidArgument):
        session.check(b"", [""])
    assert abs(session.likely_time_us() - ctx.clock.time() * 1e6) < 1
    detached = session.logbook("other", detached=True).session
    detached.caller.positions[0] = 1 << 60
    assert session.caller.positions.get(0, 0) < 1 << 60
    session.saw(detached)
    assert session.caller.positions[0] == 1 << 60


def test_the_session_of_async_functions() -> None:
    """Shared things are one for the connection, positions are the caller's own until it saw another's."""

    async def look() -> None:
        async with boki.testing.context() as ctx, boki.testing.context() as elsewhere:
            check_session(ctx)
            assert elsewhere.logbook.session.shared(Kept) is not ctx.logbook.session.shared(Kept)

    asyncio.run(look())


def test_the_session_of_plain_functions() -> None:
    """The same."""
    with boki.testing.blocking_context() as ctx:
        check_session(ctx)


def test_a_detached_logbook_has_no_deadline() -> None:
    """Its caller's deadline ends the caller's operations alone."""

    async def look() -> None:
        async with boki.testing.context() as ctx:
            detached = ctx.logbook.session.logbook("test", detached=True)
            ctx.logbook.session.caller.deadline.at = ctx.clock.time() + 5
            await ctx.clock.advance(6)
            with pytest.raises(DeadlineExceeded):
                await ctx.logbook.append(b"late")
            assert await detached.append(b"late") > 0

    asyncio.run(look())
