"""Rows: which records carry a tag, as ascending seqnums, some in memory and the rest on the disk.

A row is a chain of **parts**. A part covers the seqnums from its `start` until its `until`, and knows every record of
the row between them; on the disk it stands under its start. Memory holds any of the parts, with gaps between them, and
a gap is read from the disk when somebody asks about it::

    disk      [0 ........)[700 .......)[1400 .....)[2100 ..)
    memory    [0 ........)             [1400 .....)[2100 .. newest ...
                          ^ a gap: read when needed

Only the newest part grows. An append to a row of which nothing is in memory opens a new part at its own seqnum, so it
reads nothing; the disk then has several small parts where one would do, and the next read makes them one.

What the floors of trims hide may still stand in a part: callers say from where on they look.

Of a system tag, a row also knows how many records it has ever had (conditions on counts, `Expect(tag, count=n)`). A
trim of the tag adds the records that it takes away to the number beside the floor; the others are there to be counted.
Rows of other tags keep no such number: trims of a whole book take their records away without a look at each row.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

from boki.engine.index.floors import UNKNOWN, Floors
from boki.engine.index.layout import floor_bytes, number_bytes, read_floor, read_number, row_prefix, tag_floor_key
from boki.engine.index.parts import (
    CLOSE_RECORDS,
    CLOSED,
    DIRTY,
    END,
    PART_RECORDS,
    RECORD_BYTES,
    SCATTERED,
    USED,
    WRITING,
    Part,
    pack_few,
    packed_bytes,
    unpack_few,
    without_use,
)
from boki.engine.index.residence import IsOver, Residence
from boki.protocol.effects import Delete, Put

_READ_BYTES: Final = 8 * PART_RECORDS
"""Parts on the disk are read together until they have this much."""

_LISTED: Final = 1
_FLOOR_CHANGED: Final = 2
_FLOOR_WRITING: Final = 4
_GONE: Final = 8
_FLOOR_STORED: Final = 16
"""The disk has a floor, or is about to."""

_ROW_BYTES: Final = 214
_DIRTY_ROW_BYTES: Final = 160

_start_of = attrgetter("start")
_end_of = attrgetter("until")


class Shelf:
    """The rows of one book that are in memory, by tag. The row of all its records stands under None."""

    __slots__ = ("name", "residence", "rows")

    def __init__(self, name: str, residence: Residence) -> None:
        self.name = name
        self.residence = residence
        self.rows: dict[str | None, Row] = {}


class Row:
    """The row of one tag. All methods may read the disk where memory has a gap, but for `append` and `extend`."""

    __slots__ = ("_flags", "_floors", "_newest", "older", "shelf", "tag")

    def __init__(self, shelf: Shelf, tag: str | None) -> None:
        self.shelf = shelf
        self.tag = tag
        self._newest: Part | bytes | None = None
        self.older: Sequence[Part] = ()
        self._floors = UNKNOWN
        self._flags = 0
        shelf.rows[tag] = self
        shelf.residence.used_bytes += _ROW_BYTES
        shelf.residence.admit(self)

    @property
    def newest(self) -> Part | None:
        """The part that grows; None if it is not in memory."""
        newest = self._newest
        if isinstance(newest, bytes):
            residence = self.shelf.residence
            residence.used_bytes -= packed_bytes(newest)
            newest = self._newest = unpack_few(newest)
            residence.used_bytes += newest.size_bytes
            residence.owe()
        return newest

    def _pack(self) -> None:
        """Let it take little memory until somebody asks about it, if it has few records."""
        newest, older = self._newest, self.older
        if not isinstance(newest, Part) or self.tag is None or any(not part.says_nothing for part in older):
            return
        packed = pack_few(newest)
        if packed is not None:
            freed = newest.size_bytes + sum(part.size_bytes for part in older)
            self.shelf.residence.used_bytes += packed_bytes(packed) - freed
            self._newest, self.older = packed, ()

    # growing

    def append(self, seqnum: int) -> None:
        """Add one record; its seqnum is above all that the row holds. The caller counts the memory."""
        self._grow(seqnum).seqnums.append(seqnum)

    def extend(self, seqnums: Sequence[int]) -> None:
        """Add records in ascending order, above all that the row holds. The caller counts the memory."""
        at = 0
        while at < len(seqnums):
            column = self._grow(seqnums[at]).seqnums
            until = at + PART_RECORDS - len(column)
            column.extend(seqnums[at:until])
            at = until

    def _grow(self, seqnum: int) -> Part:
        """The newest part, ready to take that seqnum."""
        newest = self._newest
        if isinstance(newest, bytes):
            newest = self.newest
        if newest is None:
            newest = self._open(seqnum)
        elif newest.flags & CLOSED or len(newest.seqnums) >= PART_RECORDS:
            newest.until = seqnum
            newest.flags |= CLOSED
            if self._floors.base is not None:
                self._floors = self._floors.but(base=self._floors.base + len(newest.seqnums))
            if isinstance(self.older, list):
                self.older.append(newest)
            else:
                self.older = [newest]
            newest = self._open(seqnum)
        if not newest.flags & DIRTY:
            self._touch(newest)
        return newest

    def _open(self, seqnum: int) -> Part:
        self._newest = newest = self._new_part(seqnum, END)
        self.shelf.residence.used_bytes += newest.size_bytes
        return newest

    def _new_part(self, start: int, until: int) -> Part:
        return Part(start, until)

    def _touch(self, part: Part) -> None:
        """The part has changed, or is about to."""
        part.flags |= DIRTY | USED
        self._list()

    def _list(self) -> None:
        if not self._flags & _LISTED:
            self._flags |= _LISTED
            self.shelf.residence.dirty_bytes += _DIRTY_ROW_BYTES
            self.shelf.residence.changed(self)

    # looking

    def page(self, low: int, stop: int, limit: int, *, backward: bool = False) -> array[int]:
        """Seqnums with `low <= seqnum < stop`, ascending: the first `limit` of them, or the last if `backward`."""
        newest = self._newest
        if isinstance(newest, bytes):  # a look at the property costs more
            newest = self.newest
        if newest is None or low < newest.start:
            return self._page_of_parts(low, stop, limit, backward)
        newest.flags |= USED
        column = newest.seqnums
        first = bisect_left(column, low)
        if backward:
            until = bisect_left(column, stop, first)
            return column[max(first, until - limit) : until]
        if column and column[-1] < stop:
            return column[first : first + limit]
        return column[first : min(first + limit, bisect_left(column, stop, first))]

    def _page_of_parts(self, low: int, stop: int, limit: int, backward: bool) -> array[int]:
        if backward:
            pages: Iterable[array[int]] = self._pages_backward(low, stop, limit)
        else:
            if low < stop:
                # most often the first part will do
                column = self.part_at(low).seqnums
                first = bisect_left(column, low)
                page = column[first : first + limit]
                if len(page) == limit and page[-1] < stop:
                    return page
            pages = self._pages(low, stop, limit)
        found = array("q")
        for page in pages:
            found.extend(page)
        return found

    def _pages(self, low: int, stop: int, limit: int) -> Iterator[array[int]]:
        stop = min(stop, END)
        while low < stop and limit > 0:
            part = self.part_at(low)
            first = bisect_left(part.seqnums, low)
            until = min(first + limit, bisect_left(part.seqnums, stop, first))
            yield part.seqnums[first:until]
            limit -= until - first
            low = part.until

    def _pages_backward(self, low: int, stop: int, limit: int) -> list[array[int]]:
        stop = min(stop, END)
        pages: list[array[int]] = []
        while low < stop and limit > 0:
            part = self.part_at(stop - 1, backward=True)
            until = bisect_left(part.seqnums, stop)
            first = max(bisect_left(part.seqnums, low, 0, until), until - limit)
            pages.append(part.seqnums[first:until])
            limit -= until - first
            stop = part.start
        pages.reverse()
        return pages

    def last(self, low: int) -> int:
        """The last seqnum that is not below `low`; 0 if there is none."""
        newest = self.newest
        if newest is not None and newest.seqnums:
            seqnum = newest.seqnums[-1]
            return seqnum if seqnum >= low else 0
        page = self.page(low, END, 1, backward=True)
        return page[0] if page else 0

    def parts(self) -> Iterator[Part]:
        """The parts in memory, ascending."""
        yield from self.older
        if self.newest is not None:
            yield self.newest

    def count(self, low: int) -> int:
        """How many records have ever been appended at or above `low`: what exists, and what trims took away.

        Looks at the whole row the first time, and from then on at the newest part, while that stays in memory.
        """
        newest = self.newest
        if newest is None:
            newest = self.part_at(END - 1)
        else:
            newest.flags |= USED
        base = self._floors.base
        if base is None:
            at = start = max(low, self.floor)
            count = self.removed(low)
            while at < END:
                part = self.part_at(at)
                count += len(part.seqnums) - bisect_left(part.seqnums, start)
                at = part.until
            base = count - len(newest.seqnums)
            self._floors = self._floors.but(base=base)
        return base + len(newest.seqnums)

    def forget_count(self) -> None:
        """The lowest seqnum that counts has moved."""
        if self._floors.base is not None:
            self._floors = self._floors.but(base=None)

    def part_at(self, seqnum: int, *, backward: bool = False) -> Part:
        """The part that covers that seqnum; read from the disk, with what lies behind or before it, if need be."""
        newest = self._newest
        if isinstance(newest, bytes):
            newest = self.newest
        if newest is not None and seqnum >= newest.start:
            newest.flags |= USED
            return newest
        older = self.older
        at = bisect_right(older, seqnum, key=_start_of)
        if at and seqnum < older[at - 1].until:
            older[at - 1].flags |= USED
            return older[at - 1]
        low = older[at - 1].until if at else 0
        high = older[at].start if at < len(older) else (END if newest is None else newest.start)
        part = self._read_before(seqnum, low, high) if backward else self._read_after(seqnum, low, high)
        self.shelf.residence.used_bytes += part.size_bytes
        if part.until == END:
            self._newest = part
        elif isinstance(older, list):
            older.insert(at, part)
        else:
            self.older = [part]
        return part

    def _read_after(self, seqnum: int, low: int, high: int) -> Part:
        """The gap from `low` until `high`, from where it concerns `seqnum`, until there is enough for a part."""
        first = next((at for at, _ in self._scan(low, seqnum + 1, backward=True)), None) if seqnum > low else low
        start = low if first is None else first
        found: list[tuple[int, bytes]] = []
        size = 0
        is_new = first is None and seqnum + 1 >= high  # nothing is left to look at
        for at, value in () if is_new else self._scan(start, high):
            if size >= _READ_BYTES and at > seqnum:
                return self._join(start, at, found)
            found.append((at, value))
            size += len(value)
        return self._join(start, high, found)

    def _read_before(self, seqnum: int, low: int, high: int) -> Part:
        """The same, for somebody who goes backward: what lies before `seqnum`."""
        until = next((at for at, _ in self._scan(seqnum + 1, high)), high)
        found: list[tuple[int, bytes]] = []
        size = 0
        for at, value in self._scan(low, seqnum + 1, backward=True):
            found.append((at, value))
            size += len(value)
            if size >= _READ_BYTES:
                return self._join(at, until, found[::-1])
        return self._join(low, until, found[::-1])

    def _scan(self, low: int, high: int, *, backward: bool = False) -> Iterator[tuple[int, bytes]]:
        """(start, value) of the parts on the disk that start in `low <= start < high`."""
        if low < high:
            prefix = row_prefix(self.shelf.name, self.tag)
            rows = self.shelf.residence.disk.scan(
                prefix + number_bytes(low), prefix + number_bytes(high), backward=backward
            )
            for key, value in rows:
                yield read_number(key), value

    def _join(self, start: int, until: int, found: Sequence[tuple[int, bytes]]) -> Part:
        """One part of all that was found; nothing else of the row is between `start` and `until`."""
        part = self._new_part(start, until)
        for _, value in found:
            part.take(value)
        part.drop_below(self._floors.hidden)
        part.flags |= USED
        if len(found) > 1 or (found and found[0][0] != start):
            part.flags |= SCATTERED
        if len(part.seqnums) >= CLOSE_RECORDS:
            part.flags |= CLOSED
        return part

    # floors

    @property
    def floor(self) -> int:
        """What trims of this very tag have reached."""
        if self._floors.reached < 0:
            assert self.tag is not None, "the floor of a whole book is the book's"
            stored = self.shelf.residence.disk.get(tag_floor_key(self.shelf.name, self.tag))
            reached, removed = (0, 0) if stored is None else read_floor(stored)
            self._floors = self._floors.but(reached=reached, removed=removed)
            self._flags |= 0 if stored is None else _FLOOR_STORED
        return self._floors.reached

    def removed(self, low: int) -> int:
        """How many records at or above `low` trims of this very tag have taken away, if it is a system tag."""
        return self._floors.removed if self.floor > low else 0

    def trim(self, floor: int, removed: int) -> None:
        """Move the floor, and forget what is below it. `removed`: how many records such trims have taken so far."""
        self._floors = self._floors.but(reached=floor, removed=removed, base=None)
        self._flags |= _FLOOR_CHANGED
        self._list()
        self.drop_below(floor)

    def forget(self) -> None:
        """Drop the floor and what trims have counted: no record is left."""
        if self.floor:
            self._floors = Floors(reached=0, hidden=max(self.floor, self._floors.hidden))  # a late trim's is lower
            self._flags |= _FLOOR_CHANGED
            self._list()
            for part in self.parts():
                self.shelf.residence.used_bytes -= RECORD_BYTES * len(part.seqnums)
                part.seqnums = array("q")

    def drop_below(self, floor: int) -> Part:
        """Forget all records below `floor`, in memory and with the next checkpoint on the disk; the part at `floor`."""
        holder = self.part_at(floor)
        residence = self.shelf.residence
        self._drop_parts(floor)
        residence.used_bytes -= holder.size_bytes
        holder.drop_below(floor)
        residence.used_bytes += holder.size_bytes
        until = holder.start
        if holder.is_hollow:
            holder.flags &= ~DIRTY
            until = holder.until
        elif holder.flags & SCATTERED:
            self._touch(holder)  # of the keys that it has, some may hold nothing any more
        prefix = row_prefix(self.shelf.name, self.tag)
        residence.delete(prefix + number_bytes(0), prefix + number_bytes(until))
        return holder

    def _drop_parts(self, until: int) -> None:
        """Forget the parts that end there or before, in memory."""
        older = self.older
        if isinstance(older, list):
            count = bisect_right(older, until, key=_end_of)
            self.shelf.residence.used_bytes -= sum(part.size_bytes for part in older[:count])
            del older[:count]

    def discard(self) -> None:
        """Drop the row from memory. The caller deletes its keys; a later append makes a new row."""
        newest = self._newest
        residence = self.shelf.residence
        residence.used_bytes -= _ROW_BYTES + sum(part.size_bytes for part in self.older)
        if newest is not None:
            residence.used_bytes -= packed_bytes(newest) if isinstance(newest, bytes) else newest.size_bytes
        self._newest, self.older, self._flags = None, (), _GONE
        del self.shelf.rows[self.tag]

    # checkpoints and eviction: see `boki.engine.index.residence.Resident`

    def writes(self) -> Iterable[Put | Delete]:
        """The parts and the floor that have changed."""
        flags = self._flags
        if flags & _FLOOR_CHANGED:
            assert self.tag is not None
            key = tag_floor_key(self.shelf.name, self.tag)
            if self._floors.reached:
                yield Put(key, floor_bytes(self._floors.reached, self._floors.removed))
                flags |= _FLOOR_STORED
            elif flags & _FLOOR_STORED:
                yield Delete(key, key + b"\x00")
                flags &= ~_FLOOR_STORED
            flags = flags & ~_FLOOR_CHANGED | _FLOOR_WRITING
        self._flags = flags & ~_LISTED
        dirty = [part for part in self.parts() if part.flags & DIRTY]
        if not dirty:
            return
        prefix = row_prefix(self.shelf.name, self.tag)
        for part in dirty:
            if part.flags & SCATTERED:
                yield Delete(prefix + number_bytes(part.start + 1), prefix + number_bytes(part.until))
            part.flags = part.flags & ~(DIRTY | SCATTERED) | WRITING
            if len(part.seqnums) >= CLOSE_RECORDS:
                part.flags |= CLOSED
            yield Put(prefix + number_bytes(part.start), part.encode())

    def stored(self) -> None:
        """See `Resident.stored`."""
        if self._floors.hidden and not self._flags & _FLOOR_CHANGED:
            self._floors = self._floors.but(hidden=0)
        self._flags &= ~_FLOOR_WRITING
        for part in self.parts():
            part.flags &= ~WRITING
        self._pack()

    def shrink(self) -> bool:
        """See `Resident.shrink`."""
        if self._flags & _GONE:
            return False
        residence = self.shelf.residence
        if self.older:
            kept = [part for part in self.older if part.flags & (DIRTY | WRITING | USED)]
            dropped = [part for part in self.older if not part.flags & (DIRTY | WRITING | USED)]
            residence.used_bytes -= sum(part.size_bytes for part in dropped)
            for part in kept:
                part.flags &= ~USED
            self.older = kept or ()
        newest = self._newest
        if isinstance(newest, bytes):
            self._newest = without_use(newest)
            if self._newest is None:
                residence.used_bytes -= packed_bytes(newest)
                self.forget_count()
        elif newest is not None:
            if not newest.flags & (DIRTY | WRITING | USED):
                residence.used_bytes -= newest.size_bytes
                self._newest = None
                self.forget_count()
            newest.flags &= ~USED
        if self._newest is None and not self.older and not self._flags & ~_FLOOR_STORED and self.tag is not None:
            self.discard()
            return False
        return True

    def leave_if_over(self, is_over: IsOver) -> bool:
        """See `Resident.leave_if_over`."""
        if self._flags & _GONE:
            return True
        newest = unpack_few(self._newest) if isinstance(self._newest, bytes) else self._newest
        if self._flags & ~_FLOOR_STORED or self.tag is None:
            return False
        if newest is not None:
            if newest.flags & (DIRTY | WRITING):
                return False
            if newest.seqnums and not is_over(self.shelf.name, self.tag, newest.seqnums[-1]):
                self._pack()
                return False
        if self.older:
            return False
        self.discard()
        return True
