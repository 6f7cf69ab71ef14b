"""When a drain is complete: what an operator is told, who switches the node off then."""

from __future__ import annotations

from dataclasses import replace

from boki.controller.inventory import Inventory, Listing
from boki.controller.repair import Repair, Storage
from boki.engine.replicas import Replicas
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Placement, Role
from boki.log.metalog import Positions, make_position
from tests.members import view

NODES = [NodeId(f"storage-{number}") for number in range(1, 6)]
DRAINED = NODES[0]
STORAGE = Storage(live=frozenset(NODES), lost=frozenset(), draining=frozenset({DRAINED}), replicas=3, write_quorum=2)
OLD, NEW = {0: make_position(1, 7), 1: make_position(1, 9)}, {0: make_position(2, 3)}


def inventory(checkpoints: list[Positions]) -> Inventory:
    """All nodes have told that they have no shard, and how new their indexes are."""
    found = Inventory()
    for node, checkpoint in zip(NODES, checkpoints, strict=True):
        found.listings[node] = Listing(is_whole=True, is_caught_up=True, checkpoint=checkpoint, asked_at=2_000_000)
    return found


def is_complete(checkpoints: list[Positions], *, has_decided: bool = True) -> bool:
    repair, heard = Repair(), inventory(checkpoints)
    if has_decided:
        assert repair.decide(heard, Placement(), STORAGE) is None
    told: bool = repair.status(heard, Placement(), STORAGE)["draining"][DRAINED]["is_complete"]
    return told


def test_who_has_just_begun_to_lead_calls_nothing_complete() -> None:
    """It has heard all nodes, and not looked yet where shards are."""
    assert is_complete([{}] * 5)
    assert not is_complete([{}] * 5, has_decided=False)


def test_what_nodes_were_asked_before_the_drain_says_nothing_of_it() -> None:
    """A shard may have been opened on the node since, by an engine that had not heard that it is drained."""
    drained_at = 10_000_000
    storage = replace(STORAGE, draining_since=drained_at)
    for asked_at, expected in ((drained_at - 1, False), (drained_at + 1, False), (drained_at + 2_000_000, True)):
        repair, heard = Repair(), inventory([{}] * 5)
        for listing in heard.listings.values():
            listing.asked_at = drained_at + 5_000_000
        heard.listings[NODES[3]].asked_at = asked_at
        repair.decide(heard, Placement(), storage)
        heard.listings[NODES[3]].asked_at = drained_at + 5_000_000  # heard, but not looked at yet
        assert repair.status(heard, Placement(), storage)["draining"][DRAINED]["is_complete"] is expected


def test_a_drained_node_is_needed_while_it_keeps_an_index_that_too_few_others_have() -> None:
    """The metalog entries that it covers may be gone: from older ones nobody could continue."""
    assert not is_complete([NEW, OLD, {}, {}, {}])
    assert not is_complete([NEW, NEW, OLD, OLD, OLD])
    assert is_complete([NEW, NEW, OLD, NEW, {}])
    assert is_complete([OLD, NEW, NEW, {}, {}])
    assert is_complete([{}, NEW, {}, {}, {}])
    ahead_in_one = {0: make_position(1, 8), 1: make_position(1, 8)}
    assert not is_complete([OLD, ahead_in_one, ahead_in_one, {}, {}])


def test_an_operator_is_told_how_many_nodes_lack_the_newest_index() -> None:
    """Who loses one disk after the other must wait for the index as for the records."""

    def lacking(checkpoints: list[Positions]) -> int:
        told: int = Repair().status(inventory(checkpoints), Placement(), STORAGE)["index_copies_lacking"]
        return told

    assert lacking([{}] * 5) == 0
    assert lacking([{}, NEW, NEW, {}, {}]) == 0
    assert lacking([{}, NEW, OLD, {}, {}]) == 1
    assert lacking([{}, {}, {}, {}, NEW]) == 1


def test_checkpoints_go_to_nodes_that_stay_if_these_are_enough() -> None:
    """Else those that are drained keep them, too: some copy is better than none."""
    members = tuple(Member(node=node, role=Role.STORAGE, incarnation=1) for node in NODES)
    current = view(1, storage=len(NODES), write_quorum=2)
    for count, expected in ((1, NODES[1:]), (3, NODES[3:]), (4, NODES)):
        replicas = Replicas()
        replicas.install_membership(Membership(number=1, members=members, draining=tuple(NODES[:count])))
        assert replicas.keepers(current) == expected
