"""Invariants of logged calls, read off the book that logs them: the check-list of a promise machine. Pure.

The list is that of Resonate's specification. These of its points the book shows, each under a name of its own:

- C4, C5, C7: once a call has ended, nothing begins, is tried again or is suspended any more;
- C6: a call that ended while it was suspended is not resumed by what it waited for;
- C8: it ends once, so that no answer can be followed by another one;
- C9: each run is begun once, and as the one behind the last;
- C10: one owner at a time: an engine says nothing of calls that another one has claimed.

C1 is checked by `boki.verify.sim.stray_alarms`, C2 and C3 by `boki.verify.sim.stranded`, C11 by
`boki.verify.sim.subscriptions`, C12 by `boki.verify.sim.strangers`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from boki.books.calls.ledger import CODEC, Accepted, CallEntry, Finished, Started, Suspended, TakenOver, Unended, id_of
from boki.books.calls.waiting import Owner
from boki.log.record import Record
from boki.verify.histories.facts import Violation

NOTHING_AFTER_THE_END: Final = "nothing follows the end of a call"
THE_DEAD_SLEEP: Final = "a call that ended asleep is not resumed"
ONE_END: Final = "a call has one end"
RUNS_IN_ORDER: Final = "each run of a call is begun once, in order"
ONE_OWNER: Final = "a call has one owner"


class _Life:
    """One call, as far as the book has come."""

    def __init__(self) -> None:
        self._is_over = False
        self._is_asleep = False
        """Whether it is suspended, or was when it ended."""
        self._starts = 0
        self._owners: list[Owner] = []

    def take(self, entry: CallEntry) -> Iterator[tuple[str, str]]:
        """What is wrong with the next record of the call: the promise that it breaks, and how."""
        if isinstance(entry, Finished):
            if self._is_over and not entry.ended_us:  # that one keeps the end for the call that it reports to
                yield ONE_END, "has ended twice"
            self._is_over = True
            return
        if not self._is_over:
            self._is_asleep = isinstance(entry, Suspended) or (
                isinstance(entry, Accepted) and entry.state == "suspended"
            )
        elif self._is_asleep and isinstance(entry, Started):
            yield THE_DEAD_SLEEP, f"was resumed as run {entry.starts}, and had ended while it was suspended"
        else:
            yield NOTHING_AFTER_THE_END, f"went on after its end: {type(entry).__name__}"
        yield from self._take_owner(entry.owner)
        match entry:
            case Started():
                if entry.starts != self._starts + 1:
                    yield RUNS_IN_ORDER, f"began run {entry.starts} after run {self._starts}"
                self._starts = entry.starts
            case Accepted():
                self._starts = entry.starts
            case Suspended():
                self._starts = 0  # they are counted again

    def _take_owner(self, owner: Owner) -> Iterator[tuple[str, str]]:
        if owner in self._owners[:-1]:
            yield ONE_OWNER, f"is claimed by {owner} after {self._owners[-1]} had it"
        elif owner not in self._owners:
            self._owners.append(owner)


def find_wrong_promises(book: Iterable[Record]) -> Iterator[Violation]:
    """What is wrong in the book of logged calls, which is given whole and in its order."""
    lives: dict[str, _Life] = {}
    heirs: dict[Owner, Owner] = {}
    for record in book:
        entry = CODEC.decode(record.data)
        if isinstance(entry, TakenOver):
            heirs.setdefault(entry.lost, entry.heir)
        if not isinstance(entry, CallEntry):
            continue
        invocation = id_of(entry)
        for promise, text in lives.setdefault(invocation, _Life()).take(entry):
            yield Violation(promise, f"{invocation} {text}")
        if isinstance(entry, Unended) and entry.owner in heirs:
            text = f"{type(entry).__name__} by {entry.owner} comes after {heirs[entry.owner]} took over from it"
            yield Violation(ONE_OWNER, f"{invocation}: {text}")
