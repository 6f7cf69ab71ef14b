"""Functions that run a scenario of the contract suite where they run: in a worker process of either kind.

A functions folder for `boki dev`. The test calls one of the two with a scenario's name and a LogBook of its own.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from boki import Context, blocking, function

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # the checkout, whose tests no worker can import else

from tests.contract.awaitable import AwaitableLogs
from tests.contract.scenarios import SCENARIOS
from tests.contract.scenarios.logs import Logs

_THREADS = 64
"""More than any scenario has calls at once: one that waits must not keep out the one that it waits for."""


@function(timeout_s=120)
async def run_scenario(ctx: Context, name: str) -> str:
    """Run the scenario on the call's LogBook: "" if all held, else the traceback."""
    return await _run(ctx, name)


@function(timeout_s=120)
def run_scenario_blocking(ctx: blocking.Context, name: str) -> str:
    """The same over the blocking LogBook, in threads."""
    with ThreadPoolExecutor(_THREADS) as threads:

        async def run() -> str:
            loop = asyncio.get_running_loop()
            return await _run(AwaitableLogs(ctx, lambda call: loop.run_in_executor(threads, call)), name)

        return asyncio.run(run())


async def _run(logs: Logs | AwaitableLogs, name: str) -> str:
    try:
        await SCENARIOS[name](logs)
    except Exception:  # noqa: BLE001 - whatever went wrong is the answer
        return traceback.format_exc()
    return ""
