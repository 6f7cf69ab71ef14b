"""A number that two processes see and that outlives the one that writes it: how many calls a worker has begun.

A worker may die without a word. Whether a call had begun decides whether it may run again, so the worker writes it down
where the engine finds it afterwards: in memory shared by both. One aligned store, no system call, no message.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import Final

_BYTES: Final = mmap.PAGESIZE


class Tally:
    """The number; one process writes it, others read it."""

    __slots__ = ("_map", "_view")

    def __init__(self, fd: int) -> None:
        """`fd`: what `create` returned, in this process or sent to it. It may be closed afterwards; the memory keeps a
        descriptor of its own. -1: no other process writes it.
        """
        self._map = mmap.mmap(fd, _BYTES)
        self._view = memoryview(self._map).cast("Q")

    @staticmethod
    def create() -> tuple[Tally, int]:
        """A tally at 0, and the file descriptor by which another process gets at it. `OSError` if none is left."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("boki-tally")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        try:
            os.ftruncate(fd, _BYTES)
            return Tally(fd), fd
        except OSError:
            os.close(fd)
            raise

    @property
    def begun(self) -> int:
        """How many calls the worker has begun."""
        return self._view[0]

    @begun.setter
    def begun(self, count: int) -> None:
        self._view[0] = count

    def close(self) -> None:
        """Drop the memory."""
        self._view.release()
        self._map.close()
