"""The nodes that keep the log: storage nodes hold records, sequencers metalogs. Their incarnation is their disk's.

Where one process plays both they share a write-ahead log: see `boki.node.common_log`.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from boki.config.node import NodeConfig, SequencerNodeConfig, StorageNodeConfig
from boki.coordination.zookeeper import News
from boki.host.disk import Disk
from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.node.incarnation import RoleIncarnation
from boki.protocol.effects import Core
from boki.protocol.messages import InstallView
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore

_ConfigType = TypeVar("_ConfigType", bound=NodeConfig)


class _LogIncarnation(RoleIncarnation[_ConfigType]):
    """What both have in common."""

    HAS_DISK_INCARNATION = True

    async def prepare(self) -> None:
        """See `RoleIncarnation`."""
        if self.common_log is not None and self.host is not None:
            self.common_log.join(self.node, self.host)
        await super().prepare()

    def mate(self, role: Role) -> NodeId | None:
        """The name under which its process plays the other role; None if it does not."""
        return self.common_log.names[role] if self.common_log is not None else None

    def on_news(self, news: News) -> None:
        """See `RoleIncarnation`."""
        if self.common_log is not None and isinstance(news, InstallView):
            self.common_log.install(news.views[-1])
        super().on_news(news)


class StorageIncarnation(_LogIncarnation[StorageNodeConfig]):
    """A storage node."""

    role = Role.STORAGE

    def open_disk(self, *, synced: bool = True) -> Disk:
        """See `RoleIncarnation`: appends are refused before the disk is full."""
        log = self.common_log
        disk = self.make_disk(
            synced=synced,
            reserve_bytes=self.config.disk_reserve_bytes,
            has_guests=log is not None and log.is_synced,
        )
        if log is not None:
            log.open(disk)
        return disk

    def make_core(self) -> Core[Any]:
        """See `RoleIncarnation`."""
        assert self.disk is not None
        self.core = StorageCore(
            self.node,
            self.incarnation,
            self.disk,
            repair_bytes_per_s=self.config.repair_bytes_per_s,
            mate=self.mate(Role.SEQUENCER),
        )
        return self.core

    async def drain(self) -> None:
        """Save what was learnt from the metalogs, so that the next start need not read them again."""
        if self.host is not None and not self.host.stopped:
            self.host.perform([self.core.checkpoint()])

    def role_status(self) -> dict[str, Any]:
        """See `RoleIncarnation`."""
        return self.core.status()


class SequencerIncarnation(_LogIncarnation[SequencerNodeConfig]):
    """A sequencer."""

    role = Role.SEQUENCER
    _beside: Disk | None = None

    async def choose(self) -> None:
        """See `RoleIncarnation`: a log that is shared is opened by the storage node."""
        if self.common_log is not None:
            self._beside = await self.common_log.opened()

    def open_disk(self, *, synced: bool = True) -> Disk:
        """See `RoleIncarnation`."""
        log = self.common_log
        return self.make_disk(synced=synced, beside=self._beside, shares_log=log is not None and log.is_synced)

    def make_core(self) -> Core[Any]:
        """See `RoleIncarnation`."""
        assert self.disk is not None
        self.core = SequencerCore(self.node, self.incarnation, self.disk, self.mate(Role.STORAGE))
        return self.core

    def member(self) -> Member:
        """See `RoleIncarnation`."""
        return msgspec.structs.replace(
            super().member(), runs_ahead=self.common_log is not None and self.common_log.is_synced
        )

    def role_status(self) -> dict[str, Any]:
        """See `RoleIncarnation`."""
        return self.core.status()
