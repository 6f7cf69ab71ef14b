"""Drops metalog entries that no start of this one process will need again.

In a cluster an engine mirrors its index to the storage nodes, and then has entries dropped
(`boki.engine.checkpoint.mirror`). Here it keeps its index itself. If that is lost, the log is read instead, from its
first entry on; but only if nothing has been trimmed since. So entries are kept until something is trimmed and freed.
From then on they go as soon as the engine and all storage nodes have durably saved what these say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from boki.host.host import Host
from boki.log.ids import NodeId
from boki.log.metalog import Positions, split_position, term_of
from boki.protocol.messages import DropEntries
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore

_EVERY: Final = 20_000
"""Entries are dropped when there are this many more."""


class LocalEntries:
    """The metalogs of one process, as far as they are of no use any more."""

    def __init__(self, hosts: Mapping[NodeId, Host]) -> None:
        self._hosts = hosts
        self._dropped: Positions = {}
        self._wanted: Positions = {}
        """Everything below these positions is in checkpoints that were given to the disks."""
        self._marks: list[tuple[Host, int]] = []
        """The storage nodes, and how far the log of each one's disk must be durable for that."""

    def on_saved(self, saved: Positions) -> None:
        """The engine has durably saved its index, as far as these positions."""
        if self._marks:
            self._drop()
        elif self._is_due(saved):
            self._begin(saved)

    def _is_due(self, saved: Positions) -> bool:
        storage = self._storage()
        if not all(isinstance(host.core, StorageCore) and not host.stopped for host in storage):
            return False
        if not any(isinstance(host.core, StorageCore) and host.core.floors.has_retired for host in storage):
            return False
        return term_of(saved) != term_of(self._dropped) or any(
            position - self._dropped.get(log, 0) >= _EVERY for log, position in saved.items()
        )

    def _begin(self, saved: Positions) -> None:
        """Have the storage nodes save what they have learnt from the metalogs."""
        wanted = dict(saved)
        for host in self._storage():
            assert isinstance(host.core, StorageCore)
            applied = host.core.applied
            if term_of(applied) != term_of(saved):
                return
            wanted = {log: min(position, applied[log]) for log, position in wanted.items()}
        for host in self._storage():
            assert isinstance(host.core, StorageCore)
            assert host.disk is not None
            host.perform([host.core.checkpoint()])
            self._marks.append((host, host.disk.log.queued))
        self._wanted = wanted

    def _drop(self) -> None:
        """Tell the sequencers, if the disks have what they were given."""
        for host, mark in self._marks:
            assert host.disk is not None
            if host.stopped or host.disk.log.durable < mark:
                return
        self._marks.clear()
        self._dropped = self._wanted
        for node, host in self._hosts.items():
            if isinstance(host.core, SequencerCore):
                for log, position in self._wanted.items():
                    term, until = split_position(position)
                    host.deliver(node, DropEntries(term, log, until))

    def _storage(self) -> Sequence[Host]:
        return [host for node, host in self._hosts.items() if node.startswith("storage-")]
