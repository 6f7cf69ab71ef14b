"""The life cycle of a shard on one storage node, as a table.

Metalogs close a shard, and its placement sends it away and back. Only what is closed is ever sent away.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Stage(Enum):
    """What a storage node may do with a shard."""

    OPEN = "open"
    """Cuts order more of it."""
    CLOSED = "closed"
    """It is ordered no further: what was never ordered is dropped and refused."""
    LEAVING = "leaving"
    """Its placement has it on other nodes only; it is still here, or a part of it."""
    REMOVED = "removed"
    """It was sent away, and is deleted here."""
    REPLAYED = "replayed"
    """It was removed before a restart that reads the metalogs again from before its close."""


class Event(Enum):
    """What moves a shard through its life."""

    CLOSE = "close"
    SEND_AWAY = "send away"
    """Its placement names other nodes only."""
    SEND_BACK = "send back"
    """Its placement sends it away no more."""
    REMOVE = "remove"
    FIND_REMOVED = "find removed"
    """A start finds on the disk that it had been removed."""


NEXT: Final[dict[tuple[Stage, Event], Stage]] = {
    (Stage.OPEN, Event.CLOSE): Stage.CLOSED,
    # closed twice: by its engine and as that of a lost engine, or by a term's end that a peer told, too
    (Stage.CLOSED, Event.CLOSE): Stage.CLOSED,
    (Stage.LEAVING, Event.CLOSE): Stage.LEAVING,
    (Stage.REMOVED, Event.CLOSE): Stage.REMOVED,
    (Stage.REPLAYED, Event.CLOSE): Stage.REMOVED,
    (Stage.CLOSED, Event.SEND_AWAY): Stage.LEAVING,
    (Stage.LEAVING, Event.SEND_AWAY): Stage.LEAVING,
    (Stage.LEAVING, Event.SEND_BACK): Stage.CLOSED,
    (Stage.REMOVED, Event.SEND_BACK): Stage.CLOSED,
    (Stage.REPLAYED, Event.SEND_BACK): Stage.OPEN,
    # what a sequencer needed of it was fetched while it was replayed
    (Stage.REMOVED, Event.SEND_AWAY): Stage.LEAVING,
    (Stage.LEAVING, Event.REMOVE): Stage.REMOVED,
    (Stage.CLOSED, Event.FIND_REMOVED): Stage.REMOVED,
    (Stage.OPEN, Event.FIND_REMOVED): Stage.REPLAYED,
}
