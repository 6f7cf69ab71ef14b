"""Handlers of messages of any kind, and what is said to a workflow that cannot answer."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

import boki.testing
from boki import FunctionFailed, InvalidArgument, TooLarge
from boki.libs.bokiflow import Workflow, WorkflowEnded, flow, step, workflow
from boki.libs.bokiflow.blocking import flow as blocking
from boki.libs.bokiflow.face.looking import look

pytestmark = pytest.mark.usefixtures("each_mode")


def keep(got: list[Any], extra: str, payload: int) -> None:
    got.append([extra, payload])


class Keeper:
    """Is called as a function is."""

    def __init__(self, got: list[Any]) -> None:
        self._got = got

    def __call__(self, payload: int) -> None:
        self._got.append(payload)


@workflow
async def takes(kind: str) -> Any:
    got: list[Any] = []
    handlers: dict[str, Callable[[Any], Any]] = {
        "partial": functools.partial(keep, got, "more"),
        "object": Keeper(got),
        "builtin": got.append,
    }
    flow.on_signal("x", handlers[kind])
    await flow.wait_for(lambda: bool(got))
    return got[0]


@pytest.mark.parametrize(("kind", "expected"), [("partial", ["more", 7]), ("object", 7), ("builtin", 7)])
async def test_whatever_can_be_called_is_a_handler(
    boki_context: boki.testing.Context, kind: str, expected: object
) -> None:
    """The first message ended the workflow."""
    handle = await takes.start(boki_context, kind)
    await handle.signal("x", 7)
    assert await handle.result() == expected


@dataclass
class Item:
    price: int


def logged(fn: Callable[..., Any]) -> Callable[..., Any]:
    """As decorators of users are."""

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return fn(*args)

    return call


class Till:
    """Has a handler that is decorated."""

    def __init__(self) -> None:
        self.got: list[int] = []

    @logged
    def take(self, item: Item) -> None:
        self.got.append(item.price)


@workflow
async def sells() -> int:
    till = Till()
    flow.on_signal("item", till.take)
    await flow.wait_for(lambda: bool(till.got))
    return till.got[0]


@workflow
def sells_blocking() -> int:
    till = Till()
    blocking.on_signal("item", till.take)
    blocking.wait_for(lambda: bool(till.got))
    return till.got[0]


@pytest.mark.parametrize("code", [sells, sells_blocking])
async def test_a_decorated_method_gets_what_it_is_annotated_with(
    boki_context: boki.testing.Context, code: Workflow[Any, int]
) -> None:
    """It got the raw payload, as its first parameter was taken to be `self`."""
    handle = await code.start(boki_context)
    await handle.signal("item", {"price": 3})
    assert await handle.result() == 3


@step
async def keeps_kind(item: Item) -> str:
    return type(item).__name__


@workflow
async def answers_by_a_step() -> None:
    flow.on_update("kind", keeps_kind)
    await flow.receive("end")


async def test_a_step_as_a_handler_gets_what_it_always_got(boki_context: boki.testing.Context) -> None:
    """The plain payload: what is recorded of the step has the digest of that."""
    handle = await answers_by_a_step.start(boki_context)
    assert await handle.update("kind", {"price": 3}) == "dict"
    await handle.signal("end")
    await handle.result()


@workflow
async def begins_in_a_handler() -> str:
    async def again(_: Any) -> None:
        flow.continue_as_new()

    flow.on_signal("again", again)
    flow.on_update("again", again)
    await flow.receive("end")
    return "ended"


async def test_a_handler_does_not_continue_as_new(boki_context: boki.testing.Context) -> None:
    """It was lost without a word."""
    handle = await begins_in_a_handler.start(boki_context)
    with pytest.raises(FunctionFailed, match="a handler ends no workflow and begins none as new"):
        await handle.update("again")
    await handle.signal("again")
    with pytest.raises(FunctionFailed, match="a handler ends no workflow and begins none as new"):
        await handle.result()


@workflow
async def validates_later() -> str:
    async def check(_: Any) -> None:
        raise ValueError("never seen")

    try:
        flow.on_update("seat", lambda seat: seat, validator=check)
    except InvalidArgument as error:
        return str(error)
    return ""


async def test_a_validator_is_no_coroutine(boki_context: boki.testing.Context) -> None:
    """It refused nothing."""
    assert "the validator of seat is an async def" in await (await validates_later.start(boki_context)).result()


@workflow
async def answers_at_length() -> str:
    flow.on_update("tell", lambda size: "x" * size)
    await flow.receive("end")
    return "ended"


async def test_an_answer_that_no_record_holds_is_an_error_of_the_update(boki_context: boki.testing.Context) -> None:
    """It ended the workflow."""
    handle = await answers_at_length.start(boki_context)
    with pytest.raises(TooLarge, match=r"the answer has 3,000,\d+ bytes"):
        await handle.update("tell", 3_000_000)
    assert await handle.update("tell", 3) == "xxx"
    await handle.signal("end")
    assert await handle.result() == "ended"


async def test_an_update_of_one_that_has_ended_is_not_sent(boki_context: boki.testing.Context) -> None:
    """It was, and the next workflow of that id was given it. One that may have been sent before is asked for."""
    handle = await answers_at_length.start(boki_context, id="a")
    await handle.signal("end")
    await handle.result()
    with pytest.raises(WorkflowEnded, match="nothing was sent") as raised:
        await handle.update("tell", 1)
    assert raised.value.outcome == "not_applied"
    with pytest.raises(WorkflowEnded, match="the update was sent, and it did not answer") as raised:
        await handle.update("tell", 1, id="u")
    assert raised.value.outcome == "unknown"


@workflow
async def counts() -> list[int]:
    got: list[int] = []

    def on(n: int) -> None:
        got.append(n)

    flow.on_signal("n", on)
    await flow.receive("end")
    return got


@workflow
def counts_blocking() -> list[int]:
    got: list[int] = []

    def on(n: int) -> None:
        got.append(n)

    blocking.on_signal("n", on)
    blocking.receive("end")
    return got


@pytest.mark.parametrize("code", [counts, counts_blocking])
async def test_a_signal_of_another_type_is_dropped(
    boki_context: boki.testing.Context, code: Workflow[Any, Any]
) -> None:
    """Anybody who could send one ended the workflow. It is said in the log, and in the timeline."""
    ctx = boki_context
    handle = await code.start(ctx, id="c")
    for payload in ("oops", 1, "oops again", 2):
        await handle.signal("n", payload)
        await ctx.clock.advance(5)
    await handle.signal("end")
    assert await handle.result() == [1, 2]
    said = [span.value for span in (await look(ctx.logbook, handle.invocation_id)).spans if span.kind == "decision"]
    assert len(said) == 1
    assert "payload of n" in said[0]


@step
async def tell(what: str) -> None: ...


@workflow
async def counts_and_cleans_up() -> list[int]:
    try:
        return await counts.fn()
    finally:
        await tell("bye")
        await flow.receive("last")


async def test_what_had_failed_by_such_a_signal_does_so_in_a_replay(boki_context: boki.testing.Context) -> None:
    """A workflow that cleans up for that reason while Boki is upgraded does not diverge from its journal."""
    ctx = boki_context
    with patch("boki.libs.bokiflow.machine.drops", lambda *_: False):  # as an earlier Boki did
        handle = await counts_and_cleans_up.start(ctx, id="c")
        await handle.signal("n", "oops")
        await ctx.clock.advance(10)
    spans = (await look(ctx.logbook, handle.invocation_id)).spans
    assert [span.name for span in spans if span.n >= 0] == ["tell"]
    await handle.signal("last")
    with pytest.raises(FunctionFailed, match="payload of n"):
        await handle.result()


@workflow
async def registers(kind: str) -> str:
    handlers: dict[str, Callable[..., Any]] = {
        "none": lambda: None,
        "many": keep,
        "unknown": unknown,
    }
    for register in (flow.on_signal, flow.on_update):
        try:
            register("x", handlers[kind])
        except InvalidArgument as error:
            said = str(error)
    return said


def unknown(payload: "Missing") -> None:  # type: ignore[name-defined]  # noqa: F821 - as under TYPE_CHECKING
    ...


@pytest.mark.parametrize("kind", ["none", "many", "unknown"])
async def test_what_takes_no_payload_is_no_handler(boki_context: boki.testing.Context, kind: str) -> None:
    """It is refused where it is registered. The first message ended the workflow."""
    said = await (await registers.start(boki_context, kind)).result()
    assert said.startswith("the handler of x takes no payload (")


@workflow
async def collects() -> list[Any]:
    got: set[Any] = set()
    flow.on_signal("x", got.add)
    await flow.wait_for(lambda: bool(got))
    return list(got)


async def test_a_builtin_without_a_signature_takes_any_payload(boki_context: boki.testing.Context) -> None:
    """The first message ended the workflow: no signature found for it."""
    handle = await collects.start(boki_context)
    await handle.signal("x", "a")
    assert await handle.result() == ["a"]


def with_list(handler: Callable[[list[int], int], None]) -> Callable[[int], None]:
    """A decorator which supplies an argument."""
    found: list[int] = []

    @functools.wraps(handler)
    def decorated(payload: int) -> None:
        handler(found, payload)
        found.append(payload)

    return decorated


@workflow
async def decorated_handler() -> list[int]:
    got: list[int] = []

    @with_list
    def on(before: list[int], n: int) -> None:
        got[:] = [*before, n]

    flow.on_signal("n", on)
    await flow.wait_for(lambda: len(got) == 2)
    return got


async def test_a_handler_may_be_decorated(boki_context: boki.testing.Context) -> None:
    """What counts is what it is called with, and not what it wraps."""
    handle = await decorated_handler.start(boki_context, id="a")
    for n in (7, 8):
        await handle.signal("n", n)
    assert await handle.result() == [7, 8]
