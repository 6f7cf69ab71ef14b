"""Errors of steps of any kind: the workflow gets them, and can do what it does after a failure."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

import boki.testing
from boki import InvalidArgument, Retry
from boki.libs.bokiflow import StepFailed, flow, step, workflow

if TYPE_CHECKING:
    from decimal import Decimal

pytestmark = pytest.mark.usefixtures("each_mode")

MANY = 3_000_000
"""Bytes that no record holds."""


class Declined(Exception):
    """Its constructor does not take what its `args` are."""

    def __init__(self, card: str, *, cents: int) -> None:
        super().__init__(f"{card} has no {cents}")
        self.card, self.cents = card, cents


class Long(Exception):
    """Has whatever arguments."""


class Unusual(UnicodeDecodeError):
    """One of its arguments is no plain value."""


@step(raises=(Declined, Long, Unusual))
async def charge(how: str) -> int:
    match how:
        case "declined":
            raise Declined("visa", cents=300)
        case "long":
            raise Long("x" * MANY)
        case "unusual":
            raise Unusual("utf-8", b"\xff", 0, 1, "no text")
        case _:
            raise ValueError("y" * MANY)


@workflow
async def pays(how: str) -> list[Any]:
    try:
        await charge(how)
    except Declined as error:
        return [str(error), error.card, error.cents]
    except StepFailed as error:
        return [error.details["error_type"], len(str(error)) < 10_000, str(error)[:20]]
    return []


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("declined", ["visa has no 300", "visa", 300]),
        ("unusual", ["Unusual", True, "charge: Unusual: 'ut"]),
        ("long", ["Long", True, "charge: Long: xxxxxx"]),
        ("", ["ValueError", True, "charge: ValueError: "]),
    ],
)
async def test_an_error_of_any_kind_comes(boki_context: boki.testing.Context, how: str, expected: list[Any]) -> None:
    """Not as a `TypeError` of its constructor; and one that no record holds is shortened, and ends nothing else."""
    assert await (await pays.start(boki_context, how)).result() == expected


@step(retry=Retry(attempts=2, first_s=1))
async def tells(size: int) -> str:
    try:
        step.heartbeat("x" * size)
    except Exception as error:  # noqa: BLE001 - what is tested
        return f"{type(error).__name__}: {error}"
    await asyncio.sleep(0)
    return "told"


@workflow
async def told(size: int) -> str:
    return await tells(size)


async def test_details_that_no_record_holds_are_refused_in_the_step(boki_context: boki.testing.Context) -> None:
    """They ended the workflow, which undid nothing."""
    assert await (await told.start(boki_context, 10)).result() == "told"
    said = await (await told.start(boki_context, MANY)).result()
    assert said.startswith("TooLarge: details of a heartbeat may have 1,044,480 bytes, not 3,000,0")


class Mute(Exception):
    """Says nothing of itself."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


EFFECTS: list[str] = []


@step
async def priced_at_once() -> "Decimal":
    EFFECTS.append("at once")
    raise AssertionError


@step
async def priced() -> "Decimal":
    EFFECTS.append("after a wait")
    await asyncio.sleep(0)
    raise AssertionError


@step(retry=Retry(attempts=2, first_s=1, errors=("Mute",)))
async def mute() -> None:
    await asyncio.sleep(0)
    raise Mute


@step
async def mute_at_once() -> None:
    raise Mute


ODD = {"priced": priced, "priced at once": priced_at_once, "mute": mute, "mute at once": mute_at_once}


@workflow
async def odd(how: str) -> str:
    try:
        await ODD[how]()
    except StepFailed as error:
        return f"{error.details['error_type']}: {error}"
    return ""


@pytest.mark.parametrize("how", ["priced", "priced at once"])
async def test_a_step_whose_result_no_record_holds_is_not_run(boki_context: boki.testing.Context, how: str) -> None:
    """Its annotation means nothing at run time. It had its effect, and the workflow waited forever."""
    EFFECTS.clear()
    said = await (await odd.start(boki_context, how)).result()
    assert said.startswith("InvalidArgument: priced")
    assert "(NameError: name 'Decimal' is not defined)" in said
    assert not EFFECTS


@pytest.mark.parametrize("how", ["mute", "mute at once"])
async def test_an_error_without_a_text_ends_the_step(boki_context: boki.testing.Context, how: str) -> None:
    """The step had no end."""
    said = await (await odd.start(boki_context, how)).result()
    assert said == f"Mute: {how.replace(' ', '_')}: Mute without a text"


def broken(error: Exception) -> bool:
    raise RuntimeError(f"cannot tell about {error}")


@step(retry=Retry(attempts=3, first_s=1, should_retry=broken))
async def fails() -> None:
    raise ValueError(f"attempt {step.attempt}")


@workflow
async def asks() -> str:
    try:
        await fails()
    except StepFailed as error:
        return str(error)
    return ""


async def test_a_should_retry_that_raises_ends_the_step(boki_context: boki.testing.Context) -> None:
    """The step had no end, and the workflow waited forever."""
    said = await (await asks.start(boki_context)).result()
    assert "should_retry raised RuntimeError('cannot tell about attempt 1') about ValueError('attempt 1')" in said


def test_should_retry_is_no_coroutine() -> None:
    """It was true, whatever it would have returned."""

    async def later(_: Exception) -> bool:
        return False

    should_retry: Callable[..., Any] = later
    with pytest.raises(InvalidArgument, match="should_retry of Retry is a plain def"):
        Retry(should_retry=should_retry)
    wrong: Any = "ValueError"
    with pytest.raises(InvalidArgument, match="a def with one parameter"):
        Retry(should_retry=wrong)


class Late(Exception):
    """Of one library."""


LaterLate = type("Late", (Exception,), {"__module__": "another.library"})


@step(raises=(Late, LaterLate))
async def comes_late(which: str) -> None:
    raise LaterLate(which) if which == "another" else Late(which)


@workflow
async def meets(which: str) -> str:
    try:
        await comes_late(which)
    except LaterLate as error:
        return f"another {error}"
    except Late as error:
        return f"one {error}"
    return ""


@pytest.mark.parametrize("which", ["one", "another"])
async def test_of_two_errors_of_one_name_the_right_one_comes(boki_context: boki.testing.Context, which: str) -> None:
    """The first of them in `raises` came for both."""
    assert await (await meets.start(boki_context, which)).result() == f"{which} {which}"


@step
def takes_the_next() -> int:
    return next(iter([]))


@step
async def takes_the_next_as_a_task() -> int:
    await asyncio.sleep(0)
    return next(iter([]))


@pytest.mark.parametrize("stepping", [takes_the_next, takes_the_next_as_a_task])
async def test_a_step_that_raises_stop_iteration_has_ended(boki_context: boki.testing.Context, stepping: Any) -> None:
    """In a thread it never had: the future of the thread refuses that error."""

    @workflow
    async def takes() -> str:
        try:
            await flow.run(stepping)
        except StepFailed as error:
            return error.error_type
        return ""

    handle = await takes.start(boki_context)
    await boki_context.clock.advance(60)
    assert (await handle.status()).status == "done"
    assert await handle.result() == "RuntimeError"
