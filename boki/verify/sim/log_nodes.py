"""Storage nodes and sequencers as `boki.node.log_nodes` has them, for a world with a virtual clock."""

from __future__ import annotations

from typing import Any

from boki.log.membership import Role
from boki.protocol.effects import Core, DiskRoom
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore
from boki.verify.sim.nodes import Node


class StorageNode(Node):
    """A storage node; its incarnation is its disk's."""

    role = Role.STORAGE
    HAS_DISK_LIFE = True

    def make_core(self) -> Core[Any]:
        """See `Node`."""
        self.storage = StorageCore(self.name, self.incarnation, self.disk, mate=self.mate(Role.SEQUENCER))
        return self.storage

    def save(self) -> None:
        """See `Node`."""
        if self.core is not None:
            self._run(lambda: [self.storage.checkpoint()])

    def set_room(self, room: DiskRoom) -> None:
        """The disk is (nearly) full, or no longer."""
        self.deliver(self.name, room)


class SequencerNode(Node):
    """A sequencer; its incarnation is its disk's."""

    role = Role.SEQUENCER
    HAS_DISK_LIFE = True

    def make_core(self) -> Core[Any]:
        """See `Node`."""
        return SequencerCore(self.name, self.incarnation, self.disk, self.mate(Role.STORAGE))
