"""What a call tells its children and takes over from them."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import msgspec
import pytest

from boki import Context, DeadlineExceeded, FunctionFailed, InvalidArgument, NoSuchFunction, blocking, function
from boki.api.append_gatherer import AppendGatherer
from boki.api.call_state import UNHURRIED_US, CallState, child_traceparent
from boki.errors import ConnectionLost
from boki.log.metalog import Positions
from boki.log.operations import Answer, Done, Failure, Operation
from boki.protocol.calls import Call, Outcome, Payload

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


@function
async def child(ctx: Context, x: int) -> list[int]:
    return [x]


@function
def blocking_child(ctx: blocking.Context) -> list[int]:
    return []


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Log:
    """A log that has seen more with each request."""

    def __init__(self) -> None:
        self.asked: list[tuple[Operation, Positions, float]] = []

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        self.asked.append((operation, dict(positions), timeout_s))
        positions[0] = positions.get(0, 0) + 1
        return Done()


class Calls:
    """Answers every call with the same outcome."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self.calls: list[Call] = []
        self.later: list[tuple[Call, float, str | None]] = []

    async def invoke(self, call: Call) -> Outcome:
        self.calls.append(call)
        return self.outcome

    async def invoke_later(self, call: Call, delay_s: float, key: str | None) -> str:
        self.later.append((call, delay_s, key))
        return call.id


PARENT = Call("f" * 32, "parent", Payload("json", b"1"), "mine", 20_000_000, 3, {0: 7, 1: 4}, TRACE, "e" * 32)
RESULT = Outcome(Payload("json", b"[5]"), None, {0: 9, 1: 2, 2: 1})


def context(outcome: Outcome = RESULT, time: Time | None = None) -> tuple[Context, Calls, Log]:
    log, calls = Log(), Calls(outcome)
    state = CallState(PARENT, clock=time or Time(), wall_clock=lambda: 5000.0)
    return Context(state, log, AppendGatherer(log), calls), calls, log


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_what_a_context_knows() -> None:
    """Of its call."""
    time = Time()
    ctx, _, _ = context(time=time)
    time.now += 5
    assert (ctx.function_name, ctx.invocation_id, ctx.traceparent) == ("parent", "f" * 32, TRACE)
    assert (ctx.remaining_s, ctx.deadline, ctx.logbook.name) == (15, 5015, "mine")
    assert ctx.positions == {0: 7, 1: 4}
    assert ctx.positions is not PARENT.positions
    assert ctx.logbook_named("other").name == "other"


def test_what_a_child_is_told() -> None:
    """A new id, one level deeper, what is left of the time, and what its parent has seen until then."""

    async def scenario() -> None:
        time = Time()
        ctx, calls, _ = context(time=time)
        await ctx.logbook.sync()
        time.now += 5
        assert await ctx.invoke(child, 1) == [5]
        await ctx.invoke(blocking_child, timeout_s=3, book="theirs")
        await ctx.invoke("by-name", timeout_s=100)
        first, second, third = calls.calls
        assert (first.function, first.payload, first.depth, first.parent) == (
            "child",
            Payload("json", b"1"),
            4,
            "f" * 32,
        )
        assert (first.book, first.caller_book, first.timeout_us, first.positions) == (
            "",
            "mine",
            15_000_000,
            {0: 8, 1: 4},
        )
        assert (second.function, second.book, second.timeout_us) == ("blocking_child", "theirs", 3_000_000)
        assert (third.function, third.payload.data, third.timeout_us) == ("by-name", b"", 15_000_000)
        assert len({PARENT.id, first.id, second.id, third.id}) == 4
        assert all(re.fullmatch("[0-9a-f]{32}", call.id) for call in calls.calls)
        assert first.traceparent == f"00-0af7651916cd43dd8448eb211c80319c-{first.id[:16]}-00"

    run(scenario())


@pytest.mark.parametrize(
    "outcome",
    [RESULT, msgspec.structs.replace(RESULT, result=None, failure=Failure.of(NoSuchFunction("none")))],
)
def test_a_parent_has_seen_what_its_child_has_seen(outcome: Outcome) -> None:
    """Also if the child failed; what the parent had seen further stays."""

    async def scenario() -> None:
        ctx, calls, _ = context(outcome)
        if outcome.failure:
            with pytest.raises(NoSuchFunction):
                await ctx.invoke(child, 1)
        else:
            await ctx.invoke(child, 1)
        assert ctx.positions == {0: 9, 1: 4, 2: 1}
        assert calls.calls[0].positions == {0: 7, 1: 4}, "a copy: what the parent sees later is not the child's"

    run(scenario())


def test_every_operation_carries_what_was_seen() -> None:
    """And raises it, in every book of the context."""

    async def scenario() -> None:
        ctx, _, log = context()
        await ctx.logbook.sync()
        await ctx.logbook_named("other").sync()
        assert [positions for _, positions, _ in log.asked] == [{0: 7, 1: 4}, {0: 8, 1: 4}]
        assert [timeout_s for *_, timeout_s in log.asked] == [20, 20]

    run(scenario())


def test_nothing_is_begun_after_the_deadline() -> None:
    """Neither an operation nor a child; a later call may be."""

    async def scenario() -> None:
        time = Time()
        ctx, calls, log = context(time=time)
        time.now += 21
        assert ctx.remaining_s == 0
        for begin in (ctx.logbook.sync(), ctx.logbook.append(b"x"), ctx.invoke(child, 1)):
            with pytest.raises(DeadlineExceeded) as caught:
                await begin
            assert caught.value.outcome == "not_applied"
        assert (calls.calls, log.asked) == ([], [])

    run(scenario())


def test_a_later_call_stands_for_itself() -> None:
    """Neither the deadline nor the depth of the call that makes it bounds it."""

    async def scenario() -> None:
        ctx, calls, _ = context()
        await ctx.invoke_later(child, 2, delay_s=60, key="k", book="theirs")
        await ctx.invoke_later("by-name", {"a": 1})
        (first, delay_s, key), (second, no_delay_s, no_key) = calls.later
        assert (first.function, first.book, first.depth, first.timeout_us) == ("child", "theirs", 0, UNHURRIED_US)
        assert (delay_s, key, no_delay_s, no_key) == (60, "k", 0, None)
        assert (second.book, second.caller_book, second.payload) == ("", "mine", Payload("json", b'{"a":1}'))
        assert first.positions == {0: 7, 1: 4}

    run(scenario())


BAD: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((child,), {}, "needs a payload"),
    ((child, "x"), {}, "payload of child"),
    ((blocking_child, 1), {}, "takes no payload"),
    ((len, 1), {}, "decorate it with @function"),
    (("a b",), {}, "1 to 128 characters"),
    (("f", object()), {}, "cannot be written as JSON"),
    ((child, 1), {"book": "a/b"}, "1 to 128 characters"),
]


@pytest.mark.parametrize(("arguments", "options", "words"), BAD, ids=range(len(BAD)))
def test_bad_calls_are_refused(arguments: Any, options: Any, words: str) -> None:
    """Before anything is sent."""

    async def scenario() -> None:
        ctx, calls, _ = context()
        for make in (ctx.invoke, ctx.invoke_later):
            with pytest.raises(InvalidArgument, match=words):
                await make(*arguments, **options)
        for bad in ({"timeout_s": 0}, {"timeout_s": "1"}):
            with pytest.raises(InvalidArgument, match="timeout_s"):
                await ctx.invoke(child, 1, **bad)  # type: ignore[call-overload]
        for bad in ({"delay_s": -1}, {"key": ""}, {"key": 7}):
            with pytest.raises(InvalidArgument):
                await ctx.invoke_later(child, 1, **bad)  # type: ignore[call-overload]
        assert (calls.calls, calls.later) == ([], [])

    run(scenario())


def test_a_lost_answer_is_raised_as_it_is() -> None:
    """What the port raises is the caller's to see."""

    async def scenario() -> None:
        ctx, calls, _ = context()

        async def lose(call: Call) -> Outcome:
            raise ConnectionLost("gone")

        calls.invoke = lose  # type: ignore[method-assign]
        with pytest.raises(ConnectionLost) as caught:
            await ctx.invoke(child, 1)
        assert caught.value.outcome == "unknown"

    run(scenario())


def test_a_result_of_another_version_is_told() -> None:
    """The function that ran returns something else than the one that the caller has imported."""

    async def scenario() -> None:
        ctx, _, _ = context(Outcome(Payload("json", b'"five"'), None, {}))
        with pytest.raises(
            FunctionFailed, match=r"result of child: Expected `array`.*not the one at .*test_context.py"
        ):
            await ctx.invoke(child, 1)

    run(scenario())


def test_traces_begin_where_there_is_none() -> None:
    """The parent's invocation id is the trace's, so that its children belong together."""
    assert child_traceparent("", "a" * 32, "b" * 32) == f"00-{'a' * 32}-{'b' * 16}-01"
    assert child_traceparent("rubbish", "a" * 32, "b" * 32) == f"00-{'a' * 32}-{'b' * 16}-01"
