"""Running a call that may be run again: its end is known when nothing of it is left."""

from __future__ import annotations

import asyncio

from boki.dispatch.server.pools import FunctionHost
from boki.protocol.calls import Call, Outcome


async def run_until_gone(host: FunctionHost, call: Call) -> Outcome:
    """Run the call until its function has ended, and all calls that it has made, or their workers have.

    Cancelling this cancels the call, and waits as long. Cancelled again, it ends at once.
    """
    gone: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def end(outcome: Outcome) -> None:
        if not gone.done():
            gone.set_result(outcome)

    ticket = host.start_call(call, end, until_gone=True)
    try:
        return await asyncio.shield(gone)
    except asyncio.CancelledError:
        host.cancel_call(ticket, end)
        await gone
        raise
