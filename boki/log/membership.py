"""Who is here right now: the nodes that have registered with the coordinator, and where closed shards have moved.

Views say who sequences in a term and change by a seal. Storage nodes, engines and gateways come and go between seals:
they are known by membership. It is a hint, never a proof: a node that is named may be dead, one that is missing may
still write. Whoever must be kept from writing is fenced in the metalog (`CloseShard`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from boki.log.ids import LogId, NodeId, ShardId, Term

Place = tuple[Term, LogId, ShardId]
"""One shard in the history of the log."""


class Role(StrEnum):
    """What a node does."""

    GATEWAY = "gateway"
    ENGINE = "engine"
    STORAGE = "storage"
    SEQUENCER = "sequencer"
    CONTROLLER = "controller"


STOP_ORDER: Final = (
    Role.GATEWAY,
    Role.ENGINE,
    Role.CONTROLLER,  # before those whose end it would take for a loss
    Role.STORAGE,
    Role.SEQUENCER,
)
"""The order in which the roles of a node stop: a role is gone before those that serve it."""
_PREFIX: Final = "node-"


def role_name(host: NodeId, role: Role) -> NodeId:
    """The name under which a node that hosts several roles plays one of them.

    It is the name that the role would have as a process of its own, so its data and its place in views outlast a move
    from one layout to the other.

    >>> role_name(NodeId("node-2"), Role.STORAGE), role_name(NodeId("paris"), Role.ENGINE)
    ('storage-2', 'engine-paris')
    """
    return NodeId(f"{role}-{host.removeprefix(_PREFIX)}")


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One role that a registered node plays. `lanes`: where it listens, "host:port" per lane of `boki.net`.
    `machine`: on which, as `boki.net.local` names it; empty: none that others may know of.
    """

    node: NodeId
    role: Role
    incarnation: int
    lanes: dict[str, str] = {}
    machine: str = ""
    public_key: str = ""
    """CURVE public key, Z85; empty where the links are plain."""
    has_index: bool = False
    """An engine that holds the index of all logs; others ask one that does."""
    host: NodeId = NodeId("")
    """The node that plays this role among others, and dies with all of them; empty: it plays no other."""
    runs_ahead: bool = False
    """A sequencer that keeps cuts behind their records, in one log with the storage node of its process."""
    entry_version: int = 0
    """The newest version of metalog entries that the node reads (`boki.log.metalog`); 0: older than such words."""
    is_leaving: bool = False
    """The node stops, and this role with it when its turn comes."""

    @property
    def process(self) -> NodeId:
        """What is lost together has the same one."""
        return self.host or self.node


class Membership(msgspec.Struct, frozen=True, kw_only=True):
    """The registered nodes. `number` grows with each change, as far as this process has seen them."""

    number: int
    members: tuple[Member, ...] = ()
    draining: tuple[NodeId, ...] = ()
    """Storage nodes that are to be emptied: no new shard goes there."""

    def of(self, role: Role) -> tuple[Member, ...]:
        """The members of one role, in the order of their names."""
        return tuple(sorted((m for m in self.members if m.role is role), key=lambda m: (len(m.node), m.node)))

    def find(self, node: NodeId) -> Member | None:
        """The member of that name."""
        return next((member for member in self.members if member.node == node), None)

    def staying(self) -> set[NodeId]:
        """Registered nodes that are not about to stop."""
        return {member.node for member in self.members if not member.is_leaving}

    def mates(self) -> dict[NodeId, NodeId | None]:
        """Of each sequencer, the storage node of its process behind whose records it can keep cuts; None if it cannot.

        One that can and whose storage node has not registered yet is left out.
        """
        storage = {m.process: m.node for m in self.members if m.role is Role.STORAGE}
        sequencers = [m for m in self.members if m.role is Role.SEQUENCER]
        alone: dict[NodeId, NodeId | None] = {m.node: None for m in sequencers if not m.runs_ahead}
        return alone | {m.node: storage[m.process] for m in sequencers if m.runs_ahead and m.process in storage}

    def beside(self, node: NodeId) -> tuple[Member, ...]:
        """The other roles of the process that plays that one."""
        own = self.find(node)
        return tuple(m for m in self.members if own is not None and m.process == own.process and m.node != node)


class Moved(msgspec.Struct, frozen=True, array_like=True):
    """A closed shard whose replicas are no longer those that its `OpenShard` named."""

    term: Term
    log: LogId
    shard: ShardId
    replicas: tuple[NodeId, ...]


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where closed shards have moved: a compare-and-set map beside the views. `version` is the coordinator's."""

    version: int = 0
    moved: tuple[Moved, ...] = ()

    def as_map(self) -> dict[Place, tuple[NodeId, ...]]:
        """Replicas by shard, of those that have moved."""
        return {(row.term, row.log, row.shard): row.replicas for row in self.moved}


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator wants, kept by the coordinator and changed by compare-and-set; the controller makes it so."""

    version: int = 0
    logs: int = 1
    sequencers: int = 3
    """How many sequencers a view should have, an odd number."""
    sequencer_names: tuple[NodeId, ...] = ()
    """Exactly these, if any are named."""
    replicas: int = 3
    write_quorum: int = 2
    index_replicas: int = 0
    """How many engines hold the index; 0: all of them."""
    speculative_cuts: bool = False
    """Whether cuts may run ahead of reports, where each sequencer has a storage node in its process."""
    draining: tuple[NodeId, ...] = ()
