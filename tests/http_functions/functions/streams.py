"""Functions that stream their result, of both kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from boki import Context, Event, InvalidArgument, Response, blocking, function


@function(http=["GET /ticks/{count}"])
async def ticks(ctx: Context, count: int) -> AsyncIterator[Event]:
    """Count, as server-sent events; a negative number fails in the middle."""
    for number in range(abs(count)):
        yield Event({"n": number}, id=str(number))
    if count < 0:
        raise ValueError("that was all")


@function
async def answered_ticks(ctx: Context, count: int) -> AsyncIterator[Event | Response]:
    """The same with a status of its own."""
    yield Response(status=202)
    async for tick in ticks(ctx, count):
        yield tick


@function
async def own_error_event(ctx: Context) -> AsyncIterator[Event]:
    """An event of the function's own that has the name of those that report failures."""
    yield Event("mine", event="error")


@function
def lines(ctx: blocking.Context, count: int) -> Iterator[str | Response]:
    """Lines of text, with a head of its own; a negative number fails in the middle."""
    yield Response(status=201, headers={"X-Mine": "1"})
    for number in range(abs(count)):
        yield f"line {number}\n"
    if count < 0:
        raise ValueError("that was all")


@function(timeout_s=20)
async def flood(ctx: Context, log: str) -> AsyncIterator[bytes]:
    """Bytes without limit; how far it came, and that it was ended, stands in a LogBook."""
    book = ctx.logbook_named(log)
    sent = 0
    try:
        while True:
            yield b"x" * 100_000
            sent += 1
            await book.append(str(sent).encode(), tags=["sent"])
    finally:
        await book.append(b"ended", tags=["ended"])


ended: list[str] = []


@function(timeout_s=20)
def flood_blocking(ctx: blocking.Context, log: str) -> Iterator[bytes]:
    """The same, blocking."""
    book = ctx.logbook_named(log)
    sent = 0
    try:
        while True:
            yield b"x" * 100_000
            sent += 1
            book.append(str(sent).encode(), tags=["sent"])
    finally:
        ended.append(log)


@function
def was_ended(ctx: blocking.Context, log: str) -> bool:
    """Whether the blocking one has ended; it runs in the same process."""
    return log in ended


@function(timeout_s=1)
async def slow(ctx: Context) -> AsyncIterator[str]:
    """Begin, and wait for longer than it may."""
    yield "begun"
    await asyncio.Event().wait()


@function
async def nothing(ctx: Context) -> AsyncIterator[bytes]:
    """An empty stream."""
    return
    yield b""


@function
async def mixed(ctx: Context) -> AsyncIterator[str | bytes]:
    """Items of two kinds."""
    yield "a"
    yield b"b"


@function
async def calls_a_stream(ctx: Context) -> str:
    """What another function is told."""
    try:
        await ctx.invoke("ticks", 1)
    except InvalidArgument as error:
        return error.message
    return "nothing"


@function(http=["GET /silent/{log}"], timeout_s=30)
async def silent(ctx: Context, log: str) -> AsyncIterator[Event]:
    """Nothing until there is a record."""
    record = await ctx.logbook_named(log).read_next(wait_s=25)
    yield Event("" if record is None else record.data.decode())


@function(timeout_s=30)
def silent_blocking(ctx: blocking.Context, log: str) -> Iterator[str]:
    """The same, blocking."""
    record = ctx.logbook_named(log).read_next(wait_s=25)
    yield "" if record is None else record.data.decode()


@function(timeout_s=30)
async def silent_response(ctx: Context, log: str) -> AsyncIterator[str | Response]:
    """The same, with a head of its own."""
    yield Response(status=202)
    record = await ctx.logbook_named(log).read_next(wait_s=25)
    yield "" if record is None else record.data.decode()
