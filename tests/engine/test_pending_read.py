"""The moments at which waiting reads are looked at."""

from __future__ import annotations

import heapq

from boki.engine.pending_read import Due, PendingRead, Timed
from boki.engine.waiter import Waiter
from boki.log.operations import Read


def read() -> PendingRead:
    return PendingRead(Read("book"), Waiter("book", "token"), {}, 10, 5)


def test_at_one_moment_waits_end_before_deadlines_and_the_oldest_comes_first() -> None:
    """A read whose wait ends at its deadline is answered with the records present. Reads are never compared."""
    moments = [(5, Due.DEADLINE, 1), (5, Due.WAIT_END, 3), (4, Due.DEADLINE, 4), (5, Due.WAIT_END, 2)]
    heap: list[Timed] = []
    for moment in moments:
        heapq.heappush(heap, Timed(*moment, read()))
    popped = [heapq.heappop(heap)[:3] for _ in moments]
    assert popped == [(4, Due.DEADLINE, 4), (5, Due.WAIT_END, 2), (5, Due.WAIT_END, 3), (5, Due.DEADLINE, 1)]
