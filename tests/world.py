"""A small deterministic world for tests of cores: messages in order, disks that forget what was not synced.

Effects are carried out by hand: `deliver` one message, `run` until nothing is under way. Stores become durable only
when `sync` is called (or at once, by default), so that a test can crash a node between a write and its sync.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from boki.log.ids import NodeId
from boki.log.view import View
from boki.net.codec import Decoder, encode_message, join_pack
from boki.net.traffic import LOCAL, RULES
from boki.protocol.effects import (
    Announce,
    Answer,
    Core,
    Delete,
    Effect,
    EngineNews,
    Load,
    Loaded,
    ProposeView,
    Put,
    RoleEffect,
    Send,
    Store,
    Trace,
)

TICK_US = 50_000
EVERY_MESSAGE = LOCAL | RULES.keys()
"""What stands in for a node may hear all that nodes and the coordinator say."""
_LINK = Decoder(RULES)


def over_a_link(message: Any) -> Any:
    """What a link makes of a message. It fails if the link would refuse what a core has sent."""
    if type(message) not in RULES:
        return message  # for the coordinator, which no link leads to
    place, frames = encode_message(message)
    (received,) = _LINK.decode(memoryview(join_pack(b"", [place])), frames)
    return received


class MemoryDisk:
    """A disk of one node: `rows` is what would survive a power cut."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self._keys: list[bytes] = []

    def get(self, key: bytes) -> bytes | None:
        return self.rows.get(key)

    def scan(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterable[tuple[bytes, bytes]]:
        keys = self._keys[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]
        return [(key, self.rows[key]) for key in (reversed(keys) if backward else keys)]

    def write(self, writes: Iterable[Put | Delete]) -> None:
        for write in writes:
            if isinstance(write, Put):
                if write.key not in self.rows:
                    insort(self._keys, write.key)
                self.rows[write.key] = write.value
            else:
                for key, _ in list(self.scan(write.start, write.stop)):
                    del self.rows[key]
                    self._keys.remove(key)

    store_now = write

    def load(self, load: Load) -> Loaded:
        first = next(iter(self.scan(load.floor, load.key + b"\x00", backward=True)), None)
        rows: list[tuple[bytes, bytes]] = []
        size = 0
        for key, value in self.scan(first[0] if first else load.key, load.stop):
            rows.append((key, value))
            size += len(value)
            if size >= load.max_bytes:
                break
        return Loaded(load.token, rows)


class World:
    """Nodes, one queue of messages, a virtual clock. `loses(sender, to, message)` may lose messages to others."""

    def __init__(self) -> None:
        self.now_us = 1_000_000_000
        self.cores: dict[NodeId, Core[Any]] = {}
        self.disks: dict[NodeId, MemoryDisk] = {}
        self.unsynced: dict[NodeId, deque[Store]] = {}
        self.holds_syncs: set[NodeId] = set()
        self.queue: deque[tuple[NodeId, NodeId, Any]] = deque()
        self.answers: dict[Any, Answer] = {}
        self.proposed: View | None = None
        self.news: set[tuple[NodeId, EngineNews]] = set()
        self.traces: list[str] = []
        self.sent: list[tuple[NodeId, NodeId, Any]] = []
        self.loses: Callable[[NodeId, NodeId, Any], bool] = lambda _sender, _to, _message: False

    def disk(self, node: str) -> MemoryDisk:
        return self.disks.setdefault(NodeId(node), MemoryDisk())

    def add(self, node: str, core: Core[Any]) -> None:
        self.cores[NodeId(node)] = core
        self.unsynced[NodeId(node)] = deque()

    def crash(self, node: str) -> None:
        """The node is gone; what its disk had not synced is forgotten."""
        self.cores.pop(NodeId(node), None)
        self.unsynced.pop(NodeId(node), None)
        self.queue = deque(entry for entry in self.queue if entry[1] != node)

    def tell(self, node: str, message: Any, sender: str = "test") -> None:
        self.queue.append((NodeId(sender), NodeId(node), message))

    def perform(self, node: NodeId, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self.sent.append((node, to, message))
                    if node == to or not self.loses(node, to, message):
                        self.queue.append((node, to, over_a_link(message)))
                case Store():
                    self.unsynced[node].append(effect)
                    if node not in self.holds_syncs:
                        self.sync(node)
                case Load():
                    self.queue.append((node, node, self.disk(node).load(effect)))
                case Trace(_, text):
                    self.traces.append(text)
                case _:
                    self.carry_out(node, effect)

    def carry_out(self, node: NodeId, effect: RoleEffect) -> None:
        """What a core asks of its role's shell."""
        match effect:
            case Answer(token):
                self.answers[token] = effect
            case Announce(news):
                self.news.add((node, news))
            case ProposeView(view):
                self.proposed = view
            case _:
                raise AssertionError(f"{node} has no use for {effect}")

    def sync(self, node: str) -> None:
        """Everything that the node has stored is durable now; what rides on it goes out."""
        stores, self.unsynced[NodeId(node)] = self.unsynced[NodeId(node)], deque()
        for store in stores:
            self.disk(node).write(store.writes)
        for store in stores:
            self.perform(NodeId(node), store.then)

    def run(self) -> None:
        """Deliver what is under way until nothing is, letting each node settle after each round."""
        while self.queue:
            round_, self.queue = self.queue, deque()
            touched: dict[NodeId, None] = {}
            for sender, to, message in round_:
                if to in self.cores:
                    touched[to] = None
                    if type(message) in self.cores[to].HEARS:
                        self.perform(to, self.cores[to].receive(sender, message, self.now_us))
            for node in touched:
                if node in self.cores:
                    self.perform(node, self.cores[node].settle(self.now_us))

    def tick(self, count: int = 1) -> None:
        """Let time pass: `count` ticks, everything delivered after each."""
        for _ in range(count):
            self.now_us += TICK_US
            for node, core in list(self.cores.items()):
                self.perform(node, core.tick(self.now_us))
            self.run()

    def tick_with_late(self, kind: type[Any], delay: int, count: int) -> None:
        """As `tick`, and messages of that type are on their way for `delay` ticks."""
        late: deque[tuple[int, NodeId, NodeId, Any]] = deque()
        turn = 0

        def hold(sender: NodeId, to: NodeId, message: Any) -> bool:
            if isinstance(message, kind):
                late.append((turn + delay, sender, to, message))
            return isinstance(message, kind)

        self.loses = hold
        for turn in range(count):
            self.tick()
            while late and late[0][0] <= turn:
                _, sender, to, message = late.popleft()
                self.tell(to, message, sender)
            self.run()
        self.loses = lambda _sender, _to, _message: False

    def messages(self, kind: type[Any]) -> list[Any]:
        """All messages of a type that were ever sent."""
        return [message for _, _, message in self.sent if isinstance(message, kind)]
