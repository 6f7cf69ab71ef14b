"""Appends on their way: from chunks that have just come, to batches sent to storage nodes, to seqnums.

One `ShardWriter` per physical log. Chunks gather until the core settles, then go out as a batch whose boundaries and
content never change; a batch that is not ordered in time is sent again, byte for byte, to the replicas that lack it.
Refusals come before numbering: once a chunk has local ids it is ordered, or given up at the end of its term and
appended anew in the next while its deadline lasts, or unknown at its deadline.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from boki.effects import Answer, Effect, Send
from boki.engine.index import Refusal
from boki.engine.waiter import Waiter
from boki.errors import BokiError, DeadlineExceeded, DiskFull, Overloaded, Unavailable
from boki.log.batch import Batch, encode_batch
from boki.log.chunk import Chunk
from boki.log.cuts import Piece
from boki.log.ids import LogId, NodeId, ShardId, Term
from boki.log.operations import Appended, Rejected
from boki.messages import ShardProgress, StoreBatch

_RESEND_US: Final = 300_000
_FULL_US: Final = 1_000_000
_BATCHES_IN_FLIGHT: Final = 16
"""More than this many unordered batches of a shard wait, so that they gather into fewer and larger ones."""


@dataclass(slots=True)
class Unordered:
    """A chunk and whoever waits for its seqnums; `waiter` is None once that has been told that time is up."""

    chunk: bytes
    count: int
    waiter: Waiter | None
    deadline_us: int


@dataclass(slots=True)
class _Sent:
    """A batch that is not ordered yet."""

    batch: Batch
    chunks: list[Unordered]
    sent_at: int


@dataclass(slots=True)
class ShardWriter:
    """The shard that this engine writes in one log of the current term. `None` until the shard is open."""

    term: Term
    log: LogId
    shard: ShardId | None = None
    replicas: tuple[NodeId, ...] = ()
    next_lid: int = 0
    unsent: deque[Unordered] = field(default_factory=deque)
    sent: deque[_Sent] = field(default_factory=deque)
    stored: dict[NodeId, int] = field(default_factory=dict)
    full: dict[NodeId, int] = field(default_factory=dict)
    """Replicas without room, and until when that is believed: they repeat it while it is so."""


class Appends:
    """All appends of an engine that have not been answered, within `buffer_bytes`."""

    def __init__(self, *, buffer_bytes: int, batch_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._batch_bytes = batch_bytes
        self._writers: dict[LogId, ShardWriter] = {}
        self._write_quorum = 1
        self.pending_bytes = 0
        self.record_count = 0
        self.batch_count = 0

    # life of a term

    def begin_term(self, term: Term, log_count: int, write_quorum: int) -> list[Unordered]:
        """Close all shards of the last term. → what it has not ordered and nobody has given up"""
        left: list[Unordered] = []
        for writer in self._writers.values():
            left += [waiting for sent in writer.sent for waiting in sent.chunks]
            left += writer.unsent
        self._writers = {log: ShardWriter(term, log) for log in range(log_count)}
        self._write_quorum = write_quorum
        self.pending_bytes = 0
        return [waiting for waiting in left if waiting.waiter is not None]

    def open_shard(self, log: LogId, shard: ShardId, replicas: tuple[NodeId, ...]) -> None:
        """The metalog has opened the shard: batches may go out."""
        writer = self._writers[log]
        writer.shard, writer.replicas = shard, replicas

    @property
    def unopened(self) -> list[LogId]:
        """The logs in which this engine cannot append yet."""
        return [log for log, writer in self._writers.items() if writer.shard is None]

    # coming in

    def add(self, log: LogId, chunk: bytes, waiter: Waiter, deadline_us: int) -> None:
        """Queue a chunk. Raises `Overloaded`, `DiskFull` or `Unavailable`: then it is not appended, for certain."""
        writer = self._writers.get(log)
        if writer is None:
            raise Unavailable("the next term is about to begin; try again", retry_after_s=0.1)
        if self.pending_bytes + len(chunk) > self._buffer_bytes:
            raise Overloaded(
                f"appends of {self.pending_bytes} bytes wait for their order; the buffer holds {self._buffer_bytes}",
                retry_after_s=0.1,
            )
        if writer.shard is not None and len(writer.replicas) - len(writer.full) < self._write_quorum:
            raise DiskFull(
                f"{len(writer.full)} of {len(writer.replicas)} storage nodes have no room: trim, or add disk; "
                "reads and trims go on",
                retry_after_s=1.0,
            )
        self.take_back(log, Unordered(chunk, Chunk(chunk).count, waiter, deadline_us))

    def take_back(self, log: LogId, waiting: Unordered) -> None:
        """Queue a chunk that an ended term gave up, to be appended anew."""
        self._writers[log].unsent.append(waiting)
        self.pending_bytes += len(waiting.chunk)

    def note_progress(self, sender: NodeId, progress: ShardProgress, now_us: int) -> None:
        """A replica says how far it holds the shard, and whether it has room for more."""
        writer = self._writers.get(progress.log)
        if writer is None or writer.shard != progress.shard:
            return
        writer.stored[sender] = max(writer.stored.get(sender, 0), progress.stored_until)
        if progress.has_room:
            writer.full.pop(sender, None)
        else:
            writer.full[sender] = now_us + _FULL_US

    # going out

    def settle(self, now_us: int) -> Iterable[Effect]:
        """Batches of all that has gathered, for the replicas of their shards."""
        for writer in self._writers.values():
            while writer.unsent and writer.shard is not None and len(writer.sent) < _BATCHES_IN_FLIGHT:
                yield from self._send(writer, now_us)

    def _send(self, writer: ShardWriter, now_us: int) -> Iterable[Effect]:
        chunks: list[Unordered] = []
        size_bytes = count = 0
        while writer.unsent and (not chunks or size_bytes + len(writer.unsent[0].chunk) <= self._batch_bytes):
            waiting = writer.unsent.popleft()
            chunks.append(waiting)
            size_bytes += len(waiting.chunk)
            count += waiting.count
        assert writer.shard is not None
        data = encode_batch(
            writer.term,
            writer.log,
            writer.shard,
            writer.next_lid,
            [(waiting.chunk, waiting.count) for waiting in chunks],
        )
        writer.next_lid += count
        writer.sent.append(_Sent(Batch(data), chunks, now_us))
        self.batch_count += 1
        message = StoreBatch(data)
        return [Send(replica, message) for replica in writer.replicas]

    def tick(self, now_us: int) -> Iterable[Effect]:
        """Send again what should long have been ordered, and answer those whose deadline has passed."""
        for writer in self._writers.values():
            writer.full = {node: until for node, until in writer.full.items() if until > now_us}
            for sent in writer.sent:
                if now_us - sent.sent_at > _RESEND_US:
                    sent.sent_at = now_us
                    until = sent.batch.header.until_lid
                    for replica in writer.replicas:
                        if writer.stored.get(replica, 0) < until and replica not in writer.full:
                            yield Send(replica, StoreBatch(sent.batch.data))
                for waiting in sent.chunks:
                    if waiting.waiter is not None and waiting.deadline_us < now_us:
                        yield Answer(waiting.waiter, _too_late("unknown"))
                        waiting.waiter = None
            if any(waiting.deadline_us < now_us for waiting in writer.unsent):
                yield from self._give_up(writer, now_us)

    def _give_up(self, writer: ShardWriter, now_us: int) -> Iterable[Effect]:
        late = [waiting for waiting in writer.unsent if waiting.deadline_us < now_us]
        writer.unsent = deque(waiting for waiting in writer.unsent if waiting.deadline_us >= now_us)
        self.pending_bytes -= sum(len(waiting.chunk) for waiting in late)
        return [Answer(waiting.waiter, _too_late("not_applied")) for waiting in late]

    # ordered

    def batches_of(self, log: LogId, piece: Piece) -> list[Batch] | None:
        """The batches that a piece of a cut orders, if the shard is this engine's own."""
        writer = self._writers.get(log)
        if writer is None or writer.shard != piece.shard:
            return None
        found: list[Batch] = []
        for sent in writer.sent:
            if sent.batch.header.first_lid >= piece.until_lid:
                break
            found.append(sent.batch)
        return found

    def order(self, log: LogId, piece: Piece, refusals: Sequence[Refusal]) -> Iterable[Effect]:
        """A piece has its seqnums: if it is of this engine's shard, answer whoever waits for them."""
        writer = self._writers.get(log)
        if writer is None or writer.shard != piece.shard:
            return
        refused = {refusal.seqnum: refusal for refusal in refusals}
        seqnum = piece.first_seqnum
        while writer.sent and writer.sent[0].batch.header.first_lid < piece.until_lid:
            for waiting in writer.sent.popleft().chunks:
                self.pending_bytes -= len(waiting.chunk)
                self.record_count += waiting.count
                if waiting.waiter is not None:
                    rejected = _rejections(waiting, seqnum, refused) if refused else ()
                    yield Answer(waiting.waiter, Appended(seqnum, rejected))
                seqnum += waiting.count


def _rejections(waiting: Unordered, first_seqnum: int, refused: dict[int, Refusal]) -> tuple[Rejected, ...]:
    """Which groups of a chunk were refused."""
    rejected: list[Rejected] = []
    for number, span in enumerate(Chunk(waiting.chunk).groups()):
        refusal = refused.get(first_seqnum + span.start)
        if refusal is not None:
            rejected.append(
                Rejected(number, refusal.tag, refusal.expected_seqnum, refusal.actual_seqnum, refusal.seqnums)
            )
    return tuple(rejected)


def _too_late(outcome: str) -> BokiError:
    if outcome == "unknown":
        return DeadlineExceeded(
            "the append was not ordered before its deadline; it may be still. Repeat it only under the same key"
        )
    return DeadlineExceeded(
        "the append could not be sent before its deadline; nothing was appended", outcome="not_applied"
    )
