"""What workflows and steps refuse: code that diverges from its journal, and calls that cannot be meant."""

from collections import Counter
from typing import Any

import pytest

import boki.testing
from boki import InvalidArgument, Retry
from boki.libs.bokiflow import StepFailed, step, workflow
from boki.libs.bokiflow.refusals import NotDeterministic
from tests.libs.bokiflow.crashes import Death, Stuck, World, timer

CALLS: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def forget() -> None:
    CALLS.clear()


@step
async def add(a: int, b: int) -> int:
    CALLS["add"] += 1
    return a + b


@step
async def move(n: int) -> int:
    CALLS["move"] += 1
    return n


@workflow
async def total(count: int) -> int:
    found = 0
    for n in range(count):
        found = await add(found, n)
    return found


@workflow
async def changed(count: int) -> int:
    return await move(count) if CALLS["changed"] else await add(count, 0)


async def test_divergence_names_both_sides() -> None:
    """A replay that starts something else stops, and runs nothing."""
    world = World()
    await world.run(changed, 1)
    CALLS["changed"] = 1
    with pytest.raises(Stuck, match=r"paused: .*recorded was add#0, and the code started move#0"):
        await world.run(changed, 1)
    assert CALLS["move"] == 0


async def test_other_arguments_diverge() -> None:
    """A step is the same only with the same arguments."""
    world = World()
    await world.run(total, 2)
    with pytest.raises(Stuck):
        await world.run(changed, 7)


async def test_a_body_that_ends_early_diverges() -> None:
    """What was recorded and is not started any more is named."""
    world = World()
    await world.run(total, 3)
    with pytest.raises(Stuck, match=r"recorded was add#2, and the code did not start it"):
        await world.run(total, 2)


def make_payment(later: str) -> tuple[World, Any]:
    """A workflow whose process dies in a step that runs at most once, and whose code is another one from then on."""
    world = World()

    @step(at_most_once=True)
    async def charge(n: int) -> None:
        await world.do(f"charge {n}", step.key)

    @step(at_most_once=True)
    async def refund(n: int) -> None:
        await world.do(f"refund {n}", step.key)

    @workflow
    async def pays(n: int) -> str:
        match later if world.appends else "charge":
            case "charge":
                await charge(n)
            case "refund":
                await refund(n)
            case "charge more":
                await charge(n + 1)
            case "wait":
                await timer(60)
            case "nothing":
                pass
        return "paid"

    return world, pays


@pytest.mark.parametrize(
    ("later", "did"),
    [
        ("refund", "started refund#0"),
        ("charge more", "started charge#0 with other arguments"),
        ("wait", "started timer#0"),
        ("nothing", "did not start it"),
    ],
)
async def test_an_intent_diverges_as_an_outcome_does(later: str, did: str) -> None:
    """The outcome of the charge is unknown, so a replay that starts something else, or nothing, is stopped."""
    world, pays = make_payment(later)
    with pytest.raises(Stuck, match=f"paused: .*recorded was charge#0, and the code {did}"):
        await world.run(pays, 7, death=Death(boundary=1))
    assert not world.effects


@step(retry=Retry(attempts=5, first_s=3600, max_s=3600, jitter=0))
async def charge_card(cents: int) -> None:
    if cents > 8:
        step.heartbeat("half of it")
        await timer(0)
    raise ValueError(f"declined {step.key}")


@step(retry=Retry(attempts=5, first_s=3600, max_s=3600, jitter=0))
async def charge_account(cents: int) -> None:
    CALLS["account"] += 1
    raise ValueError(f"declined {cents}")


@workflow
async def charges(cents: int) -> None:
    charged = charge_account if CALLS["changed"] == 1 else charge_card
    await charged(cents + (CALLS["changed"] == 2))


@pytest.mark.parametrize(
    ("later", "did"), [(1, "started charge_account#0"), (2, "started charge_card#0 with other arguments")]
)
@pytest.mark.parametrize("cents", [7, 9])
async def test_an_attempt_diverges_as_an_outcome_does(
    boki_context: boki.testing.Context, later: int, did: str, cents: int
) -> None:
    """Another step would continue at the attempts, the details and the key of the one that had failed."""
    handle = await charges.start(boki_context, cents)
    await boki_context.clock.advance(3_610)
    CALLS["changed"] = later
    await boki_context.clock.advance(3_610)
    state = await handle.status()
    assert state.status == "paused"
    assert f"recorded was charge_card#0, and the code {did}" in state.note
    assert not CALLS["account"]


async def test_steps_outside_of_workflows_are_refused() -> None:
    """With what to write; in another step, a step is a plain call, and `fn` is the function."""
    with pytest.raises(InvalidArgument, match=r"step add was called outside of a workflow: .*add\.fn"):
        await add(1, 2)
    assert await add.fn(1, 2) == 3

    @step
    async def outer() -> int:
        return await add(1, 2)

    @workflow
    async def nested() -> int:
        return await outer()

    world = World()
    assert await world.run(nested) == 3
    assert await journal_length(world) == 1


async def test_workflows_are_not_called() -> None:
    """Neither in a workflow nor elsewhere."""
    with pytest.raises(InvalidArgument, match=r"total is a workflow, which is started and not called"):
        total(3)


@step
def compute(n: int) -> int:
    return n * 2


async def test_blocking_steps_are_not_called_in_async_workflows() -> None:
    """They would block all other workflows of the worker; the error says what to write."""

    @workflow
    async def wrong() -> int:
        return compute(3)

    with pytest.raises(NotDeterministic, match=r"write await flow\.run\(compute, \.\.\.\)"):
        await World().run(wrong)


async def test_arguments_that_have_no_digest_are_refused() -> None:
    """A step is known by its arguments."""

    @step
    async def use(what: Any) -> None: ...

    @workflow
    async def wrong() -> None:
        await use(object())

    with pytest.raises(InvalidArgument, match=r"arguments of step use .* object"):
        await World().run(wrong)


async def test_results_that_cannot_be_recorded_are_failures() -> None:
    """Of the step, which names what it returned."""

    @step
    async def make() -> Any:
        return object()

    @workflow
    async def wrong() -> None:
        await make()

    with pytest.raises(StepFailed, match=r"object"):
        await World().run(wrong)


async def test_a_result_that_no_record_holds() -> None:
    """Is a failure of its step, which the workflow may catch, and which a replay gives again."""

    @step
    async def much() -> bytes:
        CALLS["much"] += 1
        return bytes(2 << 20)

    @workflow
    async def greedy() -> str:
        try:
            await much()
        except StepFailed as error:
            return str(error.error_type)
        return "fitted"

    world = World()
    for _ in range(2):
        assert await world.run(greedy) == "TooLarge"
    assert CALLS["much"] == 1


async def journal_length(world: World) -> int:
    async with boki.testing.context(log=world.log) as ctx:
        return len((await ctx.logbook.read("!fj:" + "f" * 32)).records)
