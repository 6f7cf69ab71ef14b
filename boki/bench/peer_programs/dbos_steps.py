"""DBOS workflows of n steps over a database, and the load on them, because DBOS is a library in its caller's process.

`python dbos_steps.py DATABASE_URL CALLERS DURATION_S STEPS` prints the latencies in seconds as a JSON array. SQLite is
used as DBOS opens it: a rollback journal, synced at each commit. In PostgreSQL DBOS makes the database, and has its
default of 20 connections.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

from dbos import DBOS

url, callers, duration_s, step_count = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
DBOS(config={"name": "steps", "system_database_url": url, "log_level": "ERROR"})


@DBOS.step()
async def step(number: int) -> int:
    """An effect that costs nothing."""
    return number


@DBOS.workflow()
async def run(count: int) -> int:
    """The sum of the results of `count` steps, one after the other."""
    total = 0
    for number in range(count):
        total += await step(number)
    return total


async def main() -> None:
    """Load it, and print what was measured."""
    DBOS.launch()
    latencies_s: list[float] = []
    end = time.perf_counter() + duration_s

    async def call_until_the_end() -> None:
        while (before := time.perf_counter()) < end:
            assert await run(step_count) == step_count * (step_count - 1) // 2
            latencies_s.append(time.perf_counter() - before)

    await asyncio.gather(*(call_until_the_end() for _ in range(callers)))
    sys.stdout.write(json.dumps(latencies_s) + "\n")
    sys.stdout.flush()
    os._exit(0)  # its background threads would poll on


asyncio.run(main())
