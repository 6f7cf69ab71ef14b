"""Checkers of what a session may expect to see: reads never go back, and they see its own writes and its causes.

A reader that has seen a record has, because an index is a prefix of the order, seen all that stand before it in the
book. So one number per session and book is enough: the highest seqnum that must be covered from now on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final

from boki.log.ids import is_system_tag
from boki.verify.histories.facts import Facts, Violation
from boki.verify.histories.history import (
    Appending,
    Call,
    Fork,
    Getting,
    Join,
    Ordered,
    Reading,
    Readout,
    Refused,
    Row,
    Shown,
    Syncing,
    Told,
    Trimming,
)

Known = dict[str, int]
"""Per book, the highest seqnum that a session knows."""


class _SessionChecker(ABC):
    """Walks through a history; a subclass says what a call teaches its session."""

    name: str

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        known: dict[str, Known] = defaultdict(dict)
        for row in facts.history.rows:
            if isinstance(row, Call):
                yield from self.verify(facts, row, known[row.session].get(row.book, 0))
                self.learn(known, row, facts)
            else:
                self.pass_on(known, row)

    def verify(self, facts: Facts, call: Call, until_seqnum: int) -> Iterator[Violation]:
        """A read must cover what its session knows."""
        if not until_seqnum:
            return
        if isinstance(call.result, Shown) and isinstance(call.request, Reading):
            for seqnum in facts.missing(call, until_seqnum):
                text = f"{call.session} knew {until_seqnum} of {call.book}; its read did not show {seqnum}"
                yield Violation(self.name, text, (call,))
        elif isinstance(call.request, Getting) and isinstance(call.result, Refused):
            seqnum = call.request.seqnum
            placed = facts.placed.get(seqnum)
            if (
                call.result.code in ("not_found", "trimmed")
                and placed is not None
                and placed.book == call.book
                and seqnum <= until_seqnum
                # what was there and was trimmed is "trimmed": who is told that it never was would not look further
                and (call.result.code == "not_found" or not facts.may_be_gone(seqnum, None, call.end_us))
            ):
                text = f"{call.session} knew {until_seqnum} of {call.book}; {seqnum} is {call.result.code} to it"
                yield Violation(self.name, text, (call,))

    @abstractmethod
    def learn(self, known: dict[str, Known], call: Call, facts: Facts) -> None:
        """What the session knows after the call."""

    def pass_on(self, known: dict[str, Known], row: Row) -> None:  # noqa: B027 - most promises end with the session
        """A session is forked or joined."""


def _raise(known: Known, book: str, seqnum: int) -> None:
    if seqnum > known.get(book, 0):
        known[book] = seqnum


def _shown(call: Call) -> int:
    return call.result.records[-1].seqnum if isinstance(call.result, Shown) and call.result.records else 0


def _written(call: Call) -> int:
    return call.result.seqnums[-1] if isinstance(call.result, Ordered) and call.result.seqnums else 0


class WholePrefix:
    """Promise 3: every answer is of a prefix of the order: whoever sees a record sees all before it in the range."""

    name: Final = "a read shows a prefix of the order"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        for call in facts.calls:
            if isinstance(call.request, Reading) and isinstance(call.result, Shown) and call.result.records:
                for seqnum in facts.missing(call, _shown(call)):
                    yield Violation(self.name, f"{_shown(call)} was shown without {seqnum} of {call.book}", (call,))


class MonotonicReads(_SessionChecker):
    """Promise 3: what a session has read it does not miss later, and its position in the metalog never goes back."""

    name: Final = "monotonic reads"

    def verify(self, facts: Facts, call: Call, until_seqnum: int) -> Iterator[Violation]:
        """Besides, what a reader is told is at least as new as the token that it handed in."""
        yield from super().verify(facts, call, until_seqnum)
        if isinstance(call.request, Appending | Trimming) or isinstance(call.result, Refused):
            return  # it has shown nothing
        for log, position in call.positions.items():
            if position < call.needs.get(log, 0):
                text = f"{call.session} had seen {call.needs[log]} of log {log} and was answered at {position}"
                yield Violation(self.name, text, (call,))

    def learn(self, known: dict[str, Known], call: Call, facts: Facts) -> None:  # noqa: ARG002
        """It has read."""
        _raise(known[call.session], call.book, _shown(call))


class ReadYourWrites(_SessionChecker):
    """Promise 3: what a session has appended, it reads."""

    name: Final = "read your writes"

    def learn(self, known: dict[str, Known], call: Call, facts: Facts) -> None:  # noqa: ARG002
        """It has appended."""
        _raise(known[call.session], call.book, _written(call))


class Causality(_SessionChecker):
    """Promise 3: a child begins with what its parent has seen, and hands back what it has seen itself."""

    name: Final = "causality through child calls"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        self._all: dict[str, Known] = defaultdict(dict)
        yield from super().check(facts)

    def learn(self, known: dict[str, Known], call: Call, facts: Facts) -> None:  # noqa: ARG002
        """Only what came from another session is judged here; all that it saw itself is handed on."""
        _raise(self._all[call.session], call.book, max(_shown(call), _written(call)))

    def pass_on(self, known: dict[str, Known], row: Row) -> None:
        """A fork teaches the child, a join the parent."""
        match row:
            case Fork(parent, child):
                giver, taker = parent, child
            case Join(child, parent):
                giver, taker = child, parent
            case _:
                return
        for book, seqnum in self._all[giver].items():
            _raise(known[taker], book, seqnum)
            _raise(self._all[taker], book, seqnum)


class FreshReads(_SessionChecker):
    """Promise 3: `fresh=True` sees all that anybody had acknowledged before; after `sync()`, every read does."""

    name: Final = "fresh reads and sync are linearizable"

    def verify(self, facts: Facts, call: Call, until_seqnum: int) -> Iterator[Violation]:
        """A fresh read must cover all that was known; others, what the last sync saw."""
        if isinstance(call.request, Reading) and call.request.fresh:
            until_seqnum = max(until_seqnum, facts.known_before(call.book, call.start_us))
        yield from super().verify(facts, call, until_seqnum)

    def learn(self, known: dict[str, Known], call: Call, facts: Facts) -> None:
        """It has synced."""
        if isinstance(call.request, Syncing) and isinstance(call.result, Told):
            _raise(known[call.session], call.book, facts.known_before(call.book, call.start_us))

    def pass_on(self, known: dict[str, Known], row: Row) -> None:
        """A fork hands on what was synced."""
        if isinstance(row, Fork):
            for book, seqnum in known[row.parent].items():
                _raise(known[row.child], book, seqnum)


class TrimSafety:
    """Trimmed records stay trimmed: whoever knows of the trim, and every linearizable reader, sees them no more.

    That nothing else goes with them is what the other checkers see to: only a trim excuses a record that is missing.
    """

    name: Final = "what was trimmed is gone"

    def check(self, facts: Facts) -> Iterator[Violation]:
        """See `boki.verify.histories.Checker`."""
        known: dict[str, dict[tuple[str, str | None, bool], int]] = defaultdict(dict)
        for row in facts.history.rows:
            match row:
                case Call(request=Trimming(_, tag, everything), result=Told()):
                    assert isinstance(row.request, Trimming)
                    floors = known[row.session]
                    place = (row.book, tag, everything)
                    floors[place] = max(floors.get(place, 0), facts.must_floor(row, row.request))
                case Call(request=Reading() | Getting(), result=Shown()):
                    yield from self._verify(facts, row, known[row.session])
                case Fork(parent, child):
                    known[child] = _merged(known[child], known[parent])
                case Join(child, parent):
                    known[parent] = _merged(known[parent], known[child])
                case _:
                    pass
        for readout in facts.readouts:
            yield from self._verify_readout(facts, readout)

    def _verify_readout(self, facts: Facts, readout: Readout) -> Iterator[Violation]:
        """A record is gone below the floor of the row that was read, and below those of all its tags."""

        @cache
        def floor_of(tag: str | None) -> int:
            return facts.must_floor_at(readout.book, tag, readout.at_us)

        for record in readout.records:
            of_tags = min(map(floor_of, record.tags), default=0)
            floor = max(floor_of(readout.tag), of_tags)
            if record.seqnum < floor:
                text = f"{record.payload} at {record.seqnum} of {readout.row} rose again: the floor is {floor}"
                yield Violation(self.name, text)

    def _verify(self, facts: Facts, call: Call, known: dict[tuple[str, str | None, bool], int]) -> Iterator[Violation]:
        assert isinstance(call.result, Shown)

        def floor_of(tag: str | None) -> int:
            spared = tag is not None and is_system_tag(tag)
            floor = max(known.get((call.book, tag, False), 0), 0 if spared else known.get((call.book, None, False), 0))
            floor = max(floor, *(known.get((call.book, each, True), 0) for each in (tag, None)))
            is_fresh = isinstance(call.request, Reading) and call.request.fresh
            return max(floor, facts.must_floor_at(call.book, tag, call.start_us) if is_fresh else 0)

        if isinstance(call.request, Reading):
            floor = floor_of(call.request.tag)
        else:
            floor = min((floor_of(tag) for record in call.result.records for tag in record.tags or (None,)), default=0)
        for record in call.result.records:
            if record.seqnum < floor:
                text = f"{call.session} knew that {call.book} is trimmed below {floor}, and read {record.seqnum}"
                yield Violation(self.name, text, (call,))


def _merged(
    mine: dict[tuple[str, str | None, bool], int], other: dict[tuple[str, str | None, bool], int]
) -> dict[tuple[str, str | None, bool], int]:
    return {place: max(mine.get(place, 0), other.get(place, 0)) for place in {**mine, **other}}
