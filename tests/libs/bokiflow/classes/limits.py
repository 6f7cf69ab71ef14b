"""Flow control: how many run at once, which of them give way, how often they begin, and which goes first."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from boki import FunctionFailed
from boki.libs.bokiflow import Handle, Limit, flow, workflow
from boki.testing import Context
from tests.libs.bokiflow.classes import DONE, case, do, done, ended_as, until


async def _work(order: dict[str, Any]) -> str:
    """Says when it is in and out, and works in between."""
    await do(f"{flow.id} in")
    await flow.sleep(order.get("seconds", 10))
    await do(f"{flow.id} out")
    return flow.id


@workflow(limit=Limit(concurrency=2))
async def two_at_once(order: dict[str, Any]) -> str:
    """Shares two places with all of its name."""
    return await _work(order)


@workflow(limit=Limit(key="customer", concurrency=1))
async def one_each(order: dict[str, Any]) -> str:
    """Has one place for each customer."""
    return await _work(order)


@workflow(limit=Limit(concurrency=1, when_full="cancel_newest"))
async def first_only(order: dict[str, Any]) -> str:
    """Nothing begins while one runs."""
    return await _work(order)


@workflow(limit=Limit(concurrency=1, when_full="cancel_running"))
async def last_only(order: dict[str, Any]) -> str:
    """Makes room for the next one, and cleans up before."""
    flow.compensate(_clean_up, flow.id)
    return await _work(order)


async def _clean_up(flow_id: str) -> None:
    await flow.sleep(5)
    await do(f"{flow_id} out")


@workflow(limit=Limit(rate=2, per_s=30))
async def two_in_half_a_minute(order: dict[str, Any]) -> float:
    """When it began."""
    began = flow.now().timestamp()
    await do(f"{flow.id} in")
    return began


@workflow(limit=Limit(key="customer", debounce_s=5, debounce_most_s=12))
async def quiet(order: dict[str, Any]) -> str:
    """Waits until a customer orders nothing for five seconds, or for twelve."""
    return await _work(order)


def begun() -> list[str]:
    """The workflows that began, in their order."""
    return [what.removesuffix(" in") for what in DONE.values() if what.endswith(" in")]


def most_at_once() -> int:
    """The largest number of workflows that were in and not out."""
    inside, most = 0, 0
    for what in DONE.values():
        inside += 1 if what.endswith(" in") else -1
        most = max(most, inside)
    return most


async def _start(ctx: Context, target: Any, name: str, **options: Any) -> Handle[Any]:
    """Start one, and wait until it has asked for its turn: so the order of starts is that of the requests."""
    order = {"customer": options.pop("customer", "ada"), "seconds": options.pop("seconds", 10)}
    handle: Handle[Any] = await target.start(ctx, order, id=name, **options)
    await ctx.clock.advance(1)
    return handle


@case("inngest-py#179: a concurrency limit of 2, and 8 running")
async def no_more_than_the_limit_run_at_once(ctx: Context) -> None:
    handles = [await _start(ctx, two_at_once, f"n{number}") for number in range(5)]
    assert (await handles[4].status()).note == "waits for its turn: at most 2 at once"
    assert [await handle.result() for handle in handles] == [f"n{number}" for number in range(5)]
    assert begun() == [f"n{number}" for number in range(5)]
    assert most_at_once() == 2
    assert set(done().values()) == {1}


@case("DBOS partitioned_queue_does_not_starve_partitions; Hatchet concurrency_limit_rr")
async def a_key_that_is_busy_holds_up_no_other(ctx: Context) -> None:
    handles = [await _start(ctx, one_each, f"ada {number}") for number in range(3)]
    other = await _start(ctx, one_each, "bob", customer="bob", seconds=1)
    special = await _start(ctx, one_each, "special", limit_key="special", seconds=1)
    assert [await other.result(), await special.result()] == ["bob", "special"]
    assert begun()[:3] == ["ada 0", "bob", "special"]
    assert [await handle.result() for handle in handles] == ["ada 0", "ada 1", "ada 2"]


@case("Hatchet concurrency_cancel_newest")
async def what_comes_while_one_runs_is_cancelled(ctx: Context) -> None:
    handles = [await _start(ctx, first_only, f"n{number}") for number in range(3)]
    with pytest.raises(FunctionFailed, match="the limit is reached: at most 1 at once"):
        await handles[1].result()
    assert [await ended_as(handle) for handle in handles] == ["n0", "WorkflowCancelled", "WorkflowCancelled"]
    handles.append(await _start(ctx, first_only, "n3"))
    assert await handles[3].result() == "n3"
    assert begun() == ["n0", "n3"]


@case("Hatchet concurrency_cancel_in_progress")
async def what_runs_makes_room_and_cleans_up_before(ctx: Context) -> None:
    handles = [await _start(ctx, last_only, f"n{number}") for number in range(3)]
    found = [await ended_as(handle) for handle in handles]
    assert found == ["WorkflowCancelled", "WorkflowCancelled", "n2"]
    assert list(DONE.values()) == ["n0 in", "n0 out", "n2 in", "n2 out"]
    with pytest.raises(FunctionFailed, match="a later start takes its place"):
        await handles[0].result()
    with pytest.raises(FunctionFailed, match="superseded by a later start"):
        await handles[1].result()


@case("DBOS limiter_dequeue_blocks_on_peer_claim; Hatchet rate limits")
async def no_more_than_the_rate_begin(ctx: Context) -> None:
    handles = [await _start(ctx, two_in_half_a_minute, f"n{number}") for number in range(5)]
    began = [await handle.result() for handle in handles]
    assert begun() == [f"n{number}" for number in range(5)]
    assert all(later - earlier > 29.9 for earlier, later in zip(began, began[2:], strict=False))
    assert began[4] - began[0] < 70


@case("DBOS test_debouncer: the last of a burst counts")
async def a_burst_is_one_run(ctx: Context) -> None:
    handles = [await _start(ctx, quiet, f"n{number}") for number in range(4)]
    other = await _start(ctx, quiet, "bob", customer="bob")
    assert begun() == []
    assert [await ended_as(handle) for handle in handles] == ["WorkflowCancelled"] * 3 + ["n3"]
    assert await other.result() == "bob"
    assert done() == {f"{name} {way}": 1 for name in ("n3", "bob") for way in ("in", "out")}


@case("DBOS debounce_deadline_caps_initial_delay")
async def a_burst_without_an_end_is_capped(ctx: Context) -> None:
    began_us = ctx.clock.now_us
    handles = []
    while not begun() and len(handles) < 20:
        handles.append(await _start(ctx, quiet, f"n{len(handles)}"))
        await ctx.clock.advance(1)
    assert 12 <= (ctx.clock.now_us - began_us) / 1e6 < 18
    found = [name for handle in handles if (name := await ended_as(handle)) != "WorkflowCancelled"]
    assert found == begun()
    assert 1 <= len(found) <= 2, "the one of the cap, and one that came behind it"


@case("DBOS debounce_cancel_then_redebounce, debounce_flip_clears_dedup")
async def a_cancelled_start_is_not_waited_for(ctx: Context) -> None:
    first = await _start(ctx, quiet, "order")
    await first.cancel("not wanted")
    assert await ended_as(first) == "WorkflowCancelled"
    again = await _start(ctx, quiet, "order", if_ended="again")
    assert await again.result() == "order"
    assert done() == {"order in": 1, "order out": 1}


@case("Hatchet priority")
async def a_higher_priority_goes_first(ctx: Context) -> None:
    priorities = {"first": 0, "low": -5, "one": 0, "high": 9, "two": 0, "higher": 10}
    handles = [
        await _start(ctx, one_each, name, priority=value, seconds=20 if name == "first" else 2)
        for name, value in priorities.items()
    ]
    for handle in handles:
        await handle.result()
    assert begun() == ["first", "higher", "high", "one", "two", "low"]


@case("hatchet#2573, #1996: stuck behind what has ended")
async def a_place_is_free_however_its_workflow_ends(ctx: Context) -> None:
    @workflow(limit=Limit(concurrency=1))
    async def single(way: str) -> str:
        await do(f"{way} in")
        await flow.sleep(10)
        await do(f"{way} out")
        if way == "fails":
            raise ValueError(way)
        return way

    handles = {}
    for way in ("fails", "cancel", "kill", "last"):
        handles[way] = await single.start(ctx, way, id=way)
        await ctx.clock.advance(1)
    assert await ended_as(handles["fails"]) == "ValueError"
    await until(ctx, lambda: "cancel in" in done())
    await handles["cancel"].cancel()
    await until(ctx, lambda: "kill in" in done())
    await handles["kill"].kill()
    assert await handles["last"].result() == "last"
    assert begun() == ["fails", "cancel", "kill", "last"]


@case("hatchet#211, #10: cancel in every state; DBOS delay_cancel_resume_list")
async def what_waits_for_its_turn_is_cancelled_and_started_again(ctx: Context) -> None:
    handles = [await _start(ctx, one_each, f"n{number}", seconds=30) for number in range(4)]
    await handles[1].cancel("not wanted")
    await handles[2].kill()
    assert await ended_as(handles[1]) == "WorkflowCancelled"
    assert (await handles[2].status()).status == "cancelled"
    assert begun() == ["n0"]
    assert "n0 out" not in done(), "at once, and not in their turn"
    again = await _start(ctx, one_each, "n1", if_ended="again")
    assert [await handles[0].result(), await handles[3].result(), await again.result()] == ["n0", "n3", "n1"]
    assert begun() == ["n0", "n3", "n1"]
    assert most_at_once() == 1


@case("inngest-py#179: a function that is called from another one has its turn, too")
async def children_have_their_turn(ctx: Context) -> None:
    @workflow
    async def parent() -> list[str]:
        orders = [{"customer": "ada", "seconds": 3} for _ in range(3)]
        return await asyncio.gather(*(flow.call(one_each, order, id=f"c{n}") for n, order in enumerate(orders)))

    outside = await _start(ctx, one_each, "outside", seconds=5)
    assert await (await parent.start(ctx)).result() == ["c0", "c1", "c2"]
    assert await outside.result() == "outside"
    assert begun()[0] == "outside"
    assert most_at_once() == 1
    assert len(begun()) == 4
