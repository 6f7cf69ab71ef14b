"""The checker of conditions on counts: `when=Expect(tag, count=n)`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from boki.verify.histories.facts import Facts, Violation
from boki.verify.histories.history import Appending, Call, Ordered, Refused


class _Row:
    """One tag of a book: what bounds the number of its records at any place and time from both sides.

    Each record that anybody was told of is one; each append that nobody was told of may be. A deletion of the book
    begins at 0, and so does a trim that forgets the tag: what one may have taken may count or not.
    """

    def __init__(self, facts: Facts, book: str, tag: str) -> None:
        self._seqnums = facts.row(book, tag)
        self._kept_from = bisect_left(self._seqnums, max(facts.may_deletion(book), facts.may_forget(book, tag)))
        placed = [facts.placed[seqnum] for seqnum in self._seqnums]
        self._known_us = sorted(record.known_us for record in placed[self._kept_from :])
        self._asked_us = sorted(record.asked_us for record in placed)
        self._unseen_us = sorted(
            call.start_us
            for call in facts.calls
            if call.book == book
            and isinstance(call.request, Appending)
            and not call.is_impossible
            and not isinstance(call.result, Ordered)
            for record in call.request.records
            if tag in record.tags and (book, record.payload) not in facts.places
        )

    def bounds_at(self, place: int, until_us: int) -> tuple[int, int]:
        """How few and how many records stood before that place; until then its append had been asked for."""
        before = bisect_left(self._seqnums, place)
        return max(0, before - self._kept_from), before + bisect_right(self._unseen_us, until_us)

    def bounds_during(self, start_us: int, end_us: int) -> tuple[int, int]:
        """How few and how many records there were at some moment between."""
        high = bisect_right(self._asked_us, end_us) + bisect_right(self._unseen_us, end_us)
        return bisect_left(self._known_us, start_us), high


class Counts:
    """Section 2: an append that names a count stands behind exactly that many records of the tag, trimmed or not."""

    name: Final = "counts are kept"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        rows: dict[tuple[str, str], _Row] = {}
        for call in facts.calls:
            if not isinstance(call.request, Appending):
                continue
            for condition in call.request.when:
                if condition.is_counted:
                    name = (call.book, condition.tag)
                    row = rows.get(name) or rows.setdefault(name, _Row(facts, *name))
                    yield from self._check(facts, call, row, condition.tag, condition.count)

    def _check(self, facts: Facts, call: Call, row: _Row, tag: str, expected: int) -> Iterator[Violation]:
        assert isinstance(call.request, Appending)
        place = facts.places.get((call.book, call.request.records[0].payload))
        if place is not None:
            low, high = row.bounds_at(place, max(call.end_us, facts.placed[place].known_us))
            if not low <= expected <= high:
                text = f"{place} of {call.book} stands where {tag} has {low} to {high} records"
                yield Violation(self.name, f"{text}, and it was to have {expected}", (call,))
        elif isinstance(call.result, Refused) and call.result.actual_count >= 0:
            actual = call.result.actual_count
            low, high = row.bounds_during(call.start_us, call.end_us)
            if actual == expected or not low <= actual <= high:
                text = f"{call.session} was refused {expected} of {tag} in {call.book} because there are {actual}"
                yield Violation(self.name, f"{text}, and there were {low} to {high}", (call,))
