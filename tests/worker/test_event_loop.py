"""The loop of a worker: uvloop's where there is one."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from boki.worker import event_loop


@pytest.mark.parametrize(("is_there", "kind"), [(True, uvloop.Loop), (False, asyncio.SelectorEventLoop)])
def test_a_worker_runs_on_uvloop_or_without_it_on_asyncio(
    monkeypatch: pytest.MonkeyPatch, is_there: bool, kind: type[asyncio.AbstractEventLoop]
) -> None:
    """Where uvloop cannot be had, functions run all the same."""
    if not is_there:
        monkeypatch.setattr(event_loop, "uvloop", None)
    loop = event_loop.new_loop()
    try:
        assert isinstance(loop, kind)
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()
