"""`async` code over the port of blocking code: so the libraries, which are `async`, serve plain `def` functions too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from boki.api import blocking_logbook
from boki.api.append_gatherer import AppendGatherer
from boki.api.logbook import LogBook, LogSession
from boki.api.port import BlockingLogPort
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Operation

T = TypeVar("T")

_THREADS: Final = 16
"""This many requests wait for their answers at once; more wait for their turn."""


class BorrowedPort:
    """A `LogPort` whose requests wait in threads."""

    def __init__(self, port: BlockingLogPort, threads: ThreadPoolExecutor) -> None:
        self._port = port
        self._threads = threads

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `LogPort.request`."""
        seen = dict(positions)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, self._port.request, operation, seen, timeout_s)
        merge_positions(positions, seen)
        return answer


def run(logbook: blocking_logbook.LogBook, work: Callable[[LogBook], Awaitable[T]]) -> T:
    """Run code that is written for the `async` LogBook, such as the libraries, over a blocking one; what it returns.

    ::

        run(ctx.logbook, lambda logbook: Queue(logbook, "orders").push("tea"))

    It has an event loop of its own, which ends with it: what is still under way then is cancelled, and what a library
    keeps in memory is read from the log again next time. So do in one run what belongs together. Not for a thread in
    which an event loop runs: there use the `async` side.
    """
    access = logbook.session
    threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="boki")

    async def borrow() -> T:
        port = BorrowedPort(access.port, threads)
        return await work(
            LogBook(logbook.name, LogSession(port, AppendGatherer(port, access.caller.limits), access.caller))
        )

    try:
        return asyncio.run(borrow())
    finally:
        threads.shutdown(wait=False, cancel_futures=True)  # a read that nobody waits for any more ends by itself
