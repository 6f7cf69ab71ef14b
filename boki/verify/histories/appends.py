"""Checkers of appends: that they are linearizable, their conditions, their keys, and the deadline of every call."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from boki.errors import DeadlineExceeded
from boki.verify.histories.facts import Facts, Violation
from boki.verify.histories.history import Appending, Call, Condition, Ordered, Refused


class LinearizableAppends:
    """Promise 1: an append that began after somebody knew of a record stands behind that record, in its book.

    Positions come with the answers, so no search is needed: Appendix A.1 of the checkers' literature in one pass.
    """

    name: Final = "appends are linearizable"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        for record in facts.placed.values():
            before = facts.known_before(record.book, record.asked_us)
            if before > record.seqnum:
                text = f"{record.payload} stands at {record.seqnum} of {record.book} and was asked for at"
                known_us = facts.placed[before].known_us
                yield Violation(self.name, f"{text} {record.asked_us}, when {before} was known, since {known_us}")


class Conditions:
    """Section 2: `when=` held at the append's own place, or did not. So one of several that expect the same wins."""

    name: Final = "conditions are kept"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        for call in facts.calls:
            if not isinstance(call.request, Appending) or not call.request.when:
                continue
            place = facts.places.get((call.book, call.request.records[0].payload))
            # of a keyed append, the attempt that was carried out is another call, whose conditions are the same
            if place is not None:
                for condition in call.request.when:
                    if not condition.is_counted:
                        yield from self._check_kept(facts, call, condition, place)
            elif (
                isinstance(call.result, Refused)
                and call.result.code == "condition_failed"
                and call.result.actual_count < 0
            ):
                yield from self._check_refused(facts, call, call.request.when, call.result.actual_seqnum)

    def _check_kept(self, facts: Facts, call: Call, condition: Condition, place: int) -> Iterator[Violation]:
        row = facts.row(call.book, condition.tag)
        at = bisect_left(row, place)
        last = row[at - 1] if at else 0
        if last == condition.last_seqnum:
            return
        until_us = max(call.end_us, facts.placed[place].known_us)
        if condition.last_seqnum == 0 and facts.may_be_gone(last, condition.tag, until_us):
            return
        is_unseen = last < condition.last_seqnum < place and condition.last_seqnum not in facts.placed
        if is_unseen and facts.may_be_unseen(call.book, condition.tag, condition.last_seqnum, call.end_us):
            return  # whoever appended that was never told, and it was trimmed before anybody had read it
        text = f"{place} of {call.book} was appended on the condition that {condition.tag} ends with"
        yield Violation(self.name, f"{text} {condition.last_seqnum}, and it ended with {last}", (call,))

    def _check_refused(
        self, facts: Facts, call: Call, when: tuple[Condition, ...], actual_seqnum: int
    ) -> Iterator[Violation]:
        explained = any(
            condition.last_seqnum != actual_seqnum and self._was_last(facts, call, condition.tag, actual_seqnum)
            for condition in when
            if not condition.is_counted
        )
        if not explained:
            text = f"{call.session} was refused {when} in {call.book} because the last is {actual_seqnum}"
            yield Violation(self.name, f"{text}, and at no time it could be", (call,))

    @staticmethod
    def _was_last(facts: Facts, call: Call, tag: str, seqnum: int) -> bool:
        """Whether that can have been the tag's last record at some moment of the call."""
        row = facts.row(call.book, tag)
        after = bisect_right(row, seqnum)
        if seqnum:
            known = facts.placed.get(seqnum)
            if known is None:  # nobody ever saw it: only possible if it was trimmed before anybody could
                return facts.may_be_unseen(call.book, tag, seqnum, call.end_us)
            if known.book != call.book or tag not in known.tags or known.asked_us > call.end_us:
                return False
        if after == len(row) or facts.placed[row[after]].known_us >= call.start_us:
            return True
        # something later was there before the call: then all that was there must have been trimmed
        return seqnum == 0 and all(
            facts.may_be_gone(later, tag, call.end_us) for later in row if facts.placed[later].known_us < call.start_us
        )


class Keys:
    """Section 2: the same key returns the same seqnums, and appends once, unless the whole book was deleted since. It
    comes before the conditions: who repeats what stands is not refused because of what stands by now.
    """

    name: Final = "a key is used once"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        answers: dict[tuple[str, str], dict[tuple[int, ...], Call]] = defaultdict(dict)
        places: dict[tuple[str, str], dict[int, None]] = defaultdict(dict)
        for call in facts.calls:
            if not isinstance(call.request, Appending) or call.request.key is None:
                continue
            name = (call.book, call.request.key)
            place = facts.places.get((call.book, call.request.records[0].payload))
            if place is not None:
                places[name][place] = None
            if isinstance(call.result, Ordered):
                answers[name].setdefault(call.result.seqnums, call)
        yield from self._check_refused(facts, places)
        for (book, key), found in answers.items():
            found = {told: call for told, call in found.items() if not facts.may_be_deleted(book, told[0])}
            if len(found) > 1:
                yield Violation(self.name, f"key {key} of {book} returned {sorted(found)}", tuple(found.values()))
        for (book, key), used in places.items():
            if len([place for place in used if not facts.may_be_deleted(book, place)]) > 1:
                yield Violation(self.name, f"key {key} of {book} was used at {sorted(used)}")

    def _check_refused(self, facts: Facts, places: Mapping[tuple[str, str], Iterable[int]]) -> Iterator[Violation]:
        for call in facts.calls:
            request, result = call.request, call.result
            if isinstance(request, Appending) and request.key and isinstance(result, Refused):
                for place in places.get((call.book, request.key), ()):
                    is_known = facts.placed[place].known_us < call.start_us and not facts.may_be_deleted(
                        call.book, place
                    )
                    if is_known and result.code == "condition_failed":
                        text = f"{call.session} was refused under key {request.key} of {call.book}"
                        yield Violation(self.name, f"{text}, whose record stood at {place} already", (call,))


class Deadlines:
    """Promise 5: every call is answered by its deadline. `grace_us` is what the way back may take."""

    name: Final = "every call ends by its deadline"

    def __init__(self, grace_us: int = 1_000_000) -> None:
        self.grace_us = grace_us

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        ends_us = max((max(call.start_us, call.end_us) for call in facts.calls), default=0)
        ends_us = max([ends_us, *(readout.at_us for readout in facts.readouts)])
        for call in facts.calls:
            if call.is_abandoned:
                continue
            late_us = (call.end_us if call.result is not None else ends_us) - call.deadline_us
            if late_us > self.grace_us:
                how = "was answered" if call.result is not None else "is still not answered"
                yield Violation(
                    self.name, f"{type(call.request).__name__} of {call.session} {how} {late_us} µs late", (call,)
                )


class NoEarlyTimeouts:
    """Promise 4: what could still have been done in time is not given up, as an engine appends again after a term.

    So nobody is told that the deadline has passed before it has. `early_us` is how wrong the clocks of nodes may be.
    """

    name: Final = "nothing is given up before its deadline"

    def __init__(self, early_us: int = 1_000_000) -> None:
        self.early_us = early_us

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        for call in facts.calls:
            if isinstance(call.result, Refused) and call.result.code == DeadlineExceeded.code:
                left_us = call.deadline_us - call.end_us
                if left_us > self.early_us:
                    text = f"{type(call.request).__name__} of {call.session} was given up with {left_us} µs left"
                    yield Violation(self.name, text, (call,))
