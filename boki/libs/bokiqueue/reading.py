"""The folds of a queue in one process, as the reading of its stream brings them on; and what is read besides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from boki import LogBook, Page, Record
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.groups import Delivery, Segment
from boki.libs.bokiqueue.lines import Line, release
from boki.libs.bokiqueue.messages import reshaped
from boki.libs.bokiqueue.records import Act, Carry, Push, Saved, Setup, belongs, sound
from boki.libs.bokiqueue.sessions import Given
from boki.libs.bokiqueue.settings import newest_settings
from boki.libs.bokiqueue.upkeep import Bodies, Upkeep, newest_state
from boki.libs.bokiqueue.wants import Served, Wants
from boki.libs.fold.follower import PAGE_RECORDS, Follower

_log = logging.getLogger("boki.queue")


class Folds:
    """The folds of all shards, and who is served by what comes to them. `taker` names this process."""

    def __init__(
        self,
        queue: str,
        taker: bytes,
        lines: Sequence[Line],
        wants: Wants,
        follower: Follower,
        bodies: Bodies,
        upkeep: Upkeep,
    ) -> None:
        self._queue, self._taker = queue, taker
        self._lines, self._wants = lines, wants
        self._follower = follower
        self._bodies, self._upkeep = bodies, upkeep
        self.forgotten: list[Line] = []
        """Shards whose checkpoint does not say any more what the act came to that is on its way."""
        self._checked_stop = 0
        """Where the last page ends in which the queue's settings were looked at."""
        self._missed: set[tuple[int, int]] = set()
        """(record, from where on the stream was there) for which this fold has begun again."""

    async def load(self, logbook: LogBook) -> int:
        """Begin from the newest checkpoints; where to read on."""
        self._bodies.clear()
        loaded = await asyncio.gather(*(newest_state(logbook, self._queue, line.shard) for line in self._lines))
        for line, (state, resume) in zip(self._lines, loaded, strict=True):
            line.begin(state, resume)
        self.forgotten = []
        for line in self._lines:  # before anything can fail: what is covered by now is not read again
            given, own = line.state.takers.last.get(self._taker), line.outstanding
            if given is not None and given.is_forgotten and own is not None and own.act.number == given.number:
                self.forgotten += [line] if own.act.takes or own.act.settles else []
            if given is not None and line not in self.forgotten:
                self._served(line, given)
            line.give_back_unknown()
        return min(resume for _, resume in loaded)

    async def take(self, logbook: LogBook, page: Page) -> bool:
        """Fold a page. False if that cannot be from here: begin again. `Reshaped` if it is another queue by now."""
        for record in page.records:
            if not await self._fold(logbook, record, page.next_start):
                return False
        return True

    async def _fold(self, logbook: LogBook, record: Record, page_stop: int) -> bool:
        """Continue by a record that was read. False if that cannot be from here."""
        kind = records.sound(record)
        is_of_others = isinstance(kind, Setup) and kind.settings.shards != len(self._lines)
        if is_of_others or (kind is None and records.is_newer(record.data)):
            if record.seqnum >= self._checked_stop:  # once a page: strangers may append many
                _, settings, _ = await newest_settings(logbook, self._queue)  # which refuses a queue of a later format
                if settings is None or settings.shards != len(self._lines):
                    raise reshaped(self._queue)
                self._checked_stop = page_stop
            kind = None  # the queue's settings do not say so
        if kind is None or not records.belongs(kind, record.tags, self._queue, len(self._lines)):
            self._pass_by(record)
            return True
        line = self._lines[kind.shard]
        if record.seqnum < line.resume:
            self._passed(record)
            return True
        state = line.state
        part = state.history_for(kind) if record.seqnum > state.at else None
        if part is not None:  # if this fails the record is read again: it has not been passed yet
            segments, kept_from = await history(logbook, self._queue, line.shard, len(self._lines), *part)
            if kept_from > part[0] and (record.seqnum, kept_from) not in self._missed:
                self._missed.add((record.seqnum, kept_from))
                return False  # others go by what was trimmed since: they had read it, or began from a later checkpoint
            state.put_before(segments)
        self._passed(record)
        self._apply(logbook, line, record, kind)
        return True

    def _apply(self, logbook: LogBook, line: Line, record: Record, kind: records.Kind) -> None:
        state = line.state
        first_pos = state.backlog.first_pos
        given = state.apply(record.seqnum, record.time, kind)
        line.saved_records += 1
        line.saved_bytes += len(record.data)
        is_due = False
        if isinstance(kind, Push | Carry):
            self._bodies.keep(record.seqnum, kind, state)
            # If it drop what has expired, maybe no other process consumes.
            is_due = state.backlog.first_pos > first_pos
        for taker, group, lease_us, deliveries in state.handed:
            if taker == self._taker:  # a standing take of this process
                line.hear(deliveries)
                if left := self._wants.serve((group, lease_us), self._with_bodies(line, deliveries)):
                    self._wants.keep((group, lease_us), left)
                is_due = True
        if given is not None and isinstance(kind, Act) and kind.taker == self._taker:
            self._served(line, given)
            is_due = True
        if isinstance(kind, Saved):
            self._upkeep.saved(logbook, line, kind)
        elif is_due:
            self._upkeep.consider(logbook, line)

    def _served(self, line: Line, given: Given) -> None:
        """An act of this process counts: those that wait for it are given what it came to."""
        own, clock = line.outstanding, self._follower.clock
        if own is not None and own.act.number == given.number and own.asked is not None:
            clock.hear_answer(given.time_us, own.asked)
            self._wants.act_s = clock.since(own.asked)
        for kind, deliveries in line.settle(given, self._queue):
            release(self._lines, kind[0], self._wants.serve(kind, self._with_bodies(line, deliveries)))

    def _with_bodies(self, line: Line, deliveries: Sequence[Delivery]) -> list[Served]:
        here = self._bodies.here
        return [(line.shard, one, here(one)) for one in deliveries]

    def _passed(self, record: Record) -> None:
        """The reading continues behind it."""
        self._follower.next_start = record.next_seqnum
        self._follower.clock.hear(record.time)

    def _pass_by(self, record: Record) -> None:
        """A record that does not count. It is logged when they are 1, 10, 100, …: strangers may append many."""
        line = self._lines[0]
        state = line.state
        before = state.passed_by
        if record.seqnum >= line.resume:
            state.pass_by(record.seqnum)
            line.saved_records += 1  # so that a checkpoint drops it
            line.saved_bytes += len(record.data)
        self._passed(record)
        if state.passed_by > before and str(state.passed_by).rstrip("0") == "1":
            _log.warning(
                "queue %s: record %d is not a valid queue record and is passed by; %d so far",
                *(self._queue, record.seqnum, state.passed_by),
            )


async def history(
    logbook: LogBook, queue: str, shard: int, shards: int, start: int, stop: int
) -> tuple[list[Segment], int]:
    """The pushes in a part of the stream that was passed before, and from where on it is still there (0: all of it).

    Without their bodies: all that is retained may be many times what a process has room for.
    """
    tag = records.stream_tag(queue, shard)
    segments: list[Segment] = []
    kept_from = 0
    while start < stop:
        page = await logbook.read(tag, start=start, stop=stop, limit=PAGE_RECORDS)
        kept_from = max(kept_from, page.first_seqnum)
        for record in page.records:
            kind = sound(record)
            if isinstance(kind, Push) and kind.shard == shard and belongs(kind, record.tags, queue, shards):
                segments.append(Segment.of(record.seqnum, 0, record.time, kind))
        if not page.records:
            break
        start = page.next_start
    return segments, kept_from
