"""Keeps the book of logged calls short: what is old is trimmed, and checkpoints spare a start the reading of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from boki.books.calls.call_book import CallBook
from boki.books.calls.trimming import Trimmer
from boki.errors import BokiError

_log = logging.getLogger("boki.protocol.calls")

_LONGEST_TIMER_S: Final = 3600.0
_CHECKPOINT_EVERY: Final = 500
"""A start reads about this many records at most, each perhaps from another machine; or as many as calls wait."""
_TRIMS_PER_KEEP: Final = 24


class Housekeeping:
    """Of one engine, one piece of work at a time; what fails is done next time. `spawn` runs it."""

    def __init__(
        self,
        book: CallBook,
        keep_s: float,
        clock: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._book = book
        self._keep_s = keep_s
        self._clock = clock
        self._spawn = spawn
        self._trimmer = Trimmer(book)
        self._timer: asyncio.TimerHandle | None = None
        self._is_busy = False

    def start(self) -> None:
        """Trim from time to time."""
        interval_s = min(self._keep_s / _TRIMS_PER_KEEP, _LONGEST_TIMER_S)
        self._timer = asyncio.get_running_loop().call_later(interval_s, self._trim)

    def stop(self) -> None:
        """Stop trimming."""
        if self._timer is not None:
            self._timer.cancel()

    def look(self) -> None:
        """There are more records: write a checkpoint if one is due."""
        if self._book.unsaved_count >= max(_CHECKPOINT_EVERY, len(self._book.ledger.waiting)):
            self._begin(self._book.checkpoint)

    def _trim(self) -> None:
        self._begin(lambda: self._trimmer.trim(self._clock() - int(self._keep_s * 1e6)))
        self.start()

    def _begin(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._is_busy:
            self._is_busy = True
            self._spawn(self._run(work))

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except BokiError as error:
            _log.warning("keeping the book of logged calls in order failed, to be repeated: %s", error)
        finally:
            self._is_busy = False
