"""Watchdog of the index: warns while a log grows and nothing of it is applied.

It happens when no node has the records that a cut orders, or when the sequencers are heard and no entries come: reads
stop, and nothing else would say why.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

from boki.log.ids import LogId, NodeId
from boki.log.metalog import split_position
from boki.protocol.follower import MetalogFollower

_log = logging.getLogger("boki.node")
_AGAIN_S: Final = 10.0


@dataclass(slots=True)
class _Progress:
    position: int
    since_s: float
    told_at_s: float = float("-inf")
    stalled_s: float = 0.0


class StallWatch:
    """Compares how far the logs are known with how far they are applied. `look` at it again and again."""

    def __init__(self, node: NodeId, stall_s: float) -> None:
        self._node = node
        self._stall_s = stall_s
        self._logs: dict[LogId, _Progress] = {}

    def look(self, follower: MetalogFollower | None, now_s: float) -> None:
        """See how far the logs are now."""
        if follower is None or not follower.chain:
            return
        for log in follower.logs:
            position = follower.position(log)
            known = self._logs.get(log)
            if known is None or known.position != position or not follower.lag(log):
                if known is not None and known.stalled_s:
                    _log.warning("%s: log %d goes on after %.1f s", self._node, log, now_s - known.since_s)
                self._logs[log] = _Progress(position, now_s)
                continue
            waited_s = now_s - known.since_s
            if waited_s < self._stall_s:
                continue
            known.stalled_s = waited_s
            if now_s - known.told_at_s >= _AGAIN_S:
                known.told_at_s = now_s
                term, index = split_position(position)
                _log.error(
                    "%s: log %d stands still: %d entries are committed and nothing was applied for %.1f s, "
                    "since entry %d of term %d",
                    self._node,
                    log,
                    follower.lag(log),
                    waited_s,
                    index,
                    term,
                )

    def describe(self, follower: MetalogFollower) -> dict[str, Any]:
        """Term, and per log what is applied, what is known to be committed and not, and for how long it stands."""
        if not follower.chain:
            return {"term": 0, "logs": {}}
        logs = {}
        for log in follower.logs:
            known = self._logs.get(log)
            logs[str(log)] = {
                "applied": split_position(follower.position(log))[1],
                "lag": follower.lag(log),
                "stalled_s": round(known.stalled_s, 1) if known is not None else 0.0,
            }
        return {"term": follower.chain.current.term, "applied_term": follower.term, "logs": logs}
