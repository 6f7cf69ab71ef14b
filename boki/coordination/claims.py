"""What a process holds for as long as its session lasts: a place in the queue for the lead, a slot for an index.

Both are ephemeral entries that name the data directory (`home`) of the process that made them. A process that begins
again finds what its former incarnation held until that session expires; the directory's lock says that the former
incarnation is over, so what is of its own home it takes over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from uuid import uuid4

import msgspec
from kazoo.exceptions import NodeExistsError, NoNodeError

from boki.coordination.session import Node, Unsure, ZooKeeperSession, quietly
from boki.coordination.values import decode, encode
from boki.errors import ConfigError, VersionTooNew
from boki.log.ids import NodeId

_log = logging.getLogger("boki.launch.zookeeper")


class _Claim(msgspec.Struct, frozen=True):
    """Such an entry."""

    home: str
    node: NodeId


class Claims:
    """The claims of one session; `/election` and `/index` must be there."""

    def __init__(self, session: ZooKeeperSession, home: str) -> None:
        self._session = session
        self._home = home
        self._mark = uuid4().hex  # of our entries in the election

    async def take_slot(self, node: NodeId, count: int) -> int | None:
        """One of `count` slots for engines that hold the index, the one that it has if it has one; None: all taken."""
        for name, entry, _ in await self._slots():
            if entry.owner == self._session.id:
                return int(name)
        data = encode(_Claim(self._home, node))
        slot = 0
        while slot < count:
            path = f"/index/{slot}"
            try:
                await self._session.create(path, data, ephemeral=True)
                return slot
            except Unsure:
                continue
            except NodeExistsError:
                found = await self._find(path)
            if found is None:
                continue
            entry, claim = found
            if entry.owner == self._session.id:
                return slot
            if claim.home == self._home:
                await quietly(self._session.delete(path, entry.version))
                continue
            slot += 1
        return None

    async def release_slots(self, nodes: Collection[NodeId]) -> list[NodeId]:
        """Free the slots of these nodes, whichever sessions hold them; which of them had one."""
        found = [(name, entry, claim.node) for name, entry, claim in await self._slots() if claim.node in nodes]
        for name, entry, _ in found:
            await quietly(self._session.delete(f"/index/{name}", entry.version))
        return [node for _, _, node in found]

    async def slot_owners(self, watch: Callable[[], None]) -> set[int]:
        """The sessions that have a slot; `watch` is called when slots are taken or freed."""
        return {entry.owner for _, entry, _ in await self._slots(watch)}

    async def _slots(self, watch: Callable[[], None] | None = None) -> list[tuple[str, Node, _Claim]]:
        rows = [(name, await self._find(f"/index/{name}")) for name in await self._session.children("/index", watch)]
        return [(name, *found) for name, found in rows if found is not None]

    async def stand(self, node: NodeId) -> None:
        """Be a candidate for the lead, and former incarnations of ours none any more."""
        await self._line_up(node)
        while former := await self._former_lives():
            for name in former:
                await quietly(self._session.delete(f"/election/{name}"))

    async def withdraw(self) -> None:
        """Be no candidate any more."""
        for name in await self._candidates():
            if self._is_mine(name):
                await quietly(self._session.delete(f"/election/{name}"))

    async def stand_last(self, node: NodeId) -> bool:
        """Let the other candidates lead first. False if there are none: nothing has changed."""
        names = await self._candidates()
        if all(map(self._is_mine, names)):
            return False
        await self.withdraw()
        await self._line_up(node)
        return True

    async def is_first(self, watch: Callable[[], None]) -> bool:
        """Whether we lead; `watch` is called when candidates come or go."""
        names = await self._candidates(watch)
        return bool(names) and self._is_mine(names[0])

    async def _line_up(self, node: NodeId) -> None:
        data = encode(_Claim(self._home, node))
        while True:
            try:
                await self._session.create(f"/election/{self._mark}-", data, ephemeral=True, sequence=True)
                return
            except Unsure:  # only ZooKeeper knows the number of an entry; all that bear our mark are ours
                if any(self._is_mine(name) for name in await self._candidates()):
                    return

    async def _former_lives(self) -> list[str]:
        """The candidates of our home before us, if we are one.

        They are looked for when we begin to stand, and never again: what comes from our home afterwards is an
        incarnation that began after ours. If two incarnations removed each other whenever they looked, neither would
        lead.
        """
        names = await self._candidates()
        before = next((at for at, name in enumerate(names) if self._is_mine(name)), 0)
        found = [(name, await self._find(f"/election/{name}")) for name in names[:before]]
        return [name for name, entry in found if entry is not None and entry[1].home == self._home]

    async def _candidates(self, watch: Callable[[], None] | None = None) -> list[str]:
        return sorted(await self._session.children("/election", watch), key=lambda name: name.rpartition("-")[2])

    def _is_mine(self, name: str) -> bool:
        return name.startswith(self._mark)

    async def _find(self, path: str) -> tuple[Node, _Claim] | None:
        try:
            node = await self._session.get(path)
        except NoNodeError:
            return None
        try:
            return node, decode(path, node.data, _Claim)
        except (ConfigError, VersionTooNew) as error:
            _log.error("%s: it counts as another node's claim", error)
            return node, _Claim("", NodeId(""))
