"""Steps: their outcomes are recorded once and replayed; what they need of the log; how they are retried and refused."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

import boki.testing
from boki import ConfigError, Retry, TerminalError
from boki.api.function import Function
from boki.api.suspension import Suspend
from boki.libs.bokiflow import OutcomeUnknown, StepFailed, step, workflow
from boki.libs.bokiflow.records import Resumed, encode_note, inbox_tag
from tests.libs.bokiflow.crashes import RUN_ID, Death, World, all_deaths, count_moments, in_run, timer

CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()


@dataclass
class Point:
    x: int
    y: int


@step
async def add(a: int, b: int) -> int:
    CALLS["add"] += 1
    return a + b


@step(pure=True)
async def move(point: Point, by: int = 1) -> Point:
    CALLS["move"] += 1
    return Point(point.x + by, point.y)


@workflow
async def total(count: int) -> int:
    found = 0
    for n in range(count):
        found = await add(found, n)
    return found


async def test_n_steps_need_n_appends_and_no_read() -> None:
    """The first run of a call reads nothing; the runtime adds one record for the start and one for the end."""
    world = World()
    assert await world.run(total, 10) == 45
    assert (world.log.append_count, world.log.read_count, CALLS["add"]) == (10, 0, 10)


async def test_a_replay_runs_no_step_again() -> None:
    """A run after all was recorded appends nothing and calls nothing."""
    world = World()
    await world.run(total, 10)
    assert await world.run(total, 10) == 45
    assert (world.log.append_count, CALLS["add"]) == (0, 10)


@workflow
async def walk(count: int) -> Point:
    points = [Point(0, n) for n in range(count)]
    for n in range(count):
        points[n] = await move(points[n], by=n)
    return await move(points[-1])


async def test_pure_steps_travel_together() -> None:
    """Nothing waits for their records, which leave as one group at the end."""
    world = World()
    assert await world.run(walk, 5) == Point(5, 4)
    assert (CALLS["move"], world.log.append_count) == (6, 1)
    assert await world.run(walk, 5) == Point(5, 4)
    assert CALLS["move"] == 6


@workflow
async def reads_and_write(count: int) -> int:
    found = [await move(Point(n, n)) for n in range(count)]
    return await add(found[0].x, found[-1].x)


async def test_ten_pure_steps_and_one_effect_are_two_appends() -> None:
    """What has an effect waits for all before it: their order decides what follows, and a crash must not change it."""
    world = World()
    assert await world.run(reads_and_write, 10) == 11
    assert world.log.append_count == 2


@step(idempotent=True)
async def put(n: int) -> int:
    CALLS["put"] += 1
    return n


@workflow
async def puts(count: int) -> int:
    return sum([await put(n) for n in range(count)])


async def test_idempotent_steps_do_not_wait_for_each_other() -> None:
    """All are in flight before the first is durable; each has a record of its own."""
    world = World()
    assert await world.run(puts, 10) == 45
    assert CALLS["put"] == 10
    assert len((await entries(world)).records) == 10


async def entries(world: World) -> Any:
    async with boki.testing.context(log=world.log) as ctx:
        return await ctx.logbook.read("!fj:" + "f" * 32)


def make_total() -> tuple[World, Any]:
    CALLS.clear()
    return World(), total


async def test_a_crash_at_every_append() -> None:
    """Whatever is lost, the sum is right, and only the step under way runs again."""
    appends, _ = await count_moments(make_total, 5)
    for death in all_deaths(appends, 0):
        CALLS.clear()
        world = World()
        assert await world.run(total, 5, death=death) == 10
        assert world.runs == 2
        assert CALLS["add"] == 5 + (not death.is_applied), death


async def test_parallel_steps_replay_in_their_order() -> None:
    """`gather` gets its results in the order of its arguments, and the journal keeps the order of the ends."""
    order: list[int] = []
    turns = [asyncio.Event() for _ in range(3)]

    @step
    async def late(n: int) -> int:
        if n < 2:
            await turns[n + 1].wait()
        turns[n].set()
        CALLS["late"] += 1
        return n

    @workflow
    async def together() -> list[int]:
        order.clear()

        async def one(n: int) -> int:
            found = await late(n)
            order.append(found)
            return found

        return await asyncio.gather(*(one(n) for n in range(3)))

    world = World()
    for _ in range(2):
        assert await world.run(together) == [0, 1, 2]
        assert order == [2, 1, 0]
    assert CALLS["late"] == 3


class CardDeclined(Exception):
    """Of a user."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@step(raises=(CardDeclined,))
async def charge(card: str) -> str:
    CALLS["charge"] += 1
    if card == "bad":
        raise CardDeclined(51)
    raise ValueError("no such card")


@workflow
async def pay(card: str) -> str:
    try:
        return await charge(card)
    except CardDeclined as error:
        return f"declined {error.code}"
    except StepFailed as error:
        return f"{error.error_type} in {error.step}: {error.message}"


@pytest.mark.parametrize(
    ("card", "said"),
    [("bad", "declined 51"), ("none", "ValueError in charge: charge: ValueError: no such card")],
)
async def test_errors_are_outcomes(card: str, said: str) -> None:
    """Recorded and replayed: as their own class if the step declares it, else as `StepFailed`."""
    world = World()
    for _ in range(2):
        assert await world.run(pay, card) == said
    assert CALLS["charge"] == 1


@step(retry=Retry(attempts=3, first_s=10, jitter=0))
async def flaky(ends: int) -> int:
    CALLS["flaky"] += 1
    if CALLS["flaky"] < ends:
        raise RuntimeError("again")
    return step.attempt


@workflow
async def persistent(ends: int) -> int:
    return await flaky(ends)


async def test_retries() -> None:
    """As the policy says; without a delay after the last attempt."""
    world = World()
    before_us = world.now_us
    assert await world.run(persistent, 3) == 3
    assert 30_000_000 <= world.now_us - before_us < 31_000_000
    CALLS.clear()
    world = World()
    before_us = world.now_us
    with pytest.raises(StepFailed, match="again"):
        await world.run(persistent, 9)
    assert CALLS["flaky"] == 3
    assert world.now_us - before_us < 31_000_000


@step(retry=Retry(attempts=5, should_retry=lambda error: "no" not in str(error)))
async def picky(why: str) -> None:
    CALLS["picky"] += 1
    raise TerminalError("never") if why == "terminal" else ValueError(why)


@workflow
async def pick(why: str) -> None:
    await picky(why)


@pytest.mark.parametrize("why", ["no", "terminal"])
async def test_errors_that_are_final(why: str) -> None:
    """`TerminalError` is, and what `should_retry` refuses."""
    with pytest.raises(StepFailed):
        await World().run(pick, why)
    assert CALLS["picky"] == 1


@step(timeout_s=5)
async def slow() -> None:
    CALLS["slow"] += 1
    await asyncio.Event().wait()


@workflow
async def hurry() -> str:
    try:
        await slow()
    except StepFailed as error:
        return str(error.error_type)
    return "in time"


async def test_timeouts_are_recorded() -> None:
    """A replay gives the timeout again, and does not wait for it."""
    world = World()
    assert await world.run(hurry) == "TimeoutError"
    before_us = world.now_us
    assert await world.run(hurry) == "TimeoutError"
    assert (CALLS["slow"], world.now_us - before_us < 1_000_000) == (1, True)


def make_once() -> tuple[World, Any]:
    world = World()

    @step(at_most_once=True)
    async def launch(n: int) -> int:
        await world.do(f"launch {n}", step.key)
        return n

    @workflow
    async def countdown(count: int) -> list[Any]:
        said: list[Any] = []
        for n in range(count):
            try:
                said.append(await launch(n))
            except OutcomeUnknown:
                said.append("unknown")
        return said

    return world, countdown


async def test_at_most_once_never_runs_twice() -> None:
    """A crash anywhere: each effect at most once, and where it may have been cut off the outcome is unknown."""
    appends, boundaries = await count_moments(make_once, 3)
    assert (appends, boundaries) == ([6], 6)
    for death in all_deaths(appends, boundaries):
        world, countdown = make_once()
        said = await world.run(countdown, 3, death=death)
        assert all(count == 1 for count in world.effects.values()), death
        assert len(said) == 3
        for n, one in enumerate(said):
            assert one == "unknown" or (one == n and world.effects[f"launch {n}"] == 1), death
        assert await world.run(countdown, 3) == said


def make_saga() -> tuple[World, Any]:
    world = World()

    @step
    async def effect(what: str) -> str:
        await world.do(what, step.key)
        return what

    @workflow
    async def app(count: int) -> list[str]:
        said = [await effect("first")]
        said += await asyncio.gather(*(effect(f"together {n}") for n in range(count)))
        async with asyncio.timeout(1_000):
            await timer(20)
        said.append(await effect("last"))
        return said

    return world, app


async def test_a_crash_at_every_moment_of_an_application() -> None:
    """The result is right, and each keyed effect happened once; without a key, at most once more."""
    wanted = ["first", "together 0", "together 1", "together 2", "last"]
    appends, boundaries = await count_moments(make_saga, 3)
    assert boundaries == 10
    for death in all_deaths(appends, boundaries):
        world, app = make_saga()
        assert await world.run(app, 3, death=death) == wanted, death
        assert sorted(world.keyed.values()) == sorted(wanted), death
        assert set(world.effects.values()) <= {1, 2}, death
        assert sum(world.effects.values()) <= len(wanted) + 3, death


async def test_an_answer_that_is_lost_is_looked_up() -> None:
    """The record is found in the journal, or appended; the step does not run again."""

    for is_applied in (False, True):
        CALLS.clear()
        world = World()
        answer = world.log.answer

        def flicker(operation: Any, now_us: int, answer: Any = answer, log: Any = world.log) -> Any:
            try:
                return answer(operation, now_us)
            finally:
                log.is_dead = False

        world.log.answer = flicker  # type: ignore[method-assign]
        world.log.begin(Death(append=2, is_applied=is_applied))
        async with boki.testing.context(log=world.log) as ctx:
            assert await Function.of(total).run(in_run(ctx, 4), 4) == 6
        assert CALLS["add"] == 4


async def test_two_executions_agree_on_every_step() -> None:
    """They race for each place of the journal; both end with the same result, and the journal holds each step once."""
    world = World()
    async with boki.testing.context(log=world.log) as ctx:
        found = await asyncio.gather(*(Function.of(total).run(in_run(ctx, 6), 6) for _ in range(3)))
        assert found == [15, 15, 15]
        assert await Function.of(total).run(in_run(ctx, 6, 2), 6) == 15


@step
async def crawl(pages: int) -> int:
    begin = step.details or 0
    CALLS[f"begin {begin}"] += 1
    for page in range(begin, pages):
        step.heartbeat(page + 1)
        await asyncio.sleep(0)
        if page == 2 and not begin:
            raise ConnectionError("half-way")
    return begin


crawl_again = step(retry=Retry(first_s=1))(crawl.fn)


@workflow
async def crawling() -> int:
    return await crawl_again(5)


async def test_the_next_attempt_sees_what_the_last_one_said() -> None:
    """Heartbeats carry details from attempt to attempt."""
    assert await World().run(crawling) == 3
    assert CALLS == {"begin 0": 1, "begin 3": 1}


async def test_details_outlive_the_process() -> None:
    """They are recorded, so another process continues from there. The second record says what was newest then."""
    for death in [Death(append=2, is_applied=True), Death(append=2)]:
        CALLS.clear()
        assert await World().run(crawling, death=death) == (3 if death.is_applied else 1)


async def test_a_run_that_is_lost_again_and_again_is_paused() -> None:
    """With the reason, and not run forever; after it is resumed, attempts are counted again."""
    world = World()
    async with boki.testing.context(log=world.log) as ctx:
        with pytest.raises(Suspend) as caught:
            await Function.of(total).run(in_run(ctx, 3, 9, attempt=9), 3)
        assert "lost 8 times in a row" in caught.value.suspension.note
        assert caught.value.suspension.wakes[0].tag == "!fi:" + "f" * 32
        assert CALLS["add"] == 0
        await ctx.logbook.append(encode_note(Resumed()), [inbox_tag(RUN_ID)])
        assert await Function.of(total).run(in_run(ctx, 3, 10, attempt=1), 3) == 3


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("should_retry", r"^should_retry is a field of Retry: write @step\(retry=Retry\(should_retry=\.\.\.\)\)$"),
        ("timeout", r"^@step has no option timeout; did you mean timeout_s\? Its options: name, retry, timeout_s, "),
        ("colour", r"^@step has no option colour\. Its options: name, "),
    ],
)
def test_an_option_that_a_step_does_not_have_is_refused_by_name(option: str, said: str) -> None:
    """It ended with a `TypeError` that named a class of ours."""
    with pytest.raises(ConfigError, match=said) as raised:
        step(**{option: 1})  # type: ignore[arg-type]
    assert raised.value.field == option


def test_a_method_is_no_step() -> None:
    """It failed when it was called: there was no object to call it with."""
    said = "step pay is a method of .*Bank, and a step gets plain values only: make it a function outside of the class"
    with pytest.raises(ConfigError, match=said):

        class Bank:
            @step
            async def pay(self, cents: int) -> int:
                return cents

    class Rates:
        @staticmethod
        @step
        async def rate(cents: int) -> int:
            return cents

    def has_a_self(self: int) -> int:
        return self

    assert step(has_a_self).name == "has_a_self"
