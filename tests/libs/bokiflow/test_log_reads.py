"""`flow.log`: a workflow is given the same records in each process, whatever that has at hand."""

from __future__ import annotations

from typing import Any

import boki.testing
from boki import WrongType
from boki.libs.bokiflow import flow, step, workflow
from boki.log.limits import Limits
from tests.libs.bokiflow.crashes import World


@step
async def take(text: str) -> str:
    return text


@workflow
async def takes_all(_: int) -> list[Any]:
    page = await flow.log.read("notes")
    last = await flow.log.last("notes")
    assert last is not None
    taken = [await take(record.data.decode()) for record in page.records]
    rest = await flow.log.read("notes", start=page.next_start, limit=2)
    two = await flow.log.read("notes", limit=2)
    return [
        taken,
        [(one.is_end, len(one.records)) for one in (page, rest, two)],
        [one.auxdata for one in (*page.records, last)],
    ]


async def test_a_page_is_the_same_in_each_process(each_mode: None) -> None:
    """A process whose cache is cold is given fewer records at once, and other auxiliary data: its replay diverged."""
    world = World()
    async with boki.testing.context("test", log=world.log) as ctx:
        seqnums = [await ctx.logbook.append(text, ["notes"]) for text in (b"a", b"b", b"c", b"d")]
    wanted = [["a", "b", "c", "d"], [(True, 4), (True, 0), (False, 2)], [None] * 5]
    assert await world.run(takes_all, 0) == wanted
    world.log.limits = Limits(page_bytes=1)
    async with boki.testing.context("test", log=world.log) as ctx:
        await ctx.logbook.set_auxdata(seqnums[-1], b"of this process")
    assert await world.run(takes_all, 0) == wanted


@workflow
async def counts(_: int) -> list[int]:
    start, found = 0, []
    while True:
        page = await flow.log.read("large", start=start)
        found.append(len(page.records))
        if page.is_end:
            return found
        start = page.next_start


async def test_a_page_has_a_size() -> None:
    """It ends after the record that crosses 4 MiB."""
    world = World()
    async with boki.testing.context("test", log=world.log) as ctx:
        for _ in range(6):
            await ctx.logbook.append(bytes(1_000_000), ["large"])
    assert await world.run(counts, 0) == [5, 1]


async def test_a_wrong_range_is_refused_to_the_body(boki_context: boki.testing.Context) -> None:
    """The error reached no `except` of the body, and no compensation was made."""
    undone: list[str] = []

    @workflow
    async def wrong(how: str) -> str:
        flow.compensate(undone.append, how)
        start: Any = "1" if how == "start" else 0
        stop: Any = "1" if how == "stop" else None
        try:
            await flow.log.read("notes", start=start, stop=stop)
        except WrongType as error:
            return str(error.details["field"])
        return "read"

    for how in ("start", "stop"):
        assert await (await wrong.start(boki_context, how)).result() == how
    assert undone == []
