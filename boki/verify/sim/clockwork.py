"""The clock and the heap: every event of a run stands in one queue, and time is whatever the next one says.

Randomness comes in separate streams, so that one draw more in one of them does not shuffle the others: a run with a
fault switched off stays as like the original as it can, and shrinks well.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import blake2b
from random import Random
from typing import Any, Final

START_US: Final = 1_700_000_000_000_000
"""When every run begins, in microseconds since the epoch."""


_LINES: Final = 2_000
"""Noted lines are digested this many at once."""


_MOST_EVENTS: Final = 5_000_000
"""A run has about 20,000. One that has this many goes round in a circle, and would never end."""


class Clockwork:
    """Virtual time in integer microseconds, and what is to happen when."""

    def __init__(self, seed: int) -> None:
        self.now_us = START_US
        self.network_rng = Random(f"{seed}:network")
        self.disk_rng = Random(f"{seed}:disk")
        self.schedule_rng = Random(f"{seed}:schedule")
        self.work_rng = Random(f"{seed}:work")
        self.call_rng = Random(f"{seed}:calls")
        self.call_trouble_rng = Random(f"{seed}:call_trouble")
        self.call_sleep_rng = Random(f"{seed}:call_sleep")
        self.call_compute_rng = Random(f"{seed}:call_compute")
        self.queue_rng = Random(f"{seed}:queues")
        self.flow_rng = Random(f"{seed}:flows")
        self.flow_race_rng = Random(f"{seed}:flow_races")
        self.fault_rng = Random(f"{seed}:faults")
        self.event_count = 0
        self.seen: Counter[str] = Counter()
        """How often each rare situation came up: see `boki.verify.sim.coverage`."""
        self.tell: Callable[[str], None] | None = None
        """Takes one line of the story, if somebody reads it."""
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._digest = blake2b(digest_size=16)
        self._lines: list[str] = []

    def after(self, delay_us: int, action: Callable[..., None], *arguments: Any) -> None:
        """Let `action` happen that much later."""
        self._number += 1
        heapq.heappush(self._heap, (self.now_us + delay_us, self._number, action, arguments))

    def run_until(self, time_us: int, is_done: Callable[[], bool] | None = None) -> bool:
        """Let everything happen until that time; stop early, and say so, as soon as `is_done`."""
        heap = self._heap
        while heap and heap[0][0] <= time_us:
            self.now_us, _, action, arguments = heapq.heappop(heap)
            self.event_count += 1
            if self.event_count > _MOST_EVENTS:
                raise RuntimeError(f"{self.event_count:,} events: it goes round in a circle, in {action}")
            action(*arguments)
            if is_done is not None and is_done():
                return True
        self.now_us = max(self.now_us, time_us)
        return False

    def sometimes(self, situation: str) -> None:
        """A rare situation has come up."""
        self.seen[situation] += 1

    def note(self, text: str, detail: object = "") -> None:
        """Put an event into the trace. `detail` is for whoever reads the story, and not part of the trace."""
        self._lines.append(f"{self.now_us} {text}\n")
        if len(self._lines) > _LINES:
            self._digest_lines()
        if self.tell is not None:
            self.tell(f"{(self.now_us - START_US) / 1e6:10.6f}  {text} {detail}")

    def seal(self, rows: Iterable[bytes]) -> str:
        """A digest of all that was noted, and of these rows: equal for equal runs."""
        self._digest_lines()
        for row in rows:
            self._digest.update(row + b"\n")
        return self._digest.hexdigest()

    def _digest_lines(self) -> None:
        self._digest.update("".join(self._lines).encode())
        self._lines.clear()
