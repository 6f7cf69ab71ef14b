"""Whether anybody may still need a freed batch to come to its verdicts: what the saved indexes cover.

A checkpoint of the index that is complete on this node counts for all engines: one that starts can take it from here.
Engines that run are waited for all the same, as far as they hold the index or did so recently, because taking a
checkpoint in mid-life costs them a restart. One that is gone forever holds up nothing, and neither does one that has
lost its slot for an index: it is registered, and never saves one again.

Alone in one process (`boki dev`) an engine keeps its index itself; then its word is enough. A node of a cluster that
has just started is not told yet which engines there are, and is not alone: it waits for a checkpoint of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from boki.log.ids import LogId, NodeId, Term, make_seqnum
from boki.log.membership import Membership, Role
from boki.protocol.messages import IndexSaved
from boki.storage.shards import ShardKey

_RECENT_US: Final = 600_000_000
"""How long an engine without an index, or gone, is waited for: it may be starting again with its disk."""


class SavedIndexes:
    """What engines have said, who of them counts, and what the checkpoint on this node covers. `is_alone`: no node is
    ever registered, and nothing is mirrored.
    """

    def __init__(self, *, is_alone: bool = False) -> None:
        self._is_alone = is_alone
        self._saved: dict[NodeId, IndexSaved] = {}
        self._gone_at: dict[NodeId, int] = {}
        self._engines: frozenset[NodeId] | None = None
        self._relays: frozenset[NodeId] = frozenset()
        """Registered without the index: relays, and engines that still catch up with it."""
        self._covered: Mapping[LogId, int] | None = None
        self._covered_term: Term = 0

    def note(self, engine: NodeId, message: IndexSaved, now_us: int) -> None:
        """An engine has saved its index. What it said on its way out may come when it has gone."""
        self._saved[engine] = message
        if self._engines is not None and engine not in self._engines:
            if engine in self._relays:
                self._gone_at[engine] = now_us  # it saves an index, so it is no relay: it catches up, however long
            else:
                self._gone_at.setdefault(engine, now_us)

    def note_members(self, membership: Membership, now_us: int) -> None:
        """Which engines are registered now, and hold the index."""
        engines = membership.of(Role.ENGINE)
        self._engines = frozenset(member.node for member in engines if member.has_index)
        self._relays = frozenset(member.node for member in engines) - self._engines
        for engine in self._saved:
            if engine in self._engines:
                self._gone_at.pop(engine, None)
            else:
                self._gone_at.setdefault(engine, now_us)
        self.forget(now_us)

    def forget(self, now_us: int) -> None:
        """Engines that have been gone for long hold up nothing any more."""
        for engine, at in list(self._gone_at.items()):
            if now_us - at > _RECENT_US:
                del self._gone_at[engine]
                self._saved.pop(engine, None)

    def cover(self, term: Term, next_seqnums: Mapping[LogId, int]) -> None:
        """A checkpoint is complete on this node: all terms before `term`, and of that one what stands below."""
        self._covered_term, self._covered = term, next_seqnums

    def covers(self, key: ShardKey, seqnum: int) -> bool:
        """Whether no index will ever ask for that record again."""
        term, log, _ = key
        if self._is_alone:
            if not self._saved:
                return False
        elif self._covered is None or not _covers(self._covered_term, self._covered, term, log, seqnum):
            return False
        return all(_covers(saved.term, saved.next_seqnums, term, log, seqnum) for saved in self._saved.values())


def _covers(saved_term: Term, next_seqnums: Mapping[LogId, int], term: Term, log: LogId, seqnum: int) -> bool:
    return term < saved_term or (term == saved_term and seqnum < next_seqnums.get(log, make_seqnum(term, log, 0)))
