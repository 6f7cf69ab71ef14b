"""All checkers, and how to run them over a history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol

from boki.verify.histories.appends import Conditions, Deadlines, Keys, LinearizableAppends, NoEarlyTimeouts
from boki.verify.histories.counts import Counts
from boki.verify.histories.cursors import Cursors
from boki.verify.histories.facts import Facts, Violation
from boki.verify.histories.history import History
from boki.verify.histories.order import NothingLost, NothingTwice, TimeForward, TotalOrder
from boki.verify.histories.sessions import (
    Causality,
    FreshReads,
    MonotonicReads,
    ReadYourWrites,
    TrimSafety,
    WholePrefix,
)

_PER_CHECKER: Final = 20
"""More violations of one kind say nothing new."""


class Checker(Protocol):
    """One promise. `check` yields what breaks it, in no more than n log n steps."""

    @property
    def name(self) -> str:
        """The promise in a few words."""

    def check(self, facts: Facts) -> Iterator[Violation]:
        """All that breaks the promise."""


def all_checkers(grace_us: int = 1_000_000, early_us: int = 1_000_000) -> Sequence[Checker]:
    """One of each. `grace_us`: how long after its deadline an answer may come; `early_us`: how wrong clocks may be."""
    return (
        TotalOrder(),
        NothingLost(),
        NothingTwice(),
        TimeForward(),
        WholePrefix(),
        Cursors(),
        MonotonicReads(),
        ReadYourWrites(),
        Causality(),
        FreshReads(),
        TrimSafety(),
        LinearizableAppends(),
        Conditions(),
        Counts(),
        Keys(),
        Deadlines(grace_us),
        NoEarlyTimeouts(early_us),
    )


def find_violations(history: History, checkers: Iterable[Checker] | None = None) -> list[Violation]:
    """Every promise that the history breaks, at most 20 times each; empty if all are kept."""
    facts = Facts(history)
    chosen = all_checkers() if checkers is None else checkers
    return [violation for checker in chosen for violation in islice(checker.check(facts), _PER_CHECKER)]
