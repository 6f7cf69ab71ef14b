"""Handles of workflows and schedules in plain code: `def` functions, and `def` steps of workflows of both kinds."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import boki.testing
from boki import (
    AlreadyExists,
    CallCancelled,
    DeadlineExceeded,
    FunctionFailed,
    InvalidArgument,
    KeyReused,
    WrongState,
    blocking,
    function,
)
from boki.libs.bokiflow import NoSuchWorkflow, WorkflowEnded, flow, step, workflow
from boki.libs.bokiflow.blocking import Handle, Schedule
from boki.libs.bokiflow.refusals import NoSuchSchedule
from tests import unasync

pytestmark = pytest.mark.usefixtures("each_mode")

Scenario = Callable[[blocking.Context], Any]
SCENARIO: list[Scenario] = []
"""What the plain code of a test does."""
HELD: list[Any] = []
"""What code of a workflow reaches though it should not."""


@pytest.fixture(autouse=True)
def forget() -> None:
    SCENARIO.clear()
    HELD.clear()


@step
def weigh(grams: int) -> int:
    return grams * 2


@step
def undo(grams: int) -> None:
    HELD.append(grams)


@workflow
async def parcel(grams: int) -> list[Any]:
    stops: list[str] = []

    def stop(name: str) -> int:
        if not name:
            raise InvalidArgument("a stop has a name")
        stops.append(name)
        return len(stops)

    flow.on_query("stops", lambda _: list(stops))
    flow.on_update("stop", stop)
    weight = await flow.run(weigh, grams)
    flow.compensate(undo, grams)
    await flow.sleep(60)
    word = await flow.receive("go")
    return [weight, word, *stops, await flow.promise("signed")]


@function(timeout_s=10_000)
def in_function(ctx: blocking.Context) -> Any:
    return SCENARIO[0](ctx)


@step
def in_step() -> Any:
    return SCENARIO[0](step.blocking_ctx)


@workflow
async def of_async() -> Any:
    return await flow.run(in_step)


@workflow
def of_plain() -> Any:
    return in_step()


@pytest.fixture(params=["def function", "def step of async def", "def step of def"])
def run(request: pytest.FixtureRequest, boki_context: boki.testing.Context) -> Any:
    """Runs a scenario where plain code runs, and gives what it returned."""

    async def run_there(scenario: Scenario) -> Any:
        SCENARIO[:] = [scenario]
        if request.param == "def function":
            return await boki_context.invoke(in_function)
        target = of_async if request.param == "def step of async def" else of_plain
        return await (await target.start(boki_context)).result()

    return run_there


def let_go(handle: Handle[list[Any]]) -> list[Any]:
    """The result of a parcel that gets what it waits for."""
    handle.signal("go", "now")
    handle.resolve("signed", "Ada")
    return handle.result()


async def test_start_and_result(run: Any, boki_context: boki.testing.Context) -> None:
    """The same workflow as the `async` handle of that id, and its result as its type. The loop of the step runs on."""

    def scenario(ctx: blocking.Context) -> list[Any]:
        handle: Handle[list[Any]] = parcel.start(ctx, 5, id="a", attributes={"to": "Rome"})
        assert handle.status().attributes == {"to": "Rome"}
        return [handle.id, handle.invocation_id, handle.book, handle.workflow, repr(handle), let_go(handle)]

    same = parcel.handle(boki_context, "a")
    told = [same.id, same.invocation_id, same.book, same.workflow, repr(same)]
    assert await run(scenario) == [*told, [10, "now", "Ada"]]
    assert await same.result() == [10, "now", "Ada"]


async def test_what_a_start_does_about_an_id_in_use(run: Any) -> None:
    """As the `async` start: each policy, and refusals."""

    def scenario(ctx: blocking.Context) -> None:
        first = parcel.start(ctx, 5, id="a")
        assert parcel.start(ctx, 5, id="a").invocation_id == first.invocation_id
        with pytest.raises(KeyReused):
            parcel.start(ctx, 6, id="a")
        with pytest.raises(AlreadyExists):
            parcel.start(ctx, 5, id="a", if_running="fail")
        second = parcel.start(ctx, 6, id="a", if_running="kill")
        assert let_go(second)[0] == 12
        with pytest.raises(AlreadyExists):
            parcel.start(ctx, 6, id="a", if_ended="fail")
        assert let_go(parcel.start(ctx, 7, id="a", if_ended="again"))[0] == 14
        with pytest.raises(InvalidArgument, match="at most one payload"):
            parcel.start(ctx, 6, 7)  # type: ignore[call-overload]
        with pytest.raises(InvalidArgument, match="id"):
            parcel.handle(ctx, "")

    await run(scenario)


async def test_status(run: Any) -> None:
    """Of one that waits, and of none."""

    def scenario(ctx: blocking.Context) -> str:
        with pytest.raises(NoSuchWorkflow):
            parcel.handle(ctx, "a").status()
        handle = parcel.start(ctx, 5, id="a", delay_s=100)
        return handle.status().status

    assert await run(scenario) == "accepted"


async def test_a_result_that_is_not_there(run: Any) -> None:
    """It waits for as long as it may."""

    def scenario(ctx: blocking.Context) -> None:
        handle = parcel.start(ctx, 5)
        with pytest.raises(DeadlineExceeded, match="has not ended"):
            handle.result(wait_s=10)
        assert handle.status().status != "done"

    await run(scenario)


async def test_signal(run: Any) -> None:
    """Before the start, once under a key, and to none that has ended."""

    def scenario(ctx: blocking.Context) -> list[Any]:
        handle = parcel.handle(ctx, "a")
        handle.signal("go", "first", key="k")
        handle.signal("go", "second", key="k")
        parcel.start(ctx, 5, id="a")
        handle.resolve("signed", 1)
        found = handle.result()
        handle.signal("go", "first", key="k")
        with pytest.raises(WorkflowEnded):
            handle.signal("go", "late")
        return found

    assert await run(scenario) == [10, "first", 1]


async def test_update_and_query(run: Any) -> None:
    """Answers, what the handler raised, the same answer under one id, and what a query says."""

    def scenario(ctx: blocking.Context) -> list[Any]:
        handle = parcel.start(ctx, 5)
        assert [handle.update("stop", "Oslo", id="one"), handle.update("stop", "Bern")] == [1, 2]
        assert handle.update("stop", "Oslo", id="one") == 1
        with pytest.raises(KeyReused):
            handle.update("stop", "Rome", id="one")
        with pytest.raises(FunctionFailed, match="a stop has a name"):
            handle.update("stop", "")
        with pytest.raises(InvalidArgument, match="weather"):
            handle.query("weather")
        found = handle.query("stops")
        assert isinstance(found, list)
        return [*found, let_go(handle)]

    assert await run(scenario) == ["Oslo", "Bern", [10, "now", "Oslo", "Bern", "Ada"]]


async def test_an_update_that_is_not_answered(run: Any) -> None:
    """The wait ends, and the error says under which id it was sent."""

    def scenario(ctx: blocking.Context) -> str:
        handle = parcel.start(ctx, 5)
        with pytest.raises(DeadlineExceeded) as caught:
            handle.update("nothing", id="u", wait_s=0)
        return str(caught.value.details["update"])

    assert await run(scenario) == "u"


async def test_resolve_and_reject(run: Any) -> None:
    """The first value or error of a promise counts."""

    def scenario(ctx: blocking.Context) -> list[Any]:
        one, other = parcel.start(ctx, 1), parcel.start(ctx, 2)
        for handle in (one, other):
            handle.signal("go")
        one.resolve("signed", "Ada")
        one.reject("signed", WrongState("too late"))
        other.reject("signed", WrongState("nobody was at home"))
        with pytest.raises(FunctionFailed, match="nobody was at home"):
            other.result()
        return one.result()

    assert await run(scenario) == [2, None, "Ada"]


async def test_cancel_and_kill(run: Any) -> None:
    """One undoes what was done, and the other does not."""

    def scenario(ctx: blocking.Context) -> list[str]:
        found: list[str] = []
        for grams in (3, 4):
            handle = parcel.start(ctx, grams)
            with pytest.raises(DeadlineExceeded):
                handle.result(wait_s=10)  # by then it can be undone
            if grams == 3:
                handle.cancel("no more")
            else:
                handle.kill()
                handle.kill()
            with pytest.raises((FunctionFailed, CallCancelled), match="cancelled"):
                handle.result()
            found.append(handle.status().status)
            with pytest.raises(WorkflowEnded):
                handle.cancel()
        return found

    assert await run(scenario) == ["cancelled", "cancelled"]
    assert HELD == [3]


async def test_pause_and_resume(run: Any) -> None:
    """It stays where it is until it may continue."""

    def scenario(ctx: blocking.Context) -> list[Any]:
        handle = parcel.start(ctx, 5)
        handle.update("stop", "Oslo")
        handle.pause("for lunch")
        handle.signal("go", "now")
        handle.resolve("signed", "Ada")
        with pytest.raises(DeadlineExceeded):
            handle.result(wait_s=1_000)
        state = handle.status()
        handle.resume()
        return [state.status, state.note, handle.result()]

    assert await run(scenario) == ["paused", "paused: for lunch", [10, "now", "Oslo", "Ada"]]


async def test_rewind_and_fork(run: Any) -> None:
    """Back to a step, here and under another id: the fork has a handle of the same kind."""

    def scenario(ctx: blocking.Context) -> list[Any]:
        handle = parcel.start(ctx, 5, id="a")
        let_go(handle)
        copy: Handle[list[Any]] = handle.fork(1, id="b")
        assert isinstance(copy, Handle)
        with pytest.raises(AlreadyExists):
            handle.fork(1, id="b")
        found = [handle.rewind(1), handle.result(), copy.id, copy.result()]
        with pytest.raises(InvalidArgument):
            handle.rewind(99)
        return found

    assert await run(scenario) == [1, [10, "now", "Ada"], "b", [10, "now", "Ada"]]


async def test_upgrade(run: Any) -> None:
    """One that has ended is not moved; without a deployed version there is nothing to move to."""

    def scenario(ctx: blocking.Context) -> list[Any]:
        handle = parcel.start(ctx, 5, id="a")
        handle.update("stop", "Oslo")
        found = handle.upgrade(dry_run=True)
        let_go(handle)
        with pytest.raises(WorkflowEnded):
            handle.upgrade()
        return [found.id, found.diverges, found.is_moved]

    assert await run(scenario) == ["a", "", False]


@workflow
async def nightly(n: int) -> int:
    return n


async def test_schedule(run: Any, boki_context: boki.testing.Context) -> None:
    """All that can be said to a schedule."""

    def scenario(ctx: blocking.Context) -> list[Any]:
        schedule: Schedule = nightly.schedule(ctx, 7, id="s", every_s=3600, attributes={"kind": "night"})
        with pytest.raises(AlreadyExists):
            nightly.schedule(ctx, 7, id="s", every_s=3600)
        with pytest.raises(InvalidArgument):
            nightly.schedule(ctx, 7, id="never", cron="0 0 31 2 *")
        triggered = nightly.handle(ctx, schedule.trigger(key="now"))
        nightly.start(ctx, 0, delay_s=10).result()
        schedule.pause("holidays")
        paused = schedule.state()
        schedule.resume()
        assert schedule.state().status == "active"
        start = datetime.fromtimestamp(0, UTC) + timedelta(days=400)
        count = schedule.backfill(start, start + timedelta(hours=3))
        schedule.delete()
        with pytest.raises(NoSuchSchedule):
            nightly.schedule_handle(ctx, "s").state()
        return [triggered.result(), paused.status, paused.note, count, repr(schedule), schedule.invocation_id]

    same = nightly.schedule_handle(boki_context, "s")
    assert await run(scenario) == [7, "paused", "holidays", 3, repr(same), same.invocation_id]


def test_a_plain_test(boki_blocking_context: boki.testing.BlockingContext) -> None:
    """In the thread of the test, whose time passes while it waits."""
    ctx = boki_blocking_context
    handle = parcel.start(ctx, 5)
    handle.signal("go", "now")
    ctx.clock.advance(100)
    handle.resolve("signed", 1)
    assert handle.result() == [10, "now", 1]


async def test_a_def_step_has_its_log_and_functions(run: Any) -> None:
    """The whole context is there, in virtual time."""

    def scenario(ctx: blocking.Context) -> list[Any]:
        ctx.logbook.append(b"x", tags=["t"])
        later = ctx.invoke_later(nightly, 3)
        assert ctx.result_of(later) == 3
        found = ctx.logbook.read("t", wait_s=10).records
        missing = ctx.logbook.read("none", wait_s=10).records
        said = blocking.run(ctx.logbook, lambda logbook: logbook.read("t"))
        return [found[0].data.decode(), len(missing), len(said.records), ctx.invoke(echoed, "y")]

    assert await run(scenario) == ["x", 0, 1, "y"]


@function
def echoed(ctx: blocking.Context, word: str) -> str:
    return word


def test_the_blocking_handles_are_those_that_are_made() -> None:
    """Run `python -m tests.unasync` if this fails."""
    twin = unasync.FLOW_FOLDER / unasync.HANDLES_TWIN
    assert twin.read_text(encoding="utf-8") == unasync.plain_handles()
