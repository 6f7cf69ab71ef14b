"""Giving trimmed space back, a little at a time.

A sweep goes over the batches in order. A batch whose records are all free is deleted, once no index will need it any
more (`boki.storage.saved`): until then a start may have to read its tags again, to come to the same verdicts, and only
its payloads are dropped. So are those of a batch that is mostly free, under the same key and numbers.

**What it does not look at again.** Of each stretch of a shard that it has seen, a sweep notes which books still have
records there. A stretch in which no floor of its books has moved since has nothing new to free, and is skipped without
reading; nor is anything above the highest floor read. Only stretches are noted that nothing can be added to.
Neither is a stretch read again that lies below where the floors of its books stood when they were swept last: whatever
becomes free does so when the last of its floors passes it. So a trim costs what it trims, not what is left of its book.

A floor is kept while a record is left below it, or it would rise again. So a sweep notes the floors under which there
are surviving records, and of each stretch, too, for sweeps that pass it by; of the books that a sweep was about, floors
under which there are none are retired when it is done. A floor above a record that was still on its way to the disk
when the sweep began is kept, and its book is swept again. So is one above a record that this node lacked then, some
time later: the replica that gives the record may not have learnt of the trim.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from boki.errors import BokiError
from boki.log.batch import Batch
from boki.log.chunk import Chunk
from boki.log.floors import FloorRow, Floors
from boki.log.ids import MAX_SEQNUM, LogId, split_seqnum
from boki.protocol.effects import Delete, Effect, Load, Put, Store, Trace
from boki.storage.freeing import freeing, rewritten
from boki.storage.holdings import Holdings
from boki.storage.shards import ShardKey, after_shard, batch_key, split_batch_key

STEP_BYTES: Final = 256 << 10
_BUSY_STEP_BYTES: Final = 64 << 10
_PAUSE_US: Final = 2_000_000
_LATE_US: Final = 30_000_000
"""After this long books are swept again whose floors stand above what was lacking here."""
_LATE_FLOORS: Final = 5_000
"""No more than this are kept for what is lacking, in all: it may be lacking forever."""
_NOTE_BYTES: Final = 2 << 20
_NOTE_BOOKS: Final = 32
_NOTE_FLOORS: Final = 256
_SKIPS: Final = 2_000
"""This many stretches are skipped in one go."""
_STEPS_PER_TICK: Final = 4
"""While nobody waits for this node; else one."""


@dataclass(frozen=True, slots=True)
class SweepStep:
    """The token of a sweep's load: from that local id of a shard on, until another or its end."""

    key: ShardKey
    generation: int
    first_lid: int
    until_lid: int | None
    max_bytes: int
    written_until: int
    """Every record below was on the disk when the load began."""


@dataclass(slots=True)
class _Stretch:
    """Local ids of a shard that a sweep has seen. `books` that have records left there; None: too many to name.

    `standing`: floors under which there are records left here; None: too many, or not known.
    """

    first_lid: int
    until_lid: int
    size_bytes: int = 0
    books: set[str] | None = field(default_factory=set)
    standing: set[tuple[str, str | None]] | None = field(default_factory=set)
    waits_until: int = 0
    """A batch that is free and ends below this seqnum waits for an index to be saved; 0: none. The lowest of them."""

    def add(self, other: _Stretch) -> None:
        """Continue until where the other ends."""
        self.until_lid = other.until_lid
        self.size_bytes += other.size_bytes
        if self.books is not None:
            self.books = None if other.books is None else self.books | other.books
        if self.books is not None and len(self.books) > _NOTE_BOOKS:
            self.books = None
        if self.standing is not None:
            self.standing = None if other.standing is None else self.standing | other.standing
        if self.standing is not None and len(self.standing) > _NOTE_FLOORS:
            self.standing = None
        waits = [seqnum for seqnum in (self.waits_until, other.waits_until) if seqnum]
        self.waits_until = min(waits, default=0)


def _first_lid(note: _Stretch) -> int:
    return note.first_lid


class Sweep:
    """Frees what `floors` allow. `is_saved(shard, seqnum)`: no index will ask for that record again.
    `on_damage(shard, first_lid)`: the batch that begins there cannot be read.
    """

    def __init__(
        self,
        floors: Floors,
        holdings: Holdings,
        is_saved: Callable[[ShardKey, int], bool],
        on_damage: Callable[[ShardKey, int], None],
        waits_below: int = 0,
    ) -> None:
        self._floors = floors
        self._holdings = holdings
        self._is_saved = is_saved
        self._on_damage = on_damage
        self.waits_below = waits_below
        """Batches below this seqnum are free and wait for an index to be saved; 0: none."""
        self._moved = {book for book, _, _ in floors.rows()}
        """Books whose floors have moved since the last sweep began."""
        self._requested = bool(self._moved)
        self._notes: dict[ShardKey, list[_Stretch]] = {}
        self._limit = 0
        self._next_at = 0
        self._steps_left = 0
        self._is_loading = False
        self._is_damaged = False
        self._unwritten: dict[LogId, int] = {}
        """Of each log, the first record that was still on its way to the disk when the sweep began."""
        self._lacking_from = MAX_SEQNUM
        """The first record that was ordered and to be here, and had not come when the sweep began."""
        self._late: dict[str, int] = {}
        """Books that are swept again because of what was lacking, and how many of their floors were kept for it."""
        self._late_at = 0
        self._at: tuple[ShardKey, int] | None = None
        self._books: set[str] = set()
        self._goal: list[FloorRow] = []
        self._lows: dict[str, int] = {}
        """Of each book that the sweep is about: nothing below has become free since it was swept last."""
        self._lowest = 0
        self._swept: dict[tuple[str, str | None], int] = {}
        """Floors as they were when they were swept last."""
        self._standing: set[tuple[str, str | None]] = set()

    def request(self, books: Iterable[str]) -> None:
        """Floors of these books have moved."""
        self._moved.update(books)
        self._requested = True

    def learn(self, rows: Sequence[FloorRow]) -> None:
        """Take floors over that stand at another node, over records which have come from there."""
        if rows:
            self._floors.merge(rows)
            self.request(book for book, _, _ in rows)

    def look_again(self) -> None:
        """More has been saved: what had to wait for that may be deleted."""
        self._requested |= self.waits_below > 0

    def forget(self, key: ShardKey) -> None:
        """What was noted of the shard is not so any more."""
        self._notes.pop(key, None)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to free."""
        return not self._requested and self.is_over

    # going on

    def tick(self, now_us: int, *, is_busy: bool) -> list[Effect]:
        """Begin a sweep, or take its next step: a smaller one while somebody waits for this node."""
        if self._at is None:
            if self._late and now_us >= self._late_at:
                self.request(self._late)
                self._late = {}
            if not self._requested or now_us < self._next_at:
                return []
            self._begin(now_us)
        self._steps_left = 1 if is_busy else _STEPS_PER_TICK
        return self.go_on(is_busy=is_busy)

    def go_on(self, *, is_busy: bool) -> list[Effect]:
        """The next step of a sweep that has begun, as far as this tick allows it."""
        if self._at is None or self._is_loading or self._steps_left <= 0:
            return []
        self._steps_left -= 1
        max_bytes = _BUSY_STEP_BYTES if is_busy else STEP_BYTES
        for _ in range(_SKIPS):
            step = self._next_step(max_bytes)
            if step is not None:
                self._is_loading = True
                stop = after_shard(step.key) if step.until_lid is None else batch_key(step.key, step.until_lid)
                start = batch_key(step.key, step.first_lid)
                return [Load(step, start, start, stop, max_bytes)]
            if self.is_over:
                self._end()
                break
        return []

    @property
    def is_over(self) -> bool:
        """Whether no sweep is going on."""
        return self._at is None

    def _begin(self, now_us: int) -> None:
        self._requested = self._is_damaged = False
        self._books, self._moved = self._moved, set()
        self._goal = [row for row in self._floors.rows() if row[0] in self._books]
        self._limit = max([self.waits_below, *(floor for _, _, floor in self._goal)])
        self._lows = dict.fromkeys(self._books, self._limit)
        for book, tag, floor in self._goal:
            before = self._swept.get((book, tag)) or self._floors.retired_at(book, tag)
            if floor > before:
                self._lows[book] = min(self._lows[book], before)
        self._lowest = min(self._lows.values(), default=self._limit)
        self._unwritten, self._lacking_from = self._find_unwritten(), self._find_lacking()
        self.waits_below = 0
        self._next_at = now_us + _PAUSE_US
        self._at, self._standing = ((0, 0, 0), 0), set()

    def _end(self) -> None:
        if self._is_damaged:  # a floor may stand over records that could not be looked at
            self._moved |= self._books
            return
        self._swept.update({(book, tag): floor for book, tag, floor in self._goal})
        gone = [row for row in self._goal if row[:2] not in self._standing]
        late = [row for row in gone if row[2] > self._lacking_from]
        early = [row for row in gone if row[2] <= self._lacking_from and self._is_early(row[2])]
        self._floors.drop(set(gone).difference(early, self._keep_late(late)))
        if early:
            self.request(book for book, _, _ in early)
        for book, tag, _ in self._goal:
            if tag not in self._floors.of(book):
                del self._swept[book, tag]

    def _is_early(self, floor: int) -> bool:
        """Whether it stands above a record that was on its way: of its log, or of an earlier term, which had others."""
        term, log, _ = split_seqnum(floor)
        return any(
            first < floor and (of == log or split_seqnum(first)[0] < term) for of, first in self._unwritten.items()
        )

    def _keep_late(self, late: Sequence[FloorRow]) -> Sequence[FloorRow]:
        """Those of the late floors that are kept; their books are swept again some time later."""
        for book in self._books:
            self._late.pop(book, None)  # counted again
        room = _LATE_FLOORS - sum(self._late.values())
        kept = late[-room:] if room > 0 else ()
        if kept and not self._late:
            self._late_at = self._next_at + _LATE_US
        for book, _, _ in kept:
            self._late[book] = self._late.get(book, 0) + 1
        return kept

    def _find_unwritten(self) -> dict[LogId, int]:
        """Of each log, the first record that is on its way to the disk. Floors above it stay: it is to be freed."""
        first: dict[LogId, int] = {}
        for key, shard in self._holdings.shards.items():
            seqnum = shard.order.seqnum_of(shard.written_until) if shard.written_until < shard.stored_until else None
            if seqnum is not None:
                first[key[1]] = min(seqnum, first.get(key[1], seqnum))
        return first

    def _find_lacking(self) -> int:
        found = MAX_SEQNUM
        for key, shard in self._holdings.shards.items():
            if not shard.is_whole and self._holdings.is_wanted(key):
                seqnum = shard.order.seqnum_of(shard.stored_until)
                found = found if seqnum is None else min(found, seqnum)
        return found

    def _next_step(self, max_bytes: int) -> SweepStep | None:
        """What to look at next from where the sweep is; None if that stretch or shard was skipped."""
        assert self._at is not None, "a sweep is going on"
        key, lid = self._at
        shard = self._holdings.shards.get(key)
        first_seqnum = shard.order.seqnum_of(lid) if shard is not None and not shard.is_removed else None
        if shard is None or first_seqnum is None or first_seqnum >= self._limit or lid >= shard.spans.highest:
            following = self._holdings.after(key)
            self._at = (following, 0) if following is not None else None
            return None
        notes = self._notes.get(key, [])
        at = bisect_left(notes, lid, key=_first_lid)
        note = notes[at] if at < len(notes) else None
        if note is None or note.first_lid > lid:
            until_lid = None if note is None else note.first_lid
            return SweepStep(key, shard.generation, lid, until_lid, max_bytes, shard.written_until)
        if not self._is_done(key, note):
            return SweepStep(key, shard.generation, lid, note.until_lid, max_bytes, shard.written_until)
        self._standing |= note.standing or set()
        if note.waits_until:
            last = shard.order.seqnum_of(note.until_lid - 1)
            self.waits_below = max(self.waits_below, note.waits_until if last is None else last + 1)
        self._at = (key, note.until_lid)
        return None

    def _is_done(self, key: ShardKey, note: _Stretch) -> bool:
        """Whether a stretch can be skipped: nothing of it has become free since, nor may any more be deleted."""
        moved = self._books if note.books is None else self._books & note.books
        if moved:
            last = self._holdings.shards[key].order.seqnum_of(note.until_lid - 1)
            low = self._lowest if note.books is None else min(self._lows[book] for book in moved)
            if note.standing is None or last is None or last >= low:
                return False
        return not (note.waits_until and self._is_saved(key, note.waits_until - 1))

    # looking

    def advance(self, step: SweepStep, rows: Sequence[tuple[bytes, bytes]], error: str) -> tuple[list[Effect], bool]:
        """Look at the batches that were loaded. → what to do, and whether that deletes any"""
        self._is_loading = False
        shard = self._holdings.shards[step.key]
        if error:
            self._at = None
            self._moved |= self._books
            return [Trace(logging.ERROR, f"cannot free trimmed space: {error}")], False
        if self._at is None or shard.generation != step.generation:
            return [], False  # the shard was sent away meanwhile
        seen = _Stretch(step.first_lid, step.first_lid)
        writes: list[Put | Delete] = []
        effects: list[Effect] = []
        end = self._end_of(step, rows)
        for row_key, value in rows:
            _, first_lid = split_batch_key(row_key)
            first_seqnum = shard.order.seqnum_of(first_lid)
            if first_seqnum is None or first_seqnum >= self._limit:
                end = first_lid
                self._at = self._after_limit(step.key)
                break
            seen.size_bytes += len(value)
            try:
                writes += self._free(row_key, value, first_seqnum, seen)
            except BokiError as damage:
                self._is_damaged = True
                self._on_damage(step.key, first_lid)
                seen.books = seen.standing = None
                place = f"batch {first_lid} of shard {step.key[2]}, term {step.key[0]}"
                effects.append(Trace(logging.ERROR, f"cannot free {place}: {damage}"))
        else:
            self._at = (step.key, end) if end > step.first_lid else self._after_limit(step.key)
        seen.until_lid = min(end, step.written_until, shard.order.until_lid)
        self._note(step.key, seen)
        if writes:
            effects.append(Store(writes))
        return effects, any(isinstance(write, Delete) for write in writes)

    def _after_limit(self, key: ShardKey) -> tuple[ShardKey, int] | None:
        following = self._holdings.after(key)
        if following is None:
            self._end()
            return None
        return following, 0

    def _end_of(self, step: SweepStep, rows: Sequence[tuple[bytes, bytes]]) -> int:
        """How far the load has looked: at all that was asked for, or until it was full."""
        shard = self._holdings.shards[step.key]
        if rows and sum(len(value) for _, value in rows) >= step.max_bytes:
            last_key, last = rows[-1]
            try:
                return Batch(last).header.until_lid
            except BokiError:
                return split_batch_key(last_key)[1] + 1
        whole = min(shard.spans.highest, shard.order.until_lid)
        return whole if step.until_lid is None else step.until_lid

    def _note(self, key: ShardKey, seen: _Stretch) -> None:
        """Remember what was seen instead of what was known of these local ids."""
        if seen.until_lid <= seen.first_lid:
            return
        notes = self._notes.setdefault(key, [])
        at = bisect_left(notes, seen.first_lid, key=_first_lid)
        stop = bisect_left(notes, seen.until_lid, lo=at, key=_first_lid)
        before = notes[at - 1] if at else None
        if (
            before is not None
            and before.until_lid == seen.first_lid
            and before.size_bytes + seen.size_bytes <= _NOTE_BYTES
        ):
            del notes[at:stop]
            before.add(seen)
        else:
            notes[at:stop] = [seen]

    def _free(self, key: bytes, value: bytes, first_seqnum: int, seen: _Stretch) -> Iterable[Put | Delete]:
        batch = Batch(value)
        chunks: list[tuple[bytes, int]] = []
        freed_bytes = kept_count = 0
        books: set[str] = set()
        standing: set[tuple[str, str | None]] = set()
        seqnum = first_seqnum
        for chunk in batch.chunks:
            found = freeing(chunk, seqnum, self._floors.of(chunk.book))
            standing |= {(chunk.book, tag) for tag in found.standing}
            freed_bytes += found.payload_bytes
            kept_count += chunk.count - len(found.free)
            if len(found.free) < chunk.count:
                books.add(chunk.book)
            chunks.append((chunk.drop_payloads(found.free) if found.free else chunk.data, chunk.count))
            seqnum += chunk.count
        left = _Stretch(seen.first_lid, seen.until_lid, books=books)
        if kept_count == 0:
            if self._is_saved(split_batch_key(key)[0], seqnum - 1):
                self._look_at_others(batch)
                return (Delete(key, key + b"\x00"),)
            self.waits_below = max(self.waits_below, seqnum)
            left.waits_until = seqnum
        is_rewritten = freed_bytes > 0 and (kept_count == 0 or 2 * freed_bytes >= len(value))
        if is_rewritten:
            self._look_at_others(batch)
            standing = self._standing_over(chunks, first_seqnum)
        elif freed_bytes:
            books.update(chunk.book for chunk in batch.chunks)
        left.standing = standing
        seen.add(left)
        self._standing |= standing
        return (Put(key, rewritten(batch.header, chunks)),) if is_rewritten else ()

    def _look_at_others(self, batch: Batch) -> None:
        """Floors of other books may have stood over this batch alone: the next sweep tells."""
        others = {chunk.book for chunk in batch.chunks} - self._books
        self._moved |= {book for book in others if self._floors.touches(book)}
        self._requested |= bool(self._moved)

    def _standing_over(self, chunks: Sequence[tuple[bytes, int]], first_seqnum: int) -> set[tuple[str, str | None]]:
        """The floors that what is left of a rewritten batch still needs."""
        standing: set[tuple[str, str | None]] = set()
        seqnum = first_seqnum
        for data, count in chunks:
            chunk = Chunk(data)
            standing |= {(chunk.book, tag) for tag in freeing(chunk, seqnum, self._floors.of(chunk.book)).standing}
            seqnum += count
        return standing
