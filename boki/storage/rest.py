"""Whether a storage node rests: nothing is to be told, written, fetched, removed or freed, so that it needs no tick."""

from __future__ import annotations

from collections.abc import Collection

from boki.protocol.effects import REST_US
from boki.protocol.follower import MetalogFollower
from boki.storage.holdings import Holdings
from boki.storage.needed import Needed
from boki.storage.repair import Repair
from boki.storage.reports import Reports
from boki.storage.shards import ShardKey
from boki.storage.sweep import Sweep


class Rest:
    """Looks at the parts of one node."""

    def __init__(self, holdings: Holdings, reports: Reports, needed: Needed, repair: Repair, sweep: Sweep) -> None:
        self._holdings = holdings
        self._reports = reports
        self._needed = needed
        self._repair = repair
        self._sweep = sweep

    def until(self, follower: MetalogFollower, open_shards: Collection[ShardKey], now_us: int) -> int:
        """See `boki.protocol.effects.Resting.rests_until`."""
        is_at_work = (
            self._reports.is_at_work
            or self._holdings.is_at_work
            or self._needed.is_at_work
            or self._repair.is_at_work
            or not self._sweep.is_idle
            or any(self._is_uncovered(key) for key in open_shards)
        )
        return now_us if is_at_work else min(follower.rests_until(now_us), now_us + REST_US)

    def _is_uncovered(self, key: ShardKey) -> bool:
        """Whether more is stored than what a cut has ordered: the primary may have to hear of it again."""
        shard = self._holdings.shards[key]
        return shard.stored_until > shard.order.until_lid
