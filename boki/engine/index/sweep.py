"""The sweep: removes from the disk what the floors of whole books and the age of keys have made invisible.

A trim of one tag deletes the parts of that row itself. A trim of a book would have to visit each of its rows, and keys
go out of date without anybody doing anything. So with each checkpoint a cursor goes on a little way through the rows
and floors of all tags, and deletes what no answer depends on any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from boki.engine.index.layout import TAG_FLOORS, TAG_ROWS, after_prefix
from boki.protocol.effects import DiskReader

IsDead = Callable[[bytes, bytes], bool]


class Sweep:
    """The cursor. It rests at the end of a round until somebody says that there may be something to find."""

    def __init__(self, disk: DiskReader) -> None:
        self._disk = disk
        self._cursor: bytes | None = None
        self._rounds = 1

    def want(self) -> None:
        """Something has become invisible. Part of it may reach the disk only behind the cursor: hence two rounds."""
        self._rounds = 2

    def go_on(self, key_count: int, is_dead: IsDead) -> Iterator[tuple[bytes, bytes]]:
        """Look at that many keys more; the ranges of keys to delete. `is_dead` gets a key and its value."""
        if self._cursor is None:
            if not self._rounds:
                return
            self._cursor = TAG_FLOORS
            self._rounds -= 1
        dead: list[bytes] = []
        for key, value in self._next_keys(key_count):
            is_next_dead = is_dead(key, value)
            # one range must not reach from the floors to the rows: what stands between them is not ours
            if dead and not (is_next_dead and key.startswith(dead[0][: len(TAG_ROWS)])):
                yield dead[0], dead[-1] + b"\x00"
                dead = []
            if is_next_dead:
                dead.append(key)
        if dead:
            yield dead[0], dead[-1] + b"\x00"

    def _next_keys(self, key_count: int) -> Iterator[tuple[bytes, bytes]]:
        for kind in (TAG_FLOORS, TAG_ROWS):
            start = max(kind, self._cursor or kind)
            for key, value in self._disk.scan(start, after_prefix(kind)):
                if not key_count:
                    self._cursor = key
                    return
                key_count -= 1
                yield key, value
        self._cursor = None
