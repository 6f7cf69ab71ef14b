"""Queues for plain `def` functions and blocking programs, over `boki.blocking.run`, against the real system."""

from __future__ import annotations

from pathlib import Path

import pytest

from boki import blocking
from boki.api import blocking_logbook
from boki.api.deadline import Caller
from boki.client import BlockingClient
from boki.config.loading import DevConfig
from boki.errors import Unavailable
from boki.launch.dev import Dev
from boki.libs.bokiqueue import Queue
from boki.log.metalog import Positions
from boki.log.operations import Answer, Done, Operation, Sync
from tests.contract.live import LoopThread

FUNCTIONS = """
from boki import blocking, function
from boki.libs.bokiqueue import Queue

@function(book="shop")
def order(ctx: blocking.Context, item: str) -> str:
    return blocking.run(ctx.logbook, lambda logbook: Queue(logbook, "orders").push(item))

@function(book="shop")
def ship(ctx: blocking.Context, count: int) -> list[str]:
    async def work(logbook):
        orders, sent = Queue(logbook, "orders"), Queue(logbook, "sent")
        await sent.create()
        for message in await orders.lease_many(count, wait_s=30):
            async with orders.process(message) as out:
                out.push(sent, f"{message.value} is on its way")
        return [message.value for message in await sent.pop_many(count)]
    return blocking.run(ctx.logbook, work)
"""


def test_plain_functions_and_blocking_programs_push_and_take(tmp_path: Path) -> None:
    """In a worker process and through a client, with leases, waits and effects that commit with the ack."""
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "shop.py").write_text(FUNCTIONS)
    config = DevConfig(data=tmp_path / "data", functions=tmp_path / "functions", port=0, reload=False)
    loop = LoopThread()
    dev = loop.run(Dev.start(config))
    try:
        with BlockingClient(dev.url) as client:
            for item in ("tea", "milk"):
                client.invoke("order", item)
            assert client.invoke("ship", 2) == ["tea is on its way", "milk is on its way"]
            client.invoke("order", "salt")
            message = blocking.run(client.logbook("shop"), lambda logbook: Queue[str](logbook, "orders").pop(wait_s=30))
            assert message is not None
            assert message.value == "salt"
    finally:
        loop.run(dev.stop(5))
        loop.close()


class OnePort:
    """A way to a log that answers syncs alone."""

    def request(self, operation: Operation, positions: Positions, _timeout_s: float) -> Answer:
        if not isinstance(operation, Sync):
            raise Unavailable("no log here")
        positions[0] = 7
        return Done()


def test_errors_and_what_was_seen_come_through() -> None:
    """The error of the log is raised as it is, and the caller's positions are raised."""
    caller = Caller()
    logbook = blocking_logbook.LogSession(OnePort(), caller).logbook("b")
    blocking.run(logbook, lambda one: one.sync())
    assert caller.positions == {0: 7}
    with pytest.raises(Unavailable, match="no log here"):
        blocking.run(logbook, lambda one: one.append(b"x"))
