"""A function that reads a whole book at the engine that runs it."""

from __future__ import annotations

import os

import msgspec

from boki import Context, function


class Found(msgspec.Struct, frozen=True):
    """What an engine's index showed. `parent`: the process that this engine forks its workers from."""

    parent: int
    records: list[tuple[int, str, list[str], int]]
    """(seqnum, payload, tags, time) of each record, in order."""


@function
async def read_here(ctx: Context, name: str) -> Found:
    """All records of that book."""
    book = ctx.logbook_named(name)
    await book.sync()
    records: list[tuple[int, str, list[str], int]] = []
    start = 0
    while (page := await book.read(start=start)).records:
        records += [(record.seqnum, record.data.decode(), list(record.tags), record.time) for record in page.records]
        start = page.next_start
    return Found(os.getppid(), records)
