"""The workflows of `golden` that others get in the way of: at locks, objects and places."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from boki.libs.bokiflow import Handle, Limit, LockLost, WouldDeadlock, flow, step, workflow
from boki.libs.bokiflow.locks import watching
from boki.libs.bokistore import ConflictError, Store
from boki.libs.bokistore.transactions import Transaction
from tests.libs.bokiflow.test_load_order import loads_slowly


@step
async def third(n: int) -> int:
    return n // 3


@step
async def other_writes(n: int) -> int:
    """Something else changes an object meanwhile."""
    await Store(step.ctx).object("seats").set("", n, key=step.key)
    return n


@workflow
async def deadlocks(n: int) -> list[int]:
    """Of two that take the same locks crosswise, the younger one is refused."""
    first, then = ("a", "b") if flow.id == "golden" else ("b", "a")
    found: list[int] = []
    while True:
        try:
            async with flow.lock(first):
                await flow.sleep(5)
                async with flow.lock(then):
                    return [*found, await third(n)]
        except WouldDeadlock:
            found.append(await third(2 * n))
            await flow.sleep(1)


@workflow
async def waits_for_lock(n: int) -> int:
    """It is granted by another workflow's record."""
    async with flow.lock("room"):
        if flow.id != "golden":
            await flow.receive("go")
        return await third(n)


@workflow
async def lock_lost(n: int) -> int:
    async with flow.lock("room"):
        if flow.id != "golden":
            return n
        await flow.sleep(30)
        try:
            await flow.store.write("room", n)
        except LockLost:
            return await third(n)
    return 0


@workflow
async def conflicts(n: int) -> list[int]:
    try:
        async with flow.store.transaction() as txn:
            seen = await txn.object("seats").get("", 0)
            await other_writes(n)
            await txn.object("trips").set("", seen)
    except ConflictError:
        n += 3
    tries = 0

    async def work(txn: Any) -> int:
        nonlocal tries
        tries += 1
        seen: int = await txn.object("seats").get("", 0)
        if tries == 1:
            await other_writes(seen + n)
        await txn.object("trips").set("", seen)
        return seen

    return [await third(n), await third(await flow.store.run(work))]


async def _at_once(n: int) -> int:
    async with flow.store.transaction() as txn:
        found = await asyncio.gather(*(txn.object(name).increment("", n) for name in ("seats", "trips", "names")))
    return await third(sum(map(int, found)))


@workflow
async def objects_at_once(n: int) -> int:
    return await _at_once(n)


@workflow
async def objects_in_log_order(n: int) -> int:
    """Recorded as until 2026-11-28: the objects are told in the order in which the log has given them."""
    return await _at_once(n)


@workflow(limit=Limit(concurrency=1, debounce_s=10))
async def debounced(n: int) -> int:
    return await third(n)


@workflow(limit=Limit(concurrency=1, debounce_s=10))
async def debounced_away(n: int) -> int:
    return await third(n)


CONTENDED = (
    *(deadlocks, waits_for_lock, lock_lost, conflicts, objects_at_once, objects_in_log_order),
    *(debounced, debounced_away),
)
FAILING = ("debounced_away",)
BEHIND = ("deadlocks", "waits_for_lock", "debounced")
"""Another one of the same workflow was started before it."""


async def contend(ctx: Any, handle: Handle[Any]) -> None:
    """What the other one does."""
    match handle.workflow:
        case "waits_for_lock":
            await ctx.clock.advance(1)
            await waits_for_lock.handle(ctx, "the first").signal("go")
        case "lock_lost":
            with patch.object(watching, "_has_ended", _gone):  # the watch over the holder errs
                await (await lock_lost.start(ctx, 3, id="the next")).result()
        case "debounced_away":
            await ctx.clock.advance(1)
            await debounced_away.start(ctx, 3, id="the next")
        case _:
            pass


async def _gone(*_: object) -> bool:
    return True


@contextmanager
def recorded_as_then(name: str) -> Iterator[None]:
    """The code of the time when this was recorded first, as far as it was another one."""
    if name != "objects_in_log_order":
        yield
        return
    with loads_slowly("seats"), patch.object(Transaction, "put_last", lambda *_: None):
        yield
