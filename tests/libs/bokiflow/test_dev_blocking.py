"""Handles in `def` functions and `def` steps, in the whole of `boki dev`: real workers, a real log, a real clock."""

from __future__ import annotations

from pathlib import Path

import uvloop

from boki.client import Client
from boki.config.loading import DevConfig
from boki.launch.dev import Dev
from boki.libs.bokiflow import FlowClient

FUNCTIONS = '''
"""A workflow, and plain code that has all there is to say to it."""

from contextlib import suppress
from typing import Any

from boki import blocking, function
from boki.libs.bokiflow import WorkflowEnded, flow, step, workflow


@step
def double(n: int) -> int:
    return n * 2


@workflow(book="trips")
async def trip(n: int) -> list[Any]:
    stops = []

    def stop(name: str) -> int:
        stops.append(name)
        return len(stops)

    flow.on_update("stop", stop)
    flow.on_query("stops", lambda _: list(stops))
    doubled = await flow.run(double, n)
    word = await flow.receive("go")
    return [doubled, word, *stops, await flow.promise("last")]


def whole(ctx: blocking.Context, name: str) -> list[Any]:
    handle = trip.start(ctx, 4, id=name, attributes={"kind": "plain"})
    assert handle.status().attributes == {"kind": "plain"}
    assert handle.update("stop", "Oslo", id="one") == handle.update("stop", "Oslo", id="one") == 1
    assert handle.query("stops") == ["Oslo"]
    handle.pause("for lunch")
    handle.signal("go", "now", key="k")
    handle.signal("go", "again", key="k")
    handle.resolve("last", "Bern")
    while handle.status().status != "paused":
        pass
    handle.resume()
    first = handle.result(wait_s=30)
    copy = handle.fork(1, id=f"{name} again")
    with suppress(WorkflowEnded):  # it has ended if it was given all messages
        copy.kill()
    assert copy.id == f"{name} again" and copy.status().status in ("cancelled", "done")
    assert handle.rewind(1) == 1
    assert handle.result(wait_s=30) == first
    with suppress(WorkflowEnded):
        handle.cancel()
    killed = trip.start(ctx, 5, id=f"{name} killed")
    killed.kill()
    assert killed.status().status == "cancelled"
    cancelled = trip.start(ctx, 5, id=f"{name} killed", if_ended="again")
    cancelled.cancel("enough")
    try:
        cancelled.result(wait_s=30)
    except Exception as error:
        return [*first, "enough" in str(error)]


@function(book="trips", timeout_s=60)
def of_function(ctx: blocking.Context) -> list[Any]:
    return whole(ctx, "of a function")


@step
def says(name: str) -> list[Any]:
    return whole(step.blocking_ctx, name)


@workflow(book="trips")
async def of_step() -> list[Any]:
    return await flow.run(says, "of a step")


@workflow(book="trips")
def of_plain_step() -> list[Any]:
    return says("of a plain step")
'''


def test_plain_code_has_handles(tmp_path: Path) -> None:
    """In a worker of `def` functions, and in threads of a worker whose loop runs the workflow that they speak to."""
    (tmp_path / "functions").mkdir()
    (tmp_path / "functions" / "trips.py").write_text(FUNCTIONS)
    config = DevConfig(data=tmp_path / "data", functions=tmp_path / "functions", port=0, reload=False)

    async def scenario() -> None:
        dev = await Dev.start(config)
        try:
            async with Client(dev.url) as client:
                expected = [8, "now", "Oslo", "Bern", True]
                assert await client.invoke("of_function", timeout_s=60) == expected
                for name in ("of_step", "of_plain_step"):
                    handle = await FlowClient(client).start(name)
                    assert await handle.result(wait_s=60) == expected
        finally:
            await dev.stop(5)

    uvloop.run(scenario())
