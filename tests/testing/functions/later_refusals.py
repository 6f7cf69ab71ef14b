"""What `invoke_later` refuses, and what no record of a call holds, told by a function: in a test's context, and in a
worker of a running system.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from boki import BokiError, Context, blocking, function

YEAR_S = 365 * 24 * 3600.0
REFUSED: list[tuple[str, float]] = [("remnid", 0), ("remnid", 2 * YEAR_S), ("counts", 0), ("remind", YEAR_S + 1)]
"""Names and delays that no call can be logged with."""
CODES = ["no_such_function", "no_such_function", "invalid_argument", "invalid_argument"]
SIZES = (2_000_000, 1_048_500, 1_031_000)
"""Around what a record may have, 1,048,576 bytes with the envelope: no call has the first two as payload or result."""
HUGE = [
    *("remind too_large not_applied", "grow too_large failed") * 2,
    *("remind 1031000", "grow 1031000"),
]


@function
async def remind(ctx: Context, what: str) -> str:
    """Is called later."""
    return what


@function
async def counts(ctx: Context, what: str) -> AsyncIterator[str]:
    """Streams, which no logged call can."""
    yield what


@function
async def grow(ctx: Context, size: int) -> str:
    """A result of that size."""
    return "x" * size


@function
async def try_huge(ctx: Context) -> list[str]:
    """The outcome of payloads and results around the limit of a record; a refused call takes no key."""
    told = []
    for size in SIZES:
        for name, payload, key in (("remind", "x" * size, "huge"), ("grow", size, None)):
            try:
                call = await ctx.invoke_later(name, payload, key=key)
                told.append(f"{name} {len(await ctx.result_of(call, wait_s=10))}")
            except BokiError as error:
                told.append(f"{name} {error.code} {error.outcome}")
    return told


@function
async def try_later(ctx: Context) -> list[str]:
    """The codes of what `REFUSED` raises here, and then what a call that is accepted ends with."""
    codes = []
    for name, delay_s in REFUSED:
        try:
            await ctx.invoke_later(name, "tea", delay_s=delay_s, key=ctx.logbook.name)
        except BokiError as error:
            codes.append(error.code)
    return [*codes, await ctx.result_of(await ctx.invoke_later("remind", "tea", key=ctx.logbook.name), wait_s=10)]


@function
def try_later_blocking(ctx: blocking.Context) -> list[str]:
    """The same of the other kind."""
    codes = []
    for name, delay_s in REFUSED:
        try:
            ctx.invoke_later(name, "tea", delay_s=delay_s, key=ctx.logbook.name)
        except BokiError as error:
            codes.append(error.code)
    return [*codes, ctx.result_of(ctx.invoke_later("remind", "tea", key=ctx.logbook.name), wait_s=10)]


FUNCTIONS: list[Any] = [remind, counts, grow]
