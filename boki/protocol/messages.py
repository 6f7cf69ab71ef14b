"""Every message that two roles exchange, grouped "sender -> receiver". One frozen struct each.

Numbers are bounded by their types, and a link refuses what is out of range. Losing, repeating or delaying any message
does no harm: numbers are absolute, and whatever is missing is asked for again. Each carries its term; a node that sees
a newer term than its own fetches the view.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, ClassVar

import msgspec

from boki.log.floors import FloorRow
from boki.log.ids import MAX_SEQNUM, LogId, Natural, NodeId, ShardId, Term
from boki.log.membership import ClusterPlan, Membership, Placement
from boki.log.metalog import MetalogEntry, Positions
from boki.log.view import View


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of all, so that a codec can tell them apart by name."""


# engine -> storage


class StoreBatch(Message, frozen=True):
    """Keep this batch (`boki.log.batch`); report once it is durable."""

    batch: bytes


class IndexBatch(Message, frozen=True):
    """engine -> engines that hold the index. What this shard's storage nodes have just been sent, so that no engine
    has to fetch it when the cut comes. Best effort: an engine that lacks it asks the storage nodes.
    """

    may_wait: ClassVar[bool] = True
    """Nothing is decided by it alone: a shell may leave it for the next message or tick, which the cut mostly is."""
    batch: bytes


class FetchBatches(Message, frozen=True):
    """engine, storage -> storage. The batches that cover `first_lid` until `until_lid`, whole, from the start on.

    The answer may stop early at `max_bytes`. Without `needs_payloads` only the columns are checked, for an index that
    must not stall because of a damaged payload. With `spans_gaps` it continues behind what was freed, and brings no
    payloads of free records. → `BatchesFetched`
    """

    request: Natural
    term: Term
    log: LogId
    shard: ShardId
    first_lid: Natural
    until_lid: Natural
    max_bytes: Natural
    needs_payloads: bool = True
    spans_gaps: bool = False


class IndexSaved(Message, frozen=True):
    """engine -> storage. My index is saved up to here, so no start of mine asks again for what stands below.

    All of the terms before `term`, and of that term, per log, the records below the seqnum.
    """

    term: Term
    next_seqnums: dict[LogId, Natural]


class Holding(IntEnum):
    """What a storage node knows of the first local id asked for. Only `HAVE` comes with its bytes."""

    HAVE = 1
    FREED = 2
    """It was here; trimming has freed it."""
    NEVER = 3
    """The shard never had it: it lies at or above the shard's end in an ended term."""
    UNKNOWN = 4
    """Not here, though others may have it."""


class BatchesFetched(Message, frozen=True):
    """storage -> engine, storage. Batches in order of local id; `holding` speaks of `first_lid`, as it was asked.

    Only if gaps were to be spanned there may be batches behind what is freed, and gaps between them.
    """

    request: Natural
    term: Term
    log: LogId
    shard: ShardId
    first_lid: Natural
    holding: Holding
    batches: tuple[bytes, ...]
    error: str = ""
    """Set if bytes were there and failed their checksum."""
    freed_until: Natural = 0
    """With `FREED`: all local ids from the first one asked for until here have been freed."""
    gaps: tuple[tuple[Natural, Natural], ...] = ()
    """Further ranges that have been freed, in order, each in front of a batch of this answer."""
    floors: tuple[FloorRow, ...] = ()
    """If gaps were to be spanned: floors over these batches. A node with nothing below may have retired them."""


# storage -> primary sequencer, and -> engine of the shard


class ShardProgress(Message, frozen=True):
    """This incarnation of the storage node holds the shard durably until `stored_until`. Absolute, so repeatable."""

    term: Term
    log: LogId
    shard: ShardId
    incarnation: Natural
    stored_until: Natural
    has_room: bool
    """False if the disk is (nearly) full: the engine refuses appends that its quorum has no room for."""


# storage -> sequencer of its process, and back


class RecordsTaken(Message, frozen=True):
    """All records of the shard between these local ids are on this process's disk, or stand in its log by now: what the
    sequencer writes into the same log follows them.
    """

    term: Term
    log: LogId
    shard: ShardId
    first_lid: Natural
    until_lid: Natural


class NeedRecords(Message, frozen=True):
    """A cut waits for these records, each (shard, first local id, end): bring what is not here. → `RecordsTaken`"""

    term: Term
    log: LogId
    ranges: tuple[tuple[ShardId, Natural, Natural], ...]


# engine -> primary sequencer


class RequestEntry(Message, frozen=True):
    """Append this Trim, OpenShard or CloseShard to the metalog. Repeated until it shows up; doubles are dropped."""

    term: Term
    log: LogId
    entry: MetalogEntry


# sequencer -> sequencer


class AppendEntry(Message, frozen=True):
    """primary -> backup. Entry number `index` of the log; entries below `committed` are on a majority.

    Records of cuts below `sure` are on a write quorum, whether the cuts ran ahead or not.
    """

    term: Term
    log: LogId
    index: Natural
    entries: tuple[MetalogEntry, ...]
    committed: Natural
    sure: Natural = 0


class EntriesStored(Message, frozen=True):
    """backup -> primary. This incarnation of the sequencer holds all entries below `stored_until` durably."""

    term: Term
    log: LogId
    incarnation: Natural
    stored_until: Natural


# sequencer -> engine, storage


class Metalog(Message, frozen=True):
    """Committed entries from `first_index` on; the committed index, maybe above them; if `ended`, the term's end."""

    term: Term
    log: LogId
    first_index: Natural
    entries: tuple[MetalogEntry, ...]
    committed: Natural
    ended: bool = False


class FetchMetalog(Message, frozen=True):
    """engine, storage -> any sequencer. Committed entries from `first_index` on. → `Metalog`"""

    term: Term
    log: LogId
    first_index: Natural


class AskTail(Message, frozen=True):
    """engine -> sequencers. How many entries do you hold? A majority's largest answer covers all acknowledged ones."""

    request: Natural
    log: LogId


class TellTail(Message, frozen=True):
    """sequencer -> engine. It counts only if `term` is the current one and not sealed."""

    request: Natural
    term: Term
    log: LogId
    incarnation: Natural
    stored_until: Natural
    sealed: bool


# controller -> sequencer, and back (design section 4, "Seal and new term")


class Seal(Message, frozen=True):
    """Accept nothing more in this term. Repeatable. → `Sealed`, once the seal is durable"""

    term: Term


class Sealed(Message, frozen=True):
    """The term is sealed here, durably; per log, how many entries this incarnation holds, and its last cut's time.

    `committed`: per log, how many entries it knows to be on a majority.
    """

    term: Term
    incarnation: Natural
    stored_until: tuple[Natural, ...]
    last_time_us: Natural
    committed: tuple[Natural, ...] = ()


class FetchSealed(Message, frozen=True):
    """controller -> sequencer. Entries of a sealed term, committed or not, from `first_index` on. → `SealedEntries`"""

    term: Term
    log: LogId
    first_index: Natural


class SealedEntries(Message, frozen=True):
    """sequencer -> controller."""

    term: Term
    log: LogId
    first_index: Natural
    entries: tuple[MetalogEntry, ...]


class Complete(Message, frozen=True):
    """controller -> sequencer. The sealed term's log continues with these entries. → `Completed`, once durable

    A message of its own, so that no primary can take the answer for an acknowledgement. Entries below `committed` are
    known to be on a majority; cuts above it that ran ahead are kept behind their records.
    """

    term: Term
    log: LogId
    first_index: Natural
    entries: tuple[MetalogEntry, ...]
    committed: Natural = 0


class Completed(Message, frozen=True):
    """sequencer -> controller. The sealed term's log is durable here until `stored_until`."""

    term: Term
    log: LogId
    incarnation: Natural
    stored_until: Natural


# controller -> everybody, and back: heartbeats


class Ping(Message, frozen=True):
    """controller -> anybody. Are you there? → `Pong`, by the core itself, so that a stuck one is silent"""

    number: Natural


class Pong(Message, frozen=True):
    """anybody -> controller. This incarnation lives. `term` is the newest that it knows, 0 if none.

    Of a sequencer: whether that term `is_sealed` here, and which logs it `leads`, that is: would append to.
    """

    number: Natural
    term: Term
    incarnation: Natural
    is_sealed: bool = False
    leads: tuple[LogId, ...] = ()
    wants_new_term: bool = False
    """Of a sequencer: a log that it leads nears its last position, or has waited long for a majority of the others."""
    kept_from_term: Term = 0
    """Of a sequencer: a checkpoint covers all earlier terms, so that nodes which sequenced only in them may go."""
    applied: Positions = {}
    """Of an engine or storage node: how far it has applied the metalogs; no term may end below."""


# controller -> storage: repair (design section 4, "Storage nodes lost, added, drained")


class ShardRow(msgspec.Struct, frozen=True, array_like=True):
    """A shard as one storage node knows it. It is complete here when `stored_until` has reached `ordered_until`."""

    term: Term
    log: LogId
    shard: ShardId
    engine: NodeId | None
    replicas: tuple[NodeId, ...]
    """As its `OpenShard` named them; the placement map may say otherwise."""
    ordered_until: Natural
    stored_until: Natural
    is_closed: bool
    """It is ordered no further: by a `CloseShard`, or because its term has ended."""


class FetchShards(Message, frozen=True):
    """controller -> storage. Your shards, in order of (term, log, shard), after `after`. → `ShardsFetched`

    Those that are to be on this node, or still are, and in which anything was or may be ordered. A listing begins after
    shard -1 of a term's first log.
    """

    request: Natural
    after: tuple[Term, LogId, Annotated[int, msgspec.Meta(ge=-1, le=MAX_SEQNUM)]]
    limit: Natural


class ShardsFetched(Message, frozen=True):
    """storage -> controller. `is_caught_up`: this node has applied all that it knows to be committed.

    Rows count for a placement only if `placement_version` has reached it: a node that has not seen an older one yet,
    which sent a shard away, calls complete what it is going to delete. `checkpoint` is how far the newest checkpoint of
    the index covers that this node has completely.
    """

    request: Natural
    rows: tuple[ShardRow, ...]
    is_last: bool
    is_caught_up: bool
    placement_version: Natural = 0
    checkpoint: Positions = {}


# engine -> storage: checkpoints of the index (design section 4, "Checkpoints")


class StoreCheckpoint(Message, frozen=True):
    """engine -> storage. Page `page` of what changes from checkpoint `number - 1` to `number` of this engine's index.

    A lineage is a chain of checkpoints that one engine incarnation makes, under a number that nobody else uses; number
    1 is a whole index. Pages come in order, and are repeated until they are stored; the last one makes the checkpoint
    valid, as soon as the storage node has itself come as far as it covers. → `CheckpointStored`
    """

    lineage: Natural
    number: Natural
    page: Natural
    is_last: bool
    rows: tuple[tuple[bytes, bytes], ...]
    deleted: tuple[tuple[bytes, bytes], ...]
    """Ranges start ≤ key < stop; they go before `rows`."""
    positions: dict[LogId, Natural]
    """Per log, the metalog position that it covers."""
    next_seqnums: dict[LogId, Natural] = {}
    """Per log, of the term of `positions`, the seqnum below which it covers all records: as in `IndexSaved`."""


class CheckpointStored(Message, frozen=True):
    """storage -> engine. The pages of that checkpoint below `pages` are durable here; all of them if `is_complete`.

    If it names another checkpoint than the one that was sent (lineage 0: none), this node lacks what the pages build
    on: it can only be sent a whole index, as number 1 of a new lineage.
    """

    lineage: Natural
    number: Natural
    pages: Natural
    is_complete: bool
    incarnation: Natural


class FetchCheckpoint(Message, frozen=True):
    """engine -> storage. Rows of your newest complete checkpoint (`lineage` 0) or of that one. → `CheckpointFetched`

    Rows stand in order of their keys, after `after_key`. Nothing replaces a checkpoint while it is being fetched by its
    name, as long as no more than a second passes between two of these.
    """

    request: Natural
    lineage: Natural
    number: Natural
    after_key: bytes
    max_bytes: Natural


class CheckpointFetched(Message, frozen=True):
    """storage -> engine. `lineage` 0: there is none, or the one asked for has been replaced: begin again."""

    request: Natural
    lineage: Natural
    number: Natural
    rows: tuple[tuple[bytes, bytes], ...]
    is_last: bool
    positions: dict[LogId, Natural]


class FetchState(Message, frozen=True):
    """storage -> storage. What you know from the metalogs: I have fallen behind what is kept. → `StateFetched`

    `snapshot` 0 asks for the beginning of any; else for what follows at `offset`.
    """

    request: Natural
    snapshot: Natural = 0
    offset: Natural = 0


class StateFetched(Message, frozen=True):
    """storage -> storage. A part of a `boki.storage.state.Checkpoint`, encoded, which has `size_bytes` in all.

    If `snapshot` is not the one that was asked for, that one is gone, and this is the beginning of another.
    """

    request: Natural
    state: bytes
    snapshot: Natural = 0
    offset: Natural = 0
    size_bytes: Natural = 0


# engine -> sequencers: letting old entries go


class DropEntries(Message, frozen=True):
    """engine -> sequencers. A checkpoint that covers entries below `until` is durable on a write quorum of storage
    nodes, and so are those of all earlier terms: nobody needs them to start.
    """

    term: Term
    log: LogId
    until: Natural


class EntriesDropped(Message, frozen=True):
    """sequencer -> engine, storage. The answer to a `FetchMetalog` below what is kept: take a checkpoint first."""

    term: Term
    log: LogId
    kept_from: Natural


# coordinator -> everybody


class InstallMembership(Message, frozen=True):
    """Who is registered now. Of two, the one with the larger number counts."""

    membership: Membership


class InstallPlacement(Message, frozen=True):
    """Where closed shards have moved. Of two, the one with the larger version counts."""

    placement: Placement


class InstallPlan(Message, frozen=True):
    """coordinator -> controller. What the operator wants. Of two, the one with the larger version counts."""

    plan: ClusterPlan


class InstallView(Message, frozen=True):
    """These views exist, in order; the last one is the current one."""

    views: tuple[View, ...]


class FetchView(Message, frozen=True):
    """anybody -> coordinator. I have seen a newer term than `known_term`. → `InstallView`"""

    known_term: Term
