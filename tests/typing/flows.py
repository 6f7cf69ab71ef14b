"""What mypy makes of workflows: checked by `test_typing.py`, never run. See `invoke.py`."""

from __future__ import annotations

from typing import Any, assert_type

from boki import Context, blocking, function
from boki.libs.bokiflow import Child, FlowClient, FlowHandle, Handle, flow, step, workflow
from boki.libs.bokiflow.blocking import Child as BlockingChild
from boki.libs.bokiflow.blocking import Handle as BlockingHandle
from boki.libs.bokiflow.blocking import Schedule as BlockingSchedule
from boki.libs.bokiflow.blocking import flow as plain_flow


@step
async def charge(card: str, cents: int = 1) -> float:
    return cents / len(card)


@step(pure=True)
def count(word: str) -> int:
    return len(word)


@workflow
async def travel(city: str) -> list[str]:
    return [city]


@workflow(keep_s=60)
async def tick() -> int:
    return 1


@workflow
def bill(cents: int) -> str:
    return str(cents)


@workflow
async def wait(days: int = 3) -> float:
    return days


@workflow(keep_s=60)
def nap(days: int = 3) -> bytes:
    return bytes(days)


@function
async def score(ctx: Context, who: str) -> int:
    return len(who)


@function
def tock(ctx: blocking.Context) -> bytes:
    return b""


async def steps() -> None:
    assert_type(await charge("a", cents=3), float)
    assert_type(await flow.run(count, "a"), int)
    assert_type(await flow.run(charge, "a"), float)

    await charge(3)  # error: an argument of another type
    await flow.run(count, 7)  # error: an argument of another type
    await flow.run(count)  # error: no argument


async def calls() -> None:
    assert_type(await flow.call(travel, "Rome"), list[str])
    assert_type(await flow.call(tick, book="ticks"), int)
    assert_type(await flow.call(bill, 3, id="b-1", parent_close="abandon"), str)
    assert_type(await flow.call(score, "Ada"), int)
    assert_type(await flow.call(tock), bytes)
    assert_type(await flow.call("travel", "Rome"), Any)

    assert_type(await flow.call(wait), float)
    assert_type(await flow.call(wait, 5), float)
    assert_type(await flow.call(nap), bytes)
    assert_type(await flow.call(nap, 5, id="n"), bytes)

    await flow.call(travel, 7)  # error: a payload of another type
    await flow.call(travel)  # error: no payload
    await flow.call(tick, "a")  # error: takes no payload
    await flow.call(score, 7)  # error: a payload of another type
    await flow.call(travel, "Rome", parent_close="leave")  # error: no such policy
    await flow.call(travel, "Rome", name="a")  # error: no such option


async def children() -> None:
    child = await flow.start(travel, "Rome", id="t-1")
    assert_type(child, Child[list[str]])
    assert_type(await child.result(), list[str])
    assert_type(await (await flow.start(tick)).result(), int)
    assert_type(await (await flow.start(score, "Ada")).result(), int)
    assert_type(await flow.start("travel", "Rome"), Child[Any])

    assert_type(await flow.start(wait), Child[float])
    assert_type(await flow.start(wait, 5), Child[float])

    await flow.start(bill, "3")  # error: a payload of another type
    await flow.start(tock, "a")  # error: takes no payload


def plain() -> None:
    assert_type(plain_flow.run(count, "a"), int)
    assert_type(plain_flow.run(charge, "a"), float)
    assert_type(plain_flow.call(travel, "Rome"), list[str])
    assert_type(plain_flow.call(tick), int)
    assert_type(plain_flow.call(tock), bytes)
    assert_type(plain_flow.start(bill, 3), BlockingChild[str])
    assert_type(plain_flow.start(bill, 3).result(), str)
    assert_type(plain_flow.call("bill", 3), Any)

    assert_type(plain_flow.call(nap), bytes)
    assert_type(plain_flow.call(nap, 5), bytes)
    assert_type(plain_flow.start(wait, 5), BlockingChild[float])

    plain_flow.run(count, 7)  # error: an argument of another type
    plain_flow.call(travel, 7)  # error: a payload of another type
    plain_flow.start(bill)  # error: no payload


async def handles(ctx: Context, client: FlowClient) -> None:
    assert_type(await travel.start(ctx, "Rome"), Handle[list[str]])
    assert_type(await (await travel.start(ctx, "Rome")).result(), list[str])
    assert_type(await (await tick.start(ctx)).result(), int)
    assert_type(await bill.handle(ctx, "b-1").result(), str)
    assert_type(await client.start(travel, "Rome"), FlowHandle[list[str]])

    assert_type(await wait.start(ctx), Handle[float])
    assert_type(await wait.start(ctx, 5), Handle[float])
    assert_type(await client.start(nap), FlowHandle[bytes])
    assert_type(await client.start(nap, 5), FlowHandle[bytes])

    await wait()  # error: it is started, not called
    await travel("Rome")  # error: it is started, not called
    await travel.start(ctx, 7)  # error: a payload of another type
    await tick.start(ctx, "a")  # error: takes no payload
    await travel.start(ctx)  # error: no payload


async def later(ctx: Context, plain: blocking.Context) -> None:
    assert_type(await ctx.invoke_later(travel, "Rome", key="t-1"), str)
    assert_type(await ctx.invoke_later(tick, delay_s=60), str)
    assert_type(plain.invoke_later(bill, 3), str)
    assert_type(plain.invoke_later(wait), str)

    await ctx.invoke_later(charge, "a")  # error: a step belongs into a workflow
    await ctx.invoke(travel, "Rome")  # error: only a logged call runs a workflow
    plain.invoke(bill, 3)  # error: only a logged call runs a workflow


def plain_handles(ctx: blocking.Context) -> None:
    assert_type(travel.start(ctx, "Rome", id="t-1", if_running="fail"), BlockingHandle[list[str]])
    assert_type(travel.start(ctx, "Rome").result(), list[str])
    assert_type(tick.start(ctx).result(wait_s=1), int)
    assert_type(bill.handle(ctx, "b-1").result(), str)
    assert_type(bill.handle(ctx, "b-1").fork(1), BlockingHandle[str])
    assert_type(tick.schedule(ctx, id="s", every_s=60), BlockingSchedule)
    assert_type(tick.schedule_handle(ctx, "s"), BlockingSchedule)

    assert_type(wait.start(ctx), BlockingHandle[float])
    assert_type(wait.start(ctx, 5), BlockingHandle[float])

    travel.start(ctx, 7)  # error: a payload of another type
    tick.start(ctx, "a")  # error: takes no payload
    travel.start(ctx)  # error: no payload
    travel.start(ctx, "Rome", if_running="stop")  # error: no such policy
    travel.start(ctx, "Rome", name="a")  # error: no such option
