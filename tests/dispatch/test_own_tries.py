"""Workers that try what they start: the engine takes such a try in place of its own, if it is the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from boki.dispatch.orders import KillWorker, SendCall, SendCancel
from boki.dispatch.server.own_tries import OwnTries, OwnTry
from boki.dispatch.server.until_gone import run_until_gone
from boki.dispatch.server.worker_link import WorkerLink
from boki.log.limits import DEFAULT_LIMITS
from boki.log.operations import Appended
from boki.protocol.calls import PINNED, Call, ChosenId, Outcome, Payload
from boki.worker.frames import Accepted, Ended, Frame, InvokeLater, is_try_of, max_frame_bytes, ticket_of_try
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

    @workflow
    async def takes(text: str) -> None:
        print("runs")

    @function
    async def start_large(ctx: Context, size: int) -> None:
        try:
            await takes.start(ctx, size * "x", id="x")
        finally:
            for _ in range(20):
                await asyncio.sleep(0)

    @function
    async def append_and_start(ctx: Context) -> None:
        await ctx.logbook.append(b"x")
        await sleeps.start(ctx, 600, id="x")

    @function
    async def leave(ctx: Context, names: list[str]) -> None:
        starts = [asyncio.ensure_future(globals()[name].start(ctx, 600, id=str(n))) for n, name in enumerate(names)]
        for _ in range(100):
            await asyncio.sleep(0)
        for start in starts:
            start.cancel()
        await asyncio.wait(starts)
        await sleeps.start(ctx, 600, id="x")

    @function
    async def start_blocked(ctx: Context, gate: str) -> str:
        return (await blocked.start(ctx, gate, id="x")).id
    """
}


def sent(host: Host) -> list[str]:
    """The functions whose calls were sent to a worker."""
    return [effect.call.function for effect in host.effects if isinstance(effect, SendCall)]


async def started(host: Host, function: str, payload: object, **more: Any) -> tuple[asyncio.Task[Outcome], Call]:
    """A call that starts a workflow, and the call that it asks to be logged, as it is tried. It is not answered yet."""
    host.may_log_calls.clear()
    before = len(host.later_calls)
    caller = host.begin(function, payload, **more)
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


def test_a_try_that_dispatch_refuses_is_cancelled_in_its_worker(tmp_path: Path) -> None:
    """Such as while the engine drains: nobody would end it at its deadline."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            host.holds_appends = True
            caller = host.begin("append_and_start")
            await host.until(lambda: bool(host.unanswered))
            host._dispatch.drain()
            host.may_log_calls.clear()
            heard: list[Frame] = []
            (worker,), from_worker = host._processes.links, host.from_worker

            def hear(link: WorkerLink, frame: Frame) -> None:
                heard.append(frame)
                from_worker(link, frame)

            host.from_worker = hear  # type: ignore[method-assign]
            host.unanswered[0][1](Appended(1), {})
            await host.until(lambda: any(isinstance(frame, Ended) for frame in heard))
            (start,) = [frame for frame in heard if isinstance(frame, InvokeLater)]
            assert [frame.ticket for frame in heard if isinstance(frame, Ended)] == [start.tried]
            assert is_try_of(worker, start.tried) and not host._own_tries._waiting
            await answered(host, caller)

    drive(test())


@pytest.mark.parametrize("attempt", [1, 2])
def test_a_caller_that_was_lost_has_its_starts_tried_by_the_engine_alone(tmp_path: Path, attempt: int) -> None:
    """A body that ends its process would end all runs of its caller, too."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            caller, call = await started(host, "start", "computes", run=5, attempt=attempt)
            assert (await run_until_gone(host, call)).result == Payload("json", b"6")
            assert sent(host) == ["start", "computes"][:attempt]
            await answered(host, caller)

    drive(test())


@pytest.mark.parametrize(
    ("name", "count", "is_tried"), [("sleeps", 4, True), ("sleeps", 8, False), ("computes", 8, True)]
)
def test_callers_who_leave(tmp_path: Path, name: str, count: int, is_tried: bool) -> None:
    """Their tries have missed nothing yet, and are bodies in this worker for as long as they run."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            host.may_log_calls.clear()
            caller = host.begin("leave", count * [name])
            await host.until(lambda: len(host.later_calls) == count + 1)
            last = host.later_calls[-1][0].id
            assert any(begun.call.id == last for begun in host._own_tries._waiting.values()) == is_tried
            await answered(host, caller)

    drive(test())


def test_what_cannot_be_sent_is_not_tried(tmp_path: Path) -> None:
    """No engine would know of it."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            failure = await host.failure("start_large", max_frame_bytes(DEFAULT_LIMITS))
            assert "TooLarge" in failure.message and not host.texts("stdout")
            caller, _ = await started(host, "start_large", 10)
            await host.until(lambda: host.texts("stdout") == ["runs"])
            await answered(host, caller)

    drive(test())


def test_the_worker_is_told_whether_its_try_was_taken(tmp_path: Path) -> None:
    """Else it would continue to try calls whose version it does not have."""

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            for has_taken_try in (True, False):
                caller, call = await started(host, "start", "computes")
                (link,) = host._processes.links.values()
                if has_taken_try:
                    await run_until_gone(host, call)
                told: list[object] = []
                send, link.send = link.send, told.append  # type: ignore[method-assign,assignment]
                host.may_log_calls.set()
                await host.until(lambda: bool(told))  # noqa: B023
                link.send = send  # type: ignore[method-assign]
                (answer,) = [frame for frame in told if isinstance(frame, Accepted)]
                assert answer.has_taken_try == has_taken_try
                for frame in told:
                    link.send(frame)  # type: ignore[arg-type]
                assert (await caller).failure is None

    drive(test())


@pytest.mark.parametrize(
    "wrong",
    [
        {"tried": ticket_of_try(99, 1)},
        {"tried": 5},
        {"tried": ticket_of_try(1, 0)},
        {"chosen": None},
        {"delay_s": 1.0},
        {"key": "k"},
    ],
)
def test_a_worker_that_tries_what_it_must_not_is_killed(tmp_path: Path, wrong: dict[str, Any]) -> None:
    """User code runs in it: it must not end calls of other workers, nor begin another call under a ticket of its own.
    Nor does the engine look for tries of other calls than starts.
    """

    async def test() -> None:
        async with hosting(tmp_path, FLOWS) as host:
            caller, call = await started(host, "start", "computes")
            await run_until_gone(host, call)
            (link,) = host._processes.links.values()
            call = msgspec.structs.replace(call, chosen=wrong.get("chosen", call.chosen))
            ticket = wrong.get("tried", ticket_of_try(link.number, 1 << 20))
            delay_s, key = wrong.get("delay_s", 0.0), wrong.get("key")
            host.from_worker(link, InvokeLater(7, 1, call, delay_s, key, ticket))
            assert any(isinstance(effect, KillWorker) for effect in host.effects)
            assert len(host.later_calls) == 1
            reason = host._dispatch._fleet.workers[link.number].reason
            assert reason == f"was killed because it tried a call under the ticket {ticket}"
            host.may_log_calls.set()
            await asyncio.wait([caller])

    drive(test())


def test_starts_that_share_a_name_are_told_apart() -> None:
    """All that one call starts may have one: each of them has its try, and one whose place is taken is cancelled."""
    own = OwnTries()
    cancelled: list[int] = []
    calls = [Call(id_ * 32, "f", Payload("json", b"3"), "", 1, chosen=ChosenId("s")) for id_ in "001"]
    tries = [OwnTry(-1 - number, call, 1) for number, call in enumerate(calls)]
    for begun in tries:
        own.keep(begun)
    assert own.take(calls[1], 1) is tries[1]
    assert own.take(calls[2], 1) is tries[2]
    for begun in tries:
        own.drop(begun, cancelled.append)
    assert cancelled == [-1] and not own._waiting


def test_an_outcome_is_told_once_whenever_it_is_asked_for() -> None:
    """Before the try has ended, or after; and what was taken is not dropped."""
    own, told = OwnTries(), []
    call = Call("0" * 32, "f", Payload("json", b"3"), "", 1, chosen=ChosenId("s"))
    for is_early in (True, False):
        begun = OwnTry(-1, call, 1)
        own.keep(begun)
        if is_early:
            begun.end(Outcome(None, None))
        assert own.take(call, 2) is None
        assert own.take(call, 1) is begun
        assert own.take(call, 1) is None
        begun.tell(told.append)
        if not is_early:
            assert len(told) == 1
            begun.end(Outcome(None, None))
        own.drop(begun, pytest.fail)
    assert len(told) == 2
