"""The write-ahead log that the storage node and the sequencer of one process share, under one session.

The storage node opens it (`boki.host.disk`), and the sequencer waits for that. What both have ready shares a sync. They
run ahead of syncs (`boki.protocol.output_commit`) only in terms where that gains something. Which records stand in the
log the sequencer is told before the sync in all terms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from boki.host.disk import Disk
from boki.host.host import Host
from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.log.view import View
from boki.protocol.output_commit import gains

_ROLES = frozenset({Role.STORAGE, Role.SEQUENCER})


class CommonLog:
    """`names`: of the two roles. `is_synced`: with `durability = "memory"` there is no sync to share, and each role
    keeps its own log.
    """

    def __init__(self, names: Mapping[Role, NodeId], *, is_synced: bool) -> None:
        self.names = names
        self.is_synced = is_synced
        self._opened: asyncio.Future[Disk] = asyncio.get_running_loop().create_future()
        self._hosts: dict[NodeId, Host] = {}
        self._runs_ahead = False

    def open(self, disk: Disk) -> None:
        """The storage node has opened its database."""
        self._opened.set_result(disk)

    async def opened(self) -> Disk:
        """The storage node's disk. If that does not open, the node ends with all its roles, and with it this wait."""
        return await asyncio.shield(self._opened)

    def join(self, node: NodeId, host: Host) -> None:
        """One of the two roles has begun."""
        self._hosts[node] = host
        self._tell()

    def install(self, view: View) -> None:
        """Run ahead of syncs from now on if that gains anything in this term."""
        self._runs_ahead = self.is_synced and gains(view)
        self._tell()

    def _tell(self) -> None:
        mates = dict(self._hosts) if self.is_synced and len(self._hosts) == len(_ROLES) else {}
        for host in self._hosts.values():
            host.share_log(mates, runs_ahead=self._runs_ahead)


def common_log(names: Mapping[Role, NodeId], *, is_synced: bool) -> CommonLog | None:
    """The log of a node that plays these roles under these names; None if it does not play both."""
    return CommonLog(names, is_synced=is_synced) if _ROLES.issubset(names) else None
