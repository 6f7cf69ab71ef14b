"""Checkers for whoever follows a tag, page after page: nothing is passed over, and who waits is woken."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from boki.verify.histories.facts import Facts, Violation
from boki.verify.histories.history import Reading, Shown


class Cursors:
    """Section 2: going on at `next_start`, a reader sees every record, or is told by `first_seqnum` that it is trimmed.

    So below `next_start` of a page nothing may ever be that the page has not shown, whoever saw it, and when.
    """

    name: Final = "pages follow each other without a gap"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        for call in facts.calls:
            request, result = call.request, call.result
            if not isinstance(request, Reading) or not isinstance(result, Shown) or request.backward:
                continue
            for seqnum in facts.missing(call, result.next_start - 1):
                text = f"{call.session} is to go on at {result.next_start} of {call.book}, and has not seen {seqnum}"
                yield Violation(self.name, text, (call,))
            if request.tag is None or request.since_us or result.first_seqnum is None:
                continue  # of a whole book, records go without a notice when the last of their tags is trimmed
            row = facts.row(call.book, request.tag)
            shown = {record.seqnum for record in result.records}
            until = min(request.stop, result.next_start)
            for seqnum in row[bisect_left(row, max(request.start, result.first_seqnum)) : bisect_left(row, until)]:
                if seqnum not in shown:
                    text = f"{call.session} was told that {call.book} has all of {request.tag} from"
                    yield Violation(self.name, f"{text} {result.first_seqnum}, and not shown {seqnum}", (call,))


class Wakes:
    """A long poll ends when there is a record for it, not only when its wait does. For runs in which nothing is wrong.

    `late_us`: how long the news may take.
    """

    name: Final = "whoever waits is woken"

    def __init__(self, late_us: int = 1_000_000) -> None:
        self.late_us = late_us

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        for call in facts.calls:
            request, result = call.request, call.result
            if not isinstance(request, Reading) or not isinstance(result, Shown):
                continue
            if not request.wait_us or request.since_us:
                continue
            row = facts.row(call.book, request.tag)
            here = [
                seqnum
                for seqnum in row[bisect_left(row, request.start) : bisect_left(row, request.stop)]
                if not facts.may_be_gone(seqnum, request.tag, call.end_us)
            ]
            known_us = min((facts.placed[seqnum].known_us for seqnum in here), default=call.end_us)
            waited_us = call.end_us - max(call.start_us, known_us)
            if waited_us > self.late_us:
                text = f"{call.session} waited for {waited_us} µs after a record of {call.book} was there"
                yield Violation(self.name, text, (call,))
