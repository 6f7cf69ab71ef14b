"""The controller leaves one term and begins the next: seal, complete, install (design section 4, "Seal and new term").

1. **Seal** the sequencers of term t. Each makes the seal durable before it answers how many entries it holds.
2. From a majority take the longest metalog of each log, fetch what others lack, and **complete** it on a majority.
   Whatever was acknowledged is on a majority, so it is in the longest of any majority.
3. **Install** the view of t+1, which names where t ended, by compare-and-set.

Every step may be repeated, and two controllers may do all this at once: only one compare-and-set wins. The steps are a
table; what is missing is asked for again at every tick. If a node that is needed falls silent midway the change begins
again, with another majority: nothing is decided before a view is installed.

**What was applied must be there.** Nodes apply only what is committed, so a term that would end below what any of them
has applied has lost entries: a sequencer's disk has forgotten what it had synced. Such a view is never proposed: its
records would be gone without a word. `TermChange.lost` says so instead.

Entries that everybody may drop (`EntriesDropped`) need no completion: whoever lacks them continues from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import ClassVar, Final, assert_never

from boki.controller.plans import Plan
from boki.log.ids import LogId, NodeId, Term
from boki.log.metalog import MetalogEntry, Positions, split_position
from boki.log.quorum import majority
from boki.log.view import View
from boki.protocol.effects import Effect, ProposeView, Send, Trace, kinds
from boki.protocol.messages import Complete, Completed, EntriesDropped, FetchSealed, Seal, Sealed, SealedEntries

_REPEAT_US: Final = 200_000
_PAGE_ENTRIES: Final = 10_000
_STALL_US: Final = 1_000_000
"""A completion that does not get on for this long begins again: a node in it has died. It is twice as long each time,
"""
_MAX_STALL_US: Final = 8_000_000
"""up to this: a node may be slow."""


class Step(Enum):
    """Where a change of terms stands."""

    SEALING = "sealing"
    COMPLETING = "completing"
    INSTALLING = "installing"
    DONE = "done"


NEXT: Final[dict[tuple[Step, str], Step]] = {
    (Step.SEALING, "majority sealed"): Step.COMPLETING,
    (Step.COMPLETING, "stalled"): Step.SEALING,
    (Step.COMPLETING, "majority complete"): Step.INSTALLING,
    (Step.INSTALLING, "installed"): Step.DONE,
    (Step.INSTALLING, "lost the race"): Step.DONE,
}


TermChangeInput = Sealed | SealedEntries | EntriesDropped | Completed
"""What a change hears from sequencers."""


class TermChange:
    """One change from the term of `last` to the next. The shell answers `ProposeView` by `installed`.

    `plan` may be exchanged as long as no view is proposed; None: nodes are awaited that the next view needs.
    """

    HEARS: ClassVar[frozenset[type]] = kinds(TermChangeInput)

    def __init__(self, last: View, plan: Plan | None, applied: Iterable[tuple[NodeId, Positions]] = ()) -> None:
        self.step = Step.SEALING
        self.last = last
        self.plan = plan
        self.proposed: View | None = None
        """What was to be installed: from then on nothing else is proposed by this change."""
        self._sealed: dict[NodeId, Sealed] = {}
        self._ends: tuple[int, ...] = ()
        self._holders: dict[LogId, NodeId] = {}
        self._entries: dict[LogId, list[MetalogEntry]] = {}
        self._base: dict[LogId, int] = {}
        self._durable: dict[LogId, dict[NodeId, int]] = {}
        """Per log, how far a node has it on its disk: a sealed term loses nothing, so this outlives a stall."""
        self._heard: set[NodeId] = set()
        """Who has answered since the last stall: one that was lost before counts no more."""
        self._applied: dict[LogId, tuple[int, NodeId]] = {}
        """Per log, the most entries of the term that a node says it has applied, and which node."""
        self.lost = ""
        """What the sequencers lack though others have applied it, in words: with that the term cannot end."""
        self._sure: tuple[int, ...] = ()
        """Per log, how many entries are known to be on a majority: cuts above it may have run ahead."""
        self._doubted: set[NodeId] = set()
        """Whose entries could not be completed: another majority is tried first."""
        self._repeat_at = 0
        self.moved_at = 0
        """When it last got on: a node has sealed, or more was fetched or confirmed than ever before."""
        self._waits_since = 0
        """When the step began, or last got on."""
        self._stall_us = _STALL_US
        self.note_applied(applied)

    def note_applied(self, applied: Iterable[tuple[NodeId, Positions]]) -> None:
        """Nodes have applied the metalogs up to there."""
        for node, positions in applied:
            for log, position in positions.items():
                term, index = split_position(position)
                if term == self.last.term and index > self._applied.get(log, (0, node))[0]:
                    self._applied[log] = index, node

    def receive(self, sender: NodeId, message: TermChangeInput, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`."""
        match message:
            case Sealed(term, incarnation) if term == self.last.term:
                if self._counts(sender, incarnation) and len(message.stored_until) == self.last.log_count:
                    if sender not in self._durable.get(0, {}):  # it has not answered before
                        self.moved_at = now_us
                    for log, until in enumerate(message.stored_until):
                        self._note_durable(log, sender, until)
                    if self.step is not Step.SEALING:
                        return self._try_install()
                    self._sealed[sender] = message
                    return self._try_complete(now_us)
            case SealedEntries(term, log, first_index, entries) if self._is_wanted(term, log, sender):
                known = self._entries[log]
                if entries and first_index == self._base[log] + len(known):
                    known.extend(entries)
                    self._get_on(now_us)
                    return self._complete(log)
            case EntriesDropped(term, log, kept_from) if self._is_wanted(term, log, sender):
                if kept_from > self._base[log] + len(self._entries[log]):
                    self._base[log], self._entries[log] = kept_from, []
                    self._get_on(now_us)
                    return self._complete(log)
            case Completed(term, log, incarnation, until) if term == self.last.term:
                if self._counts(sender, incarnation):
                    if until > self._durable.get(log, {}).get(sender, 0):
                        self._get_on(now_us)
                    self._note_durable(log, sender, until)
                    return self._try_install() or self._further_page(log, until)
            case Sealed() | SealedEntries() | EntriesDropped() | Completed():
                pass  # of another term, or of a step that is over
            case _:
                assert_never(message)
        return ()

    def settle(self, now_us: int) -> Iterable[Effect]:  # noqa: ARG002 - the shape of every core
        """See `boki.protocol.effects.Core`."""
        return ()

    def tick(self, now_us: int) -> Iterable[Effect]:
        """See `boki.protocol.effects.Core`: whatever has not been answered is sent again."""
        if self.step is Step.COMPLETING and now_us - self._waits_since > self._stall_us:
            self._move("stalled")
            self._stall_us = min(2 * self._stall_us, _MAX_STALL_US)
            self._doubted = set(self._holders.values()) if self.last.beside and not self._doubted else set()
            self._sealed, self._heard = {}, set()
        if now_us < self._repeat_at:
            return []
        self._repeat_at = now_us + _REPEAT_US
        match self.step:
            case Step.SEALING:
                if len(self._sealed) >= majority(len(self.last.sequencers)):
                    self._doubted = set()  # the others do not answer
                    return list(self._try_complete(now_us))
                return [Send(node, Seal(self.last.term)) for node in self.last.sequencers if node not in self._sealed]
            case Step.COMPLETING:
                return [effect for log in range(self.last.log_count) for effect in self._complete(log)]
            case Step.INSTALLING:
                return self._propose()
            case Step.DONE:
                return []

    def _get_on(self, now_us: int) -> None:
        self.moved_at = self._waits_since = now_us

    def installed(self, won: bool) -> None:
        """The compare-and-set of the view was won, or somebody else's came first."""
        self._move("installed" if won else "lost the race")

    def _is_wanted(self, term: Term, log: LogId, sender: NodeId) -> bool:
        return term == self.last.term and self.step is Step.COMPLETING and self._holders.get(log) == sender

    def _counts(self, node: NodeId, incarnation: int) -> bool:
        return self.last.incarnations.get(node) == incarnation

    def _note_durable(self, log: LogId, node: NodeId, until: int) -> None:
        self._heard.add(node)
        known = self._durable.setdefault(log, {})
        known[node] = max(until, known.get(node, 0))

    def _move(self, event: str) -> None:
        self.step = NEXT[self.step, event]
        self._repeat_at = 0

    def _try_complete(self, now_us: int) -> Iterable[Effect]:
        trusted = self._sealed.keys() - self._doubted
        if len(trusted) < majority(len(self.last.sequencers)):
            return ()
        self._sealed = {node: sealed for node, sealed in self._sealed.items() if node in trusted}
        self._move("majority sealed")
        self._waits_since = now_us
        for log in range(self.last.log_count):
            held = {node: sealed.stored_until[log] for node, sealed in self._sealed.items()}
            # the longest metalog is fetched from its holder, from where the shortest of the majority ends
            holder, base = max(held, key=lambda node: held[node]), min(held.values())
            if self._holders.get(log) != holder or self._base[log] > base:
                self._holders[log], self._base[log], self._entries[log] = holder, base, []
        self._sure = tuple(self._known_committed(log) for log in range(self.last.log_count))
        self._ends = tuple(
            max(sealed.stored_until[log] for sealed in self._sealed.values()) for log in range(self.last.log_count)
        )
        return self._try_install() or self.tick(now_us)

    def _known_committed(self, log: LogId) -> int:
        """How many entries surely are on a majority: nodes apply no others."""
        told = [sealed.committed[log] for sealed in self._sealed.values() if log < len(sealed.committed)]
        return max(self._applied.get(log, (0, ""))[0], *told, 0)

    def _complete(self, log: LogId) -> Iterable[Effect]:
        """Fetch what is still missing of a log, or send what is complete to those that have not confirmed it."""
        entries, end = self._entries[log], self._ends[log]
        have_until = self._base[log] + len(entries)
        if have_until < end:
            return [Send(self._holders[log], FetchSealed(self.last.term, log, have_until))]
        effects: list[Effect] = []
        for node in self._sealed:
            have = self._durable[log][node]
            if have < end:
                first = max(self._base[log], have)
                if have < first:
                    effects.append(Send(node, EntriesDropped(self.last.term, log, first)))
                page = tuple(entries[first - self._base[log] :][:_PAGE_ENTRIES])
                effects.append(Send(node, Complete(self.last.term, log, first, page, self._sure[log])))
        return effects

    def _try_install(self) -> Sequence[Effect]:
        if self.step is not Step.COMPLETING:
            return ()
        for log in range(self.last.log_count):
            able = self._heard - self._doubted
            done = [node for node, until in self._durable[log].items() if node in able and until >= self._ends[log]]
            if len(done) < majority(len(self.last.sequencers)):
                return ()
        self.lost = self._find_lost()
        if self.lost:
            return [Trace(logging.CRITICAL, self.lost)]
        self._move("majority complete")
        return self._propose()

    def _find_lost(self) -> str:
        for log, (index, node) in self._applied.items():
            if log < self.last.log_count and index > self._ends[log]:
                return (
                    f"{node} has applied {index} entries of log {log} in term {self.last.term}, and a majority of the "
                    f"sequencers ({', '.join(sorted(self._sealed))}) holds only {self._ends[log]}: a disk has lost the "
                    "rest, though it was synced. No further term begins, because their records would be gone"
                )
        return ""

    def _propose(self) -> list[Effect]:
        if self.proposed is None and self.plan is not None:
            times = [sealed.last_time_us for sealed in self._sealed.values()]
            self.proposed = self.plan.next_view(self.last, self._ends, max(self.last.start_time_us, *times))
        return [] if self.proposed is None else [ProposeView(self.proposed)]

    def _further_page(self, log: LogId, until: int) -> Iterable[Effect]:
        """A node has confirmed a page of a long completion."""
        is_wanted = self.step is Step.COMPLETING and log in self._entries and until < self._ends[log]
        return self._complete(log) if is_wanted else ()
