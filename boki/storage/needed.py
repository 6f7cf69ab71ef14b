"""Records that a cut waits for which is not committed: the sequencer of this process is to keep it behind them.

Mostly they are on their way from their engine. If that has died, or a term is being completed, they are on the replicas
that have stored the cut, and are fetched from there (`docs/design/speculative-cuts.md`). Repair does not do it: it
knows only what is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from boki.log.batch import read_header
from boki.log.view import ViewChain
from boki.protocol.effects import Effect, Send
from boki.protocol.follower import MetalogFollower
from boki.protocol.messages import BatchesFetched, FetchBatches, NeedRecords
from boki.storage.holdings import Holdings
from boki.storage.reports import Reports
from boki.storage.shards import ShardKey

_NUMBERS_FROM: Final = 1 << 48
"""Requests of this file are numbered from here on, those of repair below."""
_TIMEOUT_US: Final = 50_000
"""After this long another replica is asked."""
_MEMORY_US: Final = 1_000_000
"""What the sequencer has not asked for again for this long it no longer needs."""
_PAGE_BYTES: Final = 1 << 20
_MAX_WANTED: Final = 1_000


@dataclass(slots=True)
class _Wanted:
    """A range that lacks records here, and when it was last asked for."""

    first_lid: int
    until_lid: int
    needed_at: int
    asked_at: int = -_TIMEOUT_US


class Needed:
    """The records that the sequencer of this process waits for, and the answers to it."""

    def __init__(self, holdings: Holdings, reports: Reports) -> None:
        self._holdings = holdings
        self._reports = reports
        self._wanted: dict[ShardKey, _Wanted] = {}
        self._numbers = _NUMBERS_FROM

    def hear(self, message: NeedRecords, follower: MetalogFollower, now_us: int) -> set[ShardKey]:
        """The sequencer waits for these. → shards that were not known here"""
        new: set[ShardKey] = set()
        is_over = message.term not in follower.chain or message.term < follower.term
        for number, first_lid, until_lid in () if is_over else message.ranges:
            key = (message.term, message.log, number)
            if key not in self._holdings.shards:
                new.add(key)
            shard = self._holdings.shard(key)
            if shard.spans.covers(first_lid, until_lid):
                self._wanted.pop(key, None)
                self._reports.answer(key, first_lid, shard.spans.end_at(first_lid))
            elif not shard.is_closed and (key in self._wanted or len(self._wanted) < _MAX_WANTED):
                wanted = self._wanted.setdefault(key, _Wanted(first_lid, until_lid, now_us))
                wanted.first_lid, wanted.until_lid, wanted.needed_at = first_lid, until_lid, now_us
        return new

    @property
    def is_at_work(self) -> bool:
        """Whether the sequencer waits for records that are not here."""
        return bool(self._wanted)

    def ask(self, chain: ViewChain, now_us: int) -> list[Effect]:
        """The questions that are due, one of the other replicas each."""
        effects: list[Effect] = []
        for key, wanted in list(self._wanted.items()):
            shard = self._holdings.shards[key]
            first_lid = shard.spans.end_at(wanted.first_lid)
            others = [node for node in chain[key[0]].beside if node != self._holdings.node]
            if first_lid >= wanted.until_lid or shard.is_closed or now_us - wanted.needed_at > _MEMORY_US:
                del self._wanted[key]
            elif others and now_us - wanted.asked_at >= _TIMEOUT_US:
                self._numbers += 1
                wanted.asked_at = now_us
                fetch = FetchBatches(self._numbers, *key, first_lid, wanted.until_lid, _PAGE_BYTES)
                effects.append(Send(others[self._numbers % len(others)], fetch))
        return effects

    @staticmethod
    def has_asked(message: BatchesFetched) -> bool:
        """Whether that answers a question of this file."""
        return message.request > _NUMBERS_FROM

    def take(self, message: BatchesFetched) -> bool:
        """A replica has answered, perhaps later than it is asked again. → whether this file had asked for that"""
        key = (message.term, message.log, message.shard)
        wanted = self._wanted.get(key)
        if wanted is None or not self.has_asked(message):
            return self.has_asked(message)
        shard = self._holdings.shards[key]
        before = shard.spans.end_at(wanted.first_lid)
        for batch in () if shard.is_closed else message.batches:
            header = read_header(batch)
            if (header.term, header.log, header.shard) == key:
                self._holdings.put(key, header.first_lid, header.until_lid, batch)
        if shard.spans.end_at(wanted.first_lid) > before:
            wanted.asked_at = -_TIMEOUT_US  # the next page at once
        if shard.spans.covers(wanted.first_lid, wanted.until_lid):
            del self._wanted[key]
            self._reports.answer(key, wanted.first_lid, shard.spans.end_at(wanted.first_lid))
        return True
