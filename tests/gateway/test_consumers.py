"""Functions as consumers: what goes wrong around a place does not end it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from boki.calls import Call, Consumption, FunctionInfo, Outcome
from boki.errors import FunctionFailed
from boki.gateway.http import consumers
from boki.log.operations import Failure
from tests.gateway import fake_backend
from tests.gateway.fake_backend import FakeBackend, outcome_of, run, serving

ONE_BY_ONE = Consumption(queue="q", group="g", batch=0, concurrency=1, retry_s=1.0)


@asynccontextmanager
async def consuming(
    monkeypatch: pytest.MonkeyPatch,
    consumes: Consumption = ONE_BY_ONE,
) -> AsyncIterator[tuple[FakeBackend, aiohttp.ClientSession]]:
    """A gateway whose function `take` consumes queue `q` of book `b`, for the group `g` if it is not told otherwise."""
    monkeypatch.setattr(consumers, "PAUSE_S", 0.0)
    monkeypatch.setattr(consumers, "LOOK_S", 0.0)
    backend = FakeBackend()
    backend.functions = {"take": FunctionInfo(name="take", module="m", is_async=True, book="b", consumes=consumes)}
    async with serving(backend) as (_, _backend, http):
        yield backend, http


async def push(backend: FakeBackend, http: aiohttp.ClientSession, text: str) -> None:
    """Push, and wait until the function is called with it."""
    async with http.post("/queue/b/q", json=text) as response:
        assert response.status == 200, await response.text()
    await backend.until(lambda: any(text.encode() in call.payload.data for call in backend.started))


def test_a_group_that_was_dropped_under_a_function_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the function would never be called again."""

    async def scenario() -> None:
        async with consuming(monkeypatch) as (backend, http):
            await push(backend, http, "one")
            async with http.delete("/queue/b/q/groups/g") as response:
                assert response.status == 200
            await push(backend, http, "two")

    run(scenario())


def test_an_error_of_any_kind_does_not_end_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that no library would raise, too: it is logged, and the place goes on."""

    async def scenario() -> None:
        async with consuming(monkeypatch) as (backend, http):
            await push(backend, http, "one")
            await backend.until_waiting()
            backend.failures.append(RuntimeError("a fault"))  # type: ignore[arg-type]
            backend.expire_waits()
            await backend.until(lambda: not backend.failures)
            await push(backend, http, "two")

    run(scenario())


def test_a_message_that_fails_takes_no_others_of_its_batch_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a batch that failed are given singly from then on, so the good ones are done; bytes alone are buried."""
    payloads: list[bytes] = []

    def outcome(call: Call) -> Outcome:
        payloads.append(call.payload.data)
        is_bad = b"bad" in call.payload.data
        return Outcome(None, Failure.of(FunctionFailed("bad one"))) if is_bad else outcome_of(call)

    async def scenario() -> None:
        monkeypatch.setattr(fake_backend, "outcome_of", outcome)
        consumes = Consumption(queue="q", group="", batch=10, concurrency=1, retry_s=0)
        async with consuming(monkeypatch, consumes) as (backend, http):
            await backend.until_waiting()
            async with http.put("/queue/b/q", json={"max_deliveries": 3}) as response:
                assert response.status == 200
            async with http.post("/queue/b/q/push_many", json={"messages": ["bad", *range(5)]}) as response:
                assert response.status == 200
            await backend.until(lambda: len(payloads) >= 1 + 6 + 1)
            await backend.until_waiting()
            async with http.get("/queue/b/q") as response:
                (group,) = (await response.json())["groups"]
            assert (group["dead"], group["done"], group["depth"]) == (1, 5, 0)
            async with http.post("/queue/b/q", data=b"\xff") as response:
                assert response.status == 200
            await push(backend, http, "good")
            await backend.until_waiting()
            async with http.get("/queue/b/q") as response:
                (group,) = (await response.json())["groups"]
            assert (group["dead"], group["done"]) == (2, 6)

    run(scenario())
    assert payloads[0] == b'["bad",0,1,2,3,4]'
    assert sorted(payloads[1:7]) == sorted([b'["bad"]', *(b"[%d]" % number for number in range(5))])
    assert payloads[7:] == [b'["bad"]', b'["good"]']
