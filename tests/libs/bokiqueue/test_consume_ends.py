"""Functions that consume queues, when things end around them: their system is stopped, their process crashes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

from boki import Client
from boki.config.loading import DevConfig
from boki.launch.child import Child
from boki.libs.bokiqueue import Queue

FUNCTIONS = '''"""Consumers of a test."""
import asyncio
import os

from boki import Context
from boki.libs.bokiqueue import Queue, consume


@consume("slow", book="shop")
async def slow(ctx: Context, name: str) -> None:
    await ctx.logbook.append(name.encode(), tags=["begun"])
    await asyncio.sleep(1)


@consume("patient", book="shop", batch=10)
async def patient(ctx: Context, names: list[str]) -> None:
    await ctx.logbook.append(b"", tags=["waiting"])
    await ctx.logbook.read_next("go on", wait_s=30)
    await Queue(ctx.logbook, "ended").push_many(names)


@consume("deadly", book="shop", batch=10)
async def deadly(ctx: Context, names: list[str]) -> None:
    await ctx.logbook.append(b"", tags=["dying"])
    os._exit(3)
'''


def child_in(folder: Path) -> Child:
    (folder / "functions").mkdir()
    (folder / "functions/app.py").write_text(FUNCTIONS)
    return Child(DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False))


async def create(client: Client, name: str) -> Queue[Any]:
    """A queue whose messages are dead letters when they fail once."""
    queue: Queue[Any] = Queue(client.logbook("shop"), name)
    await queue.create()
    await queue.configure(max_deliveries=1)
    return queue


def test_a_call_that_ends_after_sigterm_is_acked(tmp_path: Path) -> None:
    """It has ended as it should: so it is neither repeated nor a dead letter, and nobody waits longer than for it."""

    async def begin(url: str) -> None:
        async with Client(url) as client:
            slow = await create(client, "slow")
            await slow.push("one")
            assert await client.logbook("shop").read_next("begun", wait_s=30) is not None

    async def after(url: str) -> None:
        async with Client(url) as client:
            (group,) = (await Queue(client.logbook("shop"), "slow").stats()).groups
            assert (group.done, group.dead, group.in_flight) == (1, 0, 0)
            assert len((await client.logbook("shop").read("begun")).records) == 1

    with child_in(tmp_path).start() as child:
        asyncio.run(begin(child.url))
        begun = monotonic()
        assert child.stop() == 0
        assert monotonic() - begun < child.config.drain_s / 2
        child.start()
        asyncio.run(after(child.url))


def test_a_crash_makes_no_dead_letter_of_another_functions_message(tmp_path: Path) -> None:
    """Not even where one failure is enough; of who crashed, when it was alone, it does."""

    async def scenario(url: str) -> None:
        async with Client(url) as client:
            book = client.logbook("shop")
            patient, deadly = await create(client, "patient"), await create(client, "deadly")
            ended: Queue[str] = Queue(book, "ended")
            await ended.create()
            await patient.push_many(["a", "b"])
            assert await book.read_next("waiting", wait_s=30) is not None
            await deadly.push("die")
            assert await book.read_next("dying", wait_s=30) is not None
            await book.append(b"", tags=["go on"])
            messages = [await ended.pop(wait_s=30), await ended.pop(wait_s=30)]
            assert sorted(message.value for message in messages if message) == ["a", "b"]
            async with asyncio.timeout(30):
                while not (letters := await deadly.dead_letters()):
                    await book.read_next("nobody appends this", wait_s=0.1)
            assert "call had begun" in letters[0].reason
            assert await patient.dead_letters() == []

    with child_in(tmp_path).start() as child:
        asyncio.run(scenario(child.url))
