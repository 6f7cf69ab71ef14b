"""What a controller takes for the last word of a node."""

from __future__ import annotations

from boki.controller.heartbeats import Heartbeats
from boki.log.ids import NodeId
from boki.log.view import View
from boki.protocol.messages import Pong

NODE = NodeId("storage-1")
SECOND_US = 1_000_000


def pong(incarnation: int) -> Pong:
    return Pong(1, 3, incarnation)


def asked() -> Heartbeats:
    heartbeats = Heartbeats(100_000, 500_000)
    heartbeats.tick({NODE: NODE}, SECOND_US, leads=True)
    return heartbeats


def test_a_late_answer_of_a_former_incarnation_does_not_count() -> None:
    """Nothing of it is kept."""
    heartbeats = asked()
    assert heartbeats.hear(NODE, pong(16), SECOND_US)
    assert not heartbeats.hear(NODE, pong(5), SECOND_US)
    assert heartbeats.pong(NODE) == pong(16)


def test_a_node_that_registers_with_an_earlier_directory_is_heard_again() -> None:
    """An operator who brings an older directory back need not wait for a controller that knows of no other."""
    heartbeats = asked()
    heartbeats.hear(NODE, pong(16), SECOND_US)
    heartbeats.register({NODE: 16})
    assert heartbeats.pong(NODE) == pong(16)
    heartbeats.register({NODE: 6})
    assert heartbeats.pong(NODE) is None
    assert heartbeats.hear(NODE, pong(6), SECOND_US)
    assert heartbeats.pong(NODE) == pong(6)


def test_pings_are_rare_in_a_calm_and_frequent_again_with_the_first_news() -> None:
    """The nodes of an idle cluster are not woken eight times a second. A death in a calm is noticed by five intervals
    later than under load, at most.
    """
    heartbeats, now_us, applied = Heartbeats(100_000, 500_000), SECOND_US, 0

    def pings_in(seconds: float, *, is_dead: bool = False) -> int:
        nonlocal now_us
        count, until_us = 0, now_us + int(seconds * SECOND_US)
        while now_us < until_us:
            now_us = min(until_us, max(now_us + 50_000, heartbeats.rests_until()))
            for _ in heartbeats.tick({NODE: NODE}, now_us, leads=True):
                count += 1
                if not is_dead:
                    heartbeats.hear(NODE, Pong(count, 1, 5, applied={0: applied}), now_us)
        return count

    pings_in(0.1)
    assert pings_in(0.9) == 9, "its first answer is news"
    assert pings_in(6.0) == 10
    applied = 7
    pings_in(0.6)
    assert pings_in(0.8) == 8, "one of them was answered with news"
    pings_in(0.6)
    assert pings_in(6.0) == 10
    died_us = now_us
    while not heartbeats.silent():
        pings_in(0.1, is_dead=True)
    assert 500_000 < now_us - died_us <= 1_100_000
    assert pings_in(1.0, is_dead=True) == 10, "who has left a ping unanswered is asked as under load"


def test_a_primary_that_led_nothing_keeps_no_calm_away_once_another_one_leads() -> None:
    """What was seen of it counts for the view in which it was primary."""
    heartbeats = asked()
    other, storage = NodeId("other"), NodeId("storage-2")
    views = [
        View(
            term=term,
            log_count=1,
            sequencers=(NODE, other),
            primaries=(node,),
            incarnations={NODE: 5, other: 6},
            storage=(storage,),
            replicas=1,
            write_quorum=1,
        )
        for term, node in ((3, NODE), (4, other))
    ]
    heartbeats.hear(NODE, pong(5), SECOND_US)
    heartbeats.watch(views[0], SECOND_US)
    assert heartbeats.idle_for(NODE, SECOND_US + 7) == 7
    heartbeats.watch(views[1], SECOND_US)
    assert heartbeats.idle_for(NODE, SECOND_US + 7) == 0


def test_a_connection_that_has_ended_lets_all_be_asked_at_once() -> None:
    """A process that dies in a calm ends its connections: it is taken for dead as soon as under load."""
    heartbeats = asked()
    heartbeats.hear(NODE, pong(5), SECOND_US)
    now_us = SECOND_US
    for _ in range(20):
        now_us += 100_000
        for _ in heartbeats.tick({NODE: NODE}, now_us, leads=True):
            heartbeats.hear(NODE, pong(5), now_us)
    assert heartbeats.rests_until() > now_us + 300_000, "it is calm"
    heartbeats.stir(now_us)
    assert heartbeats.rests_until() <= now_us
    assert heartbeats.tick({NODE: NODE}, now_us + 50_000, leads=True)
