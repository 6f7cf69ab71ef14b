"""What a row knows of the trims of its tag.

Nearly all rows know the same: that their tag was never trimmed, and maybe that no record stands before the newest part.
So this is one value that rows share, and replace when they learn more.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec


class Floors(msgspec.Struct, frozen=True, gc=False):
    """Of one row. Make others by `but`, which shares what many rows have."""

    reached: int = -1
    """What trims of this very tag have reached; -1: the disk was not asked yet."""
    removed: int = 0
    """How many records they have taken away, if it is a system tag."""
    hidden: int = 0
    """Below this all is forgotten, and still on the disk until the next checkpoint is stored."""
    base: int | None = None
    """What makes the length of the newest part a count of all records; None until one is asked for."""

    def but(self, **known: Any) -> Floors:
        """The same with these fields."""
        found = msgspec.structs.replace(self, **known)
        return _SHARED.get(found, found)


UNKNOWN: Final = Floors()
_SHARED: Final = {one: one for one in (UNKNOWN, Floors(reached=0), Floors(reached=0, base=0))}
