"""Where new shards go."""

from __future__ import annotations

import msgspec

from boki.engine.replicas import Replicas
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.log.view import View

STORAGE = tuple(NodeId(f"storage-{n}") for n in (1, 2, 3, 4))
BESIDE = STORAGE[:3]
SEQUENCERS = tuple(NodeId(f"sequencer-{n}") for n in (1, 2, 3))
VIEW = View(
    term=1,
    log_count=1,
    sequencers=SEQUENCERS,
    primaries=SEQUENCERS[:1],
    incarnations=dict.fromkeys(SEQUENCERS, 1),
    storage=STORAGE,
    replicas=3,
    write_quorum=2,
    previous_ends=(),
    start_time_us=0,
    beside=BESIDE,
)


def seen(number: int, *nodes: NodeId, draining: tuple[NodeId, ...] = ()) -> Membership:
    members = tuple(Member(node=node, role=Role.STORAGE, incarnation=1) for node in nodes)
    return Membership(number=number, members=members, draining=draining)


def test_a_shard_goes_where_cuts_can_run_ahead() -> None:
    """A fourth storage node is for the time when one of the others is gone: with it an append needs two syncs."""
    replicas = Replicas()
    replicas.install_membership(seen(1, *STORAGE))
    assert {replicas.choose(VIEW, turn) for turn in range(8)} == {BESIDE}
    replicas.install_membership(seen(2, STORAGE[0], STORAGE[1], STORAGE[3]))
    elsewhere = replicas.choose(VIEW, 0)
    assert set(elsewhere) == {STORAGE[0], STORAGE[1], STORAGE[3]}
    assert replicas.should_move(VIEW, BESIDE)
    assert not replicas.should_move(VIEW, elsewhere)
    replicas.install_membership(seen(3, *STORAGE))
    assert replicas.should_move(VIEW, elsewhere), "the node is back"
    assert not replicas.should_move(VIEW, BESIDE)
    replicas.install_membership(seen(4, *STORAGE, draining=(STORAGE[0],)))
    assert STORAGE[0] not in replicas.choose(VIEW, 0)


def test_shards_are_spread_over_nodes_that_are_there_for_their_space() -> None:
    """Else the disks beside the sequencers would be full, and all others empty."""
    replicas = Replicas()
    nodes = (*STORAGE, NodeId("storage-5"))
    replicas.install_membership(seen(1, *nodes))
    used = [node for turn in range(10) for node in replicas.choose(VIEW, turn)]
    assert {used.count(node) for node in nodes} == {6}
    assert not replicas.should_move(VIEW, nodes[2:])


def test_where_cuts_follow_reports_shards_are_spread() -> None:
    """Also where there are fewer or more replicas than sequencers, and no shard can have cuts that run ahead."""
    for changes in ({"beside": ()}, {"replicas": 2}, {"write_quorum": 3}):
        view = msgspec.structs.replace(VIEW, **changes)
        replicas = Replicas()
        replicas.install_membership(seen(1, *STORAGE))
        assert len({replicas.choose(view, turn)[0] for turn in range(4)}) == 4
        assert not replicas.should_move(view, STORAGE[1 : 1 + view.replicas])
