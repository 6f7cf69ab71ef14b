"""Which node most records of a log come from: its primary is best there, where an append waits for two hops less.

Storage nodes are asked each second how far every shard is ordered (`boki.controller.inventory`), and a shard belongs to
one engine, so what a log's shards have grown by is the load of its engines. It is counted in **spans**. An engine leads
a log while more than two thirds of its records were that engine's in each of the last spans. A log with few records is
led by none: a primary that moves costs a pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from boki.log.ids import LogId, NodeId
from boki.log.membership import Membership, Place, Role
from boki.protocol.messages import ShardRow

_SPANS: Final = 3
_MIN_PER_S: Final = 10


class LogLoads:
    """The load of every log by engine, in spans of `span_us`. `leaders`: the engine that leads, of logs that one leads.

    `note` is told of all shards of the current term, as often as there is news of them.
    """

    def __init__(self, span_us: int) -> None:
        self.leaders: dict[LogId, NodeId] = {}
        self._span_us = span_us
        self._began_at = 0
        self._ordered: dict[Place, int] = {}
        """How far each shard was ordered when the span began."""
        self._streaks: dict[LogId, tuple[NodeId, int]] = {}
        """The engine that most came from in the last span, and in how many spans without a break."""

    def note(self, shards: Mapping[Place, ShardRow], now_us: int) -> None:
        """How far shards are ordered now."""
        if not self._began_at:
            self._begin(shards, now_us)
        elif now_us - self._began_at >= self._span_us:
            self._end(shards, now_us - self._began_at)
            self._begin(shards, now_us)

    def near(self, membership: Membership) -> dict[LogId, NodeId]:
        """The sequencer on the node of the engine that leads a log's load, of logs and engines where there is one."""
        hosts = {member.node: member.process for member in membership.members}
        sequencers = {member.process: member.node for member in membership.of(Role.SEQUENCER)}
        found = {log: sequencers.get(hosts.get(engine, engine)) for log, engine in self.leaders.items()}
        return {log: node for log, node in found.items() if node is not None}

    def forget(self) -> None:
        """Nothing was noted for a while, so the load may be another one by now."""
        self.leaders, self._streaks, self._began_at = {}, {}, 0

    def _begin(self, shards: Mapping[Place, ShardRow], now_us: int) -> None:
        self._began_at = now_us
        self._ordered = {place: row.ordered_until for place, row in shards.items()}

    def _end(self, shards: Mapping[Place, ShardRow], took_us: int) -> None:
        grown: dict[LogId, dict[NodeId, int]] = {}
        for place, row in shards.items():
            if row.engine is None:
                continue
            engines = grown.setdefault(place[1], {})
            more = row.ordered_until - self._ordered.get(place, 0)
            engines[row.engine] = engines.get(row.engine, 0) + max(0, more)
        before, self._streaks = self._streaks, {}
        for log, engines in grown.items():
            count = sum(engines.values())
            first = max(engines, key=lambda engine: engines[engine])
            if count * 1_000_000 >= _MIN_PER_S * took_us and 3 * engines[first] > 2 * count:
                known, spans = before.get(log, (first, 0))
                self._streaks[log] = first, (spans if known == first else 0) + 1
        self.leaders = {log: engine for log, (engine, spans) in self._streaks.items() if spans >= _SPANS}
