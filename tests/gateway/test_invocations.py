"""Logged calls over HTTP and through the clients: lists, cancel, run again, and policies for one call."""

from __future__ import annotations

import asyncio
import json

import pytest

from boki import CallCancelled, FunctionFailed, InvalidArgument, NoSuchInvocation, Retry, WrongState
from boki.client import BlockingClient, Client
from tests.gateway.fake_backend import FakeBackend, refused, run, serving, turns_until


def test_a_client_cancels_and_runs_again_by_id() -> None:
    """What it is told is the state of the call afterwards; what cannot be is refused by name."""

    async def scenario() -> None:
        async with serving() as (gateway, _, _), Client(gateway.url) as client:
            waiting = await client.invoke_later("echo", 1, delay_s=60)
            for _ in range(2):
                state = await client.cancel(waiting)
                assert (state.state, state.attempts, state.is_over) == ("cancelled", 0, True)
                assert isinstance(state.error, CallCancelled)
                assert state.error.outcome == "not_applied"
            assert (await client.retry(waiting)).state in ("accepted", "running")
            done = await client.invocation(waiting, wait_s=20)
            assert (done.state, done.result, done.attempts) == ("done", 1, 1)
            with pytest.raises(WrongState, match="cannot be cancelled"):
                await client.cancel(waiting)
            with pytest.raises(WrongState, match="nothing to retry"):
                await client.retry(waiting)
            for change in (client.cancel, client.retry):
                with pytest.raises(NoSuchInvocation):
                    await change("0" * 32)

    run(scenario())


def test_a_cancelled_call_that_somebody_waits_for_under_a_key_ends() -> None:
    """Its caller is told at once, with the id of the call."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http), Client(gateway.url) as client:
            waiter = asyncio.create_task(_posted(http, "/function/hang", {"Idempotency-Key": "k"}))
            await backend.until(lambda: bool(backend.hanging))
            (invocation,) = backend.hanging
            await client.cancel(invocation)
            status, body = await waiter
            assert (status, body["code"], body["outcome"]) == (409, "call_cancelled", "unknown")

    run(scenario())


async def _posted(http: object, path: str, headers: dict[str, str]) -> tuple[int, dict[str, object]]:
    async with http.post(path, headers=headers) as response:  # type: ignore[attr-defined]
        return response.status, await response.json()


def test_lists_are_filtered_and_paged() -> None:
    """By function and state; a page says where the next one continues; results are left out."""

    async def scenario() -> None:
        async with serving() as (gateway, _, http), Client(gateway.url) as client:
            ids = [await client.invoke_later("echo", number) for number in range(5)]
            failed = await client.invoke_later("fail")
            for invocation in (*ids, failed):
                await client.invocation(invocation, wait_s=20)
            later = await client.invoke_later("echo", 9, delay_s=60)
            seen: list[str] = []
            before = 0
            while True:
                page = await client.calls(function="echo", limit=2, before=before)
                assert len(page.calls) <= 2
                seen += [call.id for call in page.calls]
                before = page.before
                if not before:
                    break
            assert sorted(seen) == sorted([*ids, later])
            (only,) = (await client.calls(states=["failed"])).calls
            assert (only.id, only.state, only.errors) == (failed, "failed", {"ValueError": 1})
            assert isinstance(only.error, FunctionFailed)
            (waits,) = (await client.calls(states=["accepted", "running"])).calls
            assert waits.id == later
            assert all(call.result is None for call in (await client.calls()).calls)
            async with http.get("/invocation?state=failed&state=done&limit=1") as response:
                body = await response.json()
                assert len(body["calls"]) == 1
                assert isinstance(body["before"], str)

    run(scenario())


def test_the_blocking_client_does_the_same() -> None:
    """Lists, cancels, runs again, and gives policies."""

    def body(url: str) -> None:
        with BlockingClient(url) as client:
            waiting = client.invoke_later("echo", 1, delay_s=60, retry=Retry(attempts=2))
            assert [call.id for call in client.calls(states=["accepted"]).calls] == [waiting]
            assert client.cancel(waiting).state == "cancelled"
            assert client.retry(waiting).id == waiting
            assert client.invocation(waiting, wait_s=20).state == "done"

    async def scenario() -> None:
        async with serving() as (gateway, _, _):
            await asyncio.to_thread(body, gateway.url)

    run(scenario())


def test_a_call_under_a_key_takes_a_policy_from_both_clients() -> None:
    """As the header does; a call without a key is not logged, so a policy for it is refused before it is sent."""
    policy, refusal = Retry(attempts=3, first_s=0), "retry is for logged calls: pass a key, too, or use invoke_later"

    def blocking(url: str) -> None:
        with BlockingClient(url) as client:
            with pytest.raises(FunctionFailed):
                client.invoke("fail", 1, key="k2", retry=policy)
            with pytest.raises(InvalidArgument, match=refusal):
                client.invoke("echo", 1, retry=policy)

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client:
            with pytest.raises(FunctionFailed):
                await client.invoke("fail", 1, key="k1", retry=policy)
            with pytest.raises(InvalidArgument, match=refusal):
                await client.invoke("echo", 1, retry=policy)
            await asyncio.to_thread(blocking, gateway.url)
            assert [call.retry for call in backend.started] == [policy] * 6

    run(scenario())


@pytest.mark.parametrize("path", ["/asyncFunction/fail", "/function/fail"])
def test_a_header_gives_one_call_a_policy(path: str) -> None:
    """For calls that are logged: asynchronous ones, and those under a key."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, http), Client(gateway.url) as client:
            headers = {"Boki-Retry": json.dumps({"attempts": 3, "first_s": 0}), "Idempotency-Key": "k"}
            async with http.post(path, headers=headers) as response:
                invocation = response.headers["Boki-Invocation"]
            state = await client.invocation(invocation, wait_s=20)
            assert (state.state, state.attempts, state.errors) == ("failed", 3, {"ValueError": 3})
            assert [call.retry for call in backend.started] == [Retry(attempts=3, first_s=0)] * 3

    run(scenario())


def test_a_clients_policy_travels_whatever_is_in_its_names() -> None:
    """Also names that a header cannot hold as they are."""

    async def scenario() -> None:
        async with serving() as (gateway, backend, _), Client(gateway.url) as client:
            policy = Retry(attempts=2, errors=('Fehler "ä"', "b\r\nc"))
            await client.invocation(await client.invoke_later("echo", 1, retry=policy), wait_s=20)
            assert backend.started[0].retry == policy

    run(scenario())


RETRY_FORM = 'Boki-Retry must be a JSON object such as {"attempts": 3, "first_s": 1}: '
WRONG: dict[str, tuple[str, str, dict[str, str], str]] = {
    "plain call": (
        "POST",
        "/function/echo",
        {"Boki-Retry": "{}"},
        "Boki-Retry is for logged calls: send an Idempotency-Key, too, or call /asyncFunction",
    ),
    "no JSON": (
        "POST",
        "/asyncFunction/echo",
        {"Boki-Retry": "thrice"},
        RETRY_FORM + "it is not JSON: expecting value at line 1, column 1",
    ),
    "a number": ("POST", "/asyncFunction/echo", {"Boki-Retry": "3"}, "Boki-Retry: expected object, got int"),
    "a misspelt field": (
        "POST",
        "/asyncFunction/echo",
        {"Boki-Retry": '{"attempt": 3}'},
        (
            "Boki-Retry: there is no field 'attempt'; did you mean attempts? Allowed: attempts, deadline_s, errors, "
            "factor, first_s, jitter, max_s, never"
        ),
    ),
    "no attempts": (
        "POST",
        "/asyncFunction/echo",
        {"Boki-Retry": '{"attempts": 0}'},
        "Boki-Retry: attempts of Retry must be an int from 1 to 10,000, not 0",
    ),
    "a state that is none": (
        "GET",
        "/invocation?state=lost",
        {},
        "state must be accepted, cancelled, done, failed, retrying, running or suspended, not 'lost'",
    ),
    "an empty page": ("GET", "/invocation?limit=0", {}, "limit must be a whole number from 1 to 500, not '0'"),
}


@pytest.mark.parametrize("row", WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_refused_with_what_to_send(row: tuple[str, str, dict[str, str], str]) -> None:
    """The whole message, and nothing was logged."""
    method, path, headers, message = row

    async def scenario() -> None:
        async with serving() as (_, backend, http), http.request(method, path, headers=headers) as response:
            body = await refused(response, 400, "invalid_argument")
            assert body["message"] == message
            assert not backend.started

    run(scenario())


def test_a_state_shows_the_runs_of_a_call() -> None:
    """How often, when first and last, what they ended with, when the next is due."""

    async def scenario() -> None:
        backend = FakeBackend()
        async with serving(backend) as (gateway, _, http), Client(gateway.url) as client:
            invocation = await client.invoke_later("fail", retry=Retry(attempts=2, first_s=50, jitter=0))
            await backend.until(lambda: bool(backend.started))
            waiting = backend.ledger._book.ledger.waiting
            await turns_until(lambda: waiting[invocation].state == "retrying")
            state = await client.invocation(invocation)
            assert (state.attempts, state.errors) == (1, {"ValueError": 1})
            assert state.next_us - state.last_started_us == 50_000_000
            assert isinstance(state.last_error, FunctionFailed)
            async with http.get(f"/invocation/{invocation}") as response:
                body = await response.json()
            assert body["last_error"]["code"] == "function_failed"
            assert "error" not in body

    run(scenario())
