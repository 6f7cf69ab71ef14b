"""Updates whose handlers and validators end in odd ways."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import BokiError, FunctionFailed
from boki.libs.bokiflow import flow, workflow


@workflow
async def helped() -> str:
    helper = asyncio.ensure_future(flow.sleep(1_000))

    async def ask(_: Any) -> Any:
        return await helper

    def check(payload: Any) -> None:
        raise SystemExit(payload)

    flow.on_update("ask", ask)
    flow.on_update("checked", lambda payload: payload, validator=check)
    await flow.receive("stop")
    helper.cancel()
    await flow.receive("end")
    return "ended"


async def test_an_update_is_answered_however_its_handler_ends(
    boki_context: boki.testing.Context, each_mode: None
) -> None:
    """By what it awaited, which somebody else has cancelled; or by a validator that raises no `Exception`."""
    ctx = boki_context
    handle = await helped.start(ctx)
    await handle.signal("stop")
    with pytest.raises(FunctionFailed, match="what it awaited was cancelled"):
        await handle.update("ask", wait_s=30)
    with pytest.raises(FunctionFailed, match="SystemExit"):
        await handle.update("checked", 3, wait_s=30)
    await handle.signal("end")
    assert await handle.result() == "ended"


@workflow
async def checked(_: int) -> None:
    def check(payload: int) -> None:
        flow.continue_as_new(payload)

    flow.on_update("add", lambda payload: payload, validator=check)
    await flow.sleep(3_600)


async def test_a_validator_does_not_begin_a_workflow_as_new(
    boki_context: boki.testing.Context, each_mode: None
) -> None:
    """As a handler does not: the body, which knows nothing of it, still hears that it is cancelled."""
    ctx = boki_context
    handle = await checked.start(ctx, 1)
    with pytest.raises(BokiError, match="begins none as new"):
        await handle.update("add", 2, wait_s=30)
    await handle.cancel("enough")
    with pytest.raises(FunctionFailed, match="was cancelled: enough"):
        await handle.result(wait_s=60)
