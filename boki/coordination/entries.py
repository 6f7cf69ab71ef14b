"""Registrations: one ephemeral entry for each node, which names the roles that it plays.

Names are unique, those of nodes and those of roles: a role that was a node of its own may have moved to one that plays
several. A node that begins again finds its former incarnation's entry until that session expires; both carry the id of
the data directory (`home`), whose lock says that the former incarnation is over, so the entry is removed. One of
another home is another node: it is given the time of a session to go, and then the newcomer is refused.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from kazoo.exceptions import NodeExistsError, NoNodeError

from boki.coordination.session import Node, Unsure, ZooKeeperSession, quietly
from boki.coordination.values import decode, encode
from boki.errors import ConfigError, VersionTooNew
from boki.log.ids import NodeId
from boki.log.membership import Member, Role

_LOOK_S: Final = 0.1


class Registration(msgspec.Struct, frozen=True):
    """An entry: who made it, and from which data directory.

    `others`: the further roles of a node that plays several. A Boki that does not know them sees the first one alone.
    """

    home: str
    member: Member
    others: tuple[Member, ...] = ()

    @property
    def members(self) -> tuple[Member, ...]:
        """All roles that it names."""
        return self.member, *self.others

    @property
    def process(self) -> NodeId:
        """The name of the node."""
        return self.member.process

    def without_index(self) -> Registration:
        """The same, of a node whose engine holds no index for others."""
        first, *others = (msgspec.structs.replace(member, has_index=False) for member in self.members)
        return Registration(self.home, first, tuple(others))


_NOBODY: Final = Registration("", Member(node=NodeId(""), role=Role.CONTROLLER, incarnation=0))
"""Of an entry that cannot be read."""


class Entries:
    """What one session writes under `/nodes`. `timeout_s`: how long another node may take to go."""

    def __init__(self, session: ZooKeeperSession, home: str, timeout_s: float) -> None:
        self._session = session
        self._home = home
        self._timeout_s = timeout_s

    async def register(self, registration: Registration, *, unless_succeeded: bool = False) -> bool:
        """Make that entry this session's, or change it. `ConfigError` if another node keeps one of its names.

        `unless_succeeded`: leave the entry of a later incarnation from our data directory as it is. Otherwise two
        processes that have each registered would remove each other's entry again and again. → whether ours stands
        """
        path = _path_of(registration)
        data = encode(registration)
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        while True:
            name = await self._taken(registration)
            if name is None:
                try:
                    await self._session.create(path, data, ephemeral=True)
                except Unsure:
                    continue
                except NodeExistsError:
                    found = await self._find(path)
                    if found is None:
                        continue
                    node, other = found
                    if node.owner == self._session.id:
                        await quietly(self._session.set(path, data, node.version))
                        if node.data == data:
                            return True
                        continue
                    if other.home == self._home:
                        if unless_succeeded and other.member.incarnation > registration.member.incarnation:
                            return False
                        await quietly(self._session.delete(path, node.version))
                        continue
                    name = registration.process
                else:
                    # Of two that came at once, each sees the other now, and the older session stays.
                    if await self._taken(registration, older_only=True) is None:
                        return True
                    await self.remove(registration)
                    continue
            if asyncio.get_running_loop().time() > deadline:
                raise ConfigError(
                    f"a node named {name} is registered already, and is not {registration.process} of this data "
                    "directory: stop it first, or give each node a name of its own"
                )
            await asyncio.sleep(_LOOK_S)

    async def remove(self, registration: Registration) -> None:
        """Take the entry away, if it is this session's."""
        path = _path_of(registration)
        while (found := await self._find(path)) is not None and found[0].owner == self._session.id:
            await quietly(self._session.delete(path, found[0].version))

    async def _taken(self, registration: Registration, *, older_only: bool = False) -> NodeId | None:
        """One of the names of the roles, if another node's entry has it."""
        mine = {member.node for member in registration.members}
        for name in await self._session.children("/nodes"):
            path = f"/nodes/{name}"
            if path == _path_of(registration) or (found := await self._find(path)) is None:
                continue
            node, other = found
            taken = mine.intersection(member.node for member in other.members)
            if taken and other.home == self._home and node.owner != self._session.id:
                await quietly(self._session.delete(path, node.version))
            elif taken and not (older_only and node.owner > self._session.id):
                return min(taken)
        return None

    async def _find(self, path: str) -> tuple[Node, Registration] | None:
        """What stands there; an entry that cannot be read is nobody's."""
        try:
            node = await self._session.get(path)
        except NoNodeError:
            return None
        try:
            return node, decode(path, node.data, Registration)
        except (ConfigError, VersionTooNew):
            return node, _NOBODY


def _path_of(registration: Registration) -> str:
    return f"/nodes/{registration.process}"
