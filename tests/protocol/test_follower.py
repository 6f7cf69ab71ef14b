"""Following the metalogs: strictly by index, whatever is lost or repeated, and term after term."""

from __future__ import annotations

from random import Random

import pytest

from boki.log.ids import NodeId
from boki.log.metalog import CloseShard, make_position, split_position
from boki.protocol.follower import MetalogFollower
from boki.protocol.messages import Metalog
from tests.members import view


def entry(number: int) -> CloseShard:
    return CloseShard(number)


def take(follower: MetalogFollower, log: int = 0) -> list[int]:
    taken: list[int] = []
    while (found := follower.peek(log)) is not None:
        index, value = found
        assert value == entry(index)
        follower.advance(log)
        taken.append(index)
    return taken


@pytest.mark.parametrize("seed", range(20))
def test_entries_come_out_once_and_in_order(seed: int) -> None:
    """Messages are shuffled, repeated and lost; what is missing is asked for; nothing uncommitted comes out."""
    dice = Random(seed)
    follower = MetalogFollower({})
    follower.install([view()])
    committed, now, taken = 0, 10_000_000, []
    while len(taken) < 60:
        now += 60_000
        committed = min(60, committed + dice.randrange(8))
        first = dice.randrange(committed + 1)
        until = min(60, first + dice.randrange(12))
        if dice.random() < 0.5:
            follower.offer(Metalog(1, 0, first, tuple(map(entry, range(first, until))), committed), now)
        for _, fetch in follower.fetches(now):
            if dice.random() < 0.7:
                entries = tuple(map(entry, range(fetch.first_index, committed)))
                follower.offer(Metalog(1, 0, fetch.first_index, entries, committed), now)
        taken += take(follower)
        assert len(taken) <= committed
    assert taken == list(range(60))


def test_an_entry_above_the_committed_index_waits() -> None:
    """A reader never sees an entry that a new term could forget (hazard H10)."""
    follower = MetalogFollower({})
    follower.install([view()])
    follower.offer(Metalog(1, 0, 0, (entry(0), entry(1)), 1), 1)
    assert take(follower) == [0]
    follower.offer(Metalog(1, 0, 2, (), 2), 2)
    assert take(follower) == [1]


def test_the_next_term_begins_when_every_log_of_the_last_is_at_its_end() -> None:
    """A book may have moved from one log to another, so no log of the next term may run ahead."""
    two = view(log_count=2, primaries=view().sequencers[:2])
    follower = MetalogFollower({})
    follower.install([two])
    follower.install([view(2, previous_ends=(1, 2))])
    follower.offer(Metalog(1, 0, 0, (entry(0),), 1, True), 1)
    assert take(follower, 0) == [0]
    assert follower.next_term() is None
    follower.offer(Metalog(1, 1, 0, (entry(0), entry(1)), 2, True), 1)
    assert take(follower, 1) == [0, 1]
    following = follower.next_term()
    assert following is not None
    assert following.term == 2
    assert follower.position(0) == make_position(2, 0)


def test_a_follower_goes_on_where_it_was_stopped() -> None:
    """Positions that were applied are not asked for again."""
    follower = MetalogFollower({0: make_position(2, 5)})
    follower.install([view(), view(2, previous_ends=(9,))])
    assert follower.term == 2
    ((to, fetch),) = follower.fetches(10_000_000)
    assert (to, fetch.term, fetch.first_index) == (NodeId("sequencer-1"), 2, 5)
    assert split_position(follower.position(0)) == (2, 5)


def test_unanswered_questions_go_to_the_next_sequencer() -> None:
    """One silent node does not stop a follower."""
    follower = MetalogFollower({})
    follower.install([view()])
    asked = [to for now in range(10_000_000, 11_000_000, 200_000) for to, _ in follower.fetches(now)]
    assert set(asked) == set(view().sequencers)


def test_a_quiet_log_asks_nothing_while_its_primary_is_heard() -> None:
    """Repeated committed indexes are signs of life; nothing polls beyond them."""
    follower = MetalogFollower({})
    follower.install([view()])
    now = 10_000_000
    follower.offer(Metalog(1, 0, 0, (), 0), now)
    for _ in range(20):
        now += 250_000
        follower.offer(Metalog(1, 0, 0, (), 0), now)
        assert follower.fetches(now) == []
    assert follower.is_caught_up()
