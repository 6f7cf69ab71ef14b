"""Checkpoints, trims and carrying by processes that come and go, and what they read when something is in the way."""

from __future__ import annotations

import asyncio

import pytest

from boki.libs.bokiqueue import Queue, upkeep
from boki.runtime.memory_port import MemoryPort
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokiqueue.test_crashes import Process


@asynchronous
async def test_processes_that_live_shortly_carry_what_lingers(monkeypatch: pytest.MonkeyPatch) -> None:
    """How much of the stream lies behind is in the checkpoints: nobody needs to have followed all of it."""
    monkeypatch.setattr(upkeep, "SAVE_RECORDS", 10)
    monkeypatch.setattr(upkeep, "SAVE_BYTES", 8_000)
    port = MemoryPort()
    queue: Queue[bytes] = Queue(Process(port).logbook(), "q")
    await queue.push(b"in a year", delay_s=365 * 24 * 3600)
    for _ in range(20):
        shortly: Queue[bytes] = Queue(Process(port).logbook(), "q")
        for _ in range(20):
            await shortly.push(bytes(100))
            assert await shortly.pop() is not None
        for _ in range(20):
            await asyncio.sleep(0)
        await port.clock.advance(20 * 60)  # what a process was given last is remembered for a quarter of an hour
    page = await queue.logbook.read("!q:q:0", limit=10_000)
    assert len(page.records) < 300
    await port.clock.advance(365 * 24 * 3600)
    late = await Queue[bytes](Process(port).logbook(), "q").pop()
    assert late is not None
    assert late.data == b"in a year"
