"""Workers that try what they start: the engine takes such a try in place of its own, if it is the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from boki.dispatch.orders import KillWorker, SendCall, SendCancel
from boki.dispatch.server.own_tries import OwnTries, OwnTry
from boki.dispatch.server.until_gone import run_until_gone
from boki.protocol.calls import PINNED, Call, ChosenId, Outcome, Payload
from boki.worker.frames import InvokeLater, is_try_of, ticket_of_try
from tests.engine.host import Gate, Host, drive, hosting

FLOWS = {
    "m": """
    from contextvars import ContextVar

    from boki.libs.bokiflow import step, workflow

    @step(pure=True)
    async def double(n: int) -> int:
        return 2 * n

    @step(pure=True)
    async def wait(gate: str) -> str:
        wait_at(gate)
        return gate

    @step(pure=True)
    async def rest(n: int) -> None:
        await asyncio.sleep(n)

    @step
    async def note(n: int) -> int:
        return n

    @workflow
    async def computes(n: int) -> int:
        return await double(n)

    OF_CALLER = ContextVar("of the caller", default=0)

    @workflow
    async def looks(n: int) -> int:
        return OF_CALLER.get()

    @workflow
    async def blocked(gate: str) -> str:
        return await wait(gate)

    @workflow
    async def sleeps(n: int) -> int:
        await rest(n)
        return n

    @workflow
    async def notes(n: int) -> int:
        return await note(n)

    @function
    async def start(ctx: Context, name: str) -> str:
        OF_CALLER.set(1)
        handle = await globals()[name].start(ctx, 3, id="x")
        return handle.id

    @function
    async def start_blocked(ctx: Context, gate: str) -> str:
        return (await blocked.start(ctx, gate, id="x")).id
    """
}


def sent(host: Host) -> list[str]:
    """The functions whose calls were sent to a worker."""
    return [effect.call.function for effect in host.effects if isinstance(effect, SendCall)]


async def started(host: Host, function: str, payload: str) -> tuple[asyncio.Task[Outcome], Call]:
    """A call that starts a workflow, and the call that it asks to be logged, as it is tried. It is not answered yet."""
    host.may_log_calls.clear()
    before = len(host.later_calls)
    caller = host.begin(function, payload)
    await host.until(lambda: len(host.later_calls) > before)
    call, _, _ = host.later_calls[-1]
    return caller, msgspec.structs.replace(call, run=1, attempt=1, is_tried=True)


async def answered(host: Host, caller: asyncio.Task[Outcome]) -> None:
    """The start is answered, and with it the call that made it."""
    host.may_log_calls.set()
    assert (await caller).failure is None


def test_a_worker_tries_what_it_starts_and_the_engine_sends_nothing(tmp_path: Path) -> None:
    """Whether it has ended before the engine asks for it or after: with what it returned and left to be appended."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            caller, call = await started(host, "start", "computes")
            outcome = await run_until_gone(host, call)
            assert outcome.result == Payload("json", b"6") and len(outcome.appends) == 1
            await answered(host, caller)
            caller, call = await started(host, "start", "notes")
            await host.until(lambda: host.call_count == 1)  # the try is over
            outcome = await run_until_gone(host, call)
            assert outcome.suspended is not None and outcome.suspended.note == "to be accepted first"
            await answered(host, caller)
            assert sent(host) == ["start", "start"]
            assert not host.operations
            (link,) = host._processes.links.values()
            assert link.tally.begun == 2, "else calls that have begun would run again after a loss of the worker"

    drive(test())


@pytest.mark.parametrize("changed", ["payload", "start", "functions", "run"])
def test_what_is_not_the_same_call_or_code_is_sent(tmp_path: Path, changed: str) -> None:
    """Such as a start of the same name that came with another request, or the try of a replaced version."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            caller, call = await started(host, "start", "computes")
            if changed == "payload":
                call = msgspec.structs.replace(call, payload=Payload("json", b"4"))
            elif changed == "start":
                call = msgspec.structs.replace(call, chosen=ChosenId("another", attributes={PINNED: 0}))
            elif changed == "functions":
                host.functions_number += 1
            else:
                call = msgspec.structs.replace(call, is_tried=False)
            outcome = await run_until_gone(host, call)
            assert outcome.result == Payload("json", b"8" if changed == "payload" else b"6")
            assert sent(host) == ["start", "computes"]
            await answered(host, caller)
            await host.until(lambda: host._dispatch.is_empty)
            assert not host._own_tries._waiting

    drive(test())


def test_a_try_knows_nothing_of_the_call_that_has_started_it(tmp_path: Path) -> None:
    """Its context is that of a call which the engine has sent."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            caller, call = await started(host, "start", "looks")
            assert (await run_until_gone(host, call)).result == Payload("json", b"0")
            await answered(host, caller)
            assert sent(host) == ["start"]

    drive(test())


def test_a_try_that_nobody_has_asked_for_is_cancelled_when_its_start_is_answered(tmp_path: Path) -> None:
    """The engine did not want it, or another one logs the call."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            caller, _ = await started(host, "start", "sleeps")
            assert host.call_count == 2
            await answered(host, caller)
            await host.until(lambda: host._dispatch.is_empty)
            (worker,) = host._processes.links
            cancelled = [effect.ticket for effect in host.effects if isinstance(effect, SendCancel)]
            assert len(cancelled) == 1 and is_try_of(worker, cancelled[0])
            assert not host._own_tries._waiting and not host._done

    drive(test())


def test_a_try_that_is_given_up_is_cancelled_in_its_worker(tmp_path: Path) -> None:
    """As after five milliseconds; it is over when its worker says so."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            caller, call = await started(host, "start", "sleeps")
            trying = asyncio.ensure_future(run_until_gone(host, call))
            await asyncio.sleep(0)
            trying.cancel()
            await host.until(lambda: host.call_count == 1)  # the caller, whose start is not answered
            await answered(host, caller)
            with pytest.raises(asyncio.CancelledError):
                await trying

    drive(test())


def test_the_start_is_on_its_way_while_the_body_blocks_the_worker(tmp_path: Path) -> None:
    """So the engine can accept the call, and the body is one of the calls that the worker has begun."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            with Gate(tmp_path / "gate") as gate:
                caller, _ = await started(host, "start_blocked", gate.path)
                await gate.arrived()
                assert host.call_count == 2
                gate.open()
                await answered(host, caller)
                await host.until(lambda: host._dispatch.is_empty)

    drive(test())


@pytest.mark.parametrize("ticket", [ticket_of_try(99, 1), 5])
def test_a_worker_that_tries_under_a_ticket_of_others_is_killed(tmp_path: Path, ticket: int) -> None:
    """User code runs in it: it must not end calls of other workers."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            caller, call = await started(host, "start", "computes")
            await run_until_gone(host, call)
            (link,) = host._processes.links.values()
            host.from_worker(link, InvokeLater(7, 1, call, 0.0, None, ticket))
            assert any(isinstance(effect, KillWorker) for effect in host.effects)
            assert len(host.later_calls) == 1
            reason = host._dispatch._fleet.workers[link.number].reason
            assert reason == f"was killed because it tried a call under the ticket {ticket}"
            host.may_log_calls.set()
            await asyncio.wait([caller])

    drive(test())


def test_an_outcome_is_told_once_whenever_it_is_asked_for() -> None:
    """Before the try has ended, or after; and what was taken is not dropped."""
    own, told = OwnTries(), []
    call = Call("0" * 32, "f", Payload("json", b"3"), "", 1, chosen=ChosenId("s"))
    for is_early in (True, False):
        begun = OwnTry(-1, call, 1)
        own.keep(begun)
        if is_early:
            begun.end(Outcome(None, None))
        assert own.taken(call, 2) is None
        assert own.taken(call, 1) is begun
        assert own.taken(call, 1) is None
        begun.tell(told.append)
        if not is_early:
            assert len(told) == 1
            begun.end(Outcome(None, None))
        own.drop(begun, pytest.fail)
    assert len(told) == 2
