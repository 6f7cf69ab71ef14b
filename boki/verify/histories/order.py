"""Checkers of the order itself: one truth for all, nothing lost, nothing twice, time that only goes forward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Final

from boki.log.ids import split_seqnum
from boki.verify.histories.facts import Facts, Violation
from boki.verify.histories.history import Appending, Call, Getting, Ordered, Reading, Refused, Seen, Shown


class TotalOrder:
    """Promise 1: a seqnum stands for the same record for every reader, forever; a record was asked for before it is
    seen; and a reader gets what it asked for, in order.
    """

    name: Final = "total order"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        first: dict[int, tuple[str, Seen]] = {}
        for source, record in facts.showings():
            book, known = first.setdefault(record.seqnum, (source.book, record))
            if known != record or book != source.book:
                yield Violation(self.name, f"{record.seqnum} was {known} of {book}, then {record} of {source.book}")
            asked = facts.asked.get(record.payload, ())
            at_us = source.end_us if isinstance(source, Call) else source.at_us
            if not any(call.start_us <= at_us and _asks(call, source.book, record) for call in asked):
                yield Violation(self.name, f"nobody had asked to append {record} to {source.book} by {at_us}")
        for call in facts.calls:
            if isinstance(call.result, Ordered):
                yield from self._check_append(facts, call, call.result)
            elif isinstance(call.result, Shown):
                yield from self._check_answer(call, call.result)
        yield from self._check_readouts(facts)

    def _check_append(self, facts: Facts, call: Call, result: Ordered) -> Iterator[Violation]:
        assert isinstance(call.request, Appending)
        if len(result.seqnums) != len(call.request.records):
            yield Violation(self.name, f"{call.request} was given {result.seqnums}", (call,))
        for seqnum, record in zip(result.seqnums, call.request.records, strict=False):
            placed = facts.placed[seqnum]
            if (placed.book, placed.payload) != (call.book, record.payload):
                text = f"{record.payload} of {call.book} was acknowledged as {seqnum}, which is {placed.payload}"
                yield Violation(self.name, f"{text} of {placed.book}", (call,))

    def _check_answer(self, call: Call, result: Shown) -> Iterator[Violation]:
        request = call.request
        seqnums = [record.seqnum for record in result.records]
        if any(low >= high for low, high in pairwise(seqnums)):
            yield Violation(self.name, f"records out of order: {seqnums}", (call,))
        if isinstance(request, Getting):
            fits = seqnums == [request.seqnum]
        elif isinstance(request, Reading):
            fits = len(seqnums) <= request.limit and all(
                request.start <= record.seqnum < request.stop
                and (request.tag is None or request.tag in record.tags)
                and record.time_us >= request.since_us
                for record in result.records
            )
            fits = fits and (bool(seqnums) or result.is_end)
        else:
            fits = False
        if not fits:
            yield Violation(self.name, f"{request} was answered by {seqnums}", (call,))

    def _check_readouts(self, facts: Facts) -> Iterator[Violation]:
        first: dict[str, tuple[str, tuple[Seen, ...]]] = {}
        for readout in facts.readouts:
            if readout.tag is not None and any(readout.tag not in seen.tags for seen in readout.records):
                yield Violation(self.name, f"{readout.reader} read {readout.row}, and got records without that tag")
            reader, records = first.setdefault(readout.row, (readout.reader, readout.records))
            if records != readout.records:
                differ = sorted({seen.seqnum for seen in records} ^ {seen.seqnum for seen in readout.records})
                text = f"{reader} and {readout.reader} read {readout.row} differently, first at {differ[:3]}"
                yield Violation(self.name, text)


def _asks(call: Call, book: str, record: Seen) -> bool:
    assert isinstance(call.request, Appending)
    return call.book == book and any(
        written.payload == record.payload and written.tags == record.tags for written in call.request.records
    )


class NothingLost:
    """Promise 2: what was acknowledged, or what anybody has read, can be read in the end, unless it was trimmed."""

    name: Final = "nothing acknowledged is lost"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        for readout in facts.readouts:
            there = {record.seqnum for record in readout.records}
            for seqnum in facts.row(readout.book, readout.tag):
                if seqnum not in there and not facts.may_be_gone(seqnum, readout.tag, readout.at_us):
                    record = facts.placed[seqnum]
                    text = f"{record.payload} at {seqnum} of {readout.row}, known since {record.known_us}, is gone"
                    yield Violation(self.name, f"{text} for {readout.reader}")


class NothingTwice:
    """Promise 4: a payload stands in the order once, however often its engine appended it again; never, if its append
    was refused for certain; and the records of one append stand together.
    """

    name: Final = "nothing is doubled or refused and kept"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        places: dict[tuple[str, str], dict[int, None]] = defaultdict(dict)
        for source, record in facts.showings():
            places[source.book, record.payload][record.seqnum] = None
        for call in facts.calls:
            if isinstance(call.request, Appending) and isinstance(call.result, Ordered):
                for seqnum, written in zip(call.result.seqnums, call.request.records, strict=False):
                    places[call.book, written.payload][seqnum] = None
        for (book, payload), seqnums in places.items():
            calls = facts.asked.get(payload, [])
            is_keyed = any(isinstance(call.request, Appending) and call.request.key for call in calls)
            standing = [seqnum for seqnum in seqnums if not (is_keyed and facts.may_be_deleted(book, seqnum))]
            if len(standing) > 1:
                yield Violation(self.name, f"{payload} stands in {book} at {sorted(seqnums)}", tuple(calls))
            # a repetition under a key is refused on its own merits once a deletion has taken the first use with it
            if standing and calls and all(call.is_impossible for call in calls):
                codes = [call.result.code for call in calls if isinstance(call.result, Refused)]
                text = f"{payload} was refused ({', '.join(codes)}) and stands in {book} at {sorted(seqnums)}"
                yield Violation(self.name, text, tuple(calls))
        yield from self._check_groups(facts, places)

    def _check_groups(self, facts: Facts, places: Mapping[tuple[str, str], Iterable[int]]) -> Iterator[Violation]:
        whole = [out for out in facts.readouts if out.tag is None]
        final = {(out.book, record.payload) for out in whole for record in out.records}
        read_at = {out.book: out.at_us for out in whole}
        for call in facts.calls:
            if not isinstance(call.request, Appending) or len(call.request.records) < 2:
                continue
            names = [(call.book, record.payload) for record in call.request.records]
            starts = {
                seqnum - i
                for i, name in enumerate(names)
                for seqnum in places.get(name, ())
                if not (call.request.key and facts.may_be_deleted(call.book, seqnum))
            }
            if len(starts) > 1:
                yield Violation(self.name, f"{names} do not stand together", (call,))
            elif starts and any(name in final for name in names):
                first = starts.pop()
                for i, name in enumerate(names):
                    if name in final or facts.may_be_gone_at(call, i, first + i, read_at[call.book]):
                        continue
                    yield Violation(self.name, f"of {names}, appended together, {name[1]} is not there", (call,))


class TimeForward:
    """Design section 2: the log's time never goes back, in a book or in a physical log, also across terms."""

    name: Final = "time never goes back"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        records = {record.seqnum: (source.book, record) for source, record in facts.showings()}
        newest: dict[str | int, Seen] = {}
        for seqnum in sorted(records):
            book, record = records[seqnum]
            for line in (book, split_seqnum(seqnum)[1]):
                before = newest.setdefault(line, record)
                if record.time_us < before.time_us:
                    text = f"{record.seqnum} has time {record.time_us}, and {before.seqnum} before it {before.time_us}"
                    yield Violation(self.name, text)
                newest[line] = record
