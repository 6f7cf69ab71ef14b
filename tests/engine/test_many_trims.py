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


def test_trims_of_one_log_do_not_wait_for_a_primary_that_leads_another() -> None:
    """The primary of log 1 answers nothing: all trims of log 0 behind one for it go out, and end."""
    two = view(log_count=2, primaries=view().sequencers[:2])
    requests = Requests()
    books = [next(f"book-{n}" for n in range(100) if two.log_of(f"book-{n}") == log) for log in (0, 1)]
    primary = Primary(two, lambda _shard, lid: lid)
    done = 0
    effects = requests.trim(Trim(books[1], None, 5, False, ENGINE, FIRST), Waiter(None, 0), 1 << 60, two)
    for number in range(1, 2_002):
        effects += requests.trim(Trim(books[0], None, 5, False, ENGINE, FIRST + number), Waiter(None, 0), 1 << 60, two)
    while effects:
        sent = [effect.message for effect in effects if isinstance(effect, Send)]
        done += sum(isinstance(effect, Ended) for effect in effects)
        effects = []
        for message in sent:
            assert isinstance(message, RequestEntry)
            if message.log == 0:
                primary.request(message.entry)
        for entry in primary.take_proposal(0):
            effects += requests.note(0, entry, two)
    assert done == 2_001


def test_trims_are_dealt_to_the_logs_of_each_term() -> None:
    """What waited in one window goes out in the next term, to the log that has the book there."""
    one, two = view(), view(term=2, log_count=2, primaries=view().sequencers[:2])
    books = [next(f"book-{n}" for n in range(100) if two.log_of(f"book-{n}") == log) for log in (0, 1)]
    requests = Requests()
    sent = []
    for number in range(2_400):
        trim = Trim(books[number % 2], None, 5, False, ENGINE, FIRST + number)
        sent += requests.trim(trim, Waiter(None, 0), 1 << 60, one)
    assert len(sent) == 1_000
    requests.begin_term(2)
    again = [effect.message for effect in requests.tick(two, 1) if isinstance(effect, Send)]
    assert len(again) == 2_000
    for message in again:
        assert isinstance(message, RequestEntry)
        assert isinstance(message.entry, Trim)
        assert (message.term, message.log) == (2, two.log_of(message.entry.book))
