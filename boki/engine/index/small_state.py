"""What an index must know before it can do anything, as one small value on its disk."""

from __future__ import annotations

from typing import Final

import msgspec

from boki.engine.index.layout import SMALL_STATE_KEY
from boki.errors import CorruptData, VersionTooNew
from boki.log.ids import Term
from boki.log.metalog import Positions
from boki.protocol.effects import DiskReader, Put

VERSION: Final = 1


class SmallState(msgspec.Struct, frozen=True, array_like=True):
    """What an index must know before it can do anything."""

    version: int
    applied: Positions
    log_counts: list[int]
    """Of each term from `first_term` on, how many logs it has."""
    first_term: Term


def write_small_state(applied: Positions, log_counts: list[int], first_term: Term) -> Put:
    """The write that keeps it."""
    state = SmallState(VERSION, applied, log_counts, first_term)
    return Put(SMALL_STATE_KEY, msgspec.msgpack.encode(state))


def read_applied(disk: DiskReader) -> Positions:
    """Per log, the metalog position of the index on that disk; empty if there is none. Raises like `Index`."""
    return dict(read_small_state(disk).applied)


def read_small_state(disk: DiskReader) -> SmallState:
    """What the disk holds of it. `VersionTooNew` if a newer Boki wrote it."""
    stored = disk.get(SMALL_STATE_KEY)
    if stored is None:
        return SmallState(VERSION, {}, [], 0)
    try:
        version = msgspec.msgpack.decode(stored, type=list)[0]
        if isinstance(version, int) and version > VERSION:
            raise VersionTooNew(
                f"index checkpoint version {version} is newer than this Boki's {VERSION}: upgrade this node"
            )
        return msgspec.msgpack.decode(stored, type=SmallState)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError) as error:
        raise CorruptData(f"the checkpoint of the index cannot be read: {error}") from None
