"""Answers to those who fetch: *have*, *freed*, *never had* and *unknown* are told apart.

Taking "not here" for "never existed" is how logs lose data (BookKeeper BP-46), and so is taking "not here yet" for
"freed". What is missing counts as freed only if it had reached this disk before the question was put to it, and the
shard was not sent away since. It counts as never had only above the end of a shard that the metalog has closed. All
else is unknown. Bytes that fail a checksum are never given out, and are asked of the other replicas.

A replica that repairs itself may have retired the floors of what it lacks (`boki.storage.sweep`). So it is given
batches without the payloads of free records (the batch itself says which these are), and the floors over the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from boki.errors import BokiError
from boki.log.batch import Batch
from boki.log.floors import FloorRow, Floors
from boki.log.ids import NodeId
from boki.protocol.effects import Effect, Load, Send, Trace
from boki.protocol.messages import BatchesFetched, FetchBatches, Holding
from boki.storage.freeing import without_free
from boki.storage.holdings import Holdings
from boki.storage.repair import BUSY_PAGE_BYTES
from boki.storage.shards import ShardKey, batch_key, split_batch_key

_ANSWER_BYTES: Final = 1 << 20
"""More is not given at once: others wait for this node, too."""


@dataclass(frozen=True, slots=True)
class Question:
    """A fetch that is being loaded from the disk, and what the disk had when it was asked."""

    sender: NodeId
    message: FetchBatches
    written_until: int
    generation: int
    max_bytes: int


class Answers:
    """Of one node. `on_damage(shard, first local id)` hears of batches that fail their checksums."""

    def __init__(self, holdings: Holdings, floors: Floors, on_damage: Callable[[ShardKey, int], None]) -> None:
        self._holdings = holdings
        self._floors = floors
        self._on_damage = on_damage

    def load(self, sender: NodeId, message: FetchBatches, *, is_busy: bool) -> Iterable[Effect]:
        """Look for what is asked for. `is_busy`: appends are coming in."""
        if message.until_lid <= message.first_lid:
            return ()
        key = (message.term, message.log, message.shard)
        shard = self._holdings.shards.get(key)
        known = (shard.written_until, shard.generation) if shard is not None else (0, 0)
        # for one that repairs itself it has to be looked for what is free
        most = BUSY_PAGE_BYTES if is_busy and message.spans_gaps else _ANSWER_BYTES
        question = Question(sender, message, *known, min(max(1, message.max_bytes), most))
        return (self._load(question, batch_key(key, 0)),)

    @staticmethod
    def _load(question: Question, floor: bytes) -> Load[Question]:
        message = question.message
        key = (message.term, message.log, message.shard)
        start, stop = batch_key(key, message.first_lid), batch_key(key, message.until_lid)
        return Load(question, start, floor, stop, question.max_bytes)

    def answer(self, question: Question, rows: Iterable[tuple[bytes, bytes]], error: str) -> Iterable[Effect]:
        """Tell what was found."""
        message = question.message
        batches: list[bytes] = []
        floors: dict[FloorRow, None] = {}
        gaps: list[tuple[int, int]] = []
        lid = message.first_lid
        found_from = message.until_lid
        size_bytes = 0
        for key, value in rows:
            size_bytes += len(value)
            standing: list[FloorRow] = []
            try:
                batch = Batch(value)
                if message.needs_payloads:
                    batch.verify()
                if message.spans_gaps:
                    value, standing = self._without_free(batch)
            except BokiError as failure:
                error = self._report_damage(key, failure)
                break
            if batch.header.first_lid > lid:
                if not (message.spans_gaps and self._is_freed(question, batch.header.first_lid)):
                    found_from = batch.header.first_lid
                    break
                gaps.append((lid, batch.header.first_lid))
            if batch.header.until_lid > lid:
                batches.append(value)
                floors |= dict.fromkeys(standing)
                lid = batch.header.until_lid
        else:
            if not batches and size_bytes >= question.max_bytes:
                # what stands before the gap filled the load: where the gap ends is not known yet
                start = batch_key((message.term, message.log, message.shard), message.first_lid)
                yield self._load(question, start)
                return
        if gaps and gaps[0][0] == message.first_lid:
            holding, freed_until = Holding.FREED, gaps.pop(0)[1]
        elif batches:
            holding, freed_until = Holding.HAVE, 0
        else:
            holding, freed_until = self._missing(question, found_from, error)
        asked = (message.request, message.term, message.log, message.shard, message.first_lid)
        found = BatchesFetched(*asked, holding, tuple(batches), error, freed_until, tuple(gaps), tuple(floors))
        yield Send(question.sender, found)
        if error:
            yield Trace(logging.ERROR, error)

    def _without_free(self, batch: Batch) -> tuple[bytes, list[FloorRow]]:
        header = batch.header
        shard = self._holdings.shards.get((header.term, header.log, header.shard))
        first_seqnum = shard.order.seqnum_of(header.first_lid) if shard is not None else None
        return (batch.data, []) if first_seqnum is None else without_free(batch, first_seqnum, self._floors)

    def _report_damage(self, key: bytes, failure: BokiError) -> str:
        shard, first_lid = split_batch_key(key)
        self._on_damage(shard, first_lid)
        return (
            f"{self._holdings.node}: batch {first_lid} of shard {shard[2]}, term {shard[0]}, log {shard[1]}: {failure}"
        )

    def _is_freed(self, question: Question, until_lid: int) -> bool:
        """Whether what is missing in front of a batch had reached the disk before the question, so that it is freed."""
        message = question.message
        shard = self._holdings.shards.get((message.term, message.log, message.shard))
        if shard is None or question.generation != shard.generation:
            return False
        return until_lid <= min(question.written_until, shard.order.until_lid)

    def _missing(self, question: Question, found_from: int, error: str) -> tuple[Holding, int]:
        """What to say of a first local id that is not on the disk; `found_from` is the next that is."""
        message = question.message
        shard = self._holdings.shards.get((message.term, message.log, message.shard))
        if error or shard is None:
            return Holding.UNKNOWN, 0
        if shard.is_closed and message.first_lid >= shard.order.until_lid:
            return Holding.NEVER, 0
        was_here_until = min(question.written_until, shard.order.until_lid)
        if message.first_lid < was_here_until and question.generation == shard.generation:
            return Holding.FREED, min(found_from, was_here_until)
        return Holding.UNKNOWN, 0
