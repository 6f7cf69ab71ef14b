"""Workflows and versions of their code: pinned where they begin, moved by a request, whatever crashes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from boki import BokiError, Context, DeadlineExceeded, FunctionFailed, WrongState
from boki.api.append_gatherer import AppendGatherer
from boki.books.calls.logged_calls import LoggedCalls
from boki.dispatch.refusals import lost
from boki.extending import Function, Suspend, failure_of, invocation_id_of, version_of
from boki.libs.bokiflow import Diverged, Handle, Workflow, WorkflowEnded, flow, step, workflow
from boki.libs.bokiflow.records import Entry, Intended, encode_entry, journal_tag
from boki.libs.bokiflow.replaying import read_history
from boki.libs.bokiflow.upgrading import Upgrade
from boki.log.operations import Append
from boki.protocol.calls import Call, CallChange, InvocationState, Move, Outcome
from boki.verify.sim.flow_work import context_of, left_by
from tests.books.calls.call_world import CallWorld, Fault, a_call, failing, now_us, run, time_passes

EFFECTS: list[str] = []


@step
async def book(what: str) -> str:
    EFFECTS.append(what)
    return what


@workflow(name="trip", book="trips")
async def first(city: str) -> str:
    flow.on_query("where", lambda _: f"first in {city}")
    await book(f"hotel in {city}")
    return f"first {await flow.receive('go')}"


@workflow(name="trip", book="trips")
async def second(city: str) -> str:
    flow.on_query("where", lambda _: f"second in {city}")
    await book(f"hotel in {city}")
    word = await flow.receive("go")
    await book(f"flight to {city}")
    return f"second {word}"


@workflow(name="trip", book="trips")
async def other(city: str) -> str:
    await book(f"tent in {city}")
    return f"other {await flow.receive('go')}"


@workflow(name="trip", book="trips")
async def without_query(city: str) -> str:
    await book(f"hotel in {city}")
    return f"last {await flow.receive('go')}"


class Versions(CallWorld):
    """An engine with deployed versions of the code, of which the last one runs."""

    def __init__(self, *code: Workflow[Any, Any]) -> None:
        super().__init__()
        self.code = code
        self.deployed = 1
        self.kills = 0
        """Number of runs that will be lost with their worker, which has used too much memory."""
        self.is_stuck = False
        """Whether no worker comes up for what attends to a workflow."""
        EFFECTS.clear()

    async def begin(self, faults: dict[int, Fault] | None = None) -> LoggedCalls:
        """A process starts."""
        return await self.start(faults, version=lambda _: self.deployed)

    def context(self, call: Call) -> Context:
        """What a function is given that runs on that process."""
        return context_of(call, self.port, AppendGatherer(self.port), _Calls(self.calls), now_us)

    @property
    def handle(self) -> Handle[str]:
        """The workflow, from a function of its LogBook."""
        return first.handle(self.context(a_user(99)), "t-1")

    async def start_trip(self) -> None:
        """Start it, and let it come to where it waits for a signal."""
        await first.start(self.context(a_user(98)), "Rome", id="t-1")
        await self.until("suspended")

    async def until(self, state: str) -> None:
        """Let time pass until it is in that state."""
        async with asyncio.timeout(600):
            while (await self.handle.status()).status != state:
                await time_passes(0.1)

    async def _run(self, call: Call) -> Outcome:
        number = version_of(None if call.chosen is None else call.chosen.attributes) or self.deployed
        self.ran.append(call)
        if self.kills and not call.is_tried:  # the loss of a try is no loss of a run
            self.kills -= 1
            live: Any = SimpleNamespace(info=Function.of(first).info)
            return failing(
                lost(live, "was killed because it used 30 bytes of memory, more than its memory_bytes of 9", 1)
            )
        if self.is_stuck and call.chosen is not None and call.chosen.attends:
            await asyncio.get_running_loop().create_future()
        known = Function.of(self.code[number - 1])
        ctx = self.context(call)
        try:
            found = await known.run(ctx, *known.arguments_of(call))
        except Suspend as suspend:
            return Outcome(None, None, ctx.positions, suspend.suspension)
        except Exception as error:  # noqa: BLE001 - whatever it raises ends its call
            return Outcome(None, failure_of(call.function, error), ctx.positions, appends=left_by(ctx))
        return Outcome(known.encode_result(found), None, ctx.positions, appends=left_by(ctx))


def a_user(number: int) -> Call:
    """A call of a function that takes its time."""
    return a_call(number, "user", timeout_s=1e6)


class _Calls:
    """The logged calls of that engine, for what runs there."""

    def __init__(self, calls: LoggedCalls) -> None:
        self._calls = calls

    async def invoke(self, call: Call) -> Outcome:
        raise AssertionError(f"{call.function} was called without being logged")

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        return await self._calls.accept(Function.of(first).info.to_be_logged(call), key=key, delay_s=delay_s)

    async def ask_call(self, invocation_id: str, wait_s: float, change: CallChange) -> InvocationState:
        return await self._calls.asked(invocation_id, wait_s, change)


def scenario(act: Callable[[Versions], Awaitable[None]], *code: Workflow[Any, Any]) -> None:
    """Run it in a world where the first version of the code runs at first."""

    async def whole() -> None:
        world = Versions(*code)
        await world.begin()
        await world.start_trip()
        await act(world)
        await world.calls.stop()

    run(whole())


def test_a_workflow_stays_with_its_version() -> None:
    """Whatever is deployed while it waits: what was started before and after end by the code they began with."""

    async def act(world: Versions) -> None:
        world.deployed = 2
        later = await first.start(world.context(a_user(97)), "Oslo", id="t-2")
        for handle in (world.handle, later):
            await handle.signal("go", "now")
        assert [await world.handle.result(), await later.result()] == ["first now", "other now"]
        assert [(await one.status()).version for one in (world.handle, later)] == [1, 2]

    scenario(act, first, other)


def test_a_query_is_answered_by_the_version_of_the_workflow() -> None:
    """Where the code of the one that asks does something else than what is recorded."""

    async def act(world: Versions) -> None:
        world.deployed = 2
        asked = other.handle(world.context(a_user(96)), "t-1")
        assert await asked.query("where") == "first in Rome"

    scenario(act, first, other)


def test_a_query_is_answered_by_the_handler_of_that_version() -> None:
    """Also where the code of the one that asks does the same steps: its handler is another one, or is not there."""

    async def act(world: Versions) -> None:
        for number, code in enumerate((second, without_query), 2):
            world.deployed = number
            asked = code.handle(world.context(a_user(96 - number)), "t-1")
            assert await asked.query("where") == "first in Rome"
        await world.handle.signal("go", "now")
        assert await world.handle.result() == "first now"
        assert await world.handle.query("where") == "first in Rome", "the version of one that has ended, too"

    scenario(act, first, second, without_query)


def test_a_query_that_is_not_answered_ends() -> None:
    """The version of the workflow may have no worker: that is an error, and no answer."""

    async def act(world: Versions) -> None:
        world.deployed, world.is_stuck = 2, True
        asked = other.handle(world.context(a_user(96)), "t-1")
        with pytest.raises(DeadlineExceeded, match="was not answered within 60 s"):
            await asked.query("where")
        with pytest.raises(DeadlineExceeded, match="was not moved, and may be yet, within 60 s"):
            await world.handle.upgrade()

    scenario(act, first, other)


def test_a_replay_that_loses_its_worker_is_given_up() -> None:
    """Each one takes other workflows with it: what a replay needs too much memory for cannot be asked, nor moved."""

    async def act(world: Versions) -> None:
        world.deployed = 2
        asked = other.handle(world.context(a_user(96)), "t-1")
        world.kills = 2
        assert await asked.query("where") == "first in Rome"
        for ask in (lambda: asked.query("where"), world.handle.upgrade):
            world.kills = 3
            with pytest.raises(
                FunctionFailed, match=r"replay of trip was lost 3 times: the worker process .* was kill"
            ):
                await ask()
        await world.handle.signal("go", "now")
        assert await world.handle.result() == "first now"

    scenario(act, first, other)


def test_an_upgrade_moves_what_does_not_diverge() -> None:
    """From there on it runs the code of that version, and what it did before is not done again."""

    async def act(world: Versions) -> None:
        world.deployed = 2
        dry = await world.handle.upgrade(dry_run=True)
        assert (dry.before, dry.version, dry.is_moved) == (1, 2, False)
        assert (await world.handle.status()).version == 1
        found = await world.handle.upgrade()
        assert found == Upgrade(id="t-1", workflow="trip", before=1, version=2, is_moved=True)
        assert (await world.handle.upgrade()).before == 2  # again: nothing more happens
        await world.handle.signal("go", "now")
        assert await world.handle.result() == "second now"
        assert EFFECTS == ["hotel in Rome", "flight to Rome"]
        with pytest.raises(WorkflowEnded, match="has ended"):
            await world.handle.upgrade()

    scenario(act, first, second)


def test_an_upgrade_that_diverges_is_refused() -> None:
    """With both sides named, and the workflow ends by the code that it began with."""

    async def act(world: Versions) -> None:
        world.deployed = 2
        with pytest.raises(Diverged, match=r"stays with version 1: with 2, recorded was book#0, and the code"):
            await world.handle.upgrade()
        assert (await world.handle.status()).version == 1
        await world.handle.signal("go", "now")
        assert await world.handle.result() == "first now"

    scenario(act, first, other)


@workflow(name="trip", book="trips")
async def by_number(city: int) -> str:
    return f"{city} {await flow.receive('go')}"


def test_an_upgrade_to_code_that_takes_another_payload_is_refused() -> None:
    """The workflow would fail as soon as it ran."""

    async def act(world: Versions) -> None:
        world.deployed = 2
        for dry_run in (True, False):
            with pytest.raises(Diverged, match="stays with version 1: with 2, recorded was another payload than the"):
                await world.handle.upgrade(dry_run=dry_run)
        await world.handle.signal("go", "now")
        assert await world.handle.result() == "first now"

    scenario(act, first, by_number)


def test_an_upgrade_compares_intents() -> None:
    """A step that was about to begin, at most once, is in the journal; code that does not start it is refused."""

    async def act(world: Versions) -> None:
        world.deployed = 2
        handle, book = world.handle, world.context(a_user(97)).logbook_named("trips")
        tag = journal_tag(handle.invocation_id)
        history = await read_history(book, tag)
        last = history.entries[-1]
        intent = Entry(7, history.place, last.seen, last.at_us, Intended(1, "charge", b""), 0, history.life)
        await book.append(encode_entry(intent), [tag])
        with pytest.raises(Diverged, match=r"recorded was charge#1, and the code did not start it"):
            await handle.upgrade()

    scenario(act, first, second)


def test_a_version_is_named_to_go_back() -> None:
    """A workflow that was moved can be moved back, as long as its history does not diverge there."""

    async def act(world: Versions) -> None:
        world.deployed = 2
        await world.handle.upgrade()
        assert (await world.handle.upgrade(1)).version == 1
        await world.handle.signal("go", "now")
        assert await world.handle.result() == "first now"

    scenario(act, first, second)


def test_a_rewound_workflow_runs_what_is_deployed() -> None:
    """It may have failed for want of that code."""

    async def act(world: Versions) -> None:
        await world.handle.signal("go", "now")
        assert await world.handle.result() == "first now"
        world.deployed = 2
        await world.handle.rewind()
        assert await world.handle.result() == "second now"
        assert (await world.handle.status()).version == 2

    scenario(act, first, second)


def test_a_call_that_runs_is_not_moved() -> None:
    """Nor one that has run since it was looked at: what is checked is what is moved."""

    async def act(world: Versions) -> None:
        run_id = invocation_id_of("trip", "trips", "t-1")
        with pytest.raises(WrongState, match="has run since"):
            await world.calls.asked(run_id, 0, Move(2, attempts=7))
        await world.handle.signal("go", "now")
        await world.handle.result()
        with pytest.raises(WrongState, match="has ended"):
            await world.calls.asked(run_id, 0, Move(2, attempts=1))

    scenario(act, first, second)


def test_a_workflow_that_uses_too_much_memory_is_paused() -> None:
    """After eight kills in a row, with the reason; resumed with more memory, it continues. Fewer kills do no harm."""

    async def act(world: Versions) -> None:
        world.kills = 3
        await world.handle.signal("go", "now")
        assert await world.handle.result(wait_s=600) == "first now"
        world.kills = 8
        other_one = await first.start(world.context(a_user(97)), "Oslo", id="t-2")
        async with asyncio.timeout(600):
            while (found := await other_one.status()).status != "paused":
                await time_passes(0.5)
        assert found.note.startswith(
            "paused: lost 8 times in a row without progress: the worker process of the call of 'trip' was killed"
        )
        assert "more than its memory_bytes of 9" in found.note
        await time_passes(3600)
        assert (await other_one.status()).status == "paused"
        await other_one.resume()
        await other_one.signal("go", "on")
        assert await other_one.result(wait_s=600) == "first on"

    scenario(act, first)


@step
async def survive(n: int) -> int:
    EFFECTS.append(str(n))
    if EFFECTS.count(str(n)) == 1:
        await asyncio.get_running_loop().create_future()
    return n


@workflow(name="trip", book="trips")
async def chain(count: int) -> list[int]:
    return [await survive(n) for n in range(count)]


def test_an_engine_may_be_lost_in_each_step_of_a_long_workflow() -> None:
    """By the numbers that the engine gives to runs and attempts."""

    async def whole() -> None:
        world = Versions(chain)
        await world.begin()
        await chain.start(world.context(a_user(98)), 20, id="t-1")
        for n in range(20):
            async with asyncio.timeout(600):
                while str(n) not in EFFECTS:
                    await time_passes(0.1)
            await world.kill()
            await world.begin()
        handle = chain.handle(world.context(a_user(99)), "t-1")
        assert await handle.result(wait_s=600) == list(range(20))
        begun = [str(n) for n in range(20) for _ in range(2)]
        assert begun == EFFECTS
        await world.calls.stop()

    run(whole())


async def crashed(fault: Fault | None, at: int, code: Workflow[Any, Any]) -> tuple[str, int, list[str], list[int]]:
    """An upgrade in a process that dies at its n-th operation, and the next process, which is asked again: the result,
    the version, the effects, and which operations of the upgrade were appends.
    """
    world = Versions(first, code)
    await world.begin()
    await world.start_trip()
    world.deployed = 2
    begin = len(world.port.operations)
    if fault is not None:
        world.port.faults[begin + at] = fault
    asking = asyncio.ensure_future(world.handle.upgrade())
    halted = asyncio.ensure_future(world.port.halted.wait())
    await asyncio.wait([asking, halted], timeout=120, return_when=asyncio.FIRST_COMPLETED)
    appends = [n for n, operation in enumerate(world.port.operations[begin:]) if isinstance(operation, Append)]
    if fault is not None:
        assert len(world.port.operations) > begin + at
        await world.kill()
        await world.begin()
        asking = asyncio.ensure_future(world.handle.upgrade())
    with suppress(BokiError):
        await asking
    halted.cancel()
    await world.handle.signal("go", "now")
    result = await world.handle.result(wait_s=600)
    version = (await world.handle.status()).version
    await world.calls.stop()
    return result, version, list(EFFECTS), appends


@pytest.mark.parametrize("fault", ["halt_before", "halt_after"])
@pytest.mark.parametrize("moves", [True, False])
def test_a_crash_at_each_append_of_an_upgrade(fault: Fault, moves: bool) -> None:
    """Enumerated: after a restart it is moved, or refused, as without the crash; each effect was done once."""
    code, expected = (second, ("second now", 2)) if moves else (other, ("first now", 1))
    *whole, appends = run(crashed(None, 0, code))
    assert whole[:2] == [*expected]
    assert len(appends) >= 2 + moves
    for at in appends:
        *found, _ = run(crashed(fault, at, code))
        assert found == whole, at
