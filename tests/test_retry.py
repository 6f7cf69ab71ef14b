"""`Retry`: which errors run again, when, and what is refused as a policy."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

import boki.testing
from boki import (
    CallLost,
    Context,
    DeadlineExceeded,
    FunctionFailed,
    InvalidArgument,
    Overloaded,
    Retry,
    TerminalError,
    WrongType,
    function,
)
from boki.api.failures import failure_of
from boki.errors import BokiError
from boki.log.operations import Failure
from boki.retry import LOSSES_ONLY, check_retry, names_of


def raised(error: BaseException) -> Failure:
    """How a call ends whose function raises this."""
    return failure_of("f", error)


LOST = Failure.of(CallLost("gone"))
LATE = Failure.of(DeadlineExceeded("late"))
UNFIT = Failure.of(InvalidArgument("payload of f: Expected int"))
VALUE = raised(ValueError("no"))
TERMINAL = raised(TerminalError("card refused"))
TERMINAL_BELOW = raised(FunctionFailed("child: no", error_type="TerminalError", terminal=True))


@pytest.mark.parametrize(
    ("policy", "again"),
    [
        (LOSSES_ONLY, {"lost"}),
        (Retry(), {"lost", "late", "value"}),
        (Retry(errors=("ValueError",)), {"lost", "value"}),
        (Retry(errors=("deadline_exceeded",)), {"lost", "late"}),
        (Retry(errors=("DeadlineExceeded",)), {"lost", "late"}),
        (Retry(errors=("function_failed",)), {"lost", "value"}),
        (Retry(never=("ValueError",)), {"lost", "late"}),
        (Retry(errors=("ValueError",), never=("call_lost", "ValueError")), set()),
        (Retry(errors=("invalid_argument", "*")), {"lost", "late", "value", "unfit"}),
    ],
)
def test_which_errors_run_again(policy: Retry, again: set[str]) -> None:
    """Losses always, others as the policy names them, terminal ones never."""
    failures = {
        "lost": LOST,
        "late": LATE,
        "value": VALUE,
        "unfit": UNFIT,
        "terminal": TERMINAL,
        "below": TERMINAL_BELOW,
    }
    assert {name for name, failure in failures.items() if policy.allows(failure)} == again


def test_an_error_goes_by_its_code_and_by_its_class() -> None:
    """A function's error by the class of what it raised, and the code if that is one of Boki's."""
    assert names_of(VALUE) == {"function_failed", "ValueError"}
    assert names_of(raised(Overloaded("full"))) == {"function_failed", "Overloaded", "overloaded"}
    assert names_of(LATE) == {"deadline_exceeded", "DeadlineExceeded"}


def test_an_error_sets_its_own_delay() -> None:
    """By an attribute of any exception; what is no delay is not taken for one."""

    class Busy(Exception):
        def __init__(self, retry_after_s: object) -> None:
            super().__init__("busy")
            self.retry_after_s = retry_after_s

    policy = Retry(first_s=1, jitter=0)
    assert policy.delay_us(1, "id", raised(Busy(30))) == 30_000_000
    for odd in (-1, True, "soon", float("nan"), None):
        assert policy.delay_us(1, "id", raised(Busy(odd))) == 1_000_000
    assert policy.delay_us(1, "id", raised(Overloaded("full", retry_after_s=2))) == 2_000_000


def test_delays_grow_to_a_maximum_and_attempts_and_time_are_bounded() -> None:
    """Whichever comes first ends the retries."""
    policy = Retry(attempts=5, first_s=1, factor=3, max_s=5, jitter=0, deadline_s=10)
    delays = [policy.again_us(VALUE, runs, "id", 0) for runs in range(1, 6)]
    assert delays == [1_000_000, 3_000_000, 5_000_000, 5_000_000, None]
    assert policy.again_us(VALUE, 1, "id", 9_000_000) == 1_000_000
    assert policy.again_us(VALUE, 1, "id", 9_000_001) is None


@pytest.mark.parametrize("jitter", [0.0, 5e-324, 1e-16, 0.1, 1 / 3, 0.5, 1 - 1e-16, 1.0])
def test_jitter_only_shortens_and_is_the_same_each_time(jitter: float) -> None:
    """The same failure of the same work leads to the same delay, in every process."""
    policy, plain = Retry(jitter=jitter), Retry(jitter=0)
    for runs in (*range(1, 12), 50, 10_000):
        longest = plain.delay_us(runs, "", VALUE)
        for work_id in ("", "id", "\x00", "ä\U0001f375", *(f"{number:032x}" for number in range(20))):
            delay = policy.delay_us(runs, work_id, VALUE)
            assert (1 - jitter) * longest - 1 <= delay <= longest
            assert delay == Retry(jitter=jitter).delay_us(runs, work_id, VALUE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attempts": 0}, "attempts of Retry must be an int from 1 to 10,000, not 0"),
        ({"attempts": True}, "attempts of Retry must be an int from 1 to 10,000, not True"),
        ({"first_s": -1}, "first_s of Retry must be a number from 0 to 31,536,000, not -1"),
        ({"max_s": float("nan")}, "max_s of Retry must be a number from 0 to 31,536,000, not nan"),
        ({"first_s": 61}, "first_s of Retry must be at most max_s, which is 60, not 61"),
        ({"factor": 0.5}, "factor of Retry must be a number from 1 to 1,000, not 0.5"),
        ({"jitter": 2}, "jitter of Retry must be a number from 0 to 1, not 2"),
        (
            {"errors": "ValueError"},
            """errors of Retry must be a tuple of names such as ("ValueError",), not 'ValueError'""",
        ),
        ({"errors": (ValueError,)}, "errors of Retry holds names, not classes: write 'ValueError'"),
        ({"never": (CallLost,)}, "never of Retry holds names, not classes: write 'call_lost'"),
        ({"never": ("",)}, "never of Retry must be names of 1 to 128 characters, not ''"),
        ({"errors": ("x",) * 33}, "errors of Retry may name 32 errors, not 33"),
    ],
)
def test_what_is_no_policy_is_refused(fields: dict[str, Any], message: str) -> None:
    """Where it is written, with the field and what it may be."""
    with pytest.raises(InvalidArgument) as caught:
        Retry(**fields)
    assert caught.value.message == message


def test_a_policy_travels_and_is_checked_again_where_it_arrives() -> None:
    """A stranger's bytes make no policy that Python code could not have made."""
    policy = Retry(attempts=7, errors=("ValueError",), deadline_s=5)
    for codec in (msgspec.msgpack, msgspec.json):
        assert codec.decode(codec.encode(policy), type=Retry) == policy
        for wrong in ({"attempts": 0}, {"attempt": 3}, {"errors": [5]}):
            with pytest.raises(msgspec.ValidationError):
                codec.decode(codec.encode(wrong), type=Retry)


def test_another_value_is_refused_where_a_policy_stands() -> None:
    """With what to write instead."""
    with pytest.raises(WrongType, match=r"retry must be a boki.Retry, not int: write retry=Retry\(attempts=3\)"):
        check_retry(3)
    assert check_retry(None) is None


def test_a_policy_that_asks_a_function_does_not_travel() -> None:
    """No log and no message holds a function, so what would be lost is refused before it is sent."""
    asking = Retry(should_retry=lambda _: True)
    with pytest.raises(InvalidArgument, match="should_retry of Retry is for steps of workflows"):
        check_retry(asking)
    with pytest.raises(InvalidArgument, match="should_retry of Retry is for steps of workflows"):
        function(retry=asking)(test_a_policy_that_asks_a_function_does_not_travel)
    assert check_retry(asking, travels=False) is asking


def test_every_error_has_a_code_to_be_named_by() -> None:
    """So a policy can mean any of them."""
    assert names_of(Failure.of(BokiError("x"))) == {"error", "BokiError"}


def test_tests_of_functions_see_their_retries() -> None:
    """The policy of the function, or of one call, in virtual time; what is no policy is refused where it stands."""
    runs: list[float] = []

    @function(retry=Retry(attempts=3, first_s=100, max_s=200, jitter=0))
    async def flaky(ctx: Context) -> int:
        runs.append(ctx.deadline)
        if len(runs) % 3:
            raise ValueError("no")
        return len(runs)

    @function(retry=Retry(attempts=3))
    async def terminal(ctx: Context) -> None:
        raise TerminalError(f"card refused in {ctx.function_name}")

    async def scenario() -> None:
        async with boki.testing.context() as ctx:
            assert await ctx.result_of(await ctx.invoke_later(flaky)) == 3
            assert [round(later - earlier) for earlier, later in pairwise(runs)] == [100, 200]
            once = await ctx.invoke_later(flaky, retry=Retry(attempts=1))
            with pytest.raises(FunctionFailed, match="ValueError: no"):
                await ctx.result_of(once)
            with pytest.raises(FunctionFailed, match="card refused in terminal"):
                await ctx.result_of(await ctx.invoke_later(terminal))
            with pytest.raises(WrongType, match=r"retry must be a boki\.Retry, not int"):
                await ctx.invoke_later(flaky, retry=3)  # type: ignore[call-overload]

    asyncio.run(scenario())
    assert len(runs) == 4
    with pytest.raises(WrongType, match=r"retry must be a boki\.Retry, not int"):
        function(retry=3)  # type: ignore[call-overload]
