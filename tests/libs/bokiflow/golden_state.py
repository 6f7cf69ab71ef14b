"""The workflows of `golden` that read or write stores and the log."""

from __future__ import annotations

from boki.libs.bokiflow import flow, step, workflow


@step
async def triple(n: int) -> int:
    return 3 * n


@workflow
async def transaction(n: int) -> int:
    async with flow.store.transaction() as txn:
        left = await txn.object("seats").increment("", -n)
        await txn.object("trips").set("ada", await txn.object("names").get("ada", "nobody"))
        txn.append(b"a trip", ["audit"])
    return await triple(int(left))


@workflow
async def store_reads(n: int) -> int:
    missing = await flow.store.read("room", default=n)
    await flow.store.write("room", await triple(missing))
    found: int = await flow.store.read("room")
    return await triple(found + await flow.store.object("room").version() * 0)


@workflow
async def log_reads(n: int) -> int:
    page = await flow.log.read("notes")
    last = await flow.log.last("notes")
    assert last is not None
    return await triple(n + len(page.records) + int(last.data))


@workflow
async def cond_writes(n: int) -> int:
    was_free = await flow.store.cond_write("seat", n, expected=None)
    is_again = await flow.store.cond_write("seat", n + 1, expected=None)
    return await triple(n if was_free and not is_again else 0)


@workflow
async def joined(n: int) -> int:
    item = flow.store.object("room")
    left: int = await item.get("", n)
    await item.set("", left - 1)
    return await triple(left - 1)


@workflow
async def joins(n: int) -> int:
    async with flow.store.transaction() as txn:
        await txn.object("room").set("", n)
        left = await flow.call(joined, n)
        await txn.object("trips").set("left", left)
    return await triple(left)
