"""Queues over HTTP: every route, over the log in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.gateway.fake_backend import refused, run, serving


async def ask(http: aiohttp.ClientSession, method: str, path: str, **arguments: Any) -> Any:
    """The JSON answer of a request that succeeds."""
    async with http.request(method, f"/queue/b{path}", **arguments) as response:
        body = await response.json()
        assert response.status == 200, body
        return body


async def refusal(
    http: aiohttp.ClientSession, method: str, path: str, status: int, code: str, **arguments: Any
) -> None:
    """The request is refused so."""
    async with http.request(method, f"/queue/b{path}", **arguments) as response:
        await refused(response, status, code)


async def popped(http: aiohttp.ClientSession, query: str = "", **arguments: Any) -> list[Any]:
    messages: list[Any] = (await ask(http, "POST", f"/q/pop{query}", **arguments))["messages"]
    return messages


def test_what_is_pushed_comes_out_as_it_was() -> None:
    """JSON as JSON, text as text, bytes as base64; in order, and an empty list at the end."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            await ask(http, "POST", "/q", json={"a": [1]})
            await ask(http, "POST", "/q", data="grüß".encode(), headers={"Content-Type": "text/plain"})
            await ask(http, "POST", "/q", data=b"\xff\x00")
            await ask(http, "POST", "/q/push_many", json={"messages": [1, None]})
            found = await popped(http, "?count=9")
            data = [{key: one[key] for key in ("json", "text", "base64") if key in one} for one in found]
            assert data == [{"json": {"a": [1]}}, {"text": "grüß"}, {"base64": "/wA="}, {"json": 1}, {"json": None}]
            assert await popped(http) == []
            assert await ask(http, "GET", "") == {"queues": ["q"]}

    run(scenario())


def test_a_consumer_that_waits_is_answered_by_the_push() -> None:
    """A long poll: it is held until there is a message."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            await ask(http, "PUT", "/q", json={})
            waiting = asyncio.ensure_future(popped(http, "?wait_s=20"))
            for _ in range(20):
                await asyncio.sleep(0)
            await ask(http, "POST", "/q", json="now")
            assert [one["text"] for one in await waiting] == ["now"]

    run(scenario())


def test_repeated_requests_under_a_key_push_once_and_give_the_same_again() -> None:
    """A lost answer loses no message and makes no second one."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            key = {"Idempotency-Key": "k"}
            ids = [(await ask(http, "POST", "/q", json=1, headers=key))["id"] for _ in range(3)]
            assert len(set(ids)) == 1
            await ask(http, "POST", "/q", json=2)
            first = await popped(http, headers=key)
            assert await popped(http, headers=key) == first
            assert [one["json"] for one in await popped(http, "?count=9")] == [2]

    run(scenario())


def test_keys_may_be_as_long_as_everywhere() -> None:
    """255 characters, also beside a queue's long name; others are other keys."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            queue = f"/{'q' * 100}"
            for key in ("k" * 255, "k" * 254 + "x"):
                keyed = {"Idempotency-Key": key}
                ids = {(await ask(http, "POST", queue, json=1, headers=keyed))["id"] for _ in range(2)}
                assert len(ids) == 1
                for _ in range(2):
                    (message,) = (await ask(http, "POST", f"{queue}/pop", headers=keyed))["messages"]
                    assert {message["id"]} == ids

    run(scenario())


def test_leased_messages_are_settled_by_their_receipts() -> None:
    """Ack, nack, release, extend; dead letters with their reason, redriven and purged; figures of all of it."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            await ask(http, "PUT", "/q", json={"max_deliveries": 1})
            await ask(http, "POST", "/q/push_many", json={"messages": [1, 2, 3]})
            one, two, three = await popped(http, "?count=3&lease_s=30")
            await ask(http, "POST", "/q/settle", json={"verb": "ack", "receipts": [one["receipt"]]})
            await ask(http, "POST", "/q/settle", json={"verb": "extend", "receipts": [two["receipt"]], "lease_s": 60})
            await ask(http, "POST", "/q/settle", json={"verb": "nack", "receipts": [two["receipt"]], "reason": "bad"})
            await ask(http, "POST", "/q/settle", json={"verb": "bury", "receipts": [three["receipt"]], "reason": "no"})
            dead = (await ask(http, "GET", "/q/dead"))["dead"]
            assert [(letter["json"], letter["reason"]) for letter in dead] == [
                (2, "delivered 1 times; the last time: bad"),
                (3, "no"),
            ]
            assert await ask(http, "POST", "/q/redrive", json={"handles": [dead[0]["handle"]]}) == {"count": 1}
            assert await ask(http, "POST", "/q/purge", json={}) == {"count": 1}
            peeked = (await ask(http, "GET", "/q/peek?count=5"))["messages"]
            assert [message["json"] for message in peeked] == [2]
            stats = await ask(http, "GET", "/q")
            assert (stats["pushed"], stats["depth"], stats["groups"][0]["done"]) == (3, 1, 1)
            (again,) = await popped(http, "?lease_s=30")
            await ask(http, "POST", "/q/settle", json={"verb": "release", "receipts": [again["receipt"]]})
            assert len(await popped(http)) == 1
            gone = {"verb": "ack", "receipts": [again["receipt"]]}
            await refusal(http, "POST", "/q/settle", 409, "lease_lost", json=gone)

    run(scenario())


def test_groups_begin_where_they_are_told() -> None:
    """Each is given every message from there on; replay begins again."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            await ask(http, "PUT", "/q", json={"retain_s": 1000})
            await ask(http, "POST", "/q", json=1)
            await ask(http, "POST", "/q/groups", json={"group": "all"})
            await ask(http, "POST", "/q/groups", json={"group": "late", "start": "now"})
            await ask(http, "POST", "/q", json=2)
            assert [one["json"] for one in await popped(http, "?group=all&count=9")] == [1, 2]
            assert [one["json"] for one in await popped(http, "?group=late&count=9")] == [2]
            await ask(http, "POST", "/q/replay", json={"group": "late"})
            assert [one["json"] for one in await popped(http, "?group=late&count=9")] == [1, 2]
            await ask(http, "DELETE", "/q/groups/late")
            await refusal(http, "POST", "/q/pop?group=late", 404, "no_such_group")

    run(scenario())


def test_a_message_that_nobody_could_take_is_refused() -> None:
    """It would have expired before its delay is over."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            await ask(http, "POST", "/q?delay_s=0.001&ttl_s=60", json=1)
            await refusal(http, "POST", "/q?delay_s=10&ttl_s=5", 400, "invalid_argument", json=1)
            too_short = {"messages": [1, 2], "delay_s": 5, "ttl_s": 5}
            await refusal(http, "POST", "/q/push_many", 400, "invalid_argument", json=too_short)
            assert (await ask(http, "GET", "/q"))["pushed"] == 1

    run(scenario())


def test_numbers_of_any_length_are_refused() -> None:
    """By name, where a handle, a receipt or a seqnum is due; Python reads no more than 4,300 digits."""

    async def scenario() -> None:
        digits = "9" * 5_000
        async with serving() as (_, _backend, http):
            await ask(http, "POST", "/q", json=1)
            for path, asked in (
                ("redrive", {"handles": [f"{digits}-1"]}),
                ("purge", {"handles": [f"{digits}-1"]}),
                ("purge", {"handles": [f"0-{digits}"]}),
                ("settle", {"verb": "ack", "receipts": [f"0-{digits}-1"]}),
                ("replay", {"start": digits}),
                ("groups", {"group": "g", "start": digits}),
            ):
                await refusal(http, "POST", f"/q/{path}", 400, "invalid_argument", json=asked)
            await refusal(http, "POST", f"/q/pop?count={digits}", 400, "invalid_argument")

    run(scenario())


@pytest.mark.parametrize("count", [0, 1_001])
def test_how_many_may_be_asked_for_is_said_right(count: int) -> None:
    """From one to what one answer holds: fewer than the library allows, and not none."""

    async def scenario() -> None:
        async with serving() as (_, _backend, http):
            await ask(http, "POST", "/q", json=1)
            for method, path in (("POST", "pop"), ("GET", "peek")):
                async with http.request(method, f"/queue/b/q/{path}?count={count}") as response:
                    assert f"must be 1 to 1,000, not {count:,}" in (await response.json())["message"]

    run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "arguments", "code"),
    [
        ("POST", "/q/pop", {}, "no_such_queue"),
        ("GET", "/q", {}, "no_such_queue"),
        ("POST", "/q?delay_s=-1", {"json": 1}, "invalid_argument"),
        ("POST", "/q?nonsense=1", {"json": 1}, "invalid_argument"),
        ("POST", "/q q", {"json": 1}, "invalid_argument"),
        ("POST", "/q", {"data": b"{", "headers": {"Content-Type": "application/json"}}, "invalid_argument"),
        ("POST", "/q/push_many", {"json": {"messages": []}}, "invalid_argument"),
        ("POST", "/q/push_many", {"json": {"messages": 1}}, "invalid_argument"),
        ("POST", "/q/settle", {"json": {"verb": "eat", "receipts": []}}, "invalid_argument"),
        ("PUT", "/q", {"json": {"shards": 0}}, "invalid_argument"),
        ("PUT", "/q", {"json": {"shards": 4, "max_length": -1}}, "invalid_argument"),
        ("PUT", "/q", {"json": {"color": "red"}}, "invalid_argument"),
    ],
)
def test_bad_requests_are_refused(method: str, path: str, arguments: dict[str, Any], code: str) -> None:
    """By name, and nothing is written."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            await refusal(http, method, path, 404 if code == "no_such_queue" else 400, code, **arguments)
            assert backend.log.next_seqnum & 0xFFFF == 0

    run(scenario())
