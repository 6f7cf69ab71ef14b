"""Running a call that may be run again: its end is known when nothing of it is left."""

from __future__ import annotations

import asyncio

from boki.dispatch.server.pools import FunctionHost
from boki.protocol.calls import Call, Outcome


async def run_until_gone(host: FunctionHost, call: Call) -> Outcome:
    """Run the call until its function has ended, and all calls that it has made, or their workers have. If it fails,
    what they have asked to be written is decided by then: a function may have stopped waiting for that.

    Cancelling this cancels the call, and waits as long. Cancelled again, it ends at once.
    """
    gone: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    def end(outcome: Outcome) -> None:
        if not gone.done():
            gone.set_result(outcome)

    ticket = host.start_call(call, end, until_gone=True)
    try:
        outcome = await asyncio.shield(gone)
        if outcome.failure is not None:
            await host.writes_decided()
        return outcome
    except asyncio.CancelledError:
        host.cancel_call(ticket, end)
        await gone
        await host.writes_decided()
        raise
