"""Functions that consume queues, in a running system: called, retried, dead-lettered, woken after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from boki import MAX_SEQNUM, Client
from boki.api.function import Function
from boki.config.loading import DevConfig
from boki.launch.child import Child
from boki.libs.bokiqueue import Queue, consume

FUNCTIONS = '''"""Consumers of a test."""
from boki import Context
from boki.libs.bokiqueue import Queue, consume


@consume("orders", book="shop")
async def ship(ctx: Context, order: dict[str, int]) -> None:
    if order["n"] < 0:
        raise ValueError(f"no {order['n']}")
    await Queue(ctx.logbook, "shipped").push(order["n"])


@consume("clicks", book="shop", batch=50, concurrency=2, group="counting")
async def count(ctx: Context, clicks: list[int]) -> None:
    await Queue(ctx.logbook, "counted").push(clicks)


@consume("raw", book="shop")
def keep(ctx, data: bytes) -> None:
    ctx.logbook.append(data, tags=["raw"])
'''


def test_functions_are_called_with_what_is_pushed(tmp_path: Path) -> None:
    """One by one or in batches, any form; failures come back and end as dead letters with what was raised; delayed
    messages wake a function, also after everything was killed and started again.
    """
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions/app.py").write_text(FUNCTIONS)
    config = DevConfig(data=tmp_path / "data", functions=tmp_path / "functions", port=0, reload=False)
    with Child(config).start() as child:
        asyncio.run(_calls(child.url))
        child.kill()
        child.start()
        asyncio.run(_woken(child.url))


async def _calls(url: str) -> None:
    async with Client(url) as client:
        book = client.logbook("shop")
        orders: Queue[Any] = Queue(book, "orders")
        shipped: Queue[int] = Queue(book, "shipped")
        await shipped.create()
        await orders.create()
        await orders.configure(max_deliveries=1)
        await orders.push_many([{"n": 1}, {"n": -1}, {"n": 2}])
        assert [await _next(shipped), await _next(shipped)] == [1, 2]
        clicks: Queue[int] = Queue(book, "clicks")
        counted: Queue[list[int]] = Queue(book, "counted")
        await counted.create()
        await clicks.push_many(range(100))
        found: list[int] = []
        while len(found) < 100:
            found += await _next(counted)
        assert sorted(found) == list(range(100))
        await Queue(book, "raw").push(b"\xff")
        record = await book.read_next("raw", wait_s=30)
        assert record is not None
        assert record.data == b"\xff"
        (dead,) = await orders.dead_letters()
        assert dead.reason == "delivered 1 times; the last time: ship: ValueError: no -1"
        await orders.push({"n": 3}, delay_s=1.5)


async def _woken(url: str) -> None:
    async with Client(url) as client:
        book = client.logbook("shop")
        assert await _next(Queue(book, "shipped")) == 3
        orders: Queue[Any] = Queue(book, "orders")
        while (stats := await orders.stats()).groups[0].depth:  # the call ends, and is acked, after what it pushes
            await orders.logbook.read_next("!q:orders:0", min_seqnum=MAX_SEQNUM - 1, wait_s=0.05)
        assert stats.groups[0].dead == 1


async def _next(queue: Queue[Any]) -> Any:
    message = await queue.pop(wait_s=30)
    assert message is not None
    return message.value


def test_what_a_function_consumes_is_told_and_checked() -> None:
    """Where it is decorated, and before anything runs."""

    @consume("orders", book="shop", batch=5, concurrency=2, group="g", retry_s=3, timeout_s=7)
    async def ship(ctx, orders: list[int]) -> None:  # type: ignore[no-untyped-def]
        """Ships."""

    info = Function.of(ship).info
    settings = info.settings_of("bokiqueue")
    assert settings is not None
    assert (settings["queue"], settings["batch"], info.timeout_s, info.book) == ("orders", 5, 7, "shop")
    for wrong in ({"batch": -1}, {"concurrency": 0}, {"group": "a b"}, {"retry_s": -1}):
        with pytest.raises(ValueError, match="must be"):
            consume("orders", **wrong)  # type: ignore[arg-type]
