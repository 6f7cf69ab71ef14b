"""Handlers of messages of any kind, and what is said to a workflow that cannot answer."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed, InvalidArgument, TooLarge
from boki.libs.bokiflow import WorkflowEnded, flow, workflow

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
