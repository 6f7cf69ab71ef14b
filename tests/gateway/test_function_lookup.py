"""A name that the gateway does not know: no function, or one that no engine has told it of yet."""

from __future__ import annotations

import asyncio

import pytest

from boki.api.http.exchange import TIMEOUT
from boki.gateway.core import Budget, GatewayCore, Standing
from boki.gateway.server.http.function_lookup import no_such_function
from boki.protocol.calls import FunctionInfo
from tests.gateway.fake_backend import FakeBackend, refused, run, serving, turns_until

NEW = FunctionInfo(name="new", module="app", is_async=True)


@pytest.mark.parametrize(("path", "status"), [("/function/new", 200), ("/asyncFunction/new", 202)])
def test_a_call_waits_until_the_functions_are_known(path: str, status: int) -> None:
    """A gateway that has just started, or has lost all engines, runs the call once an engine has told of it."""

    async def scenario() -> None:
        backend = FakeBackend()
        backend.knows_functions = False
        async with serving(backend) as (gateway, _, http):
            task = asyncio.create_task(http.post(path))
            await waiting(gateway.core)
            backend.functions["new"] = NEW
            gateway.engine_changed(backend.engines[0], Standing())
            async with await task as response:
                assert response.status == status
            assert gateway.core.is_idle

    run(scenario())


@pytest.mark.parametrize("path", ["/flow/new/a/cancel", "/flow/new", "/flow-schedule/new/a/pause"])
def test_a_workflow_is_denied_only_once_the_functions_are_known(path: str) -> None:
    """The faces of libraries wait as calls do: `boki chaos` was told of a node that had just started that a workflow
    which ran did not exist.
    """

    async def scenario() -> None:
        backend = FakeBackend()
        backend.knows_functions = False
        async with serving(backend) as (gateway, _, http):
            task = asyncio.create_task(http.post(path))
            await waiting(gateway.core)
            backend.knows_functions = True
            gateway.engine_changed(backend.engines[0], Standing())
            async with await task as response:
                await refused(response, 404, "no_such_function")
            backend.knows_functions = False
            task = asyncio.create_task(http.post(path))
            await waiting(gateway.core)
            gateway.drain()
            gateway.engine_changed(backend.engines[0], Standing())
            async with await task as response:
                body = await refused(response, 503, "unavailable")
                assert body["message"].startswith("this gateway does not know yet")

    run(scenario())


def test_a_request_waits_no_longer_than_its_own_time() -> None:
    """It is refused while its client still listens, and that nothing was done is certain."""

    async def scenario() -> None:
        backend = FakeBackend()
        backend.knows_functions = False
        async with (
            serving(backend, budget=Budget(hold_us=60_000_000)) as (_, _, http),
            http.post("/flow/new/a/cancel", headers={TIMEOUT: "0.001"}) as response,
        ):
            body = await refused(response, 503, "unavailable")
            assert body["outcome"] == "not_applied"

    run(scenario())


def test_a_list_of_workflows_waits_until_any_function_is_known() -> None:
    """It shows those whose functions are workflows: with no function known it would be empty."""

    async def scenario() -> None:
        backend = FakeBackend()
        backend.knows_functions = False
        known, backend.functions = backend.functions, {}
        async with serving(backend) as (gateway, _, http):
            task = asyncio.create_task(http.get("/flow"))
            await waiting(gateway.core)
            backend.functions = known
            gateway.engine_changed(backend.engines[0], Standing())
            async with await task as response:
                assert response.status == 200

    run(scenario())


def test_a_name_is_refused_for_good_only_once_the_functions_are_known() -> None:
    """404 says that it is no function's, which only the complete list proves."""

    async def scenario() -> None:
        backend = FakeBackend()
        backend.knows_functions = False
        async with serving(backend) as (gateway, _, http):
            task = asyncio.create_task(http.post("/function/new"))
            await waiting(gateway.core)
            backend.knows_functions = True
            gateway.engine_changed(backend.engines[0], Standing())
            async with await task as response:
                await refused(response, 404, "no_such_function")

    run(scenario())


def test_what_stays_unknown_is_refused_as_retryable() -> None:
    """After the time that calls are held, and with a time after which to come again; at once when it drains."""

    async def scenario() -> None:
        backend = FakeBackend()
        backend.knows_functions = False
        async with serving(backend, budget=Budget(hold_us=0)) as (gateway, _, http):
            for _ in range(2):
                async with http.post("/function/new") as response:
                    body = await refused(response, 503, "unavailable")
                    assert (body["retryable"], body["outcome"]) == (True, "not_applied")
                    assert response.headers["Retry-After"] == "1"
                gateway.drain()

    run(scenario())


def test_a_waiting_lookup_ends_with_its_client_and_counts_while_it_waits() -> None:
    """A client that leaves frees its place, and a gateway lets in no more of them than its budget says."""

    async def scenario() -> None:
        backend = FakeBackend()
        backend.knows_functions = False
        async with serving(backend, budget=Budget(polls=1)) as (gateway, _, http):
            task = asyncio.create_task(http.post("/function/new"))
            await waiting(gateway.core)
            async with http.post("/function/new") as response:
                await refused(response, 429, "overloaded")
            task.cancel()
            await turns_until(lambda: gateway.core.is_idle)

    run(scenario())


@pytest.mark.parametrize(
    ("name", "functions", "message"),
    [
        ("greett", ["greet", "other"], "there is no function 'greett'; did you mean greet?"),
        ("x", ["greet", "place-order"], "there is no function 'x'; there are: greet, place-order"),
        ("x", [], "there is no function 'x'; no function is registered"),
        ("x", [f"f{n}" for n in range(9)], "there is no function 'x'; GET /status lists all 9 functions"),
    ],
    ids=["close", "few", "none", "many"],
)
def test_the_refusal_says_which_functions_there_are(name: str, functions: list[str], message: str) -> None:
    """B22: close names, all of a few names, or where the names are."""
    known = {one: FunctionInfo(name=one, module="app", is_async=True) for one in functions}
    assert no_such_function(name, known).message == message


async def waiting(core: GatewayCore) -> None:
    """Return once a request waits in the gateway."""
    await turns_until(lambda: core.poll_count > 0)


def test_a_path_that_is_nobodys_names_the_modules_that_cannot_be_loaded() -> None:
    """It may be the route of one of their functions, as `boki invoke` says of a name."""

    async def scenario() -> None:
        async with serving() as (_, backend, http):
            async with http.get("/shops/a") as response:
                body = await refused(response, 404, "not_found")
            assert body["message"] == (
                "there is nothing at /shops/a; /openapi.json lists all paths\n"
                "module broken is broken: broken.py:3: SyntaxError: invalid syntax"
            )
            backend.modules = backend.modules[:1]
            async with http.get("/shops/a") as response:
                body = await refused(response, 404, "not_found")
            assert body["message"] == "there is nothing at /shops/a; /openapi.json lists all paths"

    run(scenario())
