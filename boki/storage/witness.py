"""How far a storage node has surely applied the metalogs, on its disk: a witness against sequencers that have less.

What a node knows from the metalogs is saved seldom. This number rides on every write of batches instead, so it costs no
sync, and lags by the ten milliseconds after which storage nodes hear of cuts. It is nothing to continue from:
sequencers whose disks hold less have lost committed entries, and the term is not ended without them
(`boki.controller.term_change`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from boki.log.metalog import Positions, merge_positions
from boki.protocol.effects import DiskReader, Put

_KEY: Final = b"a"


class Witness:
    """Of one node."""

    def __init__(self, disk: DiskReader) -> None:
        stored = disk.get(_KEY)
        self._applied = msgspec.msgpack.decode(stored, type=Positions) if stored is not None else {}
        self._written: Positions | None = None
        """What the last write says: it stands in front of all later ones, so it need not be repeated."""

    def seen(self, applied: Positions) -> Positions:
        """How far this node, or a former incarnation of it, has come; `applied` is how far it is now."""
        merge_positions(self._applied, applied)
        return dict(self._applied)

    def write(self, applied: Positions) -> tuple[Put, ...]:
        """The write that keeps it, if it has changed. It goes with others."""
        if applied == self._written:
            return ()
        self._written = applied
        return (Put(_KEY, msgspec.msgpack.encode(self.seen(applied))),)
