"""What cannot be meant is refused at the edge or ends as an error that says what to do; a table of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

import boki.testing
from boki import BokiError, ConfigError
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.face.registered import workflow_info

Wrong = Callable[[boki.testing.Context], Awaitable[Any]]


@step
async def one() -> int:
    return 1


@step
async def opaque() -> Any:
    return object()


@step
async def huge() -> str:
    return "x" * 2_000_000


@workflow
async def count(n: int) -> int:
    return n + await one()


@workflow
async def bad_result() -> Any:
    return await opaque()


@workflow
async def huge_step() -> int:
    return len(await huge())


@workflow
async def huge_result() -> str:
    return "x" * 2_000_000


@workflow
async def length(text: str) -> int:
    return len(text)


@workflow
async def calls_nobody() -> None:
    await flow.call("nosuch")


@workflow
async def starts_nobody() -> None:
    await flow.start("nosuch", id="child")


@workflow
async def nested() -> int:
    return await count(1)  # type: ignore[no-any-return]


@workflow
async def hands_over(what: list[int]) -> None:
    flow.continue_as_new(*{0: (), 2: (what, what)}.get(len(what), ("a text",)))


@workflow
async def calls_a_step() -> int:
    return await flow.call(one)  # type: ignore[arg-type]


@workflow
async def leaves_a_child() -> None:
    await flow.start(count, 1, parent_close="terminate")  # type: ignore[arg-type]


async def _other_arguments(ctx: boki.testing.Context) -> None:
    await count.start(ctx, 1, id="a")
    await count.start(ctx, 2, id="a")


async def _signal_after_the_end(ctx: boki.testing.Context) -> None:
    handle = await count.start(ctx, 1, id="a")
    await handle.result()
    await handle.signal("more")


async def _result(ctx: boki.testing.Context, wrong: Any) -> None:
    await (await wrong.start(ctx)).result()


async def _ends(ctx: boki.testing.Context, what: list[int]) -> None:
    await (await hands_over.start(ctx, what)).result()


WRONG: dict[str, tuple[Wrong, str, str]] = {
    "an id with other arguments": (_other_arguments, "key_reused", "came with another call"),
    "nothing of that id": (lambda ctx: count.handle(ctx, "none").status(), "no_such_workflow", "start it"),
    "a signal to one that has ended": (_signal_after_the_end, "workflow_ended", "has ended .*nothing was sent"),
    "a result that no record holds": (lambda ctx: _result(ctx, huge_step), "function_failed", "append it to a LogBook"),
    "a workflow's result over the limit": (
        lambda ctx: _result(ctx, huge_result),
        "too_large",
        r"the function ran, but its result has 2,000,000 bytes.*1,048,576: append it to a LogBook",
    ),
    "a payload over the limit": (lambda ctx: length.start(ctx, "x" * 2_000_000), "too_large", "at most 1,032,192: "),
    "an unknown workflow that is called": (
        lambda ctx: _result(ctx, calls_nobody),
        "function_failed",
        r"NoSuchFunction: no function 'nosuch': give it to boki\.testing\.context",
    ),
    "an unknown workflow that is started": (
        lambda ctx: _result(ctx, starts_nobody),
        "function_failed",
        r"NoSuchFunction: no function 'nosuch': give it to boki\.testing\.context",
    ),
    "a result that cannot be encoded": (
        lambda ctx: _result(ctx, bad_result),
        "function_failed",
        "result of step opaque",
    ),
    "a step outside of a workflow": (lambda ctx: one(), "invalid_argument", r"one\.fn\(\.\.\.\) to run just"),
    "a workflow called as a step": (lambda ctx: _result(ctx, nested), "function_failed", r"await flow\.call\(count"),
    "a step called as a workflow": (
        lambda ctx: _result(ctx, calls_a_step),
        "function_failed",
        r"one is a step, .* write await one\(\.\.\.\)",
    ),
    "a cron line that never fires": (
        lambda ctx: count.schedule(ctx, 1, id="s", cron="0 0 30 2 *"),
        "invalid_argument",
        "never fires",
    ),
    "an unknown policy for a child": (
        lambda ctx: _result(ctx, leaves_a_child),
        "function_failed",
        "parent_close is one of cancel, kill, abandon, not 'terminate'",
    ),
    "a continuation without its payload": (
        lambda ctx: _ends(ctx, []),
        "function_failed",
        "needs a payload",
    ),
    "a continuation with two payloads": (
        lambda ctx: _ends(ctx, [1, 2]),
        "function_failed",
        "at most one payload, not 2",
    ),
    "a continuation with another payload": (lambda ctx: _ends(ctx, [1]), "function_failed", "payload of hands_over"),
    "an id that is empty": (lambda ctx: count.start(ctx, 1, id=""), "invalid_argument", "id must be 1 to 200"),
    "an attribute that is a list": (
        lambda ctx: count.start(ctx, 1, attributes={"tags": ["a"]}),  # type: ignore[dict-item]
        "invalid_argument",
        "attribute tags must be a bool",
    ),
    "an attribute of the library's own": (
        lambda ctx: count.start(ctx, 1, attributes={"boki:attends": "schedule"}),
        "invalid_argument",
        "name is a letter",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_wrong_inputs(boki_context: boki.testing.Context, wrong: str) -> None:
    """Each is a definite error of its own code, with the remedy in its message."""
    act, code, message = WRONG[wrong]
    with pytest.raises(BokiError, match=message) as caught:
        await act(boki_context)
    assert caught.value.code == code
    assert caught.value.outcome != "unknown"


@pytest.mark.parametrize(("count", "said"), [(0, "there are none"), (8, "w6, w7"), (11, "w6, w7, 3 more")])
def test_a_name_that_is_not_there_is_answered_with_those_that_are(count: int, said: str) -> None:
    """Some of them, and how many others; the list of eight looked as if it were all."""
    gateway: Any = SimpleNamespace(
        functions={f"w{n:x}": SimpleNamespace(settings_of=lambda _library: {}) for n in range(count)}
    )
    with pytest.raises(BokiError, match=f"there is no workflow 'unlike': .*{said}$"):
        workflow_info(gateway, "unlike")


def test_an_option_that_a_workflow_does_not_have() -> None:
    """Those that it has are named, and none of them was refused by the same check."""
    with pytest.raises(
        ConfigError, match=r"no option timeout; did you mean run_timeout_s\?.* keep_s, continue_after, "
    ):
        workflow(timeout=3)


def test_a_generator_is_no_workflow() -> None:
    """It is refused where it is decorated, and not when it is run."""

    async def counts(n: int) -> Any:
        yield n

    with pytest.raises(ConfigError, match="workflow counts is a generator"):
        workflow(counts)
