"""Load in this process: callers that repeat one operation, each as soon as its last one has ended; and whose it is."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from boki.bench.rows import Round, measured
from boki.errors import BokiError


async def closed_loop(operation: Callable[[int], Awaitable[object]], callers: int, duration_s: float) -> Round:
    """Run `operation` from `callers` tasks for `duration_s` seconds; it gets the number of its caller, from 0.

    A `BokiError` counts as an error, and its time as no latency.
    """
    latencies_s: list[float] = []
    error_count = 0
    started = time.perf_counter()
    end = started + duration_s

    async def repeat_until_the_end(caller: int) -> None:
        nonlocal error_count
        while (before := time.perf_counter()) < end:
            try:
                await operation(caller)
            except BokiError:
                error_count += 1
            else:
                latencies_s.append(time.perf_counter() - before)

    await asyncio.gather(*(repeat_until_the_end(caller) for caller in range(callers)))
    return measured(latencies_s, error_count, time.perf_counter() - started)


def engine_pid() -> str:
    """The process of the engine that this worker belongs to: its parent is a zygote, whose parent is the engine."""
    zygote = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="ascii", errors="replace")
    return zygote.rpartition(")")[2].split()[1]
