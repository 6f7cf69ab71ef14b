"""Bound on the lines that one kind of event may write: what busy or hostile callers do must not fill a disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

WINDOW_S: Final = 1.0


class LineBudget:
    """At most `max_lines` lines in each second; the rest is counted, and told by one line at the end of the second.

    Used from the event loop's thread only. There is no timer while nothing happens.
    """

    __slots__ = ("_left", "_left_out", "_max_lines", "_summarize", "_timer")

    def __init__(self, max_lines: int, summarize: Callable[[int], None]) -> None:
        """`summarize` writes the line that tells how many events had none of their own."""
        self._max_lines = max_lines
        self._summarize = summarize
        self._left = max_lines
        self._left_out = 0
        self._timer: asyncio.TimerHandle | None = None

    def admit(self) -> bool:
        """Whether this event has a line of its own. If not, it is counted for the summary."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._end_window)
        if self._left:
            self._left -= 1
            return True
        self._left_out += 1
        return False

    def close(self) -> None:
        """Write what is left to tell, and stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell()

    def _end_window(self) -> None:
        self._timer = None
        if self._tell():  # events keep coming: the summary is the first line of the next second
            self._left -= 1
            self._timer = asyncio.get_running_loop().call_later(WINDOW_S, self._end_window)

    def _tell(self) -> bool:
        count, self._left_out, self._left = self._left_out, 0, self._max_lines
        if count:
            self._summarize(count)
        return bool(count)
