"""Appends on their way: from chunks that have just come, to batches sent to storage nodes, to seqnums.

One `LogWriter` per physical log, and in it the shards that this engine writes there: the one that takes new batches,
and those that it has moved away from, until all that they were given is ordered. Chunks gather until the core settles,
then go out as a batch whose boundaries and content never change; a batch that is not ordered in time is sent again,
byte for byte, to the replicas that lack it. Refusals come before numbering: once a chunk has local ids it is ordered,
or given up at the end of its shard or of its term and appended again while its deadline lasts, or unknown at its
deadline. Giving up is safe because it follows from the metalog: what a closed shard has not ordered, it never will.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from boki.engine.index.index import Refusal
from boki.engine.replicas import Peers
from boki.engine.waiter import Ended, Unstamped, Waiter
from boki.errors import BokiError, ConnectionLost, DeadlineExceeded, DiskFull, Overloaded, Unavailable
from boki.log.batch import Batch, encode_batch
from boki.log.chunk import Chunk
from boki.log.cuts import Piece
from boki.log.ids import LogId, NodeId, ShardId, Term
from boki.log.operations import Appended, Rejected
from boki.log.view import View
from boki.protocol.effects import Send
from boki.protocol.messages import IndexBatch, ShardProgress, StoreBatch

_RESEND_US: Final = 300_000
_FULL_US: Final = 1_000_000
_SMALL_BYTES: Final = 64 << 10
"""A batch of at most this size is no more work in one message with its cut than in one of its own."""
_MOVE_US: Final = 500_000
"""How long a shard that was moved away from may take to be ordered, before what is left goes to the new one."""
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
class OwnShard:
    """A shard that this engine has open, and what of it is not ordered yet."""

    shard: ShardId
    replicas: tuple[NodeId, ...]
    next_lid: int = 0
    sent: deque[_Sent] = field(default_factory=deque)
    stored: dict[NodeId, tuple[int, int]] = field(default_factory=dict)
    """Per replica, (incarnation, stored until): a disk that was wiped counts for nothing that it once said."""
    full: dict[NodeId, int] = field(default_factory=dict)
    """Replicas without room, and until when that is believed: they repeat it while it is so."""
    left_at: int = 0
    """When another one took over."""

    def note(self, sender: NodeId, progress: ShardProgress, now_us: int) -> None:
        """A replica says how far it holds the shard, and whether it has room for more."""
        incarnation, until = self.stored.get(sender, (progress.incarnation, 0))
        if progress.incarnation < incarnation:
            return
        if progress.incarnation > incarnation:
            until = 0
            for sent in self.sent:
                sent.sent_at = 0  # it lacks them all: the next tick sends them again
        self.stored[sender] = progress.incarnation, max(until, progress.stored_until)
        if progress.has_room:
            self.full.pop(sender, None)
        else:
            self.full[sender] = now_us + _FULL_US

    def resend(self, sent: _Sent) -> Iterable[Unstamped]:
        """Send a batch again to the replicas that lack it and have room."""
        until = sent.batch.header.until_lid
        for replica in self.replicas:
            if self.stored.get(replica, (0, 0))[1] < until and replica not in self.full:
                yield Send(replica, StoreBatch(sent.batch.data))


@dataclass(slots=True)
class LogWriter:
    """What this engine appends to one log of a term. `current` is None until a shard is open."""

    log: LogId
    current: OwnShard | None = None
    left: dict[ShardId, OwnShard] = field(default_factory=dict)
    unsent: deque[Unordered] = field(default_factory=deque)

    def find(self, shard: ShardId) -> OwnShard | None:
        """The shard of that id, if it is this engine's own and open."""
        if self.current is not None and self.current.shard == shard:
            return self.current
        return self.left.get(shard)

    def shards(self) -> list[OwnShard]:
        """All of its open shards, in the order in which they were opened."""
        return [*self.left.values(), *((self.current,) if self.current is not None else ())]


class Appends:
    """All appends of an engine that have not been answered, within `buffer_bytes`.

    `peers`: the other engines that hold the index, which get each batch when the storage nodes get it: from a replica
    in their process, if they have one there. `live`: the storage nodes that are registered; none: nobody knows.
    """

    def __init__(self, *, buffer_bytes: int, batch_bytes: int) -> None:
        self._buffer_bytes = buffer_bytes
        self._batch_bytes = batch_bytes
        self._writers: dict[LogId, LogWriter] = {}
        self._view: View | None = None
        self._is_closing = False
        self.peers: Peers = {}
        self.live: Collection[NodeId] = ()
        self.near: Collection[NodeId] = ()
        """The other names of this process."""
        self.pending_bytes = 0
        self.record_count = 0
        self.batch_count = 0

    # terms and shards

    @property
    def term(self) -> Term:
        """The term in which it appends; 0 before the first."""
        return self._view.term if self._view is not None else 0

    def begin_term(self, view: View, now_us: int) -> list[Unstamped]:
        """The last term is over, with all its shards: what it has not ordered is appended again."""
        given_up: list[Unordered] = []
        for writer in self._writers.values():
            given_up += [waiting for shard in writer.shards() for sent in shard.sent for waiting in sent.chunks]
            given_up += writer.unsent
        self._view = view
        self._writers = {log: LogWriter(log) for log in range(view.log_count)}
        self.pending_bytes = 0
        return self._take_back(given_up, now_us)

    def open_shard(self, log: LogId, shard: ShardId, replicas: tuple[NodeId, ...], now_us: int) -> None:
        """The metalog has opened the shard: batches go there from now on."""
        writer = self._writers[log]
        if writer.current is not None:
            writer.current.left_at = now_us
            writer.left[writer.current.shard] = writer.current
        writer.current = OwnShard(shard, replicas)

    def close_shard(self, log: LogId, shard: ShardId, now_us: int) -> list[Unstamped]:
        """The metalog has closed the shard: what is left of it is appended again."""
        writer = self._writers.get(log)
        closed = writer.find(shard) if writer is not None else None
        if writer is None or closed is None:
            return []
        if closed is writer.current:
            writer.current = None
        else:
            del writer.left[shard]
        given_up = [waiting for sent in closed.sent for waiting in sent.chunks]
        self.pending_bytes -= sum(len(waiting.chunk) for waiting in given_up)
        later, writer.unsent = writer.unsent, deque()
        effects = self._take_back(given_up, now_us)
        writer.unsent.extend(later)
        return effects

    def _take_back(self, given_up: Iterable[Unordered], now_us: int) -> list[Unstamped]:
        """Queue what will never be ordered where it was, unless its time is up or nobody waits any more."""
        assert self._view is not None
        effects: list[Unstamped] = []
        for waiting in given_up:
            if waiting.waiter is None:
                continue
            if waiting.deadline_us < now_us:
                late = DeadlineExceeded("its shard ended without ordering the append", outcome="not_applied")
                effects.append(Ended(waiting.waiter, late))
                continue
            assert waiting.waiter.book is not None
            self._queue(self._view.log_of(waiting.waiter.book), waiting)
        return effects

    @property
    def unopened(self) -> list[LogId]:
        """The logs in which this engine cannot append yet."""
        return [log for log, writer in self._writers.items() if writer.current is None]

    def current_shards(self) -> list[tuple[LogId, OwnShard]]:
        """The shards that take new batches, by log."""
        return [(log, writer.current) for log, writer in self._writers.items() if writer.current is not None]

    def done_shards(self, now_us: int) -> list[tuple[LogId, ShardId]]:
        """The shards that should be closed: nothing of them is left to order, or it takes too long."""
        return [
            (log, shard.shard)
            for log, writer in self._writers.items()
            for shard in writer.shards()
            if shard is not writer.current or (self._is_closing and not writer.unsent)
            if not shard.sent or (shard is not writer.current and now_us - shard.left_at > _MOVE_US)
        ]

    def close(self) -> None:
        """Take nothing more; what has been taken is still ordered."""
        self._is_closing = True

    def has_unsent(self, log: LogId) -> bool:
        """Whether appends wait for a shard of that log."""
        return bool(self._writers[log].unsent)

    @property
    def is_closed(self) -> bool:
        """Whether nothing waits and no shard is open, after `close`."""
        return self._is_closing and not any(writer.unsent or writer.shards() for writer in self._writers.values())

    def abandon(self, log: LogId) -> Iterable[Unstamped]:
        """This engine has been fenced, as it learnt from `log`: end whoever waits."""
        for writer in self._writers.values():
            for shard in writer.shards():
                # of that log nothing more is ordered, ever; of the others it may be
                outcome = "not_applied" if writer.log == log else "unknown"
                for waiting in [waiting for sent in shard.sent for waiting in sent.chunks]:
                    if waiting.waiter is not None:
                        yield Ended(waiting.waiter, _fenced(outcome))
            for waiting in writer.unsent:
                if waiting.waiter is not None:
                    yield Ended(waiting.waiter, _fenced("not_applied"))
        self._writers = {}

    # coming in

    def add(self, book: str, chunk: bytes, waiter: Waiter, deadline_us: int) -> None:
        """Queue a chunk. Raises `Overloaded`, `DiskFull` or `Unavailable`: then it is not appended, for certain."""
        if self._view is None or self._is_closing:
            why = "is shutting down" if self._is_closing else "has not caught up with the log yet"
            raise Unavailable(f"this engine {why}; try again", retry_after_s=0.2)
        log = self._view.log_of(book)
        if self.pending_bytes + len(chunk) > self._buffer_bytes:
            raise Overloaded(
                f"appends of {self.pending_bytes} bytes wait for their order; the buffer holds {self._buffer_bytes}",
                retry_after_s=0.1,
            )
        shard = self._writers[log].current
        if shard is not None and shard.full:
            self._check_room(shard)
        self._queue(log, Unordered(chunk, Chunk(chunk, is_checked=True).count, waiter, deadline_us))

    def _check_room(self, shard: OwnShard) -> None:
        """`DiskFull` if those that are present and have room are too few; one that is away may come back full, too."""
        assert self._view is not None
        able = [node for node in shard.replicas if node not in shard.full and (not self.live or node in self.live)]
        if len(able) < self._view.write_quorum:
            raise DiskFull(
                f"{len(shard.full)} of {len(shard.replicas)} storage nodes have no room: trim, or add disk; "
                "reads and trims go on",
                retry_after_s=1.0,
            )

    def _queue(self, log: LogId, waiting: Unordered) -> None:
        self._writers[log].unsent.append(waiting)
        self.pending_bytes += len(waiting.chunk)

    def note_progress(self, sender: NodeId, progress: ShardProgress, now_us: int) -> None:
        """A replica says how far it holds a shard, and whether it has room for more."""
        writer = self._writers.get(progress.log)
        shard = writer.find(progress.shard) if writer is not None else None
        if shard is not None:
            shard.note(sender, progress, now_us)

    # going out

    def settle(self, now_us: int) -> Iterable[Unstamped]:
        """Batches of all that has gathered, for the replicas of their shards and for the other indexes."""
        for writer in self._writers.values():
            shard = writer.current
            while writer.unsent and shard is not None and len(shard.sent) < _BATCHES_IN_FLIGHT:
                yield from self._send(writer, shard, now_us)

    def _send(self, writer: LogWriter, shard: OwnShard, now_us: int) -> Iterable[Unstamped]:
        chunks: list[Unordered] = []
        size_bytes = count = 0
        while writer.unsent and (not chunks or size_bytes + len(writer.unsent[0].chunk) <= self._batch_bytes):
            waiting = writer.unsent.popleft()
            chunks.append(waiting)
            size_bytes += len(waiting.chunk)
            count += waiting.count
        parts = [(waiting.chunk, waiting.count) for waiting in chunks]
        data = encode_batch(self.term, writer.log, shard.shard, shard.next_lid, parts)
        shard.next_lid += count
        shard.sent.append(_Sent(Batch(data, is_checked=True), chunks, now_us))
        self.batch_count += 1
        store, index = StoreBatch(data), IndexBatch(data)
        can_wait = len(data) <= _SMALL_BYTES and self._cut_follows(writer.log, shard)
        return [
            *(Send(replica, store, can_wait) for replica in shard.replicas),
            *(Send(peer, index) for peer, near in self.peers.items() if near.isdisjoint(shard.replicas)),
        ]

    def _cut_follows(self, log: LogId, shard: OwnShard) -> bool:
        """Whether the primary is in this process, and sends the cut of a batch at once to all that store the batch."""
        view = self._view
        return view is not None and view.primaries[log] in self.near and view.runs_ahead(shard.replicas)

    @property
    def is_at_work(self) -> bool:
        """Whether anything waits for its order, or for a shard, or is to be closed."""
        writers = self._writers.values()
        return self._is_closing or any(
            writer.current is None or writer.current.sent or writer.current.full or writer.left or writer.unsent
            for writer in writers
        )

    def tick(self, now_us: int) -> Iterable[Unstamped]:
        """Send again what should long have been ordered, and answer those whose deadline has passed."""
        for writer in self._writers.values():
            for shard in writer.shards():
                shard.full = {node: until for node, until in shard.full.items() if until > now_us}
                for sent in shard.sent:
                    if now_us - sent.sent_at > _RESEND_US:
                        sent.sent_at = now_us
                        yield from shard.resend(sent)
                    for waiting in sent.chunks:
                        if waiting.waiter is not None and waiting.deadline_us < now_us:
                            yield Ended(waiting.waiter, _too_late("unknown"))
                            waiting.waiter = None
            if any(waiting.deadline_us < now_us for waiting in writer.unsent):
                yield from self._give_up(writer, now_us)

    def _give_up(self, writer: LogWriter, now_us: int) -> Iterable[Unstamped]:
        late = [waiting for waiting in writer.unsent if waiting.deadline_us < now_us]
        writer.unsent = deque(waiting for waiting in writer.unsent if waiting.deadline_us >= now_us)
        self.pending_bytes -= sum(len(waiting.chunk) for waiting in late)
        return [Ended(one.waiter, _too_late("not_applied")) for one in late if one.waiter is not None]

    # ordered

    def batches_of(self, log: LogId, piece: Piece) -> list[Batch] | None:
        """The batches that a piece of a cut orders, if the shard is this engine's own."""
        writer = self._writers.get(log)
        shard = writer.find(piece.shard) if writer is not None else None
        if shard is None:
            return None
        found: list[Batch] = []
        for sent in shard.sent:
            if sent.batch.header.first_lid >= piece.until_lid:
                break
            found.append(sent.batch)
        return found

    def order(self, log: LogId, piece: Piece, refusals: Sequence[Refusal]) -> Iterable[Unstamped]:
        """A piece has its seqnums: if it is of this engine's shard, answer whoever waits for them."""
        writer = self._writers.get(log)
        shard = writer.find(piece.shard) if writer is not None else None
        if shard is None:
            return
        refused = {refusal.seqnum: refusal for refusal in refusals}
        seqnum = piece.first_seqnum
        while shard.sent and shard.sent[0].batch.header.first_lid < piece.until_lid:
            for waiting in shard.sent.popleft().chunks:
                self.pending_bytes -= len(waiting.chunk)
                self.record_count += waiting.count
                if waiting.waiter is not None:
                    rejected = _rejections(waiting, seqnum, refused) if refused else ()
                    yield Ended(waiting.waiter, Appended(seqnum, rejected))
                seqnum += waiting.count


def _rejections(waiting: Unordered, first_seqnum: int, refused: dict[int, Refusal]) -> tuple[Rejected, ...]:
    """Which groups of a chunk were refused."""
    rejected: list[Rejected] = []
    for number, span in enumerate(Chunk(waiting.chunk, is_checked=True).groups()):
        refusal = refused.get(first_seqnum + span.start)
        if refusal is not None:
            rejected.append(
                Rejected(
                    number,
                    refusal.tag,
                    refusal.expected_seqnum,
                    refusal.actual_seqnum,
                    refusal.seqnums,
                    refusal.expected_count,
                    refusal.actual_count,
                )
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


def _fenced(outcome: str) -> BokiError:
    if outcome == "unknown":
        return ConnectionLost(
            "this engine was fenced while the append was under way; repeat it only under the same key"
        )
    return Unavailable("this engine was fenced, and appends no more; nothing was appended", retry_after_s=0.2)
