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
        self.now_us = 1_000
        self.tell(self.node, InstallView((view(),)))
        self.tell(ENGINE, FetchMetalog(1, 0, 0))
        self.tell(ENGINE, RequestEntry(1, 0, OpenShard(SHARD, ENGINE, STORAGE)))
        self._stored = 0

    def tell(self, sender: NodeId, message: object) -> None:
        self._perform(self.core.receive(sender, message, self.now_us))  # type: ignore[arg-type]
        self._perform(self.core.settle(self.now_us))

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


def test_a_backup_that_is_behind_on_a_busy_log_is_sent_each_page_once() -> None:
    """It answers every proposal by where it stands; what it lacks is on its way, and sent again if it was lost."""
    primary = Primary()
    quick, slow = primary.backups
    for index in range(1, 5):
        primary.acknowledge(quick, index)
        primary.propose()
    primary.acknowledge(slow, 1)
    primary.sent.clear()
    for _ in range(10):
        primary.acknowledge(slow, 1)
    assert [(to, message.index) for to, message in primary.sent] == [(slow, 1)]
    primary.now_us += 250_000
    for _ in range(10):
        primary.acknowledge(slow, 1)
    assert [message.index for _, message in primary.sent] == [1, 1]
    primary.acknowledge(slow, 3)
    for _ in range(10):
        primary.acknowledge(slow, 1)  # for copies, and for proposals that came before the page
        primary.acknowledge(slow, 3)
    assert [message.index for _, message in primary.sent] == [1, 1, 3]


def test_a_backup_that_has_lost_what_it_acknowledged_is_sent_that_again() -> None:
    """Its disk has lost power, or was restored: what it holds now counts, not what it once said."""
    primary = Primary()
    quick, slow = primary.backups
    for index in range(1, 11):
        primary.acknowledge(quick, index)
        primary.acknowledge(slow, index)
        primary.propose()
    primary.sent.clear()
    primary.acknowledge(slow, 3)
    for _ in range(5):
        primary.now_us += 100_000
        primary.acknowledge(quick, 10)
        primary.propose()
        primary.acknowledge(slow, 3)
    pages = [message for to, message in primary.sent if to == slow and message.index == 3]
    assert 2 <= len(pages) <= 3, "at once, and again each 250 ms until it has them"
    assert len(pages[0].entries) >= 6
