"""Coverage of rare situations: a run that never meets them proves little, so a batch of seeds must meet each.

They are recognised from outside: by what a node is about to be told and what it is just then, or, where it counts that
the system did the right thing, by its outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from boki.controller.core import ControllerCore
from boki.controller.term_change import Step
from boki.log.ids import NodeId, Term, shard_incarnation, split_seqnum
from boki.log.metalog import CloseShard, Cut, Positions
from boki.log.operations import Append, Appended, Found, Operation, Read
from boki.log.view import View
from boki.protocol.messages import (
    AppendEntry,
    BatchesFetched,
    Complete,
    EntriesDropped,
    Holding,
    IndexBatch,
    RequestEntry,
    Seal,
    StateFetched,
    StoreBatch,
)
from boki.sequencer.core import SequencerCore
from boki.sequencer.metalog_store import seal_key
from boki.storage.core import StorageCore
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.nodes import Done, Look, Node

OF_OBJECTS: Final = (
    "a transaction was in conflict with another one",
    "a transaction was given up for what it had seen",
    "a commit whose answer was lost was found in the log",
    "what an object was is too long ago",
)
"""Of them those that transactions over objects come to."""

UP_LAYOUT: Final = "three nodes with all roles, as `boki up` starts them"
"""Counts seeds: their share of a batch is that of the default layout."""

SITUATIONS: Final = (
    "a seal raced with an append",
    "an entry of a zombie primary was rejected",
    "a batch came after its term",
    "an append was made anew in the next term",
    "a conditional append lost a race",
    "an append that named a count lost a race",
    "a tag began to count from 0 again",
    "a key was used again",
    "a reader was parked across a term change",
    "a crash lost what was not synced",
    UP_LAYOUT,
    "a node died with all its roles",
    "a node stopped, one role after the other",
    "a session expired for all roles of a node",
    "a role of a node began again, and the others went on",
    "a node with one log for two roles was taken away",
    "two roles shared a sync",
    "a storage node handed a batch to the engine beside it",
    "a message waited for the sync that it ran ahead of",
    "a cut ran ahead of reports",
    "a cut waited for its records",
    "a completion waited for records",
    "records that no cut was committed for were fetched",
    "a cut that ran ahead was overtaken by reports",
    "a cut that ran ahead was on one backup alone",
    "the one backup with a cut that ran ahead lost its disk",
    "a primary's cut ran ahead of records that no backup had",
    "a write found no space",
    "a disk that could not be read was replaced",
    "a term changed",
    "a session expired",
    "a storage node was repaired from a peer",
    "a storage node took over what a peer knew",
    "a shard that lacked a replica was given another node",
    "a shard was closed with batches in flight",
    "a controller died between two steps",
    "disks were wiped one after the other",
    "the one backup with an entry of the term before lost its disk",
    "a primary that nobody had told went on after its term",
    "a call was taken over by another engine",
    "a call that had failed ran again at another engine",
    "a running call was cancelled",
    "an engine that was taken for lost stopped itself",
    "a request for a trim came again, late",
    "all engines lost their indexes, and storage nodes their newest one",
    "all that was not needed any more was taken away",
    "a repeated pop was given its message again",
    "a lease ran out, and another consumer was given the message",
    "a commit was refused, because its lease was lost",
    "a message became a dead letter",
    "a delayed message became due",
    "a term changed while a consumer waited",
    *OF_OBJECTS,
    "a read that waited was abandoned",
    "a call under a key was tried before it was accepted",
    "a workflow was tried before it was accepted",
    "a workflow went on in another run",
    "two executions of a workflow ran at once",
    "a workflow was taken over by another engine",
    "a workflow with signals continued as new",
    "a workflow was cancelled, and undid what it had done",
    "a gateway asked a second engine",
    "a gateway died while clients waited for it",
    "a gateway died soon after it had come back",
    "an append was lost with the engine that a gateway had asked",
    "an engine came back as another incarnation while a gateway waited for it",
    "a call was lost with its engine",
    "a gateway asked an engine without the index",
    "an engine without the index asked a second one",
)
"""What every large enough batch must have met."""


class Coverage:
    """Looks at every message on its way into a core."""

    def __init__(self, clock: Clockwork) -> None:
        self._clock = clock
        self.on_seal: list[Callable[[Node, NodeId], None]] = []
        """Called for each sequencer that is about to be sealed, with who does it."""
        self.on_completion: list[Callable[[Node], None]] = []
        """Called for each sequencer that is about to hear what it lacks of a term that is over."""
        self.on_request: list[Callable[[Node, NodeId, RequestEntry], None]] = []
        """Called for each request that a sequencer is about to hear."""
        self.on_proposal: list[Callable[[Node, View], None]] = []
        """Called for each view that a controller wants to install: all before it is sealed and completed."""
        self.looks: dict[type, Look] = {
            Seal: self._on_seal,
            AppendEntry: self._on_append_entry,
            Complete: self._on_complete,
            StoreBatch: self._on_store,
            IndexBatch: self._on_index,
            BatchesFetched: self._on_fetched,
            EntriesDropped: self._on_dropped,
            RequestEntry: self._on_request,
            StateFetched: self._on_state,
        }
        """By the type of a message, what looks at it."""

    def _on_index(self, node: Node, sender: NodeId, message: IndexBatch) -> None:  # noqa: ARG002 - a look at a message
        if isinstance(node.world.nodes[sender].core, StorageCore):
            self._clock.sometimes("a storage node handed a batch to the engine beside it")

    def dies(self, node: Node) -> None:
        """The node is about to lose all that it has in memory."""
        change = node.core._change if isinstance(node.core, ControllerCore) else None  # noqa: SLF001 - a look from outside
        if change is not None and change.step in (Step.COMPLETING, Step.INSTALLING):
            self._clock.sometimes("a controller died between two steps")

    def _on_request(self, node: Node, sender: NodeId, message: RequestEntry) -> None:
        """A shard should be closed of which replicas have more than is ordered."""
        for hear in self.on_request:
            hear(node, sender, message)
        primary = node.core._primaries.get(message.log) if isinstance(node.core, SequencerCore) else None  # noqa: SLF001
        entry = message.entry
        if primary is None or not isinstance(entry, CloseShard):
            return
        for number, shard in primary._shards.items():  # noqa: SLF001
            is_meant = number == entry.shard
            if entry.is_lost:
                is_meant = shard_incarnation(number) == shard_incarnation(entry.shard)
            if is_meant and max((until for _, until in shard.stored.values()), default=0) > shard.cut_until:
                self._clock.sometimes("a shard was closed with batches in flight")

    def _on_seal(self, node: Node, sender: NodeId, message: Seal) -> None:
        core = node.core
        if isinstance(core, SequencerCore) and core.chain and message.term == core.chain.current.term:
            self._clock.sometimes("a term was sealed")
            for hear in self.on_seal:
                hear(node, sender)

    def _on_complete(self, node: Node, _sender: NodeId, message: Complete) -> Callable[[], None]:
        for hear in self.on_completion if message.entries else ():
            hear(node)
        return self._judge_waiting(node, message, "a completion waited for records")

    def _judge_waiting(self, node: Node, message: AppendEntry | Complete, what: str) -> Callable[[], None]:
        core = node.core

        def judge() -> None:
            if node.core is core and isinstance(core, SequencerCore) and core.behind.waits(message):
                self._clock.sometimes(what)

        return judge

    def _on_append_entry(self, node: Node, _sender: NodeId, message: AppendEntry) -> Callable[[], None] | None:
        core = node.core
        if not isinstance(core, SequencerCore) or message.term not in core.chain:
            return None
        if message.term < core.chain.current.term:
            stores = node.disk.store_count

            def judge() -> None:
                if node.core is core and node.disk.store_count == stores:
                    self._clock.sometimes("an entry of a zombie primary was rejected")

            return judge
        if node.disk.has(seal_key(message.term)):
            self._clock.sometimes("a seal raced with an append")
        if not (message.entries and isinstance(message.entries[-1], Cut) and message.entries[-1].is_ahead):
            return None
        if message.sure > message.index:
            self._clock.sometimes("a cut that ran ahead was overtaken by reports")
        self._clock.sometimes("a cut ran ahead of reports")
        return self._judge_waiting(node, message, "a cut waited for its records")

    def _on_store(self, node: Node, _sender: NodeId, message: StoreBatch) -> None:
        follower = node.core.follower if isinstance(node.core, StorageCore) else None
        term = int.from_bytes(message.batch[16:20], "little")
        if follower is not None and follower.chain and term < follower.term:
            self._clock.sometimes("a batch came after its term")

    def _on_state(self, node: Node, _sender: NodeId, _message: StateFetched) -> Callable[[], None] | None:
        core = node.core
        if not isinstance(core, StorageCore):
            return None
        follower = core.follower

        def judge() -> None:
            if core.follower is not follower and node.core is core:
                self._clock.sometimes("a storage node took over what a peer knew")

        return judge

    def _on_fetched(self, node: Node, sender: NodeId, message: BatchesFetched) -> None:
        if isinstance(node.core, StorageCore) and node.core.needed.has_asked(message) and message.batches:
            self._clock.sometimes("records that no cut was committed for were fetched")
        if node.role.value == "storage" and sender != node.name and message.batches:
            self._clock.sometimes("a storage node was repaired from a peer")
        if message.holding is Holding.FREED:
            self._clock.sometimes("a fetch found what was freed")
        if message.error:
            self._clock.sometimes("damaged bytes were noticed")

    def across_terms(self, operation: Operation, term: Term, done: Done) -> Done:
        """See the outcome of an operation that an engine takes in during that term, and hand it on to `done`."""
        if not isinstance(operation, Append) and not (isinstance(operation, Read) and operation.wait_us):
            return done

        def look(answer: Any, positions: Positions) -> None:
            if isinstance(answer, Appended) and not answer.rejected and split_seqnum(answer.first_seqnum)[0] > term:
                self._clock.sometimes("an append was made anew in the next term")
            elif isinstance(answer, Found) and answer.slabs:
                first = memoryview(answer.slabs[0].seqnums).cast("q")[0]
                if split_seqnum(first)[0] > term:
                    self._clock.sometimes("a reader was parked across a term change")
            done(answer, positions)

        return look

    def _on_dropped(self, _node: Node, _sender: NodeId, _message: EntriesDropped) -> None:
        self._clock.sometimes("a reader came for entries that were dropped")
