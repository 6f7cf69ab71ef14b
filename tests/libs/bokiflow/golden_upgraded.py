"""The workflow of `golden` that `boki flow upgrade` moves to another version of its code while it waits."""

from __future__ import annotations

import asyncio

from boki.extending import Function
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.recorded import Recorded, body_has_ended, record
from tests.books.calls.call_world import run, time_passes
from tests.libs.bokiflow.test_versions import Versions, a_user


@step
async def quarter(n: int) -> int:
    return n // 4


@workflow(name="upgraded", book="trips")
async def _before(n: int) -> int:
    found = await quarter(4 * n)
    return found + await quarter(await flow.receive("more"))


@workflow(book="trips")
async def upgraded(n: int) -> list[int]:
    found = [await quarter(4 * n)]
    more = await flow.receive("more")
    if flow.patched("counts more"):
        found.append(await quarter(more * n))
    return [*found, await quarter(more)]


async def moved() -> Recorded:
    """Begun by one version of the code, and ended by the other one: on an engine, because one process has no
    versions.
    """
    return await asyncio.to_thread(run, _moved())  # its time is a loop's own


async def _moved() -> Recorded:
    world = Versions(_before, upgraded)
    await world.begin()
    handle = await upgraded.start(world.context(a_user(97)), 3, id="golden")
    async with asyncio.timeout(600):
        while (await handle.status()).status != "suspended":
            await time_passes(0.1)
    world.deployed = 2
    assert (await handle.upgrade()).is_moved
    await handle.signal("more", 8)
    assert await handle.result() == [3, 6, 2]
    state = await handle.status()
    found = await record(
        world.context(a_user(96)).logbook_named(state.book),
        *(upgraded.name, handle.id, handle.invocation_id),
        has_ended=body_has_ended(state.status, ""),
        payload=Function.of(upgraded).encode_payload(3),
        code=upgraded,
    )
    await world.calls.stop()
    return found
