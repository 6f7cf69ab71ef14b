"""Many trims at once: each is ordered once, however many requests are lost, and in whatever order the others come."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import pytest

from boki.engine.requests import Requests
from boki.engine.waiter import Ended, Unstamped, Waiter
from boki.log.ids import NodeId
from boki.log.metalog import Trim
from boki.log.operations import Done
from boki.protocol.effects import Send
from boki.protocol.messages import RequestEntry
from boki.sequencer.primary import Primary
from tests.members import ENGINE, view

OTHER = NodeId("engine-2")
FIRST = 1 << 30


class Engines:
    """Engines whose requests reach one primary; it has a proposal in flight for as long as `between` requests take."""

    def __init__(self, between: int, lost: float) -> None:
        self.primary = Primary(view(), lambda _shard, lid: lid)
        self.engines = {ENGINE: Requests(), OTHER: Requests()}
        self.ordered: Counter[tuple[NodeId, int]] = Counter()
        self.done: set[object] = set()
        self._queue: deque[RequestEntry] = deque()
        self._between = between
        self._lost = lost
        self._dice = Random(0)

    def want(self, engine: NodeId, number: int) -> None:
        trim = Trim("book", None, 5, False, engine, number)
        self.perform(self.engines[engine].trim(trim, Waiter(None, (engine, number)), 1 << 60, view()))

    def perform(self, effects: list[Unstamped]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                assert isinstance(effect.message, RequestEntry)
                self._queue.append(effect.message)
            elif isinstance(effect, Ended):
                assert isinstance(effect.answer, Done)
                self.done.add(effect.waiter.token)

    def run(self, now_us: int) -> None:
        for requests in self.engines.values():
            self.perform(list(requests.tick(view(), now_us)))
        while self._queue:
            for _ in range(min(self._between, len(self._queue))):
                message = self._queue.popleft()
                if self._dice.random() >= self._lost:
                    self.primary.request(message.entry)
            for entry in self.primary.take_proposal(now_us):
                assert isinstance(entry, Trim)
                self.ordered[entry.engine, entry.request] += 1
                for requests in self.engines.values():
                    self.perform(requests.note(0, entry, view()))


@pytest.mark.parametrize("between", [700, 5_000])
@pytest.mark.parametrize("lost", [0, 0.3])
def test_all_of_a_burst_of_trims_are_ordered_once(between: int, lost: float) -> None:
    """None is overtaken by as many as the primary remembers, which would make it a late repetition."""
    engines = Engines(between, lost)
    wanted = {(engine, FIRST + number) for engine in engines.engines for number in range(1, 13_001)}
    for engine, number in sorted(wanted, key=lambda trim: trim[1]):
        engines.want(engine, number)
    for round_ in range(1, 200):
        engines.run(round_ * 200_000)
        if engines.done == wanted:
            break
    assert engines.done == wanted
    assert engines.ordered == Counter(wanted)


def test_a_trim_that_waits_long_is_forgotten_neither_for_its_engines_others_nor_for_another_engines() -> None:
    """Its requests are lost while both engines trim on."""
    engines = Engines(100, 0)
    engines.want(ENGINE, FIRST)
    engines._queue.clear()
    engines.engines[ENGINE]._repeat_at = 1 << 60
    for number in range(1, 12_001):
        engines.want(ENGINE, FIRST + number)
        engines.want(OTHER, FIRST + number)
        if number % 500 == 0:
            engines.run(0)
    assert (ENGINE, FIRST) not in engines.done
    engines.engines[ENGINE]._repeat_at = 0
    engines.run(1)
    assert (ENGINE, FIRST) in engines.done
    assert len(engines.done) == 2 * 12_000 + 1
