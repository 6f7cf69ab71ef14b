"""Safeguards of cuts that run ahead, switched off: see `docs/design/speculative-cuts.md`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

import msgspec

from boki.controller.term_change import TermChange
from boki.log.metalog import Cut, MetalogEntry
from boki.log.view import View
from boki.protocol.effects import Effect, Send, Store
from boki.protocol.messages import Complete, EntriesStored
from boki.sequencer.behind import Behind
from boki.sequencer.core import SequencerCore
from boki.sequencer.primary import Primary
from boki.storage.needed import Needed
from boki.storage.reports import Reports
from boki.verify.sim.options import Options, draw_speculation
from tests.verify.sim.without import without


def no_records_in_front_of_a_cut() -> Any:
    """A backup takes in a cut that runs ahead though it lacks the records."""
    check = Behind.is_in_front

    def trusting(self: Behind, store: Any, sender: Any, message: Any, sure: int) -> bool:
        return not isinstance(message, Complete) or check(self, store, sender, message, sure)

    return without(Behind, "is_in_front", trusting)


def no_records_in_front_of_a_completion() -> Any:
    """A sequencer takes in what a controller completes though it lacks the records."""
    check = Behind.is_in_front

    def trusting(self: Behind, store: Any, sender: Any, message: Any, sure: int) -> bool:
        return isinstance(message, Complete) or check(self, store, sender, message, sure)

    return without(Behind, "is_in_front", trusting)


def no_sync_of_ones_own() -> Any:
    """A cut counts where it is written, before the sync of that log: at the primary and at backups."""
    append, propose = SequencerCore._append, SequencerCore._propose

    def hasty(effects: Iterable[Effect]) -> Iterable[Effect]:
        for effect in effects:
            if not isinstance(effect, Store):
                yield effect
                continue
            told = [each for each in effect.then if isinstance(each, Send) and isinstance(each.message, EntriesStored)]
            yield Store(effect.writes, [each for each in effect.then if each not in told], effect.is_vote)
            yield from told

    with_append = without(SequencerCore, "_append", lambda *given: list(hasty(append(*given))))
    with_propose = without(SequencerCore, "_propose", lambda *given: list(hasty(propose(*given))))
    return _Both(with_append, with_propose)


class _Both:
    """Two patches as one."""

    def __init__(self, *patches: Any) -> None:
        self._patches = patches

    def __enter__(self) -> None:
        for each in self._patches:
            each.__enter__()

    def __exit__(self, *error: object) -> None:
        for each in reversed(self._patches):
            each.__exit__(*error)


def no_fetch_of_what_is_needed() -> Any:
    """Records that a cut waits for are awaited, and not fetched."""
    return without(Needed, "ask", lambda self, chain, now_us: [])


def no_mark_of_what_ran_ahead() -> Any:
    """A cut that ran ahead looks like one by reports: backups and completions take it in as it comes."""
    cuts = Primary._cuts

    def unmarked(self: Primary, now_us: int) -> list[MetalogEntry]:
        entries = cuts(self, now_us)
        return [msgspec.structs.replace(each, is_ahead=False) if isinstance(each, Cut) else each for each in entries]

    return without(Primary, "_cuts", unmarked)


def no_reports_behind_the_word() -> Any:
    """Any report overtakes the cut in flight: backups are told that a write quorum has its records."""

    def hasty(self: Primary, until_index: int) -> bool:
        if self._ahead is None:
            return False
        self._ahead, self.sure_until = None, until_index
        return True

    return without(Primary, "becomes_sure", hasty)


def no_word_of_reports() -> Any:
    """Reports overtake the cut in flight, and no backup is told."""
    return without(Primary, "becomes_sure", lambda self, until_index: False)


def no_regard_for_replicas() -> Any:
    """Every shard is cut ahead where any is, wherever its replicas are."""
    return without(View, "runs_ahead", lambda self, replicas: bool(self.beside))


def no_reports_of_what_no_cut_covers() -> Any:
    """A storage node tells its own sequencer alone, however long no cut covers what it has."""
    return without(Reports, "remind", lambda self, keys, view: None)


def no_knowledge_of_what_is_committed() -> Any:
    """A completion needs the records of all its entries, also of those that are surely committed."""
    return without(TermChange, "_known_committed", lambda self, log: 0)


def no_other_majority() -> Any:
    """A tail that cannot be completed is tried again with whoever answers first."""
    tick = TermChange.tick

    def trusting(self: TermChange, now_us: int) -> Any:
        effects = tick(self, now_us)
        self._doubted = set()
        return effects

    return without(TermChange, "tick", trusting)


def speculates(options: Options) -> Options:
    """The seed's cluster as one in which cuts run ahead, with few other users of the log."""
    options = msgspec.structs.replace(options, scenarios={}, flows=0, stores=0, queues=0, calls=0)
    return draw_speculation(options, Random(f"{options.seed}:options:speculates"))


ABLATIONS: dict[str, Callable[[], Any]] = {
    "records in front of a cut": no_records_in_front_of_a_cut,
    "records in front of a completion": no_records_in_front_of_a_completion,
    "sync of the log before a cut counts": no_sync_of_ones_own,
    "mark of what ran ahead": no_mark_of_what_ran_ahead,
    "reports behind the word of them": no_reports_behind_the_word,
}
"""What seeds notice. The rest is noticed by scenarios: `test_ahead`."""
