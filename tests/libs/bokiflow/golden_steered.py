"""The workflows of `golden` that are steered from outside, and those of further features of a body."""

from __future__ import annotations

import asyncio
from typing import Any

from boki import BokiError, Context, TerminalError, WrongState, function
from boki.libs.bokiflow import Handle, Limit, flow, step, workflow


class Refused(Exception):
    """An error that the step below declares."""


@step
async def half(n: int) -> int:
    return n // 2


@step(raises=(Refused,))
async def refuse(n: int) -> int:
    raise Refused(f"not {n}")


@step
async def give_up(n: int) -> int:
    raise TerminalError(f"never {n}")


@function
async def tell(_ctx: Context, n: int) -> int:
    return n + 1


@workflow
async def forked(n: int) -> list[int]:
    found = [await half(n)]
    found += [await half(await flow.receive("more")) for _ in range(2)]
    return [*found, await half(flow.uuid().int % 1_000)]


@workflow
async def paused(n: int) -> list[int]:
    found = [await half(n)]
    await flow.sleep(10)
    return [*found, await half(await flow.receive("more"))]


@workflow
async def killed(n: int) -> int:
    await half(n)
    await flow.receive("never")
    return await half(n)


@workflow(limit=Limit(concurrency=1, when_full="cancel_running"))
async def crowded_out(n: int) -> int:
    try:
        await flow.receive("never")
    finally:
        await half(n)
    return n


@workflow(limit=Limit(concurrency=1, when_full="cancel_newest"))
async def refused(n: int) -> int:
    if flow.id == "golden":
        return await half(n)
    await flow.receive("never")
    return 0


@workflow
async def lives(n: int) -> int:
    return await half(n + int(await flow.receive("more")))


@workflow
async def functions(n: int) -> list[int]:
    others = [await flow.start(tell, number) for number in range(n)]
    waiting = [asyncio.create_task(other.result()) for other in others]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    return [await flow.call(tell, n), *(await asyncio.gather(*waiting)), await half(n)]


@workflow
async def left_children(n: int) -> int:
    for policy in ("cancel", "kill", "abandon"):
        await flow.start(killed, n, id=f"left by {policy}", parent_close=policy)
    return await half(n)


@workflow(continue_after=2)
async def long(n: int) -> int:
    while n < 6:
        n += 1 + await half(0)
        flow.continue_if_long(n)
    return n


@workflow
async def validated(n: int) -> int:
    total = n

    def positive(more: int) -> None:
        if more < 1:
            raise ValueError("not positive")

    async def add(more: int) -> None:
        nonlocal total
        total += await half(more)

    flow.on_update("add", add, validator=positive)
    flow.on_signal("more", add)
    await flow.wait_for(lambda: total > n)
    await flow.wait_for(flow.all_handlers_finished)
    return await half(total)


@workflow
async def rejected(n: int) -> int:
    try:
        await flow.promise("answer")
    except BokiError:
        return await half(n)
    return 0


@workflow
async def errors(n: int) -> int:
    try:
        await refuse(n)
    except Refused:
        n += 2
    try:
        await give_up(n)
    except BokiError:
        n += 2
    return await half(n)


@workflow
async def primitives(n: int) -> list[int]:
    lock, seats, over = asyncio.Lock(), asyncio.Semaphore(2), asyncio.Event()
    queue: asyncio.Queue[int] = asyncio.Queue()

    async def one(number: int) -> None:
        async with seats, lock:
            await queue.put(await half(number))
        if queue.qsize() == n:
            over.set()

    async with asyncio.TaskGroup() as group:
        for number in range(n):
            group.create_task(one(number))
        await over.wait()
    return [await half(queue.get_nowait()) for _ in range(n)]


@workflow
async def shielded(n: int) -> int:
    kept = asyncio.ensure_future(flow.run(half, n))
    try:
        async with asyncio.timeout(5):
            await asyncio.shield(flow.receive("never"))
    except TimeoutError:
        n += 1
    return await kept + await half(n)


STEERED = (
    *(forked, paused, killed, crowded_out, refused, lives, functions, left_children),
    *(long, validated, rejected, errors, primitives, shielded),
)
FAILING = ("killed", "crowded_out", "refused")
"""Those that end otherwise than by a result."""


async def steer(ctx: Any, handle: Handle[Any]) -> Handle[Any]:
    """What others do to the workflow while it runs; the one that is to be recorded."""
    await ctx.clock.advance(1)
    match handle.workflow:
        case "forked":
            await handle.signal("more", 4)
            await ctx.clock.advance(1)
            other = await handle.fork(2, id="fork")
            await other.signal("more", 6)
            return other
        case "paused":
            await handle.pause("wait")
            await ctx.clock.advance(20)
            await handle.signal("more", 8)
            await handle.resume()
        case "killed":
            await handle.kill()
        case "crowded_out":
            await crowded_out.start(ctx, 3, id="the next")
        case "lives":
            await handle.signal("more", 1)
            await handle.result()
            handle = await lives.start(ctx, 3, id="golden", if_ended="again")
            await handle.signal("more", 5)
        case "validated":
            for more in (0, 4):
                try:
                    await handle.update("add", more)
                except BokiError:
                    assert not more
        case "rejected":
            await handle.reject("answer", WrongState("no"))
        case _:
            pass
    return handle
