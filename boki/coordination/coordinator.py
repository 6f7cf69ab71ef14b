"""Where views are agreed on: a chain that grows by compare-and-set, and a counter of incarnations.

`LocalCoordinator` keeps both on a disk of its own, for a system that is one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, Protocol

import msgspec

from boki.log.view import View
from boki.protocol.effects import DiskReader, Put

_VIEW_KEY: Final = Struct(">cI")
_VIEW: Final = b"v"
_INCARNATION_KEY: Final = b"i"


class CoordinatorDisk(DiskReader, Protocol):
    """A disk that makes writes durable before it returns."""

    def store_now(self, writes: Sequence[Put]) -> None:
        """Write and sync."""


class LocalCoordinator:
    """Views and incarnations on a disk. Everything is durable when a method returns."""

    def __init__(self, disk: CoordinatorDisk) -> None:
        self._disk = disk

    def views(self) -> list[View]:
        """The chain of views, oldest first; empty before the first start."""
        rows = self._disk.scan(_VIEW_KEY.pack(_VIEW, 0), _VIEW_KEY.pack(_VIEW, (1 << 32) - 1))
        return [msgspec.json.decode(value, type=View) for _, value in rows]

    def install(self, view: View) -> bool:
        """Make `view` the current one if it follows the current one; False if another came first."""
        views = self.views()
        if view.term != (views[-1].term if views else 0) + 1:
            return False
        self._disk.store_now([Put(_VIEW_KEY.pack(_VIEW, view.term), msgspec.json.encode(view))])
        return True

    def next_incarnation(self) -> int:
        """A number that was never given out before."""
        stored = self._disk.get(_INCARNATION_KEY)
        number = (int(stored) if stored is not None else 0) + 1
        self._disk.store_now([Put(_INCARNATION_KEY, str(number).encode())])
        return number
