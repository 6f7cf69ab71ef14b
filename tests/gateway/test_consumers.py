"""Functions as consumers: what goes wrong around a place does not end it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from boki.calls import Consumption, FunctionInfo
from boki.gateway.http import consumers
from tests.gateway.fake_backend import FakeBackend, run, serving


@asynccontextmanager
async def consuming(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[FakeBackend, aiohttp.ClientSession]]:
    """A gateway whose function `take` consumes queue `q` of book `b`, for the group `g`."""
    monkeypatch.setattr(consumers, "PAUSE_S", 0.0)
    monkeypatch.setattr(consumers, "LOOK_S", 0.0)
    backend = FakeBackend()
    consumes = Consumption(queue="q", group="g", batch=0, concurrency=1, retry_s=1.0)
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
