"""The nodes that keep the log: storage nodes hold records, sequencers metalogs. Their incarnation is their disk's."""

from __future__ import annotations

from typing import Any

from boki.config.node import SequencerNodeConfig, StorageNodeConfig
from boki.host.disk import Disk
from boki.log.membership import Role
from boki.node.life import NodeLife
from boki.protocol.effects import Core
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore


class StorageLife(NodeLife[StorageNodeConfig]):
    """A storage node."""

    role = Role.STORAGE
    HAS_DISK_LIFE = True

    def open_disk(self, *, reserve_bytes: int = 0, synced: bool = True) -> Disk:
        """See `NodeLife`: appends are refused before the disk is full."""
        return super().open_disk(reserve_bytes=reserve_bytes or self.config.disk_reserve_bytes, synced=synced)

    def make_core(self) -> Core[Any]:
        """See `NodeLife`."""
        assert self.disk is not None
        self.core = StorageCore(
            self.node, self.incarnation, self.disk, repair_bytes_per_s=self.config.repair_bytes_per_s
        )
        return self.core

    async def drain(self) -> None:
        """Save what was learnt from the metalogs, so that the next start need not read them again."""
        if self.host is not None and not self.host.stopped:
            self.host.perform([self.core.checkpoint()])

    def role_status(self) -> dict[str, Any]:
        """See `NodeLife`."""
        return self.core.status()


class SequencerLife(NodeLife[SequencerNodeConfig]):
    """A sequencer."""

    role = Role.SEQUENCER
    HAS_DISK_LIFE = True

    def make_core(self) -> Core[Any]:
        """See `NodeLife`."""
        assert self.disk is not None
        self.core = SequencerCore(self.node, self.incarnation, self.disk)
        return self.core

    def role_status(self) -> dict[str, Any]:
        """See `NodeLife`."""
        return self.core.status()
