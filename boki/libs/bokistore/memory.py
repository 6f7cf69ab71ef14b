"""What a process keeps for the stores that it reaches over one connection to the log, and the work beside its calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from os import urandom
from threading import RLock
from typing import Final

from boki import BokiError, LogBook, blocking
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.saving import save
from boki.libs.bokistore.views import Rows
from boki.libs.fold import steps
from boki.libs.fold.recent import Recent
from boki.libs.fold.steps import Steps

NONCE_BYTES: Final = 12
READERS_KEPT: Final = 128
"""Maximum number of books of which a process remembers objects that no call uses."""
READERS_BYTES: Final = 256 << 20
"""Bytes of views that it keeps of them, about: several times as many as of one book (`views.ROWS_BYTES`)."""
_log: Final = logging.getLogger("boki.libs.bokistore")


class Memory:
    """The readers of all books of a connection. Made by `session.shared(Memory)`, so all calls of a worker share it."""

    def __init__(self) -> None:
        self.readers: Recent[str, Reader] = Recent(READERS_KEPT, size_of=_size_bytes, most_bytes=READERS_BYTES)
        """Of the books that were used last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.draw: Callable[[int], bytes] = urandom
        """Draws that many random bytes."""

    def reader(self, book: str) -> Reader:
        """The way to the objects of that book."""
        return self.readers.find(book, lambda: Reader(Rows(), book, self.reader))

    def new_nonce(self) -> bytes:
        """What tells one write from all others."""
        return self.draw(NONCE_BYTES)

    def forget(self) -> None:
        """Forget all views: whoever reads next begins with the log."""
        for reader in self.readers:
            reader.rows.clear()
            reader.shapes.clear()
            reader.is_plain = False

    def save_beside(self, reader: Reader, logbook: LogBook) -> None:
        """Save the objects that are due, and do what follows a write, in tasks that no call waits for and that outlast
        it.
        """
        for name, todo in _take_work(reader):
            detached = logbook.session.logbook(logbook.name, detached=True)
            task = asyncio.get_running_loop().create_task(self._work(todo, name, detached))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, todo: Steps[None], name: str, logbook: LogBook) -> None:
        try:
            await steps.run(todo, logbook)
        except BokiError as error:  # it is due again after as many updates, or with the next write
            _log.info("object %s of book %s was not saved or listed: %s", name, logbook.name, error)

    async def come_to_rest(self, patience_s: float | None = None) -> None:
        """Until nothing continues beside the calls, or for that long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)


class BlockingMemory(Memory):
    """The same for plain functions, which save before they return."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = RLock()
        """Held between two operations of a call, so that threads take turns where tasks do."""

    def save_now(self, reader: Reader, logbook: blocking.LogBook) -> None:
        """Save the objects that are due, and do what follows a write."""
        with self.lock:
            work = _take_work(reader)
        for _, todo in work:
            with suppress(BokiError):
                steps.run_blocking(todo, logbook, lock=self.lock)


def _take_work(reader: Reader) -> list[tuple[str, Steps[None]]]:
    """What is to be done of which object, once."""
    work = [*((name, save(reader, name)) for name in sorted(reader.due)), *reader.follow_ups]
    reader.due.clear()
    reader.follow_ups.clear()
    return work


def _size_bytes(reader: Reader) -> int:
    return reader.rows.size_bytes
