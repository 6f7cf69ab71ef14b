"""What a controller takes for the last word of a node."""

from __future__ import annotations

from boki.controller.heartbeats import Heartbeats
from boki.log.ids import NodeId
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
    assert heartbeats.hear(NODE, pong(16))
    assert not heartbeats.hear(NODE, pong(5))
    assert heartbeats.pong(NODE) == pong(16)


def test_a_node_that_registers_with_an_earlier_directory_is_heard_again() -> None:
    """An operator who brings an older directory back need not wait for a controller that knows of no other."""
    heartbeats = asked()
    heartbeats.hear(NODE, pong(16))
    heartbeats.register({NODE: 16})
    assert heartbeats.pong(NODE) == pong(16)
    heartbeats.register({NODE: 6})
    assert heartbeats.pong(NODE) is None
    assert heartbeats.hear(NODE, pong(6))
    assert heartbeats.pong(NODE) == pong(6)
