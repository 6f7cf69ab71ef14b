"""One run: chaos, then everything is healed and must get going, then the work ends, then all is read and checked."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice, product, starmap
from typing import Any, Final

from boki.api.log_calls import records_of
from boki.books.calls.ledger import BOOK as CALLS_BOOK
from boki.books.calls.ledger import CODEC, FINISHED_TAG, Finished
from boki.libs.bokiflow.execution import WRITER_NAMES
from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan, Role
from boki.log.operations import Books, Found, ListBooks, Read, Sync
from boki.log.record import Record
from boki.verify.histories.checkers import Checker, all_checkers, find_violations
from boki.verify.histories.cursors import Wakes
from boki.verify.histories.facts import Violation
from boki.verify.histories.history import History, Readout, Seen
from boki.verify.sim.call_promises import find_wrong_promises
from boki.verify.sim.calls import BOOK, CallClients, open_engines
from boki.verify.sim.clients import Client, Shared, read_found, tag_name
from boki.verify.sim.clockwork import START_US, Clockwork
from boki.verify.sim.controllers import ControllerNode
from boki.verify.sim.coordinator import NAME as ZOOKEEPER
from boki.verify.sim.coordinator import Coordinator
from boki.verify.sim.coverage import UP_LAYOUT, Coverage
from boki.verify.sim.decommission import Decommission
from boki.verify.sim.engines import EngineNode, RelayNode
from boki.verify.sim.faults import MAX_OFFSET_US, MAX_PAUSE_US, Faults
from boki.verify.sim.flows import FlowClients
from boki.verify.sim.gateways import GatewayNode
from boki.verify.sim.hearing import heard
from boki.verify.sim.hosts import NodeHost
from boki.verify.sim.log_nodes import SequencerNode, StorageNode
from boki.verify.sim.network import Network
from boki.verify.sim.nodes import Node
from boki.verify.sim.options import Options
from boki.verify.sim.probes import probe_all
from boki.verify.sim.queues import QueueClients
from boki.verify.sim.stores import StoreClients
from boki.verify.sim.stranded import SLEEPERS_WAKE, Stranded
from boki.verify.sim.strangers import NOT_TOLD, StrangersAtTheDoor
from boki.verify.sim.stray_alarms import ONLY_SLEEPERS, StrayAlarms
from boki.verify.sim.subscriptions import SETTLED
from boki.verify.workloads.errands import DEEDS, DONE, KEYED

_TIMEOUT_US: Final = 60_000_000
"""After everything is healed, all must work within a virtual minute."""
_EARLY_US: Final = 10_000
"""What is left of a deadline is handed on without the time that this takes."""
_CALM_OPERATIONS: Final = 5
_CUT_US: Final = 100_000
"""In it what a replica has got is reported, and cut."""
_PAGE_RECORDS: Final = 1000
_SHOWN: Final = 5
_QUIET_US: Final = 20_000
"""Between two looks at what must hold all the time."""
_NOTHING_SEEN: Final[dict[int, int]] = {}
_HEARD: Final = {
    "boki.protocol.calls": "logged calls",
    "boki.queue": "queues",
    "boki.gateway": "gateways",
    "boki.engine": "engines",
}
"""What shells say to these loggers is part of the story."""


@dataclass(slots=True)
class Outcome:
    """The outcome of a run."""

    options: Options
    violations: list[Violation] = field(default_factory=list)
    history: History = field(default_factory=History)
    seen: Counter[str] = field(default_factory=Counter)
    trace: str = ""
    events: int = 0
    terms: int = 0
    transactions: int = 0
    """How many transactions over objects were committed."""
    virtual_us: int = 0

    @property
    def operations(self) -> int:
        """How many operations clients have made."""
        return len(self.history.calls)


class Simulation:
    """The world of one run. `script` is called when the chaos begins: a scenario adds its own to what the seed drew."""

    def __init__(
        self,
        options: Options,
        tell: Callable[[str], None] | None = None,
        script: Callable[[Simulation], None] | None = None,
    ) -> None:
        self.options = options
        self._script = script
        self.clock = Clockwork(options.seed)
        self.clock.tell = tell
        self.network = Network(self.clock, options.link_us, options.faults)
        self.coverage = Coverage(self.clock)
        self.nodes: dict[NodeId, Node] = {}
        self.hosts: dict[NodeId, NodeHost] = {}
        """The processes that play them."""
        self.coordinator = Coordinator(
            self.clock,
            ClusterPlan(
                logs=options.logs,
                sequencers=options.sequencers,
                replicas=options.replicas,
                write_quorum=options.write_quorum,
                speculative_cuts=options.speculates,
            ),
            self._is_cut_off,
            options.session_us,
            options.faults.get("doubt", 0.0),
            options.faults.get("stale", 0.0),
        )
        self.history = History()
        self.raised: list[str] = []
        self.late_subscriptions: list[str] = []
        self._alarms = StrayAlarms(self)
        self._stranded = Stranded(self)
        self.workflow_engines: dict[str, str] = {}
        self._effects: list[str] = []
        self._ends: list[Finished] = []
        self.calls = CallClients(self, 0)
        self.queues: QueueClients | None = None
        self.stores: StoreClients | None = None
        self.flows: FlowClients | None = None
        self.shared = Shared(self.history)
        self._readers: list[EngineNode] = []
        self._build()

    def of(self, role: Role) -> list[Node]:
        """The nodes of a role."""
        return [node for node in self.nodes.values() if node.role is role]

    def process_of(self, node: Node) -> list[Node]:
        """See `boki.verify.sim.nodes.World`."""
        return [self.nodes[role.name] for role in node.host.roles]

    def host_of(self, node: Node) -> NodeHost:
        """See `boki.verify.sim.nodes.World`. Roles of the same number are one process; no process has two engines."""
        name = str(node.name)
        if self.options.is_hosted:
            kind, _, number = name.partition("-")
            name = f"node-{self.options.engines + int(number)}" if kind == "relay" else f"node-{number}"
        host = self.hosts.get(NodeId(name))
        if host is None:
            host = self.hosts[NodeId(name)] = NodeHost(self.clock, self.coordinator, name, self._is_cut_off)
        host.roles.append(node)
        return host

    def _is_cut_off(self, host: str) -> bool:
        """Whether a process and the coordinator do not hear each other."""
        network = self.network
        names = [role.name for role in self.hosts[NodeId(host)].roles]
        return any(network.is_cut(name, ZOOKEEPER) or network.is_cut(ZOOKEEPER, name) for name in names)

    def _build(self) -> None:
        options = self.options
        kinds: list[tuple[type[Node], str, int]] = [
            (StorageNode, "storage", options.storage),
            (SequencerNode, "sequencer", options.sequencers + options.spare_sequencers),
            (ControllerNode, "controller", options.controllers),
            (EngineNode, "engine", options.engines),
            (RelayNode, "relay", options.relays),
            (GatewayNode, "gateway", options.gateways),
        ]
        for kind, name, count in kinds:
            for number in range(1, count + 1):
                self._make(kind, f"{name}-{number}")
        for host in self.hosts.values():
            host.start()

    def add(self, kind: type[Node], name: str) -> Node:
        """One more node, which starts."""
        node = self._make(kind, name)
        node.start()
        return node

    def add_node(self, name: str) -> list[Node]:
        """One more process with the roles that keep a log and end its terms, which starts."""
        kinds: tuple[type[Node], ...] = (StorageNode, SequencerNode, ControllerNode)
        roles = [self._make(kind, f"{kind.role}-{name}") for kind in kinds]
        roles[0].start()
        return roles

    def _make(self, kind: type[Node], name: str) -> Node:
        node = self.nodes[NodeId(name)] = kind(self, name)
        beside = self.nodes.get(NodeId(name.replace("sequencer-", "storage-")))
        if self.options.shares_log and kind is SequencerNode and beside is not None:
            beside.share_log(node)
        return node

    # the phases

    def run(self) -> Outcome:
        """The whole run, and what the checkers say of it."""
        outcome = Outcome(self.options, history=self.history, seen=self.clock.seen)
        WRITER_NAMES.seed(self.options.seed)
        with ExitStack() as stack:
            for logger, who in _HEARD.items():
                stack.enter_context(heard(self, logger, who))
            outcome.violations = self._run()
            for node in self.nodes.values():
                node.end()
            self.clock.run_until(self.clock.now_us)
        outcome.violations += [Violation("no core raises", text) for text in self.raised[:_SHOWN]]
        outcome.trace = self.clock.seal(self.history.to_lines())
        outcome.events = self.clock.event_count
        outcome.terms = len(self.coordinator.views)
        outcome.transactions = self.stores.transactions if self.stores is not None else 0
        outcome.virtual_us = self.clock.now_us - START_US
        if outcome.terms > 1:
            self.clock.sometimes("a term changed")
        if self.options.is_up_layout:
            self.clock.sometimes(UP_LAYOUT)
        return outcome

    def _run(self) -> list[Violation]:
        if not self._wait(self._is_ready):
            return [Violation("liveness", "the cluster never started")]
        gateways = [node for node in self.nodes.values() if isinstance(node, GatewayNode)]
        self.clients = [Client(self, self.shared, number, gateways) for number in range(self.options.clients)]
        self.calls = CallClients(self, self.options.calls)
        self.queues = QueueClients(self)
        self.stores = StoreClients(self)
        self.flows = FlowClients(self)
        faults = Faults(self)
        if self._script is not None:
            self._script(self)
        self._let_pass(self.options.chaos_us)
        faults.end()
        self.shared.is_calm = True
        self.queues.calm()
        self.stores.calm()
        self.flows.calm()
        for client in self.clients:
            client.ok_count = client.append_count = 0
        if not self._wait(self._all_work):
            late = [str(client.number) for client in self.clients if not _has_got_going(client)]
            stuck = [node.name for node in self.nodes.values() if isinstance(node, EngineNode) and not node.has_come]
            text = f"a minute after everything was healed clients {late} and engines {stuck} have not got going"
            return [*self._check(), Violation("liveness", text)]
        probes = probe_all(self)
        if not self._wait(lambda: all(probe.is_done for probe in probes)):
            late = [str(probe) for probe in probes if not probe.is_done]
            text = f"a minute after everything was healed no append is acknowledged in {', '.join(late)}"
            return [*self._check(), Violation("liveness", text)]
        self.shared.is_over = self.calls.is_over = True
        self._wait(lambda: not self.calls.open_count)
        users = (self.queues, self.stores, self.flows)
        self._wait(lambda: all(each.is_over for each in users))
        for each in users:
            each.end()
        self._wait(lambda: all(client.open_call is None for client in self.clients))
        # What an engine that died had appended is ordered when a replica has got what it lacked below: not between two
        # readers, which would be right and look wrong.
        self._wait(self._is_repaired)
        self.clock.run_until(self.clock.now_us + _CUT_US)
        problems = self._read_out()
        if self.options.has_decommission and not problems:
            problems = Decommission(self, faults.victims, self._read_alone).run()
        problems = problems or self._read_tags()
        if self.options.logs_calls and not problems:
            problems = [*self._read_calls(), *self._let_strangers_ask()]
        return [
            *self._check(),
            *self.calls.check(self._effects, self._ends),
            *self._find_late_subscriptions(),
            *(found for each in users for found in each.check()),
            *problems,
        ]

    def _wait(self, is_done: Callable[[], bool]) -> bool:
        """Let time pass until something is so; False if it is not within the timeout."""
        ends_us = self.clock.now_us + _TIMEOUT_US
        while self.clock.now_us < ends_us:
            if is_done():
                return True
            self._let_pass(50_000)
        return False

    def _let_pass(self, duration_us: int) -> None:
        """Let time pass, with a look at the engines' alarms now and then."""
        ends_us = self.clock.now_us + duration_us
        while self.clock.now_us < ends_us:
            self.clock.run_until(min(self.clock.now_us + _QUIET_US, ends_us))
            self._alarms.look()
            self._stranded.look()

    def _is_ready(self) -> bool:
        return all(node.has_come for node in self.nodes.values())

    def _all_work(self) -> bool:
        return self._is_ready() and all(map(_has_got_going, self.clients))

    def _is_repaired(self) -> bool:
        nodes = [node for node in self.of(Role.STORAGE) if isinstance(node, StorageNode) and node.core is not None]
        return not any(node.storage.status()["repair"]["lacking_shards"] for node in nodes)

    # reading it all

    def _read_out(self) -> list[Violation]:
        fresh = self.add(EngineNode, "engine-fresh")
        assert isinstance(fresh, EngineNode)
        if not self._wait(lambda: fresh.has_come):
            return [Violation("liveness", "a fresh engine cannot catch up")]
        others = [node for node in self.of(Role.ENGINE) if node is not fresh and not isinstance(node, RelayNode)]
        for reader in (fresh, others[self.options.seed % len(others)]):
            assert isinstance(reader, EngineNode)
            problems = self._read_all_by(reader)
            if problems:
                return problems
        if self.options.flows and (problems := self._read_deeds(fresh)):
            return problems
        if self.options.calls:
            effects = self._read_book(fresh, BOOK)
            if isinstance(effects, str):
                return [Violation("liveness", f"{fresh.name} cannot read {BOOK} in the end: {effects}")]
            self._effects = [record.payload for record in effects]
            return self._read_ends(fresh)
        return []

    def _read_ends(self, reader: EngineNode) -> list[Violation]:
        """How logged calls have ended, by the book that says so."""
        records: list[Record] = []
        problems = self._read_whole(reader, CALLS_BOOK, FINISHED_TAG, records)
        entries = [CODEC.decode(record.data) for record in records]
        self._ends += [entry for entry in entries if isinstance(entry, Finished)]
        return problems

    def _read_deeds(self, reader: EngineNode) -> list[Violation]:
        """What the steps of workflows have left."""
        assert self.flows is not None
        _, positions = self._ask(reader, Sync(DEEDS), {})
        done = self._read_whole(reader, DEEDS, DONE, self.flows.deeds, positions)
        return done or self._read_whole(reader, DEEDS, KEYED, self.flows.keyed_deeds, positions)

    def _read_calls(self) -> list[Violation]:
        """What the book of logged calls says of all of them: at the very end, so that nothing else depends on it."""
        records: list[Record] = []
        _, positions = self._ask(self._readers[-1], Sync(CALLS_BOOK), {})
        problems = self._read_whole(self._readers[-1], CALLS_BOOK, None, records, positions)
        return problems or list(islice(find_wrong_promises(records), _SHOWN))

    def _read_whole(
        self,
        reader: EngineNode,
        book: str,
        tag: str | None,
        records: list[Record],
        positions: dict[int, int] = _NOTHING_SEEN,
    ) -> list[Violation]:
        """All records of a tag, or of a book, with all of their data, to be put into `records`."""
        start = 0
        while True:
            page, _ = self._ask(reader, Read(book, tag, start, limit=_PAGE_RECORDS), dict(positions))
            if not isinstance(page, Found):
                return [
                    Violation("liveness", f"{reader.name} cannot read {tag or 'all'} of {book} in the end: {page!r}")
                ]
            records += records_of(page)
            if page.is_end:
                return []
            start = page.next_start

    def _read_alone(self, name: str) -> list[Violation]:
        """One more engine, which must come and read everything; the others are gone."""
        reader = self.add(EngineNode, name)
        assert isinstance(reader, EngineNode)
        self._readers.clear()
        return self._read_all_by(reader)

    def _read_all_by(self, reader: EngineNode) -> list[Violation]:
        if not self._wait(lambda: reader.has_come):
            return [Violation("liveness", f"{reader.name} does not come, or not come back")]
        for number in range(self.options.books):
            records = self._read_book(reader, f"book-{number}")
            if isinstance(records, str):
                return [Violation("liveness", f"{reader.name} cannot read book-{number} in the end: {records}")]
            self.history.read_out(reader.name, f"book-{number}", self.clock.now_us, records)
        self._readers.append(reader)
        wrong = self._list_wrongly(reader)
        return [Violation("books with records are listed", f"{reader.name}: {wrong}")] if wrong else []

    def _read_tags(self) -> list[Violation]:
        """The readers of the books that are still up read their tags, too: at the very end, after all else."""
        books, tags = range(self.options.books), range(self.options.tags)
        for reader, book_number, tag_number in product(self._readers, books, tags):
            book, tag = f"book-{book_number}", tag_name(tag_number)
            records = self._read_book(reader, book, tag)
            if isinstance(records, str):
                return [Violation("liveness", f"{reader.name} cannot read {tag} in {book} in the end: {records}")]
            self.history.read_out(reader.name, book, self.clock.now_us, records, tag)
        return []

    def _list_wrongly(self, reader: EngineNode) -> str:
        """What is wrong with the list of books that a reader gives, who has just read them all."""
        answer, _ = self._ask(reader, ListBooks("book-"), {})
        listed = {info.name: info for info in answer.books} if isinstance(answer, Books) else None
        if listed is None:
            return repr(answer)
        for readout in [row for row in self.history.rows if isinstance(row, Readout) and row.reader == reader.name]:
            info = listed.get(readout.book)
            records = readout.records
            if records and (info is None or info.first_seqnum > records[0].seqnum):
                return f"{readout.book} has {len(records)} records from {records[0].seqnum}, and is listed as {info}"
            if records and info is not None and info.last_seqnum < records[-1].seqnum:
                return f"{readout.book} ends with {records[-1].seqnum}, and is listed as {info}"
        return ""

    def _ask(self, reader: EngineNode, operation: Any, positions: dict[int, int]) -> tuple[Any, dict[int, int]]:
        answers: list[tuple[Any, dict[int, int]]] = []
        if not self._wait(lambda: reader.has_come):
            return None, {}
        incarnation = reader.incarnation
        reader.submit(operation, positions, 20_000_000, lambda *answer: answers.append(answer))
        ends_us = self.clock.now_us + _TIMEOUT_US
        if self.clock.run_until(ends_us, lambda: bool(answers) or reader.incarnation != incarnation):
            # an engine that was told to stop before everything was healed begins again: it is asked again
            return answers[0] if answers else self._ask(reader, operation, positions)
        return None, {}

    def _read_book(self, reader: EngineNode, book: str, tag: str | None = None) -> list[Seen] | str:
        """All records of a book, or of a tag in it; a text if they cannot be read."""
        _, positions = self._ask(reader, Sync(book), {})
        records: list[Seen] = []
        start = 0
        while True:
            page, _ = self._ask(reader, Read(book, tag, start, limit=_PAGE_RECORDS), positions)
            if not isinstance(page, Found):
                return repr(page)
            records += read_found(page)
            if page.is_end:
                return records
            start = page.next_start

    def _let_strangers_ask(self) -> list[Violation]:
        """Whether a gateway tells anything to those who have no token."""
        assert self.flows is not None
        gateways = [node for node in self.of(Role.GATEWAY) if isinstance(node, GatewayNode) and node.core is not None]
        if not self.flows.ids or not gateways:
            return []
        seed = self.options.seed
        strangers = StrangersAtTheDoor(gateways[seed % len(gateways)], self.flows.ids, seed)
        if not self._wait(lambda: strangers.is_done):
            return [Violation("liveness", "a gateway does not answer strangers")]
        return [Violation(NOT_TOLD, text) for text in strangers.problems[:_SHOWN]]

    def _find_late_subscriptions(self) -> list[Violation]:
        """Those that engines took, and those that stand in the end."""
        standing = (text for each in open_engines(self) for text in each.subscriptions.find_settled())
        vain = (text for each in open_engines(self) for text in each.subscriptions.find_unreachable())
        settled = islice(chain(self.late_subscriptions, standing), _SHOWN)
        return [
            *(Violation(SETTLED, text) for text in settled),
            *(Violation(SLEEPERS_WAKE, text) for text in islice(vain, _SHOWN)),
        ]

    def _check(self) -> list[Violation]:
        faults = self.options.faults
        can_pause = "pause" in faults or "ahead" in self.options.scenarios
        grace_us = 1_500_000 + (2 * MAX_PAUSE_US if can_pause else 0)
        wrong_us = 2 * MAX_OFFSET_US if "clock" in faults else 0
        checkers: list[Checker] = [*all_checkers(grace_us + wrong_us, _EARLY_US + wrong_us)]
        if not faults and self._script is None:
            checkers.append(Wakes())
        strange = [Violation("auxiliary data is a record's own", text) for text in self.shared.problems[:_SHOWN]]
        stray = [Violation(ONLY_SLEEPERS, text) for text in islice(self._alarms.problems, _SHOWN)]
        stranded = starmap(Violation, islice(self._stranded.problems, _SHOWN))
        return [*find_violations(self.history, checkers), *strange, *stray, *stranded]


def _has_got_going(client: Client) -> bool:
    return client.ok_count >= _CALM_OPERATIONS and client.append_count > 0


def simulate(options: Options, tell: Callable[[str], None] | None = None) -> Outcome:
    """Run one seed. `tell` is given the story, line by line."""
    was_enabled = gc.isenabled()
    gc.disable()  # a run makes much garbage and few cycles
    try:
        return Simulation(options, tell).run()
    finally:
        if was_enabled:
            gc.enable()
        gc.collect(1)  # all that the run has made is young
