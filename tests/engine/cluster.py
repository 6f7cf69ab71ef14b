"""A whole cluster of cores, driven by hand: what is lost, who dies and when a term ends is up to the test."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from boki.controller.plans import Plan
from boki.controller.term_change import TermChange
from boki.engine.checkpoint.bootstrap import Bootstrap
from boki.engine.core import EngineConfig, EngineCore
from boki.errors import BokiError
from boki.log.chunk import Chunk, Group, encode_chunk
from boki.log.ids import NodeId
from boki.log.limits import DEFAULT_LIMITS
from boki.log.membership import Member, Membership, Role
from boki.log.metalog import VERSION, Positions
from boki.log.operations import Append, Found, Operation, Read
from boki.log.record import Record
from boki.log.view import View
from boki.protocol.effects import Answer, Core, Effect, EngineNews, RoleEffect, Send
from boki.protocol.messages import FetchView, InstallMembership, InstallView
from boki.sequencer.core import SequencerCore
from boki.storage.core import StorageCore
from tests.members import view
from tests.world import MemoryDisk, World

CONFIG = EngineConfig(
    index_memory_bytes=64 << 20,
    cache_bytes=16 << 20,
    aux_cache_bytes=1 << 20,
    append_buffer_bytes=1 << 20,
    batch_bytes=64 << 10,
    limits=DEFAULT_LIMITS,
)
SECOND = 1_000_000
ENGINE = "engine-1"


class Cluster(World):
    """Three storage nodes, three sequencers, some engines; views and memberships are installed by hand.

    Without `is_registered` nobody knows a membership: that is `boki dev`.
    """

    def __init__(
        self,
        *,
        logs: int = 1,
        engines: int = 1,
        storage: int = 3,
        is_registered: bool = False,
        is_hosted: bool = False,
        config: EngineConfig = CONFIG,
    ) -> None:
        super().__init__()
        self.config = config
        sequencers = view().sequencers
        nodes = view(storage=storage).storage
        self.plan = Plan(logs, sequencers, dict.fromkeys(sequencers, 1), nodes, 3, 2)
        self.views: list[View] = [self.plan.first_view()]
        self.incarnations: dict[str, int] = {}
        self.without_slot: set[NodeId] = set()
        self.draining: tuple[NodeId, ...] = ()
        self.earlier: set[NodeId] = set()
        """Nodes that registered with an earlier version, which knew fewer metalog entries."""
        self.is_registered = is_registered
        self.is_hosted = is_hosted
        self.membership_number = 0
        self.lives = 10
        self.requests = 0
        for node in [*nodes, *sequencers]:
            self.start(node)
        for number in range(1, engines + 1):
            self.start_engine(f"engine-{number}")

    # nodes

    def start(self, node: str, *, is_wiped: bool = False) -> None:
        """Start a storage node or a sequencer from its disk; wiped, it is another incarnation."""
        if is_wiped:
            self.disks[NodeId(node)] = MemoryDisk()
            self.incarnations[node] = self.incarnations.get(node, 1) + 1
        incarnation, name, disk = self.incarnations.setdefault(node, 1), NodeId(node), self.disk(node)
        if node.startswith("storage"):
            self.add(node, StorageCore(name, incarnation, disk, is_alone=not self.is_registered))
        else:
            self.add(node, SequencerCore(name, incarnation, disk))
        self._introduce(node)

    def start_engine(self, node: str = ENGINE) -> None:
        """A new incarnation of an engine, from its disk."""
        self.lives += 1
        self.incarnations[node] = self.lives
        self.news -= {(NodeId(node), news) for news in EngineNews}
        kind = Bootstrap if self.is_registered else EngineCore
        self.add(node, kind(NodeId(node), self.lives, self.disk(node), self.config))
        self._introduce(node)

    def _introduce(self, node: str) -> None:
        if self.is_registered:
            self.register()
        self.tell(node, InstallView(tuple(self.views)), "coordinator")
        self.run()

    def has_index(self, node: NodeId) -> bool:
        """Whether others may ask it for what the index knows, as the coordinator sees it."""
        return _engine_of(self.cores[node]) is not None and node not in self.without_slot

    def register(self) -> None:
        """Tell everybody who is up, as the coordinator sees it."""
        self.membership_number += 1
        members = tuple(
            Member(
                node=node,
                role=role,
                incarnation=self.incarnations[node],
                has_index=self.has_index(node),
                entry_version=0 if node in self.earlier else VERSION,
                host=NodeId(node.replace(role, "node") if self.is_hosted else ""),
            )
            for node, core in self.cores.items()
            for role in Role
            if node.startswith(role.value) and node in self.incarnations
        )
        news = Membership(number=self.membership_number, members=members, draining=self.draining)
        for node in self.cores:
            self.tell(node, InstallMembership(news), "coordinator")

    def lose(self, *nodes: str) -> None:
        """Nodes die, and everybody is told so."""
        for node in nodes:
            self.crash(node)
        self.register()
        self.run()

    def core_of(self, engine: str) -> EngineCore:
        core = _engine_of(self.cores[NodeId(engine)])
        assert core is not None, f"{engine} has not begun yet"
        return core

    @property
    def engine(self) -> EngineCore:
        """The first engine."""
        return self.core_of(ENGINE)

    @property
    def engines(self) -> list[str]:
        return [node for node, core in self.cores.items() if _engine_of(core) is not None]

    def perform(self, node: NodeId, effects: Iterable[Effect]) -> None:
        """See `World.perform`. The coordinator answers whoever asks for views; words of engines get their name."""
        for effect in effects:
            match effect:
                case Send("coordinator", FetchView(known_term) as question):
                    self.sent.append((node, NodeId("coordinator"), question))
                    news = InstallView(tuple(each for each in self.views if each.term > known_term))
                    self.queue.append((NodeId("coordinator"), node, news))
                case _:
                    super().perform(node, [effect])

    def carry_out(self, node: NodeId, effect: RoleEffect) -> None:
        """See `World.carry_out`. Only operations of tests have tokens that are no tuples: those are named by engine."""
        match effect:
            case Answer(str() as name):
                self.answers[node, name] = effect
            case _:
                super().carry_out(node, effect)

    def tick(self, count: int = 1) -> None:
        """See `World.tick`; an engine whose index is stale begins again, as its shell sees to."""
        for _ in range(count):
            super().tick()
            for node in [node for node in self.cores if (node, EngineNews.STALE) in self.news]:
                self.crash(node)
                self.start_engine(node)

    def is_ready(self, engine: str = ENGINE) -> bool:
        return (engine, EngineNews.READY) in self.news

    def until_ready(self, *engines: str) -> None:
        for _ in range(200):
            wanted = engines or [node for node in self.cores if node.startswith("engine")]
            if all(self.is_ready(engine) for engine in wanted):
                if self.is_registered:
                    self.register()
                    self.run()
                return
            self.tick()
        raise AssertionError("the engines did not become ready")

    # terms

    def change_term(self, ticks: int = 40, **changes: Any) -> None:
        """Seal, complete and install, as a controller does it; then everybody learns of it."""
        self.seal(ticks, **changes)
        self.announce()

    def seal(self, ticks: int = 40, **changes: Any) -> None:
        """End the term: the next view stands, and nobody has been told."""
        self.plan = replace(self.plan, **changes)
        self.add("controller-1", TermChange(self.views[-1], self.plan))
        for _ in range(ticks):
            self.tick()
            if self.proposed is not None:
                break
        assert self.proposed is not None, "the change of terms does not get on"
        self.views.append(self.proposed)
        self.proposed = None
        self.crash("controller-1")

    def announce(self, *nodes: str) -> None:
        """Tell nodes, or all, of the newest view."""
        for node in nodes or list(self.cores):
            self.tell(node, InstallView((self.views[-1],)), "coordinator")
        self.run()

    # operations

    def submit(
        self, operation: Operation, positions: Positions | None = None, timeout_s: float = 30, engine: str = ENGINE
    ) -> int:
        self.requests += 1
        core = self.core_of(engine)
        deadline = self.now_us + int(timeout_s * SECOND)
        effects = core.submit(operation, positions or {}, deadline, self.requests, self.now_us)
        self.perform(NodeId(engine), effects)
        self.perform(NodeId(engine), core.settle(self.now_us))
        self.run()
        return self.requests

    def append(
        self,
        *data: str,
        book: str = "book",
        tags: Sequence[str] = ("tag",),
        engine: str = ENGINE,
        timeout_s: float = 30,
        **group: Any,
    ) -> int:
        records = [(text.encode(), tags) for text in data]
        operation = Append(book, encode_chunk(book, [Group(records, **group)]))
        return self.submit(operation, engine=engine, timeout_s=timeout_s)

    def answer(self, request: int) -> Any:
        answered: Answer = self.answers[request]
        if isinstance(answered.answer, BokiError):
            raise answered.answer
        return answered.answer

    def wait(self, request: int, ticks: int = 100) -> Any:
        """The answer, after as many ticks as it takes."""
        for _ in range(ticks):
            if request in self.answers:
                break
            self.tick()
        return self.answer(request)

    def do(self, operation: Operation, **options: Any) -> Any:
        return self.wait(self.submit(operation, **options))

    def read(self, book: str = "book", tag: str | None = None, engine: str = ENGINE) -> list[tuple[int, str]]:
        found: list[Record] = []
        start = 0
        while True:
            page: Found = self.do(Read(book, tag, start=start, limit=1000), engine=engine)
            if not page.slabs:
                return [(record.seqnum, record.data.decode()) for record in found]
            found += records_of(page)
            start = page.next_start

    def texts(self, book: str = "book", tag: str | None = None, engine: str = ENGINE) -> list[str]:
        return [text for _, text in self.read(book, tag, engine)]


def _engine_of(core: Core[Any]) -> EngineCore | None:
    if isinstance(core, Bootstrap):
        return core.engine
    return core if isinstance(core, EngineCore) else None


def records_of(page: Found) -> list[Record]:
    """The records of a page."""
    return [
        record
        for slab in page.slabs
        for record in Chunk(slab.chunk).records(memoryview(slab.seqnums).cast("q"), slab.time_us)
    ]
