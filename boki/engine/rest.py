"""Whether an engine rests: nobody waits for it, and nothing is to be asked, saved or given back before a known time."""

from __future__ import annotations

from boki.engine.appends import Appends
from boki.engine.checkpoint.saving import Checkpoints
from boki.engine.index.index import Index
from boki.engine.reads import Reads
from boki.engine.requests import Requests
from boki.engine.tails import Tails
from boki.protocol.effects import REST_US
from boki.protocol.follower import MetalogFollower


class Rest:
    """Looks at the parts of one engine."""

    def __init__(
        self,
        follower: MetalogFollower,
        index: Index,
        appends: Appends,
        reads: Reads,
        tails: Tails,
        requests: Requests,
        checkpoints: Checkpoints,
    ) -> None:
        self._follower = follower
        self._index = index
        self._waited_for = (appends, tails, requests)
        self._reads = reads
        self._checkpoints = checkpoints

    def until(self, now_us: int) -> int:
        """See `boki.protocol.effects.Resting.rests_until`."""
        if self._index.is_at_work or any(part.is_at_work for part in self._waited_for):
            return now_us
        return min(
            self._follower.rests_until(now_us),
            self._reads.rests_until(now_us),
            self._checkpoints.rests_until(now_us),
            now_us + REST_US,
        )
