"""How an execution is suspended: never while something of it still continues."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

import boki.testing
from boki import Retry, Unavailable
from boki.extending import CallsById
from boki.libs.bokiflow import StepFailed, flow, step, workflow
from boki.libs.bokiflow.asking import Question
from boki.libs.bokiflow.execution import Execution
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.keeping import answered
from boki.libs.bokiflow.records import Retrying, entry_of, journal_tag
from boki.libs.bokistore.way import Way


async def passes(ctx: boki.testing.Context, seconds: float) -> None:
    """Virtual time."""
    late = asyncio.Event()
    ctx.clock.call_at(ctx.clock.now_us + round(seconds * 1_000_000), late.set)
    with ctx.clock.waiting():
        await late.wait()


@step(retry=Retry(attempts=2, first_s=1, jitter=0))
async def flaky() -> int:
    if step.attempt == 1:
        raise RuntimeError("again")
    assert isinstance(step.ctx, boki.testing.Context)
    await passes(step.ctx, 5)
    return step.attempt


@workflow
async def persistent() -> int:
    return await flaky()


async def test_an_attempt_that_was_due_while_the_log_was_slow(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 9 of the simulator: the attempt had begun while its delay was being recorded, and the workflow was suspended
    until a time that had passed, so nothing woke it.
    """
    rest = JournalWriter.rest

    async def slowly(self: JournalWriter) -> None:
        await passes(boki_context, 2)
        await rest(self)

    monkeypatch.setattr(JournalWriter, "rest", slowly)
    handle = await persistent.start(boki_context)
    await boki_context.clock.advance(100)
    assert (await handle.status()).status == "done"
    assert await handle.result() == 2


@workflow
async def curious() -> int:
    value: int = await flow.receive("go")
    return value + await flow.store.read("nothing", default=1)


async def test_a_question_that_was_asked_while_the_workflow_lay_down(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 44 of chaos: a message came when it was decided to suspend, the body then read an object, and the workflow
    was suspended until another message before it had the answer. Nothing woke it.
    """
    handle = await curious.start(boki_context)
    asked = asyncio.Event()
    rest = Execution._rest

    async def late(self: Execution, *seen: int) -> None:
        if not asked.is_set():
            await handle.signal("go", 41)
            with boki_context.clock.waiting():
                await asked.wait()
        await rest(self, *seen)

    async def slowly(question: Question, way: Way, position: int) -> tuple[object, Exception | None]:
        asked.set()
        await passes(boki_context, 2)
        return await answered(question, way, position)

    monkeypatch.setattr(Execution, "_rest", late)
    monkeypatch.setattr("boki.libs.bokiflow.keeping.answered", slowly)
    await boki_context.clock.advance(100)
    assert (await handle.status()).status == "done"
    assert await handle.result() == 42


@step
async def undo() -> None:
    assert isinstance(step.ctx, boki.testing.Context)
    await passes(step.ctx, 1)


@workflow
async def compensated() -> None:
    flow.compensate(undo)
    await flow.receive("never")


async def test_a_message_that_comes_when_nothing_is_to_be_done(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chaos, seed 83, and one in a hundred that were cancelled after 0.3 s: the task that suspends took the message for
    one of before, so the workflow was suspended behind it, while its compensation ran, and nothing woke it.
    """
    resting = Execution._try_to_rest
    handle = await compensated.start(boki_context)

    async def late(self: Execution, *seen: int) -> None:
        if self.inbox.next_start == 1:
            await handle.cancel()
            await self.inbox.read_to_end()
            self._on_letters()
        await resting(self, *seen)

    monkeypatch.setattr(Execution, "_try_to_rest", late)
    await boki_context.clock.advance(100)
    assert (await handle.status()).status == "cancelled"


@workflow
async def waits_forever() -> None:
    await flow.receive("never")


@workflow
async def leaves() -> str:
    await flow.start(waits_forever, parent_close="abandon")
    return "left"


async def test_the_start_of_a_child_that_is_answered_late(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cluster seed 33 of random programs: the child was there when the workflow had waited 0.3 s for the answer of its
    start, so the workflow was suspended until the end of the child, for which it does not wait, and which never came.
    """
    handle = await leaves.start(boki_context)
    start = CallsById.start

    async def slowly(self: CallsById, *arguments: Any, **options: Any) -> Any:
        begun = await start(self, *arguments, **options)
        await passes(boki_context, 2)
        return begun

    monkeypatch.setattr(CallsById, "start", slowly)
    await boki_context.clock.advance(100)
    assert (await handle.status()).status == "done"
    assert await handle.result() == "left"


@step
async def long() -> None:
    assert isinstance(step.ctx, boki.testing.Context)
    await passes(step.ctx, 1_000)


@workflow
async def leaves_and_works() -> str:
    await flow.start(waits_forever, parent_close="abandon")
    await long()
    return "worked"


@workflow
async def calls_and_works() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(flow.call(waits_forever))
        await flow.sleep(0.9)
        await long()


async def test_a_message_is_delivered_if_the_rest_that_has_read_it_is_given_up(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start of a child was under way, so it was not known what the workflow waits for. The request to cancel had
    been read, what follows the inbox began behind it, and the workflow did all its work.
    """
    handle = await leaves_and_works.start(boki_context)
    start = CallsById.start

    async def slowly(self: CallsById, *arguments: Any, **options: Any) -> Any:
        await passes(boki_context, 0.6)
        return await start(self, *arguments, **options)

    monkeypatch.setattr(CallsById, "start", slowly)
    await boki_context.clock.advance(0.1)
    await handle.cancel()
    await boki_context.clock.advance(10)
    assert (await handle.status()).status == "cancelled"


async def test_a_message_is_delivered_if_the_rest_that_has_read_it_fails(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a call does could not be found out at first."""
    handle = await calls_and_works.start(boki_context)

    async def refused(*_: object) -> bool:
        raise Unavailable("no engine answers")

    with monkeypatch.context() as patch:
        patch.setattr("boki.libs.bokiflow.resting.has_ended", refused)
        await boki_context.clock.advance(0.1)
        await handle.cancel()
        await boki_context.clock.advance(0.8)
    await boki_context.clock.advance(10)
    assert (await handle.status()).status == "cancelled"


@step(retry=Retry(attempts=3, first_s=100, max_s=1_000, jitter=0))
async def often_flaky() -> int:
    if step.attempt < 3:
        raise RuntimeError("again")
    return step.attempt


@workflow
async def two_things() -> int:
    _, attempt = await asyncio.gather(flow.start(waits_forever, parent_close="abandon"), often_flaky())
    return attempt


async def test_a_failed_attempt_is_recorded_once(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the workflow cannot be suspended for a long time: the journal grew by three records a second."""
    handle = await two_things.start(boki_context)
    start = CallsById.start

    async def refused(self: CallsById, *arguments: Any, **options: Any) -> Any:
        if boki_context.clock.now_us < began_us + 350_000_000:
            raise Unavailable("no engine answers")
        return await start(self, *arguments, **options)

    began_us = boki_context.clock.now_us
    monkeypatch.setattr(CallsById, "start", refused)
    await boki_context.clock.advance(340)
    page = await boki_context.logbook.read(journal_tag(handle.invocation_id))
    facts = [entry.fact for record in page.records if (entry := entry_of(record.data)) is not None]
    assert [fact.attempts for fact in facts if isinstance(fact, Retrying)] == [1, 2]
    assert await handle.result() == 3


@step
async def unreadable() -> Missing:  # type: ignore[name-defined]  # noqa: F821 - as under TYPE_CHECKING
    await asyncio.sleep(0)


@step
async def begins_after() -> None:
    assert isinstance(step.ctx, boki.testing.Context)
    BEGAN.append(step.ctx.clock.time())


@step(idempotent=True)
async def takes_long() -> None:
    assert isinstance(step.ctx, boki.testing.Context)
    await passes(step.ctx, 50)


BEGAN: list[float] = []


@workflow
async def refused_beside_another() -> None:
    async def part() -> None:
        with suppress(StepFailed):
            await unreadable()
        await begins_after()

    await asyncio.gather(takes_long(), part())


async def test_what_follows_a_step_that_is_refused_begins_at_once(
    boki_context: boki.testing.Context,
) -> None:
    """Such a step ends where it is launched, and another one is under way that ends only later."""
    BEGAN.clear()
    before = boki_context.clock.time()
    await (await refused_beside_another.start(boki_context)).result()
    assert [began - before < 40 for began in BEGAN] == [True]
