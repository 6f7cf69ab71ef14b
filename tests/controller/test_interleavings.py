"""Ending a term, step by step, in every order: against another controller, against the primary, with a node lost.

A step of a controller is one round trip with all sequencers; a step of the primary is one entry on its way to a backup
and back. Whatever the order, one view is installed, and everything that was published before stands below its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from random import Random
from typing import Any

import pytest

from boki.controller.plans import Plan
from boki.controller.term_change import Step, TermChange
from boki.log.ids import NodeId
from boki.log.metalog import Trim
from boki.protocol.effects import Effect, ProposeView
from boki.protocol.messages import FetchMetalog, InstallView, Metalog, RequestEntry
from boki.sequencer.core import SequencerCore
from tests.members import ENGINE, view
from tests.world import World

PRIMARY, BACKUP, THIRD = NODES = view().sequencers
ONE, OTHER = NodeId("controller-1"), NodeId("controller-2")
READER = NodeId("reader-1")


class Race(World):
    """Three sequencers with one committed entry, a primary with more to append, and controllers that end the term."""

    def __init__(self, *, backwards: bool = False) -> None:
        super().__init__()
        self.backwards = backwards
        self.views = [view()]
        for node in NODES:
            self.add(node, SequencerCore(node, 1, self.disk(node)))
            self.tell(node, InstallView((view(),)))
        self.run()
        self.tell(PRIMARY, FetchMetalog(1, 0, 0), READER)
        self.count = 0
        self.ask()
        self.run()
        last = view()
        for node in (ONE, OTHER):
            self.add(node, TermChange(last, Plan(1, NODES, last.incarnations, last.storage, 3, 2)))

    def ask(self) -> None:
        self.count += 1
        self.tell(PRIMARY, RequestEntry(1, 0, Trim("book", None, self.count, False, ENGINE, self.count)), ENGINE)

    def perform(self, node: NodeId, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, ProposeView):
                change = self.cores[node]
                assert isinstance(change, TermChange)
                won = effect.view.term == len(self.views) + 1
                if won:
                    self.views.append(effect.view)
                if change.step is Step.INSTALLING:
                    change.installed(won=won or effect.view == self.views[-1])
            else:
                super().perform(node, [effect])

    def deliver(self, wanted: Callable[[NodeId, NodeId], bool]) -> None:
        """Everything under way that is wanted, and what nodes say to themselves about it."""
        while True:
            chosen = [entry for entry in self.queue if wanted(entry[0], entry[1]) or entry[0] == entry[1]]
            self.queue = deque(entry for entry in self.queue if entry not in chosen)
            chosen.sort(key=lambda entry: entry[:2], reverse=self.backwards)
            for sender, to, message in chosen:
                if to in self.cores:
                    self.perform(to, self.cores[to].receive(sender, message, self.now_us))
                    self.perform(to, self.cores[to].settle(self.now_us))
            if not chosen:
                return

    def step(self, who: str) -> None:
        """One step of a controller, or the next of the primary."""
        if who in (ONE, OTHER):
            if who not in self.cores:
                return
            self.now_us += 250_000
            self.perform(NodeId(who), self.cores[NodeId(who)].tick(self.now_us))
            self.deliver(lambda sender, to: sender == who)
            self.deliver(lambda sender, to: to == who)
        else:
            self.ask()
            self.deliver(lambda sender, to: to == PRIMARY and sender == ENGINE)
            backup = {"to backup": BACKUP, "to third": THIRD}[who]
            self.deliver(lambda sender, to: sender == PRIMARY and to == backup)
            self.deliver(lambda sender, to: sender == backup and to == PRIMARY)

    def published(self) -> dict[int, Any]:
        entries: dict[int, Any] = {}
        for _, to, message in self.sent:
            if to == READER and isinstance(message, Metalog):
                for index, entry in enumerate(message.entries, message.first_index):
                    assert entries.setdefault(index, entry) == entry
        return entries

    def check(self) -> None:
        """One view, whose end has everything published, the same everywhere, on a majority."""
        self.run()
        self.tick(80)
        assert len(self.views) == 2, "nobody installed the next view"
        (end,) = self.views[1].previous_ends
        entries = self.published()
        assert all(index < end for index in entries), "what was published is above the end"
        stores = [self.cores[node]._stores[1, 0] for node in NODES if node in self.cores]  # type: ignore[attr-defined]
        whole = [store for store in stores if store.length >= end]
        assert len(whole) >= 2
        for store in whole:
            held = store.recent(0, end)
            assert [held[index] for index in sorted(entries)] == [entries[index] for index in sorted(entries)]


def orders(*actors: tuple[str, int]) -> Iterator[list[str]]:
    """Every order of the actors' steps that keeps each actor's own."""
    (name, count), *others = actors
    if not others:
        yield [name] * count
        return
    for rest in orders(*others):
        length = len(rest) + count
        for places in combinations(range(length), count):
            remaining = iter(rest)
            yield [name if at in places else next(remaining) for at in range(length)]


@pytest.mark.parametrize("lost", [None, *NODES])
def test_two_controllers_in_every_order(lost: NodeId | None) -> None:
    """One compare-and-set wins, and its end is safe, also if a sequencer is lost at any point (hazard H29)."""
    for order in orders((ONE, 4), (OTHER, 4)):
        for at in range(0, len(order), 2) if lost else (0,):
            race = Race()
            for number, who in enumerate(order):
                if lost and number == at:
                    race.crash(lost)
                race.step(who)
            race.check()


@pytest.mark.parametrize("backwards", [False, True])
def test_a_seal_races_with_appends_in_every_order(backwards: bool) -> None:
    """An entry is published before the seal and kept, or never published (hazards H3 and H15)."""
    for order in orders((ONE, 4), ("to backup", 2), ("to third", 2)):
        race = Race(backwards=backwards)
        for who in order:
            race.step(who)
        race.check()


@pytest.mark.parametrize("seed", range(60))
def test_two_controllers_and_a_primary_message_by_message(seed: int) -> None:
    """Single messages in any order, some of them lost, one controller dead at some point (hazards H3, H15, H29)."""
    dice = Random(seed)
    race = Race()
    race.loses = lambda *_: dice.random() < 0.1
    dies_at = dice.randrange(400)
    for number in range(300):
        if number == dies_at:
            race.crash(ONE)
        if dice.random() < 0.1:
            race.step(dice.choice(("to backup", "to third")))
        if dice.random() < 0.1:
            race.now_us += 50_000
            for node, core in list(race.cores.items()):
                race.perform(node, core.tick(race.now_us))
        if race.queue:
            at = dice.randrange(len(race.queue))
            race.queue.rotate(-at)
            sender, to, message = race.queue.popleft()
            if to in race.cores:
                race.perform(to, race.cores[to].receive(sender, message, race.now_us))
                race.perform(to, race.cores[to].settle(race.now_us))
    race.loses = lambda *_: False
    race.check()


@pytest.mark.parametrize("lost", NODES)
def test_a_node_that_dies_between_the_seal_and_the_completion_is_done_without(lost: NodeId) -> None:
    """Also if it alone had the longest metalog: nothing of it was published, or another would have it, too."""
    race = Race()
    race.crash(THIRD)
    race.step("to backup")
    race.step(ONE)
    race.add(THIRD, SequencerCore(THIRD, 1, race.disk(THIRD)))
    race.tell(THIRD, InstallView((view(),)))
    race.run()
    race.crash(lost)
    race.check()
