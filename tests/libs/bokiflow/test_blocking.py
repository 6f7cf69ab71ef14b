"""`def` workflows: plain code in a thread of its own means the same, with the same journal."""

import asyncio
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed, InvalidArgument, Overloaded
from boki.libs.bokiflow import StepFailed, step, workflow
from boki.libs.bokiflow.blocking import flow
from boki.libs.bokiflow.checking import check
from boki.libs.bokiflow.hooks import hooks
from boki.testing import flows
from tests.libs.bokiflow.crashes import World, all_deaths, count_moments
from tests.libs.bokiflow.golden import FEATURES, recorded

pytestmark = pytest.mark.usefixtures("each_mode")

CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()


@step
def add(a: int, b: int) -> int:
    CALLS["add"] += 1
    return a + b


@step
async def slow_add(a: int, b: int) -> int:
    CALLS["slow_add"] += 1
    return a + b


@workflow
def total(count: int) -> int:
    found = 0
    for n in range(count):
        found = add(found, n)
    return found


async def test_n_steps_need_n_appends_and_no_read() -> None:
    """As in an `async def` workflow."""
    world = World()
    assert await world.run(total, 10) == 45
    assert (world.log.append_count, CALLS["add"]) == (10, 10)
    assert world.log.read_count == 0 or hooks().replays
    assert await world.run(total, 10) == 45
    assert (world.log.append_count, CALLS["add"]) == (0, 10)


@workflow
def both(count: int) -> list[Any]:
    begun = flow.now()
    first = add(1, 2) + flow.run(slow_add, 3, 4)
    flow.sleep(3600)
    try:
        fail()
    except StepFailed as error:
        return [first, (flow.now() - begun).total_seconds() >= 3600, error.error_type, count]
    return []


@step
def fail() -> None:
    raise KeyError("gone")


async def test_a_crash_at_every_append() -> None:
    """Steps of both kinds, a timer and an error: each outcome counts once. The first record says when it began."""
    appends, _ = await count_moments(lambda: (World(), both), 1)
    assert appends == [3, 2]
    for death in all_deaths(appends, 0):
        assert await World().run(both, 1, death=death) == [10, True, "KeyError", 1], death


@workflow
def talk(count: int) -> list[Any]:
    said = [flow.receive("word") for _ in range(count)]
    child = flow.start(total, 3)
    return [*said, child.result(), flow.call(total, 4), flow.promise("last")]


async def test_messages_and_children(boki_context: boki.testing.Context) -> None:
    """It waits without a process, and without a thread."""
    ctx = boki_context
    handle = await talk.start(ctx, 2)
    await handle.signal("word", "a")
    await ctx.clock.advance(10)
    assert (await handle.status()).status == "suspended"
    await handle.signal("word", "b")
    await ctx.clock.advance(10)
    await handle.resolve("last", 7)
    assert await handle.result() == ["a", "b", 3, 6, 7]


UNDONE: list[str] = []


@step
def undo(what: str) -> None:
    UNDONE.append(what)


@workflow
def booking() -> None:
    for what in ("hotel", "flight"):
        flow.compensate(undo, what)
    flow.sleep(1_000)


async def test_cancelling_undoes(boki_context: boki.testing.Context) -> None:
    """The thread is unwound by the cancellation, and its compensations run."""
    UNDONE.clear()
    handle = await booking.start(boki_context)
    await boki_context.clock.advance(10)
    await handle.cancel("no")
    with pytest.raises(FunctionFailed, match="WorkflowCancelled"):
        await handle.result()
    assert UNDONE == ["flight", "hotel"]


@workflow
def saga(how: str) -> None:
    def undone(what: str, *, again: bool = False) -> None:
        flow.sleep(5)
        undo(f"{what} again" if again else what)
        with flow.lock("hotel"):
            flow.run(slow_add, 1, 1)

    if how == "run":
        flow.run(undone, "first")
    flow.compensate(undone, "hotel")
    flow.compensate(undone, "flight", again=True)
    flow.compensate(lambda: undo("nothing"))
    fail()


async def test_a_function_of_its_own_undoes_what_it_likes() -> None:
    """It is code of the workflow as the body is, and was refused what the body may do: `CompensationFailed`."""
    expected = ["nothing", "flight again", "hotel"]
    for how in ("compensate", "run"):
        UNDONE.clear()
        async with boki.testing.context("test") as ctx:
            with pytest.raises(FunctionFailed, match="gone"):
                await (await saga.start(ctx, how)).result()
        assert (["first", *expected] if how == "run" else expected) == UNDONE
        assert CALLS["slow_add"] == len(UNDONE) - 1
        CALLS.clear()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("boki-flow-")]


async def test_a_compensation_after_each_crash() -> None:
    """What it had done is not done again."""
    async for ctx in flows.every_crash():
        UNDONE.clear()
        with pytest.raises(FunctionFailed, match="gone"):
            await (await saga.start(ctx, "compensate")).result()
        assert list(dict.fromkeys(UNDONE)) == ["nothing", "flight again", "hotel"]


@workflow
def counting(n: int) -> int:
    add(n, 1)
    return n if n == 3 else flow.continue_as_new(n + 1)


async def test_continue_as_new() -> None:
    """With a thread for each."""
    assert await World().run(counting, 0) == 3


@dataclass
class Item:
    price: int


@workflow
def basket(most: int) -> list[int]:
    prices: list[int] = []
    seats = {"left": 2}

    def take(_name: str, item: Item) -> None:
        flow.sleep(5)
        prices.append(add(item.price, 0))

    def check(count: int) -> None:
        if count > seats["left"]:
            raise ValueError("too many")

    def reserve(count: int) -> int:
        seats["left"] -= count
        flow.sleep(1)
        return flow.run(slow_add, seats["left"], 0)

    flow.on_query("prices", lambda _: list(prices))
    flow.on_signal("item", partial(take, "item"))
    flow.on_update("seats", reserve, validator=check)
    flow.wait_for(lambda: len(prices) == most)
    flow.wait_for(flow.all_handlers_finished)
    return [*prices, seats["left"]]


async def talk_to_a_basket(ctx: boki.testing.Context) -> None:
    """All kinds of messages, while others are being handled."""
    handle = await basket.start(ctx, 2)
    await handle.signal("item", {"price": 3}, key="a")
    with pytest.raises(FunctionFailed, match="too many"):
        await handle.update("seats", 3, id="u1")
    assert await handle.update("seats", 2, id="u2") == 0
    await ctx.clock.advance(60)
    assert await handle.query("prices") == [3]
    await handle.signal("item", {"price": 4}, key="b")
    assert await handle.result() == [3, 4, 0]
    assert await handle.update("seats", 2, id="u2") == 0


async def test_handlers_wait_and_run_steps(boki_context: boki.testing.Context) -> None:
    """Each in a thread of its own; payloads are of the type that the handler is annotated with."""
    await talk_to_a_basket(boki_context)


async def test_handlers_after_each_crash() -> None:
    """A replay has handlers do again what they did, in the same order."""
    contexts = 0
    async for ctx in flows.every_crash():
        contexts += 1
        await talk_to_a_basket(ctx)
    assert contexts > 6


@workflow
def refusing(_: None = None) -> str:
    async def later(_: Any) -> None: ...

    for register in (flow.on_signal, flow.on_update):
        try:
            register("word", later)
        except InvalidArgument as error:
            said = str(error)
    return said


async def test_handlers_are_of_the_kind_of_their_workflow(boki_context: boki.testing.Context) -> None:
    """An `async def` would never be awaited in a thread."""
    said = await (await refusing.start(boki_context)).result()
    assert said == "the handler of word is an async def, and its workflow is a def: make both of one kind"


@workflow
def hasty() -> None:
    def forever(_: Any) -> None:
        flow.receive("never")

    flow.on_signal("word", forever)
    flow.receive("end")


async def test_unfinished_handlers_are_named(boki_context: boki.testing.Context) -> None:
    """Their threads end with the workflow."""
    handle = await hasty.start(boki_context, id="h")
    await handle.signal("word")
    await handle.signal("end")
    with pytest.raises(FunctionFailed, match=r"UnfinishedHandlers.*word"):
        await handle.result()
    assert not [thread for thread in threading.enumerate() if thread.name == "boki-flow-forever"]


@workflow
def shop(how: str) -> list[str]:
    def visit(_: Any) -> str:
        with flow.lock("till"):
            flow.continue_as_new(how) if how == "as new" else sys.exit(how)
        return "never"

    flow.on_update("visit", visit)
    flow.receive("look")
    with flow.lock("till"):
        return ["free"]


@pytest.mark.parametrize("how", ["as new", "exit"])
async def test_a_handler_leaves_its_lock_whatever_it_raises(boki_context: boki.testing.Context, how: str) -> None:
    """The update is refused and the workflow lives on: it held the lock until its end, and could not take it again."""
    handle = await shop.start(boki_context, how)
    with pytest.raises(FunctionFailed, match="a handler ends no workflow and begins none as new"):
        await handle.update("visit")
    await handle.signal("look")
    assert await handle.result() == ["free"]


class Threads:
    """Refuses to start some threads of workflows, as a system does that has no more of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: list[str] = []
        self.is_full = False
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._begin(thread))

    def _begin(self, thread: threading.Thread) -> None:
        if self.is_full and thread.name.startswith("boki-flow-"):
            self.refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        self._start(thread)


async def test_a_workflow_without_a_thread_is_run_again(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed permanently, with an error of the machine that it ran on."""
    threads = Threads(monkeypatch)
    threads.is_full = True
    handle = await total.start(boki_context, 3)
    await boki_context.clock.advance(0.5)
    state = await handle.status()
    assert (state.status, state.wakes_us > 0) == ("suspended", True)
    assert threads.refused == ["boki-flow-total"]
    threads.is_full = False
    assert await handle.result() == 3


async def test_a_handler_without_a_thread_is_run_again(
    boki_context: boki.testing.Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its update was answered with that error, and a signal failed the workflow. A replay of it does not diverge."""
    threads = Threads(monkeypatch)
    handle = await basket.start(boki_context, 1)
    await handle.signal("item", {"price": 3}, key="a")
    await boki_context.clock.advance(2)
    threads.is_full = True
    asked = asyncio.create_task(handle.update("seats", 2, id="u1"))
    await boki_context.clock.advance(0.5)
    state = await handle.status()
    assert (state.status, state.wakes_us > 0) == ("suspended", True)
    assert threads.refused
    with pytest.raises(Overloaded, match="no thread for its code: can't start new thread"):
        await handle.query("prices")
    threads.is_full = False
    assert await asked == 0
    assert await handle.result() == [3, 0]


async def test_a_check_without_a_thread_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither passes nor says that the code diverges."""
    found = await recorded("blocking")
    threads = Threads(monkeypatch)
    threads.is_full = True
    with pytest.raises(Overloaded, match="no thread for its code"):
        await check(FEATURES["blocking"], found)
    threads.is_full = False
    assert (await check(FEATURES["blocking"], found)).is_whole


@workflow
def later(n: int) -> int:
    return add(n, 1)


async def test_a_workflow_is_called_later_as_a_function_is(boki_context: boki.testing.Context) -> None:
    """Type checkers refused it."""
    call = await boki_context.invoke_later(later, 3, delay_s=60)
    await boki_context.clock.advance(61)
    assert await boki_context.result_of(call) == 4
