"""Storage nodes with a primary that cuts what their quorum has, a controller that moves shards, and bad luck."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from boki.log.batch import Batch, read_header
from boki.log.ids import NodeId, make_shard
from boki.log.membership import Moved, Placement
from boki.log.metalog import CloseShard, Cut, MetalogEntry, OpenShard
from boki.log.quorum import quorum_reached
from boki.log.view import View
from boki.protocol.effects import Effect, Send
from boki.protocol.messages import (
    BatchesFetched,
    EntriesDropped,
    FetchBatches,
    FetchMetalog,
    FetchShards,
    Holding,
    InstallPlacement,
    InstallView,
    Metalog,
    ShardProgress,
    ShardRow,
    ShardsFetched,
    StoreBatch,
)
from boki.storage.core import StorageCore
from boki.storage.shards import ShardKey, after_shard, batch_key
from tests.members import ENGINE, batch, view
from tests.world import EVERY_MESSAGE, World

SEQUENCER = NodeId("sequencer-1")


class ChanceWorld(World):
    """Messages between nodes are lost, doubled and late, as `luck` has it; without luck it is the plain world."""

    def __init__(self, luck: Random | None = None) -> None:
        super().__init__()
        self.luck = luck
        self._late: list[tuple[NodeId, NodeId, Any]] = []

    def perform(self, node: NodeId, effects: Any) -> None:
        for effect in effects:
            if self.luck is None or not isinstance(effect, Send) or effect.to == node:
                super().perform(node, (effect,))
                continue
            chance = self.luck.random()
            if chance < 0.05:
                self._late.append((node, effect.to, effect.message))
            elif chance >= 0.1:
                super().perform(node, (effect,) * (2 if chance > 0.95 else 1))

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            late, self._late = self._late, []
            self.queue.extend(late)
            super().tick()


@dataclass
class Primary:
    """Log 0 of all terms: cuts what a write quorum reports, and gives out what it has.

    With `kept_from` set it has dropped the entries of the current term below it, and those of all earlier terms; about
    these it may be silent, as sequencers are that have gone.
    """

    HEARS = EVERY_MESSAGE

    current: View
    entries: dict[int, list[MetalogEntry]] = field(default_factory=lambda: {1: []})
    replicas: dict[int, tuple[NodeId, ...]] = field(default_factory=dict)
    stored: dict[int, dict[NodeId, tuple[int, int]]] = field(default_factory=dict)
    ends: dict[ShardKey, int] = field(default_factory=dict)
    closed: set[int] = field(default_factory=set)
    kept_from: int = 0
    has_dropped_terms: bool = False
    is_silent: bool = False

    def add(self, entry: MetalogEntry) -> None:
        term = self.current.term
        self.entries[term].append(entry)
        if isinstance(entry, OpenShard):
            self.replicas[entry.shard] = entry.replicas
            self.ends[term, 0, entry.shard] = 0
        if isinstance(entry, CloseShard):
            self.closed.add(entry.shard)

    def receive(self, sender: NodeId, message: Any, now_us: int) -> list[Effect]:
        if isinstance(message, FetchMetalog):
            entries = self.entries[message.term]
            is_over = message.term < self.current.term
            kept_from = len(entries) if is_over and self.has_dropped_terms else 0 if is_over else self.kept_from
            if message.first_index < kept_from:
                if is_over and self.is_silent:
                    return []
                return [Send(sender, EntriesDropped(message.term, 0, kept_from))]
            page = tuple(entries[message.first_index :])
            return [Send(sender, Metalog(message.term, 0, message.first_index, page, len(entries), is_over))]
        if isinstance(message, ShardProgress) and message.term == self.current.term:
            replicas = self.replicas.get(message.shard, ())
            if sender in replicas and message.shard not in self.closed:
                reports = self.stored.setdefault(message.shard, {})
                incarnation, until = reports.get(sender, (0, 0))
                if message.incarnation > incarnation:
                    reports[sender] = (message.incarnation, message.stored_until)
                elif message.incarnation == incarnation:
                    reports[sender] = (incarnation, max(until, message.stored_until))
                self._cut(message.shard, now_us)
        return []

    def _cut(self, shard: int, now_us: int) -> None:
        key = (self.current.term, 0, shard)
        reached = quorum_reached([until for _, until in self.stored[shard].values()], self.current.write_quorum)
        if reached > self.ends[key]:
            self.ends[key] = reached
            self.add(Cut(now_us, ((shard, reached),)))

    def settle(self, now_us: int) -> list[Effect]:
        return []

    tick = settle


class Cluster:
    """Nodes storage-1.. over views of `replicas` 3 and `write_quorum` 2, and the truth that they are compared with."""

    def __init__(
        self,
        *,
        nodes: int = 4,
        seed: int | None = None,
        repair_bytes_per_s: int = 64 << 20,
        unwritten_bytes: int = 64 << 20,
    ) -> None:
        self.luck = Random(seed)
        self.world = ChanceWorld(None if seed is None else self.luck)
        self.names = [NodeId(f"storage-{number}") for number in range(1, nodes + 1)]
        self.views = [view(1, storage=nodes, replicas=3, write_quorum=2)]
        self.primary = Primary(self.views[0])
        self.world.add(SEQUENCER, self.primary)
        self.placement = Placement()
        self.repair_bytes_per_s = repair_bytes_per_s
        self.unwritten_bytes = unwritten_bytes
        self.incarnations = dict.fromkeys(self.names, 1)
        self.batches: dict[ShardKey, list[bytes]] = {}
        self.trimmed: dict[ShardKey, int] = {}
        self._shards = 0
        self._requests = 0
        for node in self.names:
            self.start(node)

    def core(self, node: str) -> StorageCore:
        core = self.world.cores[NodeId(node)]
        assert isinstance(core, StorageCore)
        return core

    def start(self, node: str, *, tells_placement: bool = True) -> None:
        name = NodeId(node)
        core = StorageCore(
            name,
            self.incarnations[name],
            self.world.disk(node),
            repair_bytes_per_s=self.repair_bytes_per_s,
            unwritten_bytes=self.unwritten_bytes,
        )
        self.world.add(node, core)
        if tells_placement and self.placement.version:
            self.world.tell(node, InstallPlacement(self.placement))
        self.world.tell(node, InstallView(tuple(self.views)))
        self.world.run()

    def crash(self, node: str) -> None:
        self.world.crash(node)

    def wipe(self, node: str) -> None:
        """Its disk is exchanged: another incarnation of the same name."""
        self.world.crash(node)
        self.world.disks.pop(NodeId(node), None)
        self.incarnations[NodeId(node)] += 1

    # appending

    def open(self, *replicas: str) -> ShardKey:
        self._shards += 1
        shard = make_shard(self._shards, 0)
        self.primary.add(OpenShard(shard, ENGINE, tuple(NodeId(node) for node in replicas)))
        key = (self.views[-1].term, 0, shard)
        self.batches[key] = []
        return key

    def append(
        self, key: ShardKey, count: int = 1, *, size_bytes: int = 20, only: tuple[str, ...] | None = None
    ) -> None:
        """The engine sends `count` batches, of one to three records."""
        for _ in range(count):
            self.batches[key].append(self._next_batch(key, size_bytes))
            self.send(key, len(self.batches[key]) - 1, only)

    def _next_batch(self, key: ShardKey, size_bytes: int) -> bytes:
        first = read_header(self.batches[key][-1]).until_lid if self.batches[key] else 0
        records = [b"%d/%d:" % (key[2], first + i) + bytes(size_bytes) for i in range(1 + first % 3)]
        return batch(first, *records, term=key[0], shard=key[2])

    def send(self, key: ShardKey, number: int, only: tuple[str, ...] | None = None) -> None:
        for node in only if only is not None else self.primary.replicas[key[2]]:
            if self.world.luck is None or self.luck.random() > 0.2:
                self.world.tell(node, StoreBatch(self.batches[key][number]), ENGINE)

    def drop_entries(self, until: int | None = None) -> None:
        """Entries of the current term below `until` (all, if None) and those of earlier terms are not kept."""
        entries = self.primary.entries[self.views[-1].term]
        self.primary.kept_from = len(entries) if until is None else until
        self.primary.has_dropped_terms = True

    def resend(self, key: ShardKey) -> None:
        """The engine repeats what is not ordered."""
        for number, data in enumerate(self.batches[key]):
            if read_header(data).until_lid > self.primary.ends[key] and key[2] not in self.primary.closed:
                self.send(key, number)

    def close(self, key: ShardKey, *, is_lost: bool = False) -> None:
        self.primary.add(CloseShard(key[2], is_lost))

    def end_term(self) -> None:
        number = self.views[-1].term + 1
        ends = (len(self.primary.entries[number - 1]),)
        self.views.append(view(number, storage=len(self.names), replicas=3, write_quorum=2, previous_ends=ends))
        self.primary.current = self.views[-1]
        self.primary.entries[number] = []
        self.primary.stored.clear()
        self.primary.has_dropped_terms, self.primary.kept_from = False, 0
        for node in self.names:
            self.world.tell(node, InstallView(tuple(self.views)))

    # moving

    def place(self, key: ShardKey, *nodes: str, tell: tuple[str, ...] | None = None) -> None:
        moved = {(row.term, row.log, row.shard): row.replicas for row in self.placement.moved}
        moved[key] = tuple(NodeId(node) for node in nodes)
        rows = tuple(Moved(*place, replicas) for place, replicas in moved.items())
        self.placement = Placement(version=self.placement.version + 1, moved=rows)
        for node in tell if tell is not None else self.names:
            self.world.tell(node, InstallPlacement(self.placement))

    def rows(self, node: str) -> ShardsFetched | None:
        """What the controller is told; None if it is told nothing. Asked past bad luck."""
        self._requests += 1
        luck, self.world.luck = self.world.luck, None
        self.world.sent.clear()
        self.world.tell(node, FetchShards(self._requests, (0, 0, 0), 1000), "controller-1")
        self.world.run()
        self.world.luck = luck
        answers = [m for m in self.world.messages(ShardsFetched) if m.request == self._requests]
        return answers[0] if answers else None

    def row(self, node: str, key: ShardKey) -> ShardRow | None:
        answer = self.rows(node)
        found = [row for row in answer.rows if (row.term, row.log, row.shard) == key] if answer else []
        return found[0] if found else None

    def is_whole(self, node: str, key: ShardKey) -> bool:
        """Whether a controller may count the node as a full replica of a closed shard, under the newest placement."""
        answer, row = self.rows(node), self.row(node, key)
        return (
            answer is not None
            and row is not None
            and answer.is_caught_up
            and answer.placement_version >= self.placement.version
            and row.is_closed
            and row.stored_until >= row.ordered_until
        )

    # looking

    def fetch(self, node: str, key: ShardKey, first: int, until: int | None = None) -> BatchesFetched:
        self._requests += 1
        request = 1_000_000_000 + self._requests
        luck, self.world.luck = self.world.luck, None
        self.world.sent.clear()
        asked = FetchBatches(request, *key, first, first + 1 if until is None else until, 1 << 20)
        self.world.tell(node, asked, "reader")
        self.world.run()
        self.world.luck = luck
        (answer,) = [message for message in self.world.messages(BatchesFetched) if message.request == request]
        assert isinstance(answer, BatchesFetched)
        return answer

    def check(self, node: str, key: ShardKey) -> None:
        """Whatever the node says of any record of the shard is true."""
        lid, sent_until = 0, read_header(self.batches[key][-1]).until_lid if self.batches[key] else 0
        end = self.primary.ends[key]
        is_over = key[2] in self.primary.closed or key[0] < self.views[-1].term
        while lid <= sent_until:
            answer = self.fetch(node, key, lid, sent_until + 1)
            match answer.holding:
                case Holding.HAVE:
                    for data in answer.batches:
                        header = read_header(data)
                        mine = next(b for b in self.batches[key] if read_header(b).first_lid == header.first_lid)
                        assert header[:5] == read_header(mine)[:5]
                        self._compare(Batch(data), Batch(mine), lid, self.trimmed.get(key, 0))
                        lid = header.until_lid
                case Holding.FREED:
                    assert lid < answer.freed_until <= self.trimmed.get(key, 0), (node, key, lid, answer)
                    lid = answer.freed_until
                case Holding.NEVER:
                    assert is_over, (node, key, lid)
                    assert lid >= end, (node, key, lid, end)
                    lid += 1
                case Holding.UNKNOWN:
                    lid += 1

    @staticmethod
    def _compare(found: Batch, sent: Batch, lid: int, trimmed_until: int) -> None:
        (got,), (mine,) = found.chunks, sent.chunks
        for i in range(mine.count):
            if got.is_freed(i):
                assert found.header.first_lid + i < trimmed_until, (lid, trimmed_until)
            else:
                assert got.payload(i) == mine.payload(i)

    def has_all(self, node: str, key: ShardKey) -> bool:
        """Whether the node has, or knows to be freed, everything that is ordered of the shard."""
        lid = 0
        while lid < self.primary.ends[key]:
            answer = self.fetch(node, key, lid, self.primary.ends[key])
            if answer.holding is Holding.HAVE:
                lid = read_header(answer.batches[-1]).until_lid
            elif answer.holding is Holding.FREED:
                lid = answer.freed_until
            else:
                return False
        return True

    def count_on_disk(self, node: str, key: ShardKey) -> int:
        return len(list(self.world.disk(node).scan(batch_key(key, 0), after_shard(key))))
