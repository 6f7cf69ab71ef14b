"""What a storage node takes in: batches, as long as its disk has space and keeps up.

A disk that is slower than what arrives would let the node's memory grow without an end: engines forget a batch as soon
as the other replicas have it, so nothing holds them up. So the node counts what it has handed to its disk and was not
told durable. Beyond a budget it drops batches, as if the network had lost them: an engine sends again what is not
ordered, and what is ordered is fetched from the other replicas (`boki.storage.repair`), which has a budget of its own.
"""

from __future__ import annotations

from typing import Any, Final

from boki.storage.holdings import Holdings
from boki.storage.shards import ShardKey

UNWRITTEN_BYTES: Final = 64 << 20
"""As much as an engine holds of appends that are not ordered."""


class Intake:
    """Of one node. `may_store`: the disk has space for what is under way."""

    def __init__(self, holdings: Holdings, limit_bytes: int) -> None:
        self.may_store = True
        self._holdings = holdings
        self._limit_bytes = limit_bytes
        self._dropped = 0

    @property
    def may_fetch(self) -> bool:
        """Whether the disk keeps up, so that more may be asked for."""
        return self.may_store and self._holdings.unwritten_bytes < self._limit_bytes

    def store(self, key: ShardKey, first_lid: int, until_lid: int, batch: bytes) -> bool:
        """Keep a batch if its shard lacks it. False if it was dropped because the disk falls behind.

        A batch is never too large by itself.
        """
        if not self.may_store or self._holdings.shards[key].spans.covers(first_lid, until_lid):
            return True
        unwritten_bytes = self._holdings.unwritten_bytes
        if unwritten_bytes and unwritten_bytes + len(batch) > self._limit_bytes:
            self._dropped += 1
            return False
        self._holdings.put(key, first_lid, until_lid, batch)
        return True

    def status(self) -> dict[str, Any]:
        """What is on its way to the disk, and what was dropped because that was too much."""
        return {
            "unwritten_bytes": self._holdings.unwritten_bytes,
            "unwritten_limit_bytes": self._limit_bytes,
            "dropped_batches": self._dropped,
        }
