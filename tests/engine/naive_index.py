"""The index as one list of records: every answer goes through all of it. What the engine's index is compared with.

Read this one to see what is meant. A record is *kept* if the conditions of its group held at its place in the order. A
kept record is in the row of a tag until the floor of that row has passed it, and in the row of its whole book until the
floor of the book has passed it, or the floors of all its tags.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from boki.engine.index.index import Refusal
from boki.log.chunk import Group
from boki.log.cuts import Piece
from boki.log.ids import KEY_TAG_PREFIX, is_system_tag, make_seqnum
from boki.log.metalog import ForgetTags, Trims
from boki.log.record import Expect

PAYLOAD = b"0123456789"
Tag = str | None


@dataclass(frozen=True)
class Kept:
    """One record that was not skipped."""

    seqnum: int
    book: str
    tags: tuple[str, ...]
    key: str | None
    time_us: int


@dataclass(frozen=True)
class Ordered:
    """Where a record is, kept or not."""

    seqnum: int
    term: int
    log: int
    shard: int
    lid: int
    time_us: int


@dataclass
class NaiveIndex:
    key_window_us: int
    kept: list[Kept] = field(default_factory=list)
    ordered: list[Ordered] = field(default_factory=list)
    trimmed_below: dict[tuple[str, Tag], int] = field(default_factory=dict)
    """What trims of that tag (None: of the whole book) have reached."""
    deleted_below: dict[str, int] = field(default_factory=dict)
    """What trims of everything have reached."""
    forgotten_below: dict[tuple[str, Tag], int] = field(default_factory=dict)
    """Records of the tag below this are as if they had never had it."""

    # the order

    def next_seqnum(self, term: int, log: int) -> int:
        return make_seqnum(term, log, sum((record.term, record.log) == (term, log) for record in self.ordered))

    def order(
        self, term: int, log: int, time_us: int, shards: Sequence[tuple[int, Sequence[tuple[str, Sequence[Group]]]]]
    ) -> tuple[list[Piece], list[Refusal], set[str]]:
        """One cut. Of each shard, in ascending order: its chunks, as (book, groups)."""
        pieces: list[Piece] = []
        refusals: list[Refusal] = []
        books: set[str] = set()
        for shard, chunks in shards:
            lid = sum((record.term, record.log, record.shard) == (term, log, shard) for record in self.ordered)
            first = Piece(shard, lid, lid, self.next_seqnum(term, log))
            for book, groups in chunks:
                for group in groups:
                    seqnums = [self.next_seqnum(term, log) + i for i in range(len(group.records))]
                    for seqnum in seqnums:
                        self.ordered.append(Ordered(seqnum, term, log, shard, lid, time_us))
                        lid += 1
                    refusal = self._judge(book, group, seqnums[0], time_us)
                    if refusal is not None:
                        refusals.append(refusal)
                        continue
                    books.add(book)
                    for seqnum, (_, tags) in zip(seqnums, group.records, strict=True):
                        self.kept.append(Kept(seqnum, book, tuple(tags), group.key, time_us))
            pieces.append(first._replace(until_lid=lid))
        return pieces, refusals, books

    def _judge(self, book: str, group: Group, seqnum: int, time_us: int) -> Refusal | None:
        if group.key is not None:
            first_use = [
                record.seqnum
                for record in self.kept
                if (record.book, record.key) == (book, group.key)
                and record.time_us > time_us - self.key_window_us
                and record.seqnum >= self.floor(book, KEY_TAG_PREFIX)
            ]
            if first_use:
                return Refusal(seqnum, "", 0, 0, tuple(first_use))
        for expect in group.when:
            last, count = self.last(book, expect.tag), self.count(book, expect.tag)
            if expect.count is None and last != expect.last_seqnum:
                return Refusal(seqnum, expect.tag, expect.last_seqnum or 0, last)
            if expect.count is not None and count != expect.count:
                return Refusal(seqnum, expect.tag, 0, last, (), expect.count, count)
        return None

    def trim(self, trim: Trims, tail_seqnum: int) -> bool:
        """Whether a floor moved."""
        floor = min(trim.before, tail_seqnum)
        if isinstance(trim, ForgetTags):
            moved = any(floor > self.floor(trim.book, tag) for tag in trim.tags)
            for tag in trim.tags:
                self._raise(trim.book, tag, floor)
            for tag in trim.tags:
                if not self.row(trim.book, tag):
                    self.trimmed_below.pop((trim.book, tag), None)
                    self.forgotten_below[trim.book, tag] = tail_seqnum
            return moved
        if trim.tag is not None and not trim.everything:
            moved = floor > self.floor(trim.book, trim.tag)
            self._raise(trim.book, trim.tag, floor)
            return moved
        moved = floor > self.floor(trim.book, None)
        self._raise(trim.book, None, floor)
        if trim.everything:
            moved |= floor > self.deleted_below.get(trim.book, 0)
            self.deleted_below[trim.book] = max(floor, self.deleted_below.get(trim.book, 0))
        return moved

    def _raise(self, book: str, tag: Tag, floor: int) -> None:
        self.trimmed_below[book, tag] = max(floor, self.trimmed_below.get((book, tag), 0))

    # what exists

    def floor(self, book: str, tag: Tag) -> int:
        """System tags and keys outlive trims of the whole book, but not its deletion."""
        is_spared = tag is not None and is_system_tag(tag)
        of_book = self.deleted_below.get(book, 0) if is_spared else self.trimmed_below.get((book, None), 0)
        return max(of_book, self.trimmed_below.get((book, tag), 0))

    def is_in_book(self, record: Kept) -> bool:
        if record.seqnum < self.floor(record.book, None):
            return False
        return not record.tags or any(record.seqnum >= self.kept_from(record.book, tag) for tag in record.tags)

    def kept_from(self, book: str, tag: Tag) -> int:
        """The row has nothing below this."""
        return max(self.floor(book, tag), self.forgotten_below.get((book, tag), 0))

    def is_needed(self, seqnum: int) -> bool:
        """Whether anybody may ask where it is, or when it was ordered."""
        kept = next((record for record in self.kept if record.seqnum == seqnum), None)
        return kept is not None and (
            self.is_in_book(kept) or any(seqnum >= self.kept_from(kept.book, tag) for tag in kept.tags)
        )

    def row(self, book: str, tag: Tag) -> list[int]:
        records = [record for record in self.kept if record.book == book]
        if tag is None:
            return sorted(record.seqnum for record in records if self.is_in_book(record))
        floor = self.kept_from(book, tag)
        return sorted(record.seqnum for record in records if tag in record.tags and record.seqnum >= floor)

    def last(self, book: str, tag: Tag) -> int:
        return max(self.row(book, tag), default=0)

    def count(self, book: str, tag: Tag) -> int:
        """How many were ever kept since the book was last deleted or forgot the tag, trimmed or not."""
        start = max(self.deleted_below.get(book, 0), self.forgotten_below.get((book, tag), 0))
        return sum(tag in record.tags and record.seqnum >= start for record in self.kept if record.book == book)

    def page(self, book: str, tag: Tag, start: int, stop: int, limit: int, *, backward: bool) -> list[int]:
        row = [seqnum for seqnum in self.row(book, tag) if start <= seqnum < stop]
        return row[-limit:] if backward else row[:limit]

    def time_of(self, seqnum: int) -> int:
        return next(record.time_us for record in self.ordered if record.seqnum == seqnum)

    def books(self) -> Iterator[tuple[str, int, int, int, int, int]]:
        """(name, records, first seqnum, last seqnum, last time, bytes) of every book that has visible records."""
        for book in sorted({record.book for record in self.kept}):
            row = self.row(book, None)
            if row:
                yield book, len(row), row[0], row[-1], self.time_of(row[-1]), len(PAYLOAD) * len(row)


def group(*tags: Sequence[str], when: Sequence[Expect] = (), key: str | None = None) -> Group:
    """A group of records with these tags."""
    assert key is None or not key.startswith(KEY_TAG_PREFIX)
    return Group([(PAYLOAD, each) for each in tags], when, key)
