"""Forks and timelines of long histories: each record is looked at once, and not beside all the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

from boki.extending import Payload
from boki.libs.bokiflow.branching import branch_at, copied_journal
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.records import Done, Entry, Fact, Fired, Result, encode_entry, entry_of
from boki.libs.bokiflow.timeline import Span, Timeline

LONG = 2_000


class Counted(list[Any]):
    """A list that counts how often it is walked through."""

    walks = 0

    def __iter__(self) -> Iterator[Any]:
        self.walks += 1
        return super().__iter__()


def _done(n: int, began_us: int = 0) -> Done:
    return Done(n, f"step {n}", b"", Result(Payload("bytes", b"")), began_us)


def _history(seens: list[int]) -> History:
    history = History()
    for place, seen in enumerate(seens):
        began_us = 1 if not place else 0
        history.fold(encode_entry(Entry(7, 0, seen, place + 1, _done(place), began_us, 3)), 10 * place + 5)
    history.settle()
    return history


def _copies(history: History, moved: list[Any]) -> list[int]:
    """As of where each record of the fork's journal has read the inbox."""
    branch = branch_at(history, None, "r", "scope", is_fork=True)
    found = copied_journal(history, branch, moved, writer=9, place=0, life=4, at_us=10**9)
    entries = [entry_of(data) for data in found]
    return [entry.seen for entry in entries if entry is not None]


@pytest.mark.parametrize("seed", range(20))
def test_each_record_of_a_fork_has_seen_the_messages_that_it_had_seen_there(seed: int) -> None:
    """The copy of the last message that stood in front of what it had read; 0: there was none."""
    rng = Random(seed)
    seens = sorted(rng.choices(range(60), k=12))
    moved = list(zip(sorted(rng.sample(range(60), 9)), range(100, 109), strict=True))
    wanted = [max((now for then, now in moved if then <= seen), default=0) for seen in seens]
    assert _copies(_history(seens), moved) == [*wanted, 108]
    assert _copies(_history(seens), []) == [0] * 13


def test_a_fork_of_many_records_and_messages_walks_through_the_messages_once() -> None:
    """It walked through all of them for each record, in one turn of a node's event loop."""
    moved = Counted((10 * number, 10**6 + number) for number in range(LONG))
    seen = _copies(_history([10 * number for number in range(LONG)]), moved)
    assert seen == [*range(10**6, 10**6 + LONG), 10**6 + LONG - 1]
    assert moved.walks <= 2


def _spans(facts: Sequence[tuple[Fact, int]], timeline: Timeline) -> list[Span]:
    found = [timeline.add(Entry(1, 0, 0, at_us, fact)) for fact, at_us in facts]
    return [span for span in found if span is not None]


@pytest.mark.parametrize("seed", range(50))
def test_a_timer_began_before_all_later_commands(seed: int) -> None:
    """Also where they end in another order than they began, and numbers come again after a rewind."""
    rng, at_us, facts, begun, wanted = Random(seed), 1_000, [], [(-1, 10**9)], []
    for _ in range(40):
        last_us, at_us, n = at_us, at_us + rng.randrange(50), rng.randrange(12)
        began_us = rng.randrange(900, at_us)
        is_timer = rng.random() < 0.4
        if is_timer:
            began_us = min(last_us, at_us, *(time_us for number, time_us in begun if number > n))
        facts.append((Fired(n) if is_timer else _done(n, began_us), at_us))
        begun.append((n, began_us))
        wanted.append(began_us)
    assert [span.from_us for span in _spans(facts, Timeline(1_000))] == wanted


def test_a_timeline_of_many_timers_does_not_walk_through_all_spans() -> None:
    """It walked through those that had ended for each timer."""
    timeline = Timeline(0)
    timeline._ended = Counted()
    spans = _spans([(Fired(n), n + 1) for n in range(LONG)], timeline)
    assert [span.until_us for span in spans] == list(range(1, LONG + 1))
    assert timeline._ended.walks == 0
