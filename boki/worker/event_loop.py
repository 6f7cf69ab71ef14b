"""The event loop of a worker."""

from __future__ import annotations

import asyncio

try:
    import uvloop
except ImportError:  # where uvloop is not available; asyncio's own loop does the same, slower
    uvloop = None  # type: ignore[assignment]


def new_loop() -> asyncio.AbstractEventLoop:
    """A new loop, which is this thread's from now on: uvloop's, or asyncio's own where there is none."""
    loop = uvloop.new_event_loop() if uvloop is not None else asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop
