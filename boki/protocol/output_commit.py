"""Output commit: roles that share a write-ahead log run ahead of its sync, and nothing leaves before it.

Storage node and sequencer of one process may keep their writes in one write-ahead log (`boki.host.disk`). A log is
durable as a prefix: what a power cut takes is its end. So a crash that loses unsynced writes is, for all roles of the
log together, a crash that came earlier, before those writes. The two look the same from outside, as long as nothing
that followed from those writes has left the log's roles ("output commit", Strom and Yemini 1985; "external synchrony",
Nightingale 2006).

That allows one sync for an append. Three rules:

1. **Early.** What a `Store` reports to a role of the same log may be delivered before the sync, if it is `EARLY`: how
   far a shard is stored, and how far the metalog is. The primary counts the record; its cut is written *behind* it.
2. **Held.** A role that was told something early is *ahead* until the log is durable up to the write that it was told
   of. What it sends meanwhile rides on the log as an empty `Store`: it leaves when all before it is durable. `UNHELD`
   messages tell nothing that is stored.
3. **One end.** The roles of a log are one process. A failed sync stops all of them, and a lost log is lost for all.

**Where it gains.** Where one replica and one sequencer decide alone. Among several, what leaves the primary would wait
for its own disk, where any quorum of disks is enough: there roles of a process share syncs, and nothing is early.

**Where cuts run ahead** (`docs/design/speculative-cuts.md`) one thing is early among several, too: which records stand
in the log. What follows from it is written behind them or says nothing of this disk, so nothing is held for it.

What rides on a `Store` (`then`) follows from writes in front of it, so its own place in the log is late enough.

Rule: a role that is ahead has no effect outside of the log but through `holds`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final, assert_never

from boki.log.ids import NodeId
from boki.log.view import View
from boki.protocol.effects import (
    Announce,
    Answer,
    Effect,
    Load,
    ProposePlacement,
    ProposeView,
    ReleaseSlots,
    Send,
    Store,
    Trace,
)
from boki.protocol.messages import EntriesStored, Pong, RecordsTaken, ShardProgress

IN_LOG: Final = (RecordsTaken,)
"""Early wherever roles share a log, and nothing is held for it."""
EARLY: Final = (ShardProgress, EntriesStored, RecordsTaken)
UNHELD: Final = (Pong,)


def gains(view: View) -> bool:
    """Whether roles that share a log should run ahead of its syncs in this term."""
    return view.replicas == 1 and len(view.sequencers) == 1


def split_early(store: Store, mates: Container[NodeId], *, runs_ahead: bool) -> tuple[list[Send], Store]:
    """What may be told at once to roles of the same log, and the store with what must wait for the sync."""
    kinds = EARLY if runs_ahead else IN_LOG
    early: list[Send] = []
    late: list[Effect] = []
    for each in store.then:
        if isinstance(each, Send) and isinstance(each.message, kinds) and each.to in mates:
            early.append(each)
        else:
            late.append(each)
    return early, Store(store.writes, late, store.is_vote, store.can_wait) if early else store


def holds(effect: Effect) -> bool:
    """Whether an effect of a role that is ahead must wait until the log is durable."""
    match effect:
        case Send(_, message):
            return not isinstance(message, UNHELD)
        case Answer() | Announce() | ProposeView() | ProposePlacement() | ReleaseSlots():
            return True
        case Store() | Load() | Trace():
            return False
        case _:
            assert_never(effect)
