"""What a sequencer hears: from nodes, from the coordinator, from its disk and from itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from boki.log.ids import LogId, NodeId, Term
from boki.log.view import View
from boki.protocol.effects import Loaded, Note
from boki.protocol.messages import (
    AppendEntry,
    AskTail,
    Complete,
    DropEntries,
    EntriesDropped,
    EntriesStored,
    FetchMetalog,
    FetchSealed,
    InstallView,
    Metalog,
    Ping,
    RecordsTaken,
    RequestEntry,
    Seal,
    ShardProgress,
)
from boki.sequencer.metalog_store import MetalogStore


@dataclass(frozen=True, slots=True)
class Lead(Note):
    """To itself: the disk knows that this node leads the logs of that view, so now it may."""

    view: View
    asked_at: int
    """When that was given to the disk."""


@dataclass(frozen=True, slots=True)
class Kept(Note):
    """To itself, a backup: the disk has these entries. Its primary hears of it by a message of its own."""

    store: MetalogStore = field(repr=False)
    until: int

    @property
    def may_wait(self) -> bool:
        """See `Note`: who asks how far it is asks by a message, and is answered after this."""
        return True


class For(Enum):
    """Who wants to read entries."""

    READER = "reader"
    CONTROLLER = "controller"
    BACKUP = "backup"


@dataclass(frozen=True, slots=True)
class Question:
    """A fetch of old entries being loaded from the disk."""

    sender: NodeId
    term: Term
    log: LogId
    first_index: int
    purpose: For
    until_index: int
    """The committed index, the term's end, or, of a sealed term, how many entries there are."""


SeldomInput = InstallView | Lead | Seal | FetchSealed | Complete | Metalog | DropEntries | EntriesDropped
"""What begins and ends terms, and lets entries go."""
SequencerInput = (
    ShardProgress
    | RecordsTaken
    | EntriesStored
    | Kept
    | RequestEntry
    | AppendEntry
    | FetchMetalog
    | AskTail
    | Ping
    | Loaded[Question]
    | SeldomInput
)
