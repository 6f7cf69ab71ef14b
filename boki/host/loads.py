"""Loads of one disk, one after the other: a large one lets the event loop continue between its steps.

No thread would help: rocksdict holds the GIL while it reads.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Final, Protocol

from boki.protocol.effects import DiskUnreadable, Load, Loaded

_STEP_BYTES: Final = 256 << 10
"""Bytes that are read before the event loop continues: about 0.1 ms from memory."""


class _Scan(Protocol):
    """See `boki.host.disk.Disk.scan`."""

    def __call__(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """All rows with `start <= key < stop`."""


@dataclass(slots=True)
class _Loading:
    """A load under way. `rows` is the iterator that it has come to, None before its first step."""

    load: Load[object]
    then: Callable[[Loaded[object]], None]
    rows: Iterator[tuple[bytes, bytes]] | None = None
    found: list[tuple[bytes, bytes]] = field(default_factory=list)
    size_bytes: int = 0


class Loads:
    """Loads under way, in the order of asking. `scan` reads the database."""

    def __init__(self, scan: _Scan, loop: AbstractEventLoop) -> None:
        self._scan = scan
        self._loop = loop
        self._loadings: deque[_Loading] = deque()

    def begin(self, load: Load[object], then: Callable[[Loaded[object]], None]) -> None:
        """Carry out a load and call `then` with what it found.

        What one step of it covers is read at once. Errors of the disk come back in the answer, so that another replica
        can be asked.
        """
        loading = _Loading(load, then)
        if self._loadings or not self._step(loading):
            self._loadings.append(loading)
            if len(self._loadings) == 1:
                self._loop.call_soon(self._go_on)

    def clear(self) -> None:
        """Forget all loads: they are not answered."""
        self._loadings.clear()

    def _go_on(self) -> None:
        """Take the next step of the oldest load."""
        if self._loadings and self._step(self._loadings[0]):
            self._loadings.popleft()
        if self._loadings:
            self._loop.call_soon(self._go_on)

    def _step(self, loading: _Loading) -> bool:
        """Read a little; True if that was the last of it, and has been told."""
        load, error = loading.load, ""
        try:
            if loading.rows is None:
                above = load.key + b"\x00"
                # the one at or below the key is kept as it was found: to look for its key alone would read it twice
                first = islice(self._scan(load.floor, above, backward=True), 1)
                loading.rows = chain(first, self._scan(above, load.stop))
            step_bytes = 0
            for row in loading.rows:
                loading.found.append(row)
                step_bytes += len(row[1])
                if loading.size_bytes + step_bytes >= load.max_bytes:
                    break
                if step_bytes >= _STEP_BYTES:
                    loading.size_bytes += step_bytes
                    return False
        except DiskUnreadable as failure:
            error = str(failure)
        loading.then(Loaded(load.token, loading.found, error))
        return True
