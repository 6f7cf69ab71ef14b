"""Safeguards of objects and transactions, each switched off: see `tests.verify.sim.ablations`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from boki import Expect
from boki.engine.reads import Reads
from boki.libs.bokistore import accesses, drafts
from boki.libs.bokistore.drafts import Draft
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import row_tag
from boki.libs.bokistore.transactions import Transaction
from boki.libs.bokistore.views import Row, View
from boki.libs.fold.steps import Append, Steps
from boki.verify.sim.options import Options
from tests.verify.sim.without import without


def no_reads_in_the_conditions() -> Any:
    """What was read and not written may have changed: the published rule."""

    def conditions(self: Transaction) -> list[Expect]:
        return [
            Expect(row_tag(name), last_seqnum=draft.base.last) for name, draft in self._drafts.items() if draft.updates
        ]

    return without(Transaction, "conditions", conditions)


def no_comparison_of_results() -> Any:
    """Where a row has grown the transaction continues, whatever it has seen of the version before."""
    return without(drafts, "_is_same", lambda one, other: True)


def no_comparison_of_queries() -> Any:
    """Where a row has grown, only what updates returned is compared."""

    def on(self: Draft, base: View) -> Draft | None:
        again = Draft(base)
        for action in self._actions:
            if isinstance(action, drafts._Changed) and not drafts._is_same(again._apply(action.update), action.result):
                return None
            again._actions.append(action)
        return again

    return without(Draft, "on", on)


def no_snapshot() -> Any:
    """A transaction reads what exists now."""

    def view_at(self: Reader, name: str, _seqnum: int) -> Steps[View]:
        row, _ = yield from self.catch_up(name)
        return row.newest

    return without(Reader, "view_at", view_at)


def no_news() -> Any:
    """What a process knows of an object is taken for the newest."""
    read_on = Reader._read_on

    def trusting(self: Reader, row: Row, stop: int | None, wait_s: float = 0.0) -> Steps[tuple[Row, int]]:
        if row.known_to and row.newest.last:
            yield from ()
            return row, row.known_to
        return (yield from read_on(self, row, stop, wait_s))

    return without(Reader, "_read_on", trusting)


def no_comparison_of_rows() -> Any:
    """A process that asks whether there is news of what it knows is told that there is none."""
    return without(Reads, "_changed", lambda self, book, tags, lasts: ())


def no_look_for_ones_own_record() -> Any:
    """A commit whose answer was lost is taken for one that others were faster than."""

    def find_own(self: Transaction) -> Steps[tuple[int, ...]]:
        yield from ()
        return ()

    return without(Transaction, "_find_own", find_own)


def no_keys() -> Any:
    """A transaction or an update that comes again under its key is another one."""
    return without(Append, "key", property(lambda self: None))


def no_condition_on_a_guess() -> Any:
    """A process that takes itself for the only one that changes an object does not ask the log."""

    def anything(tag: str, last_seqnum: int) -> Expect:
        return Expect("!never used", last_seqnum=0)

    return without(accesses, "Expect", anything)


def no_question_at_the_end() -> Any:
    """A transaction that began with a guess and ends without a commit does not ask whether it was right."""
    give_up = Transaction.give_up

    def trusting(self: Transaction) -> Steps[None]:
        self._is_guess = False
        yield from give_up(self)

    return without(Transaction, "give_up", trusting)


def no_parts() -> Any:
    """What was undone in a part of a transaction is committed with the rest."""
    return patch.multiple(Draft, mark=lambda self, number: None, go_back=lambda self, number: None)


ABLATIONS: dict[str, Callable[[], Any]] = {
    "reads in the conditions": no_reads_in_the_conditions,
    "comparison of results": no_comparison_of_results,
    "comparison of queries": no_comparison_of_queries,
    "snapshots of transactions": no_snapshot,
    "news of objects": no_news,
    "comparison of rows": no_comparison_of_rows,
    "look for one's own commit": no_look_for_ones_own_record,
    "keys of transactions": no_keys,
    "condition on a guess": no_condition_on_a_guess,
    "parts that are undone": no_parts,
    "question at the end of a guess": no_question_at_the_end,
}


NEED_LONG_LOADS = ("question at the end of a guess",)
"""What the few transactions of an ordinary seed hardly ever come to."""


def has_objects(options: Options) -> bool:
    """What a seed must have drawn to show that one of these is off."""
    return options.stores > 0
