"""Records that lost a replica get another one, and nodes that are drained are emptied.

A closed shard is on the storage nodes that the placement names, or else on those that its `OpenShard` named. A replica
**counts** if its node answers, stays, and has all of the shard. If so few of a shard's nodes can be counted on that it
lacks one, a spare node is added to its placement, which makes that node fetch the records; once enough replicas count,
the placement shrinks to them. So a shard's placement grows before it shrinks, and no step takes away a copy that is
needed. All of it follows from what the nodes say now, so any controller can continue with it.

Open shards are their engine's affair: it opens new ones elsewhere and closes them, and then they come here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from boki.controller.inventory import Inventory
from boki.controller.plans import by_name
from boki.log.ids import NodeId
from boki.log.membership import Moved, Place, Placement
from boki.log.metalog import covers
from boki.protocol.messages import ShardRow

_NAMED_LACKING: Final = 20
_MAX_MOVING: Final = 500
"""This many shards are copied at a time; the others keep their place until there is room."""
_HEARD_US: Final = 2_000_000
"""Within this every engine has heard that a node is drained, and opens no more shards there."""


@dataclass(slots=True)
class Progress:
    """How far repair is."""

    is_known: bool = False
    """Whether every node that answers had told of all its shards when this was seen."""
    asked_at: int = 0
    """When the first of them was asked."""
    shards_moving: int = 0
    """Shards with more nodes than replicas, until the new ones have everything."""
    shards_lacking: int = 0
    """Shards that lack a replica and find no spare node for it."""
    lacking: list[Place] = field(default_factory=list)
    """The first few of them."""
    shards_incomplete: int = 0
    """Shards of which some node that answers lacks records."""
    records_missing: int = 0
    open_on_lost: int = 0
    """Open shards that use a node that is lost or drained: their engines replace them."""
    used: dict[NodeId, int] = field(default_factory=dict)
    """Per storage node, in how many shards it is named."""

    @property
    def is_busy(self) -> bool:
        """Whether anything may change soon."""
        return bool(self.shards_moving or self.shards_incomplete)

    def is_at_rest(self, leaving: Iterable[NodeId]) -> bool:
        """Whether every shard is in its place, closed ones with all their records, and none on a node that leaves. Open
        ones are behind by a little on some node whenever there is load.
        """
        is_moving = self.is_busy or self.shards_lacking or self.open_on_lost
        return not is_moving and not any(self.used.get(node) for node in leaving)


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """The storage nodes as the controller sees them."""

    live: frozenset[NodeId]
    """Registered, and they answer."""
    lost: frozenset[NodeId]
    """They have not answered for so long that they are replaced."""
    draining: frozenset[NodeId]
    replicas: int
    write_quorum: int
    draining_since: int = 0
    """When these were known to be drained, in microseconds."""


class Repair:
    """Decides about placements. `progress` is what the last decision saw."""

    def __init__(self) -> None:
        self.progress = Progress()

    def decide(self, inventory: Inventory, placement: Placement, storage: Storage) -> Placement | None:
        """The placement that should replace `placement`, with its version; None if it is as it should be."""
        moved = placement.as_map()
        shards = {
            place: row
            for place, row in inventory.shards().items()
            if not _was_closed_empty(inventory, place, row, storage)
        }
        told = [inventory.listings[node] for node in storage.live & inventory.listings.keys()]
        asked_at = min((listing.asked_at for listing in told), default=0)
        progress = Progress(is_known=_has_heard_all(inventory, placement, storage), asked_at=asked_at)
        for place, row in shards.items():
            for node in moved.get(place, row.replicas):
                progress.used[node] = progress.used.get(node, 0) + 1
        spares = [node for node in by_name(storage.live) if node not in storage.draining]
        changes: dict[Place, tuple[NodeId, ...]] = {}
        for place, row in sorted(shards.items()):
            now_on = moved.get(place, row.replicas)
            if not row.is_closed:
                progress.open_on_lost += not storage.draining.isdisjoint(now_on) or not storage.lost.isdisjoint(now_on)
            elif row.ordered_until and now_on:
                should_be = self._place(place, row, now_on, spares, inventory, placement.version, storage, progress)
                if should_be != now_on:
                    changes[place] = should_be
        self.progress = progress
        if not changes:
            return None
        rows = sorted((moved | changes).items())
        return Placement(version=placement.version, moved=tuple(Moved(*place, nodes) for place, nodes in rows))

    def _place(
        self,
        place: Place,
        row: ShardRow,
        now_on: tuple[NodeId, ...],
        spares: Iterable[NodeId],
        inventory: Inventory,
        version: int,
        storage: Storage,
        progress: Progress,
    ) -> tuple[NodeId, ...]:
        """Where one closed shard should be."""
        counting = []
        for node in now_on:
            missing = _missing(inventory, node, place, row.ordered_until, version) if node in storage.live else None
            if missing:
                progress.records_missing += missing
            if missing == 0 and node not in storage.draining:
                counting.append(node)
        progress.shards_incomplete += len(counting) < min(storage.replicas, len(now_on))
        progress.shards_moving += len(now_on) > storage.replicas
        if len(counting) >= storage.replicas:
            return tuple(counting[: storage.replicas])
        staying = [node for node in now_on if node not in storage.lost and node not in storage.draining]
        lacking = storage.replicas - len(staying)
        if lacking <= 0 or progress.shards_moving >= _MAX_MOVING:
            return now_on
        free = sorted((node for node in spares if node not in now_on), key=lambda node: progress.used.get(node, 0))
        for node in free[:lacking]:
            progress.used[node] = progress.used.get(node, 0) + 1
        if len(free) < lacking:
            progress.shards_lacking += 1
            progress.lacking = [*progress.lacking, place][:_NAMED_LACKING]
        progress.shards_moving += bool(free)
        return (*now_on, *free[:lacking])

    def status(self, inventory: Inventory, placement: Placement, storage: Storage) -> dict[str, Any]:
        """What an operator asks for, as JSON values."""
        progress = self.progress
        # what has been heard since the last decision is not in `progress` yet: nothing is, of one who has just begun
        is_known = progress.is_known and _has_heard_all(inventory, placement, storage)
        leaves_index = _index_copies_lacking(inventory, storage, storage.draining) == 0
        # a shard may have been opened on a node that is drained after that node was asked
        is_new = not storage.draining or progress.asked_at >= storage.draining_since + _HEARD_US
        is_safe = is_known and is_new and not progress.shards_lacking and leaves_index
        return {
            "is_known": is_known,
            "shards_moving": progress.shards_moving,
            "shards_incomplete": progress.shards_incomplete,
            "shards_lacking_replicas": progress.shards_lacking,
            "lacking": [list(place) for place in progress.lacking],
            "open_on_lost_nodes": progress.open_on_lost,
            "records_missing": progress.records_missing,
            "index_copies_lacking": _index_copies_lacking(inventory, storage, storage.live),
            "draining": {
                node: {
                    "shards": progress.used.get(node, 0),
                    # while others lack a replica its copies may be what repairs them, or its index what they begin from
                    "is_complete": is_safe and not progress.used.get(node, 0),
                }
                for node in by_name(storage.draining)
            },
        }


def _has_heard_all(inventory: Inventory, placement: Placement, storage: Storage) -> bool:
    """Whether every node that answers has told of all its shards, under the current placement."""
    told = [inventory.listings.get(node) for node in storage.live]
    return all(
        listing is not None
        and listing.is_whole
        and listing.is_caught_up
        and listing.placement_version >= placement.version
        for listing in told
    )


def _was_closed_empty(inventory: Inventory, place: Place, row: ShardRow, storage: Storage) -> bool:
    """Whether an open shard is only in the words of nodes that answer no more, and was closed since with nothing in it.

    Nodes do not report such shards, so nobody would ever say that it is closed. While it was open, others named it.
    """
    if row.is_closed or row.ordered_until:
        return False
    told = [(node, listing) for node, listing in inventory.listings.items() if place in listing.rows]
    told_at = max(listing.asked_at for _, listing in told)
    now = [inventory.listings[node] for node in row.replicas if node in storage.live & inventory.listings.keys()]
    return storage.live.isdisjoint(node for node, _ in told) and any(
        listing.is_whole and listing.is_caught_up and listing.asked_at > told_at for listing in now
    )


def _index_copies_lacking(inventory: Inventory, storage: Storage, others: Iterable[NodeId]) -> int:
    """How many more of those who stay must keep an index as new as any of `others`, for a write quorum to keep it.

    The entries that it covers may be gone: without it no engine could begin.
    """
    known = {node: listing.checkpoint for node, listing in inventory.listings.items()}
    theirs = [known[node] for node in others if node in known]
    staying = [known[node] for node in storage.live - storage.draining if node in known]
    copies = sum(all(covers(mine, each) for each in theirs) for mine in staying)
    return max(0, storage.write_quorum - copies)


def _missing(inventory: Inventory, node: NodeId, place: Place, ordered_until: int, version: int) -> int | None:
    """How many records of a shard a node lacks; None while it has not said so under the current placement."""
    listing = inventory.listings.get(node)
    if listing is None or not listing.is_whole or listing.placement_version < version:
        return None
    row = listing.rows.get(place)
    return ordered_until if row is None else max(0, ordered_until - row.stored_until)
