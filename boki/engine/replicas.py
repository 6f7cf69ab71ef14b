"""Which storage nodes keep a shard, and where new shards go.

A shard's replicas are those that its `OpenShard` named, unless the placement map says that it has moved since.
Membership only says whom to ask first and where new shards should rather go: a node that is missing there may live, and
one that is named may be dead, so it never decides what is durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from boki.log.ids import NodeId
from boki.log.membership import Membership, Place, Placement, Role
from boki.log.metalog import FORGETTING
from boki.log.view import View

Opened = tuple[Place, tuple[NodeId, ...]]
"""A shard, and the replicas that its `OpenShard` named."""
Peers = Mapping[NodeId, frozenset[NodeId]]
"""Engines, each with the storage nodes of its process."""

_NOBODY: Final[frozenset[NodeId]] = frozenset()
_SPARE: Final = 1
"""Storage nodes that take the place of a lost one, and are not there for their space."""


class Replicas:
    """Of all shards that the index knows. `opened` is what a checkpoint had."""

    def __init__(self, opened: Iterable[Opened] = ()) -> None:
        self.membership: Membership | None = None
        self._opened: dict[Place, tuple[NodeId, ...]] = dict(opened)
        self._moved: dict[Place, tuple[NodeId, ...]] = {}
        self._placement_version = -1
        self.live: frozenset[NodeId] = _NOBODY
        """The storage nodes that are registered now."""

    def install_membership(self, membership: Membership) -> bool:
        """Take in who is registered; False if that is old news."""
        if self.membership is not None and membership.number <= self.membership.number:
            return False
        self.membership = membership
        self.live = frozenset(member.node for member in membership.of(Role.STORAGE))
        return True

    @property
    def may_forget(self) -> bool:
        """Whether every registered node reads `ForgetTags`. Where none registers, all nodes are this process."""
        members = self.membership.members if self.membership is not None else ()
        return all(member.entry_version >= FORGETTING for member in members)

    def install_placement(self, placement: Placement) -> None:
        """Take in where closed shards have moved."""
        if placement.version > self._placement_version:
            self._placement_version = placement.version
            self._moved = placement.as_map()

    def open(self, place: Place, replicas: tuple[NodeId, ...]) -> None:
        """The metalog has opened a shard."""
        self._opened[place] = replicas

    def rows(self) -> list[Opened]:
        """What the metalogs have opened, for a checkpoint."""
        return list(self._opened.items())

    # reading

    def of(self, place: Place, turn: int = 0) -> tuple[NodeId, ...]:
        """Who keeps that shard, rotated by `turn`, those that are registered first. Empty if it was never opened."""
        replicas = self._moved.get(place) or self._opened.get(place, ())
        first = turn % len(replicas) if replicas else 0
        replicas = replicas[first:] + replicas[:first]
        if self.membership is None:
            return replicas
        return tuple(sorted(replicas, key=lambda node: node not in self.live))

    # writing

    def choose(self, view: View, turn: int) -> tuple[NodeId, ...]:
        """The replicas of a new shard: registered nodes first, those that are to be emptied only if there are no more.

        `turn` rotates the good ones, so that load spreads. Where cuts can run ahead for some replicas alone
        (`View.runs_ahead`), it is these, beside a spare node; with more nodes space counts, and shards are spread.
        """
        good, draining, missing = self._nodes(view)
        if self._can_run_ahead(view, good):
            return view.beside
        first = turn % len(good) if good else 0
        return (*good[first:], *good[:first], *draining, *missing)[: view.replicas]

    def should_move(self, view: View, replicas: Sequence[NodeId]) -> bool:
        """Whether a shard on these nodes should be given up for a new one: it would have more good replicas, or cuts
        could run ahead.
        """
        good, _, _ = self._nodes(view)
        if self._can_run_ahead(view, good):
            return not view.runs_ahead(tuple(replicas))
        return sum(node in good for node in replicas) < min(len(good), view.replicas)

    def _can_run_ahead(self, view: View, good: Sequence[NodeId]) -> bool:
        is_possible = len(view.beside) == view.replicas and view.runs_ahead(view.beside)
        return is_possible and len(good) <= view.replicas + _SPARE and all(node in good for node in view.beside)

    def _nodes(self, view: View) -> tuple[list[NodeId], list[NodeId], list[NodeId]]:
        """All storage nodes: good ones, registered ones that are to be emptied, and those that are not registered."""
        if self.membership is None:
            return list(view.storage), [], []
        emptied = self.membership.draining
        live = [member.node for member in self.membership.of(Role.STORAGE)]
        missing = sorted((node for node in view.storage if node not in self.live), key=emptied.__contains__)
        good = [node for node in live if node not in emptied]
        return good, [node for node in live if node in emptied], missing

    # telling

    def storage_nodes(self, view: View) -> list[NodeId]:
        """Every storage node that is named anywhere now."""
        members = self.membership.of(Role.STORAGE) if self.membership is not None else ()
        return list(dict.fromkeys((*view.storage, *(member.node for member in members))))

    def keepers(self, view: View) -> list[NodeId]:
        """The registered storage nodes that are to keep checkpoints: those that stay, if these are enough."""
        good, draining, _ = self._nodes(view)
        return sorted(good if len(good) >= view.write_quorum else (*good, *draining))

    def is_first_index(self, engine: NodeId) -> bool:
        """Whether this engine is the first of those that hold the index: what one should do, it does."""
        members = self.membership.of(Role.ENGINE) if self.membership is not None else ()
        return next((member.node for member in members if member.has_index), None) == engine

    def indexes_beside(self, engine: NodeId) -> Peers:
        """The other engines that hold the index, each with the storage nodes that hand it what they are sent."""
        if self.membership is None:
            return {}
        return {
            member.node: frozenset(m.node for m in self.membership.beside(member.node) if m.role is Role.STORAGE)
            for member in self.membership.of(Role.ENGINE)
            if member.has_index and member.node != engine
        }
