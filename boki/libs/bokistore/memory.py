"""What a process keeps for the stores that it reaches over one connection to the log, and the work beside its calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from os import urandom
from typing import Final

from boki import BokiError, LogBook, blocking
from boki.libs.bokistore.maps import Shape
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.saving import save
from boki.libs.bokistore.views import Rows
from boki.libs.fold import steps

NONCE_BYTES: Final = 12
_log: Final = logging.getLogger("boki.libs.bokistore")


class Memory:
    """The readers of all books of a connection. Made by `session.shared(Memory)`, so all calls of a worker share it."""

    def __init__(self) -> None:
        self._readers: dict[str, Reader] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.draw: Callable[[int], bytes] = urandom
        """Draws that many random bytes."""

    def reader(self, book: str) -> Reader:
        """The way to the objects of that book."""
        found = self._readers.get(book)
        if found is None:
            found = self._readers[book] = Reader(Rows(), book, self.reader)
        return found

    def shapes(self, book: str) -> dict[str, Shape]:
        """How the maps of that book were made, as far as it is known."""
        return self.reader(book).shapes

    def new_nonce(self) -> bytes:
        """What tells one write from all others."""
        return self.draw(NONCE_BYTES)

    def forget(self) -> None:
        """Forget all views: whoever reads next begins with the log."""
        for reader in self._readers.values():
            reader.rows.clear()
            reader.shapes.clear()

    def save_beside(self, reader: Reader, logbook: LogBook) -> None:
        """Save the objects that are due, in tasks that no call waits for and that outlast it."""
        for name in sorted(reader.due):
            reader.due.discard(name)
            detached = logbook.session.logbook(logbook.name, detached=True)
            task = asyncio.get_running_loop().create_task(self._save(reader, name, detached))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _save(self, reader: Reader, name: str, logbook: LogBook) -> None:
        try:
            await steps.run(save(reader, name), logbook)
        except BokiError as error:  # it is due again after as many updates
            _log.info("object %s of book %s was not saved: %s", name, logbook.name, error)

    async def come_to_rest(self, patience_s: float | None = None) -> None:
        """Until nothing continues beside the calls, or for that long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience_s)


class BlockingMemory(Memory):
    """The same for plain functions, which save before they return."""

    def save_now(self, reader: Reader, logbook: blocking.LogBook) -> None:
        """Save the objects that are due."""
        for name in sorted(reader.due):
            reader.due.discard(name)
            with suppress(BokiError):
                steps.run_blocking(save(reader, name), logbook)
