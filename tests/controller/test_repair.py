"""Repair, drain and fences, with storage nodes that hold real batches: through the placement, a step at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from boki.controller.core import ControllerConfig
from boki.controller.inventory import Inventory
from boki.controller.repair import Repair, Storage
from boki.log.ids import NodeId, make_shard
from boki.log.membership import Placement, Role
from boki.log.metalog import CloseShard, Cut, OpenShard
from boki.protocol.effects import Effect, Send
from boki.protocol.follower import COORDINATOR
from boki.protocol.messages import (
    BatchesFetched,
    InstallPlacement,
    InstallView,
    RequestEntry,
    ShardRow,
    ShardsFetched,
    StoreBatch,
)
from boki.storage.core import StorageCore
from tests.controller.cluster import Cluster, History, Writer
from tests.members import batch

ENGINE = NodeId("engine-1")
FIRST = tuple(NodeId(f"storage-{n}") for n in (1, 2, 3))
RECORDS = 3


class Engine(Writer):
    """Opens a shard in each term on `replicas` and sends a batch a tick; `close` ends the shard."""

    def __init__(self, node: NodeId, incarnation: int, history: History) -> None:
        super().__init__(node, incarnation, history)
        self.replicas: tuple[NodeId, ...] = FIRST
        self.ordinal = 0
        self.batches: dict[int, bytes] = {}
        self.is_closing = False

    def tick(self, now_us: int) -> Iterable[Effect]:
        effects = list(self.settle(now_us))
        if not self.follower.chain or self.follower.term != self.follower.chain.current.term:
            return effects
        view = self.follower.view
        shard = make_shard(self.incarnation, view.term)
        primary = view.primaries[0]
        if self.is_closing:
            return [*effects, Send(primary, RequestEntry(view.term, 0, CloseShard(shard)))]
        effects.append(Send(primary, RequestEntry(view.term, 0, OpenShard(shard, self.node, self.replicas))))
        count = sum(1 for term, _ in self.stored if term == view.term)
        self.stored[view.term, count] = 1
        data = batch(count * RECORDS, *[b"x" * 100] * RECORDS, term=view.term, shard=shard)
        effects += [Send(node, StoreBatch(data)) for node in self.replicas]
        return effects


class StorageCluster(Cluster):
    """Four storage nodes, the last of them spare, and one engine."""

    def __init__(self, *, nodes: int = 4, **config: int) -> None:
        self.node_count = nodes
        settings = {"repair_after_us": 2_000_000, "fence_grace_us": 2_000_000} | config
        super().__init__(replicas=3, write_quorum=2, config=ControllerConfig(**settings))

    def start_writer(self) -> Writer:
        for number in range(1, self.node_count + 1):
            self.start_storage(f"storage-{number}")
        return self.start_engine(incarnation=7)

    def start_storage(self, name: str, incarnation: int = 1) -> None:
        self.add(name, StorageCore(NodeId(name), incarnation, self.disk(name)))
        self.register(name, Role.STORAGE, incarnation)

    def start_engine(self, name: str = ENGINE, *, incarnation: int) -> Engine:
        self.writer = engine = Engine(NodeId(name), incarnation, self.history)
        self.add(name, engine)
        self.register(name, Role.ENGINE, incarnation)
        return engine

    @property
    def engine(self) -> Engine:
        assert isinstance(self.writer, Engine)
        return self.writer

    def close_shard(self) -> None:
        """The engine stops in good order."""
        self.engine.is_closing = True
        self.tick(10)

    def repair(self) -> dict[str, Any]:
        status: dict[str, Any] = self.controller().status()["repair"]
        return status

    def moved(self) -> dict[Any, tuple[NodeId, ...]]:
        return dict(self.coordinator.placement.as_map())

    def holders(self, term: int = 1) -> set[str]:
        """The live nodes that have all of the engine's shard of that term."""
        shard = make_shard(7, term)
        end = max(dict(entry.until).get(shard, 0) for entry in self.history.entries.values() if isinstance(entry, Cut))
        return {
            node
            for node, core in self.cores.items()
            if isinstance(core, StorageCore)
            and (found := core.holdings.shards.get((term, 0, shard))) is not None
            and found.written_until >= end > 0
        }


def test_what_only_a_lost_node_calls_open_is_forgotten_when_the_others_name_it_no_more() -> None:
    """Its engine has closed it with nothing in it, and of such shards no node tells: no word of a close would come."""
    lost, *others = FIRST
    inventory, repair = Inventory(), Repair()
    storage = Storage(live=frozenset(others), lost=frozenset((lost,)), draining=frozenset(), replicas=3, write_quorum=2)
    row = ShardRow(1, 0, 7, ENGINE, FIRST, 0, 0, False)

    def tell(nodes: Iterable[NodeId], rows: tuple[ShardRow, ...], now_us: int, *, is_caught_up: bool = True) -> None:
        for effect in inventory.tick(nodes, 1, now_us):
            assert isinstance(effect, Send)
            told = ShardsFetched(effect.message.request, rows, True, is_caught_up, 0, {})
            inventory.take(effect.to, told, now_us)
        repair.decide(inventory, Placement(version=0), storage)

    tell(FIRST, (row,), 0)
    assert repair.progress.open_on_lost == 1
    tell(others, (), 2_000_000, is_caught_up=False)  # they may not have heard of it yet
    assert (repair.progress.open_on_lost, repair.progress.used[lost]) == (1, 1)
    tell(others, (), 4_000_000)
    assert (repair.progress.open_on_lost, repair.progress.used) == (0, {})


@pytest.mark.parametrize(
    ("tellers", "is_caught_up", "version", "is_known"),
    [(3, True, 1, True), (2, True, 1, False), (3, False, 1, False), (3, True, 0, False)],
)
def test_a_drain_is_complete_only_if_all_that_answer_have_told(
    tellers: int, is_caught_up: bool, version: int, is_known: bool
) -> None:
    """Of all their shards, after all that the metalogs say, and under the placement of now: else it may be the silent
    one that needs the drained one's copies.
    """
    inventory, repair, drained = Inventory(), Repair(), NodeId("storage-4")
    live = frozenset((*FIRST, drained))
    storage = Storage(live=live, lost=frozenset(), draining=frozenset((drained,)), replicas=3, write_quorum=2)
    now_us = 10_000_000
    for effect in inventory.tick((drained, *FIRST), 1, now_us):
        assert isinstance(effect, Send)
        if effect.to in (drained, *FIRST[:tellers]):
            caught_up = is_caught_up or effect.to != FIRST[0]
            told_version = version if effect.to == FIRST[0] else 1
            inventory.take(
                effect.to, ShardsFetched(effect.message.request, (), True, caught_up, told_version, {}), now_us
            )
    placement = Placement(version=1)
    repair.decide(inventory, placement, storage)
    told = repair.status(inventory, placement, storage)
    assert told["is_known"] is is_known
    assert told["draining"][drained]["is_complete"] is is_known


def ready(**settings: int) -> StorageCluster:
    cluster = StorageCluster(**settings)
    cluster.until_ready()
    cluster.tick(20)
    return cluster


def test_a_closed_shard_that_lost_a_replica_gets_another_one() -> None:
    """The placement grows, the new node fetches, the placement shrinks: three copies again."""
    cluster = ready()
    cluster.close_shard()
    cluster.kill("storage-2")
    cluster.tick(300)
    (nodes,) = cluster.moved().values()
    assert set(nodes) == {"storage-1", "storage-3", "storage-4"}
    assert cluster.holders() == set(nodes)
    assert cluster.repair()["shards_incomplete"] == 0
    assert cluster.controller().status()["degraded"] == []


def test_a_node_is_replaced_while_others_answer_late_or_not_at_all() -> None:
    """What shards a node has it says behind the writes of its disk, and those may hang."""
    cluster = ready()
    cluster.close_shard()
    cluster.kill("storage-2")
    cluster.tick_with_late(ShardsFetched, 24, 200)
    assert [set(nodes) for nodes in cluster.moved().values()] == [{"storage-1", "storage-3", "storage-4"}]
    cluster = ready(nodes=5)
    cluster.close_shard()
    cluster.kill("storage-2")
    cluster.loses = lambda sender, _to, message: sender == "storage-5" and isinstance(message, ShardsFetched)
    cluster.tick(300)
    assert [set(nodes) for nodes in cluster.moved().values()] == [{"storage-1", "storage-3", "storage-4"}]
    assert not cluster.repair()["is_known"]
    cluster.loses = lambda _sender, _to, _message: False
    cluster.tick(60)
    assert cluster.repair()["is_known"]


def test_a_short_absence_moves_nothing() -> None:
    """A node that comes back with its disk rejoins with its data."""
    cluster = ready()
    cluster.close_shard()
    cluster.kill("storage-2")
    cluster.tick(20)
    cluster.start_storage("storage-2")
    cluster.tick(200)
    assert cluster.moved() == {}
    assert cluster.holders() == set(FIRST)


def test_without_a_spare_node_the_cluster_says_that_it_is_degraded_and_repairs_when_one_comes() -> None:
    """Nothing waits for the spare."""
    cluster = ready(nodes=3)
    cluster.close_shard()
    cluster.kill("storage-2")
    cluster.tick(150)
    assert cluster.moved() == {}
    assert len(cluster.controller().status()["degraded"]) == 2
    assert cluster.repair()["shards_lacking_replicas"] == 1
    cluster.start_storage("storage-9")
    cluster.tick(300)
    assert cluster.holders() == {"storage-1", "storage-3", "storage-9"}
    assert cluster.controller().status()["degraded"] == []


def test_a_drained_node_ends_up_with_nothing_and_only_then_it_is_complete() -> None:
    """Closed shards move away; the open one is its engine's affair, and moves when it is closed."""
    cluster = ready()
    cluster.want(draining=(NodeId("storage-1"),))
    cluster.tick(100)
    assert not cluster.repair()["draining"]["storage-1"]["is_complete"]
    assert cluster.moved() == {}, "an open shard is not moved"
    cluster.close_shard()
    cluster.tick(300)
    assert cluster.holders() == {"storage-2", "storage-3", "storage-4"}
    assert cluster.repair()["draining"] == {"storage-1": {"shards": 0, "is_complete": True}}


def test_a_wiped_node_fills_itself_again() -> None:
    """Same name, another disk: what it once said counts for nothing, and nothing is taken from the others meanwhile."""
    cluster = ready()
    cluster.close_shard()
    cluster.kill("storage-2")
    cluster.disks.pop(NodeId("storage-2"))
    cluster.start_storage("storage-2", incarnation=2)
    cluster.tick(300)
    assert cluster.holders() >= set(FIRST)


def test_repair_goes_on_with_another_controller() -> None:
    """All that is decided follows from the nodes and the placement: a dead leader leaves nothing behind."""
    cluster = ready()
    cluster.close_shard()
    cluster.kill("storage-2")
    for number in range(2, 8):
        cluster.tick(30)
        cluster.kill(f"controller-{number - 1}")
        cluster.start_controller(f"controller-{number}", leads=True)
    cluster.tick(300)
    assert cluster.holders() == {"storage-1", "storage-3", "storage-4"}


def test_two_controllers_that_repair_at_once_agree() -> None:
    """The placement is a compare-and-set map: one of two decisions is made again."""
    cluster = ready()
    cluster.start_controller("controller-2", leads=True)
    cluster.close_shard()
    cluster.kill("storage-2")
    cluster.tick(300)
    (nodes,) = cluster.moved().values()
    assert cluster.holders() == set(nodes) == {"storage-1", "storage-3", "storage-4"}


def test_shards_of_an_ended_term_are_repaired_too() -> None:
    """A term's end closes all its shards."""
    cluster = ready()
    cluster.kill("sequencer-1")
    cluster.tick(60)
    cluster.until_ready()
    cluster.engine.replicas = (NodeId("storage-1"), NodeId("storage-3"), NodeId("storage-4"))
    cluster.kill("storage-2")
    cluster.tick(300)
    assert cluster.holders(1) == {"storage-1", "storage-3", "storage-4"}
    assert all(place[0] == 1 for place in cluster.moved())


def fences(cluster: Cluster) -> list[CloseShard]:
    return [e for e in cluster.history.entries.values() if isinstance(e, CloseShard) and e.is_lost]


def test_an_engine_that_is_gone_is_fenced_after_a_grace_and_only_once() -> None:
    """Its open shard is closed permanently; the storage nodes show it closed, and nobody asks again."""
    cluster = ready()
    cluster.kill(ENGINE)
    cluster.start_engine("engine-2", incarnation=8).replicas = FIRST
    cluster.tick(30)
    assert fences(cluster) == []
    cluster.tick(100)
    assert [fence.shard >> 20 for fence in fences(cluster)] == [7]
    assert cluster.controller().status()["fencing"] == {}
    asked = len([m for m in cluster.messages(RequestEntry) if isinstance(m.entry, CloseShard)])
    cluster.tick(100)
    assert len([m for m in cluster.messages(RequestEntry) if isinstance(m.entry, CloseShard)]) == asked


def test_an_engine_whose_name_is_registered_anew_is_fenced_at_once() -> None:
    """It surely is gone: nobody has to wait for the grace."""
    cluster = ready(fence_grace_us=60_000_000)
    cluster.crash(ENGINE)
    cluster.start_engine(incarnation=8)
    cluster.tick(60)
    assert [fence.shard >> 20 for fence in fences(cluster)] == [7]


def test_an_engine_that_is_registered_again_within_the_grace_is_spared() -> None:
    """A session that was lost and found is no death."""
    cluster = ready()
    cluster.unregister(ENGINE)
    cluster.tick(20)
    cluster.register(ENGINE, Role.ENGINE, 7)
    cluster.tick(150)
    assert fences(cluster) == []


def test_a_follower_fences_and_repairs_nothing() -> None:
    """Only a connected leader acts."""
    cluster = ready()
    cluster.close_shard()
    cluster.lead("controller-1", connected=False)
    cluster.kill(ENGINE)
    cluster.kill("storage-2")
    cluster.tick(300)
    assert cluster.moved() == {}
    assert fences(cluster) == []


@pytest.mark.parametrize("moment", range(0, 20, 2))
def test_a_disk_that_was_lost_in_silence_counts_for_nothing_that_was_said_of_it(moment: int) -> None:
    """A wiped node answers again, at any moment, under its old registration: no copy goes for one it no longer has."""
    cluster = ready()
    cluster.close_shard()
    cluster.loses = lambda _sender, to, message: to == "storage-4" and isinstance(message, BatchesFetched)
    cluster.want(draining=(NodeId("storage-1"),))
    cluster.tick(60)
    (nodes,) = cluster.moved().values()
    assert len(nodes) == 4
    cluster.crash("storage-2")
    cluster.loses = lambda _sender, to, message: to == "storage-2" and isinstance(message, BatchesFetched)
    cluster.tick(60 + moment)
    del cluster.disks[NodeId("storage-2")]
    cluster.add("storage-2", StorageCore(NodeId("storage-2"), 2, cluster.disk("storage-2")))
    cluster.tell("storage-2", InstallView(tuple(cluster.coordinator.views)), COORDINATOR)
    cluster.tell("storage-2", InstallPlacement(cluster.coordinator.placement), COORDINATOR)
    cluster.tick(60)
    assert cluster.holders() == {"storage-1", "storage-3", "storage-4"}
    cluster.loses = lambda _sender, _to, _message: False
    cluster.tick(200)
    assert cluster.holders() == {"storage-2", "storage-3", "storage-4"}
