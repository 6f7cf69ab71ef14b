"""Finds ordered records that none of some storage nodes holds: they are unreadable if these nodes are all there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from boki.storage.core import StorageCore
from boki.storage.shards import ShardKey


@dataclass(frozen=True, slots=True)
class Lacking:
    """A range of local ids of a shard that was ordered and that no node holds. `holders` were to hold it."""

    key: ShardKey
    first_lid: int
    until_lid: int
    holders: tuple[str, ...]

    def __str__(self) -> str:
        term, log, shard = self.key
        return (
            f"{self.until_lid - self.first_lid} ordered records of shard {shard} (term {term}, log {log}, local ids "
            f"{self.first_lid} to {self.until_lid - 1}) are on none of its storage nodes ({', '.join(self.holders)})"
        )


def find_lacking(nodes: Sequence[StorageCore]) -> Lacking | None:
    """The first such range; None if there is none. What was freed counts as held."""
    for key in sorted({key for node in nodes for key in node.holdings.shards}):
        at = 0
        until = max(node.holdings.shard_end(key) for node in nodes)
        while at < until:
            end = max(node.holdings.held_until(key, at) for node in nodes)
            if end == at:
                return Lacking(key, at, _next_held(nodes, key, at, until), _holders(nodes, key))
            at = end
    return None


def _next_held(nodes: Iterable[StorageCore], key: ShardKey, at: int, until: int) -> int:
    """Where the gap at `at` ends."""
    shards = [shard for node in nodes if (shard := node.holdings.shards.get(key)) is not None]
    return min((shard.spans.gaps(at, until)[0][1] for shard in shards), default=until)


def _holders(nodes: Iterable[StorageCore], key: ShardKey) -> tuple[str, ...]:
    return tuple(dict.fromkeys(holder for node in nodes for holder in node.holdings.replicas(key)))
