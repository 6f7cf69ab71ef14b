"""One log's metalog of one term as a sequencer holds it: entries, how many are durable, and whether it is sealed.

The life cycle is a table. `OPEN` takes entries; `SEALED` takes only the controller's completion, and, when its term has
ended, what others hold of it (`boki.sequencer.history`); nothing leads back.
A restart keeps the phase, because the seal was durable before it was answered.

Old entries go once a checkpoint covers them (`drop`). What lies below `base` is gone here and was committed; `base` and
the log's time are durable, so a restart knows how long the metalog is even if nothing of it is left. A node that lacks
some of what everybody may drop continues from there: it will not be asked for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum
from struct import Struct
from typing import Final

from boki.log.ids import LogId, ShardId, Term
from boki.log.metalog import Cut, MetalogEntry, decode_entry, encode_entry
from boki.protocol.effects import Delete, DiskReader, Put

_KEY: Final = Struct(">cIBQ")
_ENTRY: Final = b"e"
_BASE: Final = b"b"
_BASE_VALUE: Final = Struct(">QQ")
_SEAL: Final = b"z"
_WHOLE: Final = b"w"
_LED: Final = b"l"
_RECENT_ENTRIES: Final = 20_000


class Phase(Enum):
    """Where a term's metalog stands on one sequencer."""

    OPEN = "open"
    SEALED = "sealed"


NEXT: Final[dict[tuple[Phase, str], Phase]] = {
    (Phase.OPEN, "append"): Phase.OPEN,
    (Phase.OPEN, "seal"): Phase.SEALED,
    (Phase.SEALED, "seal"): Phase.SEALED,  # sealing twice is how a lost reply is repeated
    (Phase.SEALED, "complete"): Phase.SEALED,
    # the next view says where the term ended, so a sequencer that missed the seal learns it by that
    (Phase.OPEN, "fill"): Phase.SEALED,
    (Phase.SEALED, "fill"): Phase.SEALED,
}


def entry_key(term: Term, log: LogId, index: int) -> bytes:
    """Where an entry is kept."""
    return _KEY.pack(_ENTRY, term, log, index)


def index_of(key: bytes) -> int:
    """The index of an entry's key."""
    index: int = _KEY.unpack(key)[3]
    return index


def base_key(term: Term, log: LogId) -> bytes:
    """Where it is kept how much of a metalog has been dropped."""
    return _KEY.pack(_BASE, term, log, 0)


def dropped_key() -> bytes:
    """Where the first term is kept that has not been dropped as a whole."""
    return _KEY.pack(_BASE, 0, 0, 0)


def drop_terms(before: Term) -> list[Put | Delete]:
    """The writes that forget all entries of the terms before that one. Seals, and who has led, stay."""
    return [
        Delete(entry_key(0, 0, 0), entry_key(before, 0, 0)),
        Delete(base_key(1, 0), base_key(before, 0)),
        Put(dropped_key(), str(before).encode()),
    ]


def whole_key() -> bytes:
    """Where it is kept which is the first ended term that may lack entries here."""
    return _KEY.pack(_WHOLE, 0, 0, 0)


def seal_key(term: Term) -> bytes:
    """Where a term's seal is kept."""
    return _KEY.pack(_SEAL, term, 0, 0)


def led_key(term: Term) -> bytes:
    """Where it is kept that this node has led the term."""
    return _KEY.pack(_LED, term, 0, 0)


class MetalogStore:
    """Entries `base .. length` of one log and term. The newest are in memory, all are on the disk."""

    def __init__(self, term: Term, log: LogId, disk: DiskReader, *, keep_recent: bool = True) -> None:
        self.term = term
        self.log = log
        self.phase = Phase.SEALED if disk.get(seal_key(term)) is not None else Phase.OPEN
        self.committed = 0
        """How many entries are known to be on a majority."""
        stored = disk.get(base_key(term, log))
        self.base, self.last_time_us = (0, 0) if stored is None else _BASE_VALUE.unpack(stored)
        last = next(iter(disk.scan(entry_key(term, log, 0), entry_key(term, log + 1, 0), backward=True)), None)
        self.length = self.base if last is None else max(self.base, index_of(last[0]) + 1)
        self.durable_until = self.length
        self._recent: deque[MetalogEntry] = deque(maxlen=_RECENT_ENTRIES)
        self.ends: dict[ShardId, int] = {}
        """How far shards are ordered by the entries here, as far back as memory goes."""
        # an ended term is read from the disk; only the one that continues needs its newest entries at hand
        start = max(self.base, self.length - _RECENT_ENTRIES) if keep_recent else self.length
        for _, value in disk.scan(entry_key(term, log, start), entry_key(term, log, self.length)):
            self._remember(decode_entry(value))

    def may(self, event: str) -> bool:
        """Whether the table allows `event` now."""
        return (self.phase, event) in NEXT

    def seal(self) -> None:
        """From now on only a completion may add entries."""
        self.phase = NEXT[self.phase, "seal"]

    def add(self, event: str, first_index: int, entries: Iterable[MetalogEntry]) -> list[Put]:
        """Take the entries that are new here; none if they would leave a gap. → the writes that keep them."""
        self.phase = NEXT[self.phase, event]
        puts: list[Put] = []
        for index, entry in enumerate(entries, first_index):
            if index > self.length:
                break
            if index == self.length:
                self._remember(entry)
                self.length += 1
                puts.append(Put(entry_key(self.term, self.log, index), encode_entry(entry)))
        return puts

    def drop(self, until: int) -> list[Put | Delete]:
        """A checkpoint covers entries below `until`: the writes that forget them. What is lacking is skipped."""
        if until <= self.base:
            return []
        self.base = until
        self.committed = max(self.committed, until)
        if until > self.length:
            self.length = until
            self._recent.clear()
            self.ends.clear()
        return [
            Delete(entry_key(self.term, self.log, 0), entry_key(self.term, self.log, until)),
            Put(base_key(self.term, self.log), _BASE_VALUE.pack(until, self.last_time_us)),
        ]

    def forget_recent(self) -> None:
        """Keep nothing in memory: the term is over, and rarely read."""
        self._recent.clear()

    def _remember(self, entry: MetalogEntry) -> None:
        self._recent.append(entry)
        if isinstance(entry, Cut):
            self.last_time_us = entry.time_us
            self.ends.update(entry.until)

    def recent(self, first_index: int, until_index: int) -> Sequence[MetalogEntry] | None:
        """Entries from memory; None if the first is older than what memory holds."""
        oldest = self.length - len(self._recent)
        if first_index < oldest:
            return None
        return [self._recent[i - oldest] for i in range(first_index, min(until_index, self.length))]
