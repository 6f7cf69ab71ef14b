"""What follows from a history, worked out once for all checkers.

Two kinds of knowledge about trims are kept apart, because a checker must neither excuse a loss nor accuse the innocent:
a record **may** be gone if any trim that might have been carried out could have taken it; it **must** be gone, for
whoever knows of the trim, only if it was in the order for certain before that trim was asked for.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from boki.log.ids import is_system_tag
from boki.verify.histories.history import (
    Appending,
    Call,
    History,
    Ordered,
    Reading,
    Readout,
    Seen,
    Shown,
    Told,
    Trimming,
)


@dataclass(slots=True)
class Placed:
    """A record that is known to be in the order. `known_us`: when somebody first knew; `asked_us`: first asked for."""

    seqnum: int
    book: str
    payload: str
    tags: tuple[str, ...]
    known_us: int
    asked_us: int = 0


class RunningMax:
    """The largest value noted until a time. Notes come in any order; then `freeze`, then ask."""

    def __init__(self) -> None:
        self._notes: list[tuple[int, int]] = []
        self._times: list[int] = []
        self._values: list[int] = []

    def note(self, time_us: int, value: int) -> None:
        """From that time on, the maximum is at least `value`."""
        self._notes.append((time_us, value))

    def freeze(self) -> None:
        """All is noted."""
        highest = 0
        for time_us, value in sorted(self._notes):
            if value > highest:
                highest = value
                self._times.append(time_us)
                self._values.append(value)
        self._notes = []

    def before(self, time_us: int) -> int:
        """The maximum of what was noted earlier than that time; 0 if nothing was."""
        at = bisect_left(self._times, time_us)
        return self._values[at - 1] if at else 0

    def until(self, time_us: int) -> int:
        """The maximum of what was noted until that time, inclusive."""
        at = bisect_right(self._times, time_us)
        return self._values[at - 1] if at else 0


@dataclass(slots=True)
class _Book:
    known: RunningMax = field(default_factory=RunningMax)
    asked: RunningMax = field(default_factory=RunningMax)
    rows: dict[str | None, list[int]] = field(default_factory=lambda: defaultdict(list))
    may_floors: dict[str | None, RunningMax] = field(default_factory=dict)
    must_floors: dict[str | None, RunningMax] = field(default_factory=dict)
    may_deletion: RunningMax = field(default_factory=RunningMax)
    must_deletion: RunningMax = field(default_factory=RunningMax)


class Facts:
    """Of one history. `placed` maps seqnums to records; of two that contradict each other it has the first."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.calls = history.calls
        self.readouts = [row for row in history.rows if isinstance(row, Readout)]
        self.placed: dict[int, Placed] = {}
        self.times: dict[int, int] = {}
        """The log's time of each record that a reader got."""
        self.asked: dict[str, list[Call]] = defaultdict(list)
        """Per payload, the calls that asked to append it."""
        self.places: dict[tuple[str, str], int] = {}
        """Where each (book, payload) stands; the first place that was told, if there are several."""
        self._books: dict[str, _Book] = defaultdict(_Book)
        self._place_all()
        self._index()
        self._set_floors()

    def _place_all(self) -> None:
        for call in self.calls:
            if isinstance(call.request, Appending):
                for record in call.request.records:
                    self.asked[record.payload].append(call)
        for source, seen in self.showings():
            at_us = source.end_us if isinstance(source, Call) else source.at_us
            self._place(seen.seqnum, source.book, seen.payload, seen.tags, at_us)
            self.times[seen.seqnum] = seen.time_us
        for call in self.calls:
            if isinstance(call.request, Appending) and isinstance(call.result, Ordered):
                for seqnum, record in zip(call.result.seqnums, call.request.records, strict=False):
                    self._place(seqnum, call.book, record.payload, record.tags, call.end_us)

    def _place(self, seqnum: int, book: str, payload: str, tags: tuple[str, ...], known_us: int) -> None:
        placed = self.placed.get(seqnum)
        if placed is None:
            asked = self.asked.get(payload)
            asked_us = asked[0].start_us if asked else 0
            self.placed[seqnum] = Placed(seqnum, book, payload, tags, known_us, asked_us)
            self.places.setdefault((book, payload), seqnum)
        elif known_us < placed.known_us:
            placed.known_us = known_us

    def _index(self) -> None:
        for seqnum in sorted(self.placed):
            record = self.placed[seqnum]
            book = self._books[record.book]
            book.rows[None].append(seqnum)
            for tag in dict.fromkeys(record.tags):
                book.rows[tag].append(seqnum)
            book.known.note(record.known_us, seqnum)
            book.asked.note(record.asked_us, seqnum)
        for book in self._books.values():
            book.known.freeze()
            book.asked.freeze()

    def _set_floors(self) -> None:
        for call in self.calls:
            if isinstance(call.request, Trimming) and not call.is_impossible:
                book = self._books[call.book]
                floors = book.may_deletion if call.request.everything else _floor(book.may_floors, call.request.tag)
                floors.note(call.start_us, self._may_floor(call, call.request))
                if isinstance(call.result, Told):
                    floors = (
                        book.must_deletion if call.request.everything else _floor(book.must_floors, call.request.tag)
                    )
                    floors.note(call.end_us, self.must_floor(call, call.request))
        for book in self._books.values():
            for floors in (
                *book.may_floors.values(),
                *book.must_floors.values(),
                book.may_deletion,
                book.must_deletion,
            ):
                floors.freeze()

    def _may_floor(self, call: Call, trim: Trimming) -> int:
        """What was asked for only after the trim had been acknowledged is ordered after it: it is out of its reach."""
        if not isinstance(call.result, Told):
            return trim.before
        return min(trim.before, self._books[call.book].asked.until(call.end_us) + 1)

    def must_floor(self, call: Call, trim: Trimming) -> int:
        """Records below it were in the order before the trim was asked for, and had to go."""
        return min(trim.before, self._books[call.book].known.before(call.start_us) + 1)

    # asking

    def showings(self) -> Iterator[tuple[Call | Readout, Seen]]:
        """Every record that any reader got."""
        for call in self.calls:
            if isinstance(call.result, Shown):
                for record in call.result.records:
                    yield call, record
        for readout in self.readouts:
            for record in readout.records:
                yield readout, record

    def row(self, book: str, tag: str | None) -> list[int]:
        """All seqnums ever known of that tag (of the book, if None), ascending, trimmed or not."""
        return self._books[book].rows[tag]

    def known_before(self, book: str, time_us: int) -> int:
        """The highest seqnum of the book that somebody knew before that time; 0 if none."""
        return self._books[book].known.before(time_us)

    def may_floor(self, book: str, tag: str | None, time_us: int) -> int:
        """Below it, a reader of that row who was answered at that time may have found nothing."""
        found = self._books[book]
        return max(
            _until(found.may_floors, tag, time_us),
            0 if tag is not None and is_system_tag(tag) else _until(found.may_floors, None, time_us),
            found.may_deletion.until(time_us),
        )

    def may_be_unseen(self, book: str, tag: str, seqnum: int, until_us: int) -> bool:
        """Whether a record of that tag may have stood there before that time although nobody ever saw it.

        Then somebody has asked for it, and a trim came after that: of the tag, or of the whole book. That is what is
        read in the end, and its trims hide the records of system tags, too, which they spare.
        """
        asked_us = [
            call.start_us
            for call in self.calls
            if call.book == book and isinstance(call.request, Appending) and not call.is_impossible
            for record in call.request.records
            if tag in record.tags and self._may_have_stood(call, record.payload, seqnum)
        ]
        first_us = min(asked_us, default=until_us)
        return first_us < until_us and any(
            isinstance(call.request, Trimming)
            and not call.is_impossible
            and call.book == book
            and call.request.tag in (tag, None)
            and (call.request.everything or call.request.before > seqnum)
            and not (isinstance(call.result, Told) and call.end_us < first_us)
            for call in self.calls
        )

    def _may_have_stood(self, call: Call, payload: str, seqnum: int) -> bool:
        """Whether a payload may have been there unseen: it is nowhere else, or it is there again since a deletion."""
        is_keyed = isinstance(call.request, Appending) and call.request.key is not None
        return (call.book, payload) not in self.places or (is_keyed and self.may_be_deleted(call.book, seqnum))

    def may_be_gone(self, seqnum: int, tag: str | None, time_us: int) -> bool:
        """Whether a reader of that row, answered at that time, may have been right not to find the record."""
        record = self.placed[seqnum]
        if seqnum < self.may_floor(record.book, tag, time_us):
            return True
        tags = record.tags
        return bool(tags) and all(seqnum < self.may_floor(record.book, each, time_us) for each in tags)

    def may_be_gone_at(self, call: Call, index: int, seqnum: int, time_us: int) -> bool:
        """The same for the `index`-th record of an append that nobody may ever have seen, at its place in the book.

        `may_floor` knows only records that were seen, so a trim may have reached further than it says.
        """
        assert isinstance(call.request, Appending)
        rows = call.request.records[index].tags or (None,)
        return self._may_be_below(call, None, seqnum, time_us) or all(
            self._may_be_below(call, row, seqnum, time_us) for row in rows
        )

    def _may_be_below(self, append: Call, tag: str | None, seqnum: int, time_us: int) -> bool:
        """Whether a trim that had been asked for by then may have come behind what the append put there."""
        return seqnum < self.may_floor(append.book, tag, time_us) or any(
            isinstance(call.request, Trimming)
            and call.book == append.book
            and (call.request.everything or call.request.tag == tag)
            and seqnum < call.request.before
            and append.start_us < call.end_us
            and call.start_us < time_us
            and not call.is_impossible
            for call in self.calls
        )

    def may_be_deleted(self, book: str, seqnum: int) -> bool:
        """Whether a deletion of the whole book may have taken the record, and its key with it: it may be used again."""
        return seqnum < self.may_deletion(book)

    def may_deletion(self, book: str) -> int:
        """Below it, a deletion of the whole book may have taken everything."""
        return self._books[book].may_deletion.until(1 << 62)

    def may_forget(self, book: str, tag: str) -> int:
        """Below it, trims may have forgotten the records of that tag, which do not count any more then.

        One that forgets takes with it what trims before it have taken away.
        """
        trims = [
            (call, call.request)
            for call in self.calls
            if call.book == book
            and isinstance(call.request, Trimming)
            and call.request.tag == tag
            and not call.is_impossible
        ]
        forgot = [call.end_us if isinstance(call.result, Told) else (1 << 62) for call, trim in trims if trim.forgets]
        ends_us = max(forgot, default=0)
        return max((self._may_floor(call, request) for call, request in trims if call.start_us < ends_us), default=0)

    def must_floor_at(self, book: str, tag: str | None, time_us: int) -> int:
        """Below it, a linearizable reader of that row who asked at that time must not find anything."""
        found = self._books[book]
        return max(
            _before(found.must_floors, tag, time_us),
            0 if tag is not None and is_system_tag(tag) else _before(found.must_floors, None, time_us),
            found.must_deletion.before(time_us),
        )

    def missing(self, call: Call, until_seqnum: int) -> list[int]:
        """What a read should have shown of the records up to `until_seqnum`, inclusive, did not, and had no excuse."""
        request, result = call.request, call.result
        assert isinstance(request, Reading)
        assert isinstance(result, Shown)
        start, stop = request.start, request.stop
        if not result.is_end:
            start, stop = (result.next_start, stop) if request.backward else (start, result.next_start)
        start = max(start, self.may_floor(call.book, request.tag, call.end_us))
        row = self.row(call.book, request.tag)
        due = row[bisect_left(row, start) : bisect_left(row, min(stop, until_seqnum + 1))]
        if request.since_us:  # when a record was ordered that nobody read, nobody knows
            due = [seqnum for seqnum in due if self.times.get(seqnum, 0) >= request.since_us]
        if not due:
            return []
        shown = {record.seqnum for record in result.records}
        return [
            seqnum for seqnum in due if seqnum not in shown and not self.may_be_gone(seqnum, request.tag, call.end_us)
        ]


def _floor(floors: dict[str | None, RunningMax], tag: str | None) -> RunningMax:
    return floors.setdefault(tag, RunningMax())


def _until(floors: dict[str | None, RunningMax], tag: str | None, time_us: int) -> int:
    found = floors.get(tag)
    return found.until(time_us) if found is not None else 0


def _before(floors: dict[str | None, RunningMax], tag: str | None, time_us: int) -> int:
    found = floors.get(tag)
    return found.before(time_us) if found is not None else 0


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise. `promise` names the checker; `text` says what, for a person."""

    promise: str
    text: str
    calls: tuple[Call, ...] = ()

    def __str__(self) -> str:
        return f"{self.promise}: {self.text}"
