"""A backup that is behind: what is on its way to it is not sent again, and what it lacks is."""

from __future__ import annotations

from collections.abc import Iterable

from boki.log.ids import NodeId
from boki.log.metalog import OpenShard
from boki.protocol.effects import Effect, Send, Store
from boki.protocol.messages import AppendEntry, EntriesStored, FetchMetalog, InstallView, RequestEntry, ShardProgress
from boki.sequencer.core import SequencerCore
from tests.members import ENGINE, SHARD, view
from tests.world import MemoryDisk

STORAGE = view().storage


class Primary:
    """The first sequencer of a term, whose own disk is quick; what it sends to backups is kept."""

    def __init__(self) -> None:
        self.node, *self.backups = view().sequencers
        self.core = SequencerCore(self.node, 1, MemoryDisk())
        self.sent: list[tuple[NodeId, AppendEntry]] = []
        self.tell(self.node, InstallView((view(),)))
        self.tell(ENGINE, FetchMetalog(1, 0, 0))
        self.tell(ENGINE, RequestEntry(1, 0, OpenShard(SHARD, ENGINE, STORAGE)))
        self._stored = 0

    def tell(self, sender: NodeId, message: object) -> None:
        self._perform(self.core.receive(sender, message, 1_000))  # type: ignore[arg-type]
        self._perform(self.core.settle(1_000))

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in list(effects):
            if isinstance(effect, Store):
                self._perform(effect.then)
            elif isinstance(effect, Send) and effect.to == self.node:
                self.tell(self.node, effect.message)
            elif isinstance(effect, Send) and isinstance(effect.message, AppendEntry):
                self.sent.append((effect.to, effect.message))

    def acknowledge(self, backup: NodeId, until: int) -> None:
        self.tell(backup, EntriesStored(1, 0, 1, until))

    def propose(self) -> None:
        """Let it cut."""
        self._stored += 1
        for storage in STORAGE:
            self.tell(storage, ShardProgress(1, 0, SHARD, 1, self._stored, True))


def test_what_is_on_its_way_to_a_slow_backup_is_not_sent_twice() -> None:
    """It is behind, and acknowledges one entry after the other; one that makes no progress lacks something."""
    primary = Primary()
    quick, slow = primary.backups
    for index in range(1, 5):
        primary.acknowledge(quick, index)
        primary.propose()
    primary.sent.clear()
    for index in range(1, 4):
        primary.acknowledge(slow, index)
    assert primary.sent == []
    primary.acknowledge(slow, 3)
    ((to, message),) = primary.sent
    assert (to, message.index) == (slow, 3)
