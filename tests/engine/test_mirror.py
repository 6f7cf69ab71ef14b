"""The mirror of an index: nodes that take nothing cost the others little, and a large index gets done."""

from __future__ import annotations

from collections.abc import Iterable

from boki.engine.checkpoint.mirror import Mirror, Saved
from boki.log.ids import NodeId, make_seqnum
from boki.log.metalog import make_position
from boki.protocol.effects import Effect, Put, Send
from boki.protocol.messages import CheckpointStored, IndexSaved, StoreCheckpoint
from tests.members import view
from tests.world import TICK_US, MemoryDisk

PAGE_BYTES = 64 << 10
NODES = tuple(NodeId(f"storage-{number}") for number in range(1, 5))
VIEW = view(storage=4, replicas=3, write_quorum=2)
SECOND = 1_000_000 // TICK_US


class Mirrored:
    """An engine's mirror and the storage nodes that keep its pages; `silent` ones answer nothing, `full` ones none."""

    def __init__(self, rows: int, row_bytes: int = 1000) -> None:
        self.disk = MemoryDisk()
        self.disk.write([Put(b"i/%06d" % number, bytes(row_bytes)) for number in range(rows)])
        self.mirror = Mirror(7, self.disk, PAGE_BYTES)
        self.nodes = NODES
        self.full: set[NodeId] = set()
        self.silent: set[NodeId] = set()
        self.now_us = 1_000_000
        self.began: list[int] = []
        self.complete: dict[NodeId, list[int]] = {node: [] for node in NODES}
        self.rows: dict[NodeId, dict[bytes, bytes]] = {node: {} for node in NODES}
        self._seqnum = 0

    def saved(self) -> Saved:
        self._seqnum += 1
        told = IndexSaved(1, {0: make_seqnum(1, 0, self._seqnum)})
        return Saved(told, {0: make_position(1, self._seqnum)})

    def add(self, *rows: tuple[bytes, bytes]) -> None:
        self.mirror.add([Put(key, value) for key, value in rows], self.saved())

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.now_us += TICK_US
            self._perform(self.mirror.tick(VIEW, self.nodes, self.now_us))
            if self.mirror.wants_base:
                self.began.append(self.now_us)
                self.mirror.begin(self.saved(), self.now_us)

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, StoreCheckpoint):
                self._keep(effect.to, effect.message)

    def _keep(self, node: NodeId, page: StoreCheckpoint) -> None:
        if node in self.silent:
            return
        if node in self.full and page.number == 1:
            answer = CheckpointStored(page.lineage, 1, 0, False, 1)
        else:
            self.rows[node].update(page.rows)
            answer = CheckpointStored(page.lineage, page.number, page.page + 1, page.is_last, 1)
            if page.is_last:
                self.complete[node].append(page.number)
        self._perform(self.mirror.note(node, answer, VIEW, self.now_us))


def test_a_node_whose_disk_is_full_does_not_make_the_others_take_the_index_over_and_over() -> None:
    """It is left out; trying again becomes rare, and soon again once another node is missing, or it has room."""
    mirrored = Mirrored(rows=100)
    mirrored.full.add(NODES[3])
    mirrored.tick(2 * 3600 * SECOND)
    assert 2 <= len(mirrored.began) <= 6
    assert mirrored.complete[NODES[0]] == [1] * len(mirrored.began)
    mirrored.full.clear()
    mirrored.tick(3700 * SECOND)
    assert mirrored.complete[NODES[3]] == [1]
    count = len(mirrored.began)
    mirrored.nodes = NODES[:3]
    mirrored.tick(SECOND)
    mirrored.nodes = NODES
    mirrored.tick(310 * SECOND)
    assert mirrored.complete[NODES[3]] == [1, 1], "a node that has come is taken in within five minutes"
    assert len(mirrored.began) == count + 1


def test_a_large_index_is_not_thrown_away_because_a_node_hangs_meanwhile() -> None:
    """It takes longer than the pause after which nodes that were left out are taken in."""
    mirrored = Mirrored(rows=1300, row_bytes=1 << 20)
    mirrored.silent.add(NODES[2])
    mirrored.tick(300 * SECOND)
    assert not mirrored.complete[NODES[0]]
    while not mirrored.complete[NODES[0]]:
        mirrored.tick()
    assert len(mirrored.began) == 1
    assert mirrored.complete[NODES[0]] == mirrored.complete[NODES[1]] == [1]
    assert mirrored.complete[NODES[2]] == []
    mirrored.add((b"i/later", b"1"))
    mirrored.tick(60 * SECOND)
    assert mirrored.complete[NODES[0]] == [1, 2], "nor as soon as it is complete"
    assert len(mirrored.began) == 1


def test_an_index_that_changes_while_it_is_sent_is_sent_the_faster() -> None:
    """At the usual rate as much as is remembered would have changed before its end, each time."""
    mirrored = Mirrored(rows=400, row_bytes=1 << 20)
    for number in range(100 * SECOND):
        mirrored.tick()
        mirrored.add((b"i/changed/%06d" % number, bytes(64 << 10)))
        if mirrored.complete[NODES[0]]:
            break
    assert mirrored.complete[NODES[0]] == [1]
    assert len(mirrored.began) == 1
    mirrored.tick(100 * SECOND)
    assert mirrored.rows[NODES[0]].keys() >= {b"i/changed/%06d" % n for n in range(number)}


def test_a_full_node_that_starts_again_and_again_does_not_make_the_others_take_the_index_each_time() -> None:
    """While it is not registered it is not missing; that does not mean that it has been taken in."""
    mirrored = Mirrored(rows=100)
    mirrored.full.add(NODES[3])
    for _ in range(18):
        mirrored.tick(399 * SECOND)
        mirrored.nodes = NODES[:3]
        mirrored.tick(SECOND)
        mirrored.nodes = NODES
    assert len(mirrored.began) <= 7


def test_an_index_that_goes_on_changing_quickly_stays_mirrored() -> None:
    """Changes are sent the faster, too, the more of them wait; and if they are too many, it is tried more rarely."""
    mirrored = Mirrored(rows=100)
    much, too_much = bytes(400 << 10), bytes(4 << 20)
    for number in range(200 * SECOND):
        mirrored.tick()
        mirrored.add((b"i/changed/%06d" % number, much))
    assert len(mirrored.began) == 1
    assert len(mirrored.complete[NODES[0]]) > 100
    mirrored.silent |= set(NODES)
    began = len(mirrored.began)
    for number in range(1200 * SECOND):
        mirrored.tick()
        mirrored.add((b"i/changed/%06d" % number, too_much))
    assert len(mirrored.began) - began <= 8
