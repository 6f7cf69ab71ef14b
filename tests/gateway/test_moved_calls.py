"""Calls that an engine refuses unbegun move on to another one."""

from __future__ import annotations

import asyncio

from boki.errors import Unavailable
from boki.gateway.core import Budget, Standing
from boki.log.ids import NodeId
from boki.log.operations import Failure
from boki.protocol.calls import Outcome, Payload
from tests.gateway.fake_backend import run, serving


def test_what_one_engine_cannot_run_at_all_another_may() -> None:
    """A call that was refused unbegun, because its engine stops, moves on; when each has refused, it waits."""

    async def scenario() -> None:
        async with serving(budget=Budget(hold_us=0)) as (gateway, backend, http):
            other = NodeId("engine-2")

            async def post() -> tuple[int, object]:
                async with http.post("/function/hang") as response:
                    return response.status, await response.json()

            gateway.engine_changed(other, Standing(running=10))
            stopping = Outcome(None, Failure.of(Unavailable("the engine is stopping")))
            for end, status in ((Outcome(Payload("json", b"1"), None), 200), (stopping, 503)):
                backend.hanging.clear()
                backend.engines_asked.clear()
                task = asyncio.create_task(post())
                await backend.until(lambda: bool(backend.hanging))
                (first,) = backend.hanging.values()
                first(stopping)
                assert backend.engines_asked == [backend.engines[0], other]
                backend.hanging.popitem()[1](end)
                assert (await task)[0] == status
                assert gateway.core.is_idle
                assert gateway.core.engines() == {backend.engines[0]: 0, other: 0}

    run(scenario())


def test_a_call_that_nobody_takes_now_is_run_by_the_first_engine_that_does() -> None:
    """Between the end of one engine and the start of the next, callers notice nothing but the time."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http):
            task = asyncio.create_task(http.post("/function/hang"))
            await backend.until(lambda: bool(backend.hanging))
            _, first = backend.hanging.popitem()
            first(Outcome(None, Failure.of(Unavailable("the engine is stopping"))))
            gateway.engine_lost(backend.engines[0])
            assert backend.engines_asked == [backend.engines[0]]
            gateway.engine_changed(NodeId("engine-2"), Standing())
            assert backend.engines_asked == [backend.engines[0], "engine-2"]
            backend.hanging.popitem()[1](Outcome(Payload("json", b"1"), None))
            async with await task as response:
                assert (response.status, await response.json()) == (200, 1)
            assert gateway.core.is_idle

    run(scenario())
