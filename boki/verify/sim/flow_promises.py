"""What the book of logged calls must say of a workflow: the check-list of a promise machine, as rules. Pure.

The list is that of Resonate's specification. Of its points the following can be read off the records of one call:

- C4 to C7: once it has ended, nothing begins, is tried again or is suspended any more (a dead one is never resumed);
- C8: it ends once, so that no answer can be followed by another one;
- C9: each run is begun once, and as the one behind the last;
- C10: one owner at a time: an engine that has lost it to another one says nothing of it any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from boki.books.calls.ledger import CODEC, Accepted, Entry, Finished, Retrying, Started, Suspended
from boki.books.calls.waiting import Owner
from boki.log.record import Record
from boki.verify.histories.facts import Violation

RULE = "a workflow's life is one"


def find_wrong_promises(promises: dict[str, list[Record]]) -> Iterator[Violation]:
    """What is wrong in the records of calls, which are given by the id of each, in the order of the log."""
    for invocation, records in promises.items():
        entries = [CODEC.decode(record.data) for record in records]
        for text in _find_wrong(entry for entry in entries if entry is not None):
            yield Violation(RULE, f"{invocation} {text}")


def _find_wrong(entries: Iterable[Entry]) -> Iterator[str]:
    is_over = False
    starts = 0
    owners: list[Owner] = []
    for entry in entries:
        if not isinstance(entry, Accepted | Started | Retrying | Suspended | Finished):
            continue
        if is_over:
            yield f"went on after its end: {type(entry).__name__}"
        if isinstance(entry, Finished):
            is_over = True
            continue
        if entry.owner in owners[:-1]:
            yield f"was claimed by {entry.owner} after {owners[-1]} had it"
        elif entry.owner not in owners:
            owners.append(entry.owner)
        if isinstance(entry, Started):
            if entry.starts != starts + 1:
                yield f"began run {entry.starts} after run {starts}"
            starts = entry.starts
        elif isinstance(entry, Accepted):
            starts = entry.starts
        elif isinstance(entry, Suspended):
            starts = 0  # they are counted again
