"""Functions as consumers: what goes wrong around a place does not end it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from boki.errors import CallLost, FunctionFailed
from boki.gateway.server.listener import Gateway
from boki.libs.bokiqueue import Message, Queue
from boki.libs.bokiqueue.consuming import Consumption
from boki.libs.bokiqueue.face import consumers
from boki.libs.bokiqueue.face.consumers import MAX_EXCUSES
from boki.log.limits import DEFAULT_LIMITS
from boki.log.metalog import Positions
from boki.log.operations import Answer, Failure, Operation, Read
from boki.protocol.calls import Call, FunctionInfo, Outcome, Payload
from tests.gateway import fake_backend
from tests.gateway.fake_backend import FakeBackend, outcome_of, run, serving, turns_until

ONE_BY_ONE = Consumption(queue="q", group="g", batch=0, concurrency=1, retry_s=1.0)
SINGLE = Consumption(queue="q", concurrency=1, retry_s=0)
RETURNED = Outcome(Payload("json", b"null"), None)


@asynccontextmanager
async def consuming(
    monkeypatch: pytest.MonkeyPatch,
    consumes: Consumption = ONE_BY_ONE,
) -> AsyncIterator[tuple[FakeBackend, aiohttp.ClientSession]]:
    """A gateway whose function `take` consumes queue `q` of book `b`, for the group `g` if it is not told otherwise."""
    async with gateway_of(monkeypatch, info_of("take", consumes)) as (_, backend, http):
        yield backend, http


def info_of(name: str, consumes: Consumption) -> FunctionInfo:
    info = FunctionInfo(name=name, module="m", is_async=True, book="b")
    return info.used_by("bokiqueue", msgspec.to_builtins(consumes))


@asynccontextmanager
async def gateway_of(
    monkeypatch: pytest.MonkeyPatch, info: FunctionInfo
) -> AsyncIterator[tuple[Gateway, FakeBackend, aiohttp.ClientSession]]:
    """A gateway with that function; the calls of one that is named `hang` end when the test says so."""
    monkeypatch.setattr(consumers, "PAUSE_S", 0.0)
    monkeypatch.setattr(consumers, "LOOK_S", 0.001)
    backend = FakeBackend()
    backend.functions = {info.name: info}
    async with serving(backend) as parts:
        yield parts


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
    """One that no library would raise, too: it is logged, and the place continues."""

    async def scenario() -> None:
        async with consuming(monkeypatch) as (backend, http):
            await push(backend, http, "one")
            await backend.until_waiting()
            backend.fails = Read  # an act whose outcome is unknown would end by the log's time, which stalls here
            backend.failures.append(RuntimeError("a fault"))  # type: ignore[arg-type]
            backend.expire_waits()
            await backend.until(lambda: not backend.failures)
            await push(backend, http, "two")

    run(scenario())


def test_a_message_that_fails_takes_no_others_of_its_batch_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a batch that failed are given singly from then on, so the good ones are done; bytes alone are buried.
    The metric counts each way of ending.
    """
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
            async with http.get("/metrics") as response:
                counted = re.findall(
                    r'^boki_queue_messages_total\{function="take",outcome="(\w+)"\} ([0-9.]+)$',
                    await response.text(),
                    re.MULTILINE,
                )
            assert sorted(counted) == [("acked", "6.0"), ("dead", "2.0"), ("failed", "7.0")]

    run(scenario())
    assert payloads[0] == b'["bad",0,1,2,3,4]'
    # its second try may come before the others: those that wait are given it at once
    assert sorted(payloads[1:8]) == sorted([b'["bad"]', b'["bad"]', *(b"[%d]" % number for number in range(5))])
    assert payloads[8:] == [b'["good"]']


def test_a_message_that_was_lost_takes_no_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody else has settled while others ran is not called with; the others do not wait for their leases."""
    leased: list[Message[Any]] = []

    async def remembered(queue: Queue[Any], *arguments: Any, **options: Any) -> list[Message[Any]]:
        found = await lease_many(queue, *arguments, **options)
        leased[:] = found
        return found

    lease_many = Queue.lease_many
    monkeypatch.setattr(Queue, "lease_many", remembered)

    async def scenario() -> None:
        consumes = Consumption(queue="q", batch=10, concurrency=1, retry_s=0)
        async with gateway_of(monkeypatch, info_of("hang", consumes)) as (_, backend, http):
            await push_many(http, 1, 2, 3)
            await backend.until(lambda: bool(backend.hanging))
            end_calls(backend, Outcome(None, Failure.of(FunctionFailed("no"))))  # from now on they come singly
            await backend.until(lambda: bool(backend.hanging))
            body = {"verb": "ack", "receipts": [leased[1].receipt]}
            async with http.post("/queue/b/q/settle", json=body) as response:
                assert response.status == 200
            end_calls(backend)
            await backend.until(lambda: bool(backend.hanging))
            end_calls(backend)
            await backend.until_waiting()
            assert [call.payload.data for call in backend.started[1:]] == [b"[1]", b"[3]"]
            group = await group_of(http)
            assert (group["done"], group["depth"], group["in_flight"]) == (3, 0, 0)

    run(scenario())


def test_a_batch_that_is_too_large_for_a_call_is_called_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with all of it is refused: that counted as a delivery, and the last one made dead letters of all."""
    monkeypatch.setattr(consumers, "LOOK_S", 0.001)
    texts = [f"{number}" * 600_000 for number in range(10)]

    async def scenario() -> None:
        async with serving(FakeBackend()) as (_, backend, http):
            for text in texts:
                await push_many(http, text)
            await set_up(http, 1)
            backend.functions = {"take": info_of("take", Consumption(queue="q", batch=10))}
            await backend.until(lambda: len(backend.started) == 2)
            await backend.until_waiting()
            assert (await group_of(http))["done"] == 10
            payloads = [call.payload.data for call in backend.started]
            assert [text for data in payloads for text in msgspec.json.decode(data)] == texts
            assert max(map(len, payloads)) <= DEFAULT_LIMITS.request_bytes

    run(scenario())


# How it ends


async def push_many(http: aiohttp.ClientSession, *messages: Any) -> None:
    async with http.post("/queue/b/q/push_many", json={"messages": messages}) as response:
        assert response.status == 200, await response.text()


async def group_of(http: aiohttp.ClientSession) -> dict[str, Any]:
    """The figures of the only group."""
    async with http.get("/queue/b/q") as response:
        (group,) = (await response.json())["groups"]
        return dict(group)


async def group_after(backend: FakeBackend) -> dict[str, Any]:
    """The figures of the only group after the gateway's end, as another gateway sees them."""
    backend.functions = {}
    async with serving(backend) as (_, _backend, http):
        return await group_of(http)


async def enough_turns() -> None:
    """As many turns of the loop as a place needs to be seen to, to lease and to call, and more."""
    for _ in range(200):
        await asyncio.sleep(0)


def end_calls(backend: FakeBackend, outcome: Outcome = RETURNED) -> None:
    """All calls that hang end so."""
    hanging, backend.hanging = backend.hanging, {}
    for done in hanging.values():
        done(outcome)


def test_a_call_that_ends_while_the_gateway_stops_is_acked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would run twice; the stop ends with it, and what was not begun stays in the queue, uncounted.

    The ack is waited for: it is not ended with the long polls.
    """
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        async with gateway_of(monkeypatch, info_of("hang", SINGLE)) as (gateway, backend, http):
            await push_many(http, 1, 2)
            await backend.until(lambda: bool(backend.hanging))
            request = backend.request

            async def slowly(operation: Operation, positions: Positions, timeout_s: float) -> Answer:
                await enough_turns()
                return await request(operation, positions, timeout_s)

            monkeypatch.setattr(backend, "request", slowly)
            stopping = asyncio.create_task(gateway.stop(1_000))
            await turns_until(lambda: gateway.core.is_draining)
            end_calls(backend)
            async with asyncio.timeout(20):
                await stopping
            assert [call.payload.data for call in backend.started] == [b"1"]
        group = await group_after(backend)
        assert (group["done"], group["depth"], group["in_flight"]) == (1, 1, 0)

    run(scenario())
    assert "cannot consume" not in caplog.text


def test_what_is_leased_and_not_begun_is_given_back_when_the_gateway_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not when its lease runs out."""

    async def scenario() -> None:
        consumes = Consumption(queue="q", batch=10, concurrency=1, retry_s=0)
        async with gateway_of(monkeypatch, info_of("hang", consumes)) as (gateway, backend, http):
            await push_many(http, 1, 2, 3)
            await backend.until(lambda: bool(backend.hanging))
            end_calls(backend, Outcome(None, Failure.of(FunctionFailed("no"))))  # from now on they come singly
            await backend.until(lambda: bool(backend.hanging))
            stopping = asyncio.create_task(gateway.stop(1_000))
            await turns_until(lambda: gateway.core.is_draining)
            end_calls(backend)
            await stopping
            assert [call.payload.data for call in backend.started[1:]] == [b"[1]"]
        group = await group_after(backend)
        assert (group["done"], group["depth"], group["in_flight"]) == (1, 2, 0)

    run(scenario())


def test_a_call_that_outlasts_the_stop_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted, and its lease brings the message back."""

    async def scenario() -> None:
        async with gateway_of(monkeypatch, info_of("hang", SINGLE)) as (gateway, backend, http):
            await push_many(http, 1)
            await backend.until(lambda: bool(backend.hanging))
            with caplog.at_level(logging.WARNING):
                await gateway.stop(0)
        assert (await group_after(backend))["in_flight"] == 1

    run(scenario())
    assert "stopping with 1 calls and 0 requests in flight" in caplog.text


def test_a_function_that_changes_in_its_call_is_not_called_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old place settles what it has; the new one begins after it, so that no more run at once than may."""

    async def scenario() -> None:
        async with gateway_of(monkeypatch, info_of("hang", SINGLE)) as (_, backend, http):
            await push_many(http, 1, 2)
            await backend.until(lambda: bool(backend.hanging))
            for retry_s in (5.0, 6.0):
                changed = Consumption(queue="q", concurrency=1, retry_s=retry_s)
                backend.functions = {"hang": info_of("hang", changed)}
                await enough_turns()
            assert [call.payload.data for call in backend.started] == [b"1"]
            end_calls(backend)
            await backend.until(lambda: bool(backend.hanging))
            end_calls(backend)
            await backend.until_waiting()
            assert [call.payload.data for call in backend.started] == [b"1", b"2"]
            group = await group_of(http)
            assert (group["done"], group["in_flight"]) == (2, 0)

    run(scenario())


# Whose fault a crash was


def lost_with(calls: int) -> Outcome:
    return Outcome(None, Failure.of(CallLost("the worker exited", calls=calls)))


async def set_up(http: aiohttp.ClientSession, max_deliveries: int) -> None:
    async with http.put("/queue/b/q", json={"max_deliveries": max_deliveries}) as response:
        assert response.status == 200


def test_a_crash_that_may_be_another_calls_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was alone in its worker is to blame, though; and nobody is excused forever."""

    async def scenario(crashes: list[int], dead: int) -> None:
        async with gateway_of(monkeypatch, info_of("hang", SINGLE)) as (_, backend, http):
            await set_up(http, 1)
            await push_many(http, 1)
            for calls in crashes:
                await backend.until(lambda: bool(backend.hanging))
                end_calls(backend, lost_with(calls))
            if not dead:
                await backend.until(lambda: bool(backend.hanging))
                end_calls(backend)
            await backend.until_waiting()
            await turns_until(lambda: not backend.hanging)
            group = await group_of(http)
            assert (group["dead"], group["done"], group["depth"]) == (dead, 1 - dead, 0)

    run(scenario([2], dead=0))
    run(scenario([7] * MAX_EXCUSES, dead=0))
    run(scenario([1], dead=1))
    run(scenario([2, 1], dead=1))
    run(scenario([2] * (MAX_EXCUSES + 1), dead=1))


def test_a_failure_and_a_dead_letter_are_logged_with_message_and_attempt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which message, which attempt of how many, when it comes again; and a line of its own when it does not."""
    monkeypatch.setattr(
        fake_backend, "outcome_of", lambda _call: Outcome(None, Failure.of(FunctionFailed("KeyError: 'tea'")))
    )

    async def scenario() -> str:
        async with consuming(monkeypatch, SINGLE) as (backend, http):
            await backend.until_waiting()
            await set_up(http, 2)
            async with http.post("/queue/b/q", json="tea") as response:
                identity: str = (await response.json())["id"]
            await turns_until(lambda: "is a dead letter" in caplog.text)
        return identity

    with caplog.at_level(logging.INFO, "boki.gateway"):
        identity = run(scenario())
    remedy = "`boki queue dlq b q` lists it, `boki queue redrive` lets it be delivered again"
    assert [(record.levelname, record.getMessage()) for record in caplog.records if "tea" in record.getMessage()] == [
        ("INFO", f"take failed on message {identity} of q (attempt 1 of 2, again in 0 s): KeyError: 'tea'"),
        ("INFO", f"take failed on message {identity} of q (attempt 2 of 2): KeyError: 'tea'"),
        (
            "WARNING",
            f"message {identity} of q is a dead letter after 2 deliveries: KeyError: 'tea'; {remedy}",
        ),
    ]


def test_messages_that_were_lost_together_are_called_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by several places, and out of a batch; so a second crash shows who it was, and others are done."""

    async def scenario() -> None:
        consumes = Consumption(queue="q", batch=2, concurrency=2, retry_s=0)
        async with gateway_of(monkeypatch, info_of("hang", consumes)) as (_, backend, http):
            await set_up(http, 2)
            await push_many(http, 0, 1, 2, 3)
            await backend.until(lambda: sum(call.payload.data.count(b",") + 1 for call in backend.started) == 4)
            begun = len(backend.started)
            end_calls(backend, lost_with(begun + 1))
            alone: list[bytes] = []
            while len(alone) < 4:
                await backend.until(lambda: bool(backend.hanging))
                await enough_turns()
                assert len(backend.hanging) == 1
                alone.append(backend.started[-1].payload.data)
                end_calls(backend, lost_with(1) if alone[-1] == b"[3]" else RETURNED)
            assert sorted(alone) == [b"[0]", b"[1]", b"[2]", b"[3]"]
            await backend.until(lambda: bool(backend.hanging))  # who was to blame, once more: then it is dead
            end_calls(backend, lost_with(1))
            await backend.until_waiting()
            group = await group_of(http)
            assert (group["done"], group["dead"], group["depth"]) == (3, 1, 0)

    run(scenario())


def test_settings_that_cannot_be_read_stop_no_other_consumer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are said once, with the function; the others are called."""

    async def scenario() -> None:
        async with consuming(monkeypatch) as (backend, http):
            backend.functions["bad"] = FunctionInfo(name="bad", module="m", is_async=True, consumes={"queue": 7})
            await enough_turns()
            await push(backend, http, "one")

    run(scenario())
    told = "settings of a consumer that cannot be read: Expected `str`, got `int` - at `$.queue`"
    assert caplog.messages.count(f"bad is not called with messages: {told}; deploy it again") == 1
