"""Which engines lose their index slot: those that do not answer, if another one is there to take it."""

from __future__ import annotations

from boki.controller.heartbeats import Heartbeats
from boki.controller.index_slots import IndexSlots
from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan, Member, Membership, Role
from boki.protocol.effects import Effect, ReleaseSlots
from boki.protocol.messages import Pong

HOLDER, RELAY = NodeId("engine-1"), NodeId("engine-2")
PLAN = ClusterPlan(index_replicas=1)
TICK_US = 50_000


def membership(*, relays: bool = True) -> Membership:
    holder = Member(node=HOLDER, role=Role.ENGINE, incarnation=1, has_index=True)
    relay = Member(node=RELAY, role=Role.ENGINE, incarnation=2, has_index=not relays)
    return Membership(number=1, members=(holder, relay))


def released(answering: set[NodeId], members: Membership, plan: ClusterPlan = PLAN, *, for_us: int) -> list[Effect]:
    """What is released while both engines answered first, and then only these do."""
    heartbeats, slots, effects = Heartbeats(100_000, 500_000), IndexSlots(), list[Effect]()
    for now_us in range(TICK_US, 1_000_000 + for_us, TICK_US):
        heartbeats.tick({HOLDER: HOLDER, RELAY: RELAY}, now_us, leads=True)
        for node in answering if now_us > 1_000_000 else {HOLDER, RELAY}:
            heartbeats.hear(node, Pong(1, 1, 1), now_us)
        effects += slots.tick(heartbeats, members, plan, now_us)
    return effects


def test_a_silent_engine_loses_its_slot_within_a_second() -> None:
    """As soon as a primary would be replaced, and not before; it is said again until it has happened."""
    assert released({RELAY}, membership(), for_us=500_000) == []
    assert ReleaseSlots((HOLDER,)) in released({RELAY}, membership(), for_us=1_300_000)
    assert len(released({RELAY}, membership(), for_us=5_000_000)) > 3


def test_nobody_loses_a_slot_for_nothing() -> None:
    """Not if all answer, if nobody could take it, and where every engine has the index."""
    assert released({HOLDER, RELAY}, membership(), for_us=3_000_000) == []
    assert released(set(), membership(), for_us=3_000_000) == []
    assert released({RELAY}, membership(relays=False), for_us=3_000_000) == []
    assert released({RELAY}, membership(), ClusterPlan(), for_us=3_000_000) == []
