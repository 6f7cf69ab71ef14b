"""Reads on their way: waiting for the index to catch up, for a record to be appended, or for bytes to be fetched.

A read is tried when it comes, and again whenever what it waits for may have happened: the index has reached the
position that its caller has seen (it never answers from the past), a record came into its book, or a storage node has
sent a batch. Nothing polls. A read is answered once: at its deadline with an error, at its wait's end with nothing.
"""

from __future__ import annotations

import heapq
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from boki.engine.cache import AuxCache, RecordCache
from boki.engine.index.index import Index
from boki.engine.pending_read import Due, PendingRead, Stage, Timed, too_late
from boki.engine.waiter import Ended, Unstamped
from boki.errors import BokiError, CorruptData, NotFound, Overloaded, Trimmed, Unavailable
from boki.log.batch import Batch
from boki.log.ids import NodeId, shard_incarnation
from boki.log.limits import Limits
from boki.log.membership import Place
from boki.log.operations import Books, Compare, Compared, Done, Found, Get, ListBooks, Read, SetAuxdata, Sync
from boki.protocol.effects import NEVER_US, Send, Token
from boki.protocol.messages import BatchesFetched, FetchBatches, Holding

_READ_AHEAD_BYTES: Final = 1 << 20
_AHEAD_FETCHES: Final = 16
_AHEAD_RECORDS: Final = 1_000
_BULK_RECORDS: Final = 4_000
"""A read of this many records is bulk: its caller continues with the next page, wherever this one ends."""
_TIMEOUT_US: Final = 100_000
"""A replica that has not answered for this long is left alone for a while, and another one asked."""
_ROUND_US: Final = 200_000
"""How long to wait before all replicas are asked again."""
_SILENT_US: Final = 5_000_000
_RETRY_US: Final = 50_000
_MAX_WAITING: Final = 100_000
"""Moments of reads that may wait at a time."""
_SPARE_MOMENTS: Final = 1_000
"""Those of answered reads, which hold their answers, are cleared away when they are more than the others and this."""


@dataclass(slots=True)
class _Fetch:
    """Bytes asked for from the replicas of a shard, one after the other."""

    request: int
    place: Place
    lid: int
    until_lid: int
    seqnum: int
    reads: list[PendingRead]
    is_ahead: bool = False
    """It was asked for before anybody waited for it."""
    to_ask: deque[NodeId] = field(default_factory=deque)
    asked: NodeId | None = None
    """Who has been asked and has not answered; None if all were asked."""
    sent_at: int = 0
    lacking: int = 0
    """How many of this round's replicas have not answered."""
    errors: list[str] = field(default_factory=list)


class Reads:
    """All reads of an engine that have not been answered. `replicas_of(shard, turn)` tells who keeps it."""

    def __init__(
        self,
        index: Index,
        cache: RecordCache,
        aux: AuxCache,
        limits: Limits,
        replicas_of: Callable[[Place, int], tuple[NodeId, ...]],
        is_caught_up: Callable[[PendingRead], bool],
        tail_of: Callable[[str], int],
        *,
        first_number: int = 0,
    ) -> None:
        self._index = index
        self._cache = cache
        self._most_ahead = min(_AHEAD_FETCHES, cache.size_bytes // (_AHEAD_FETCHES * _READ_AHEAD_BYTES))
        self._aux = aux
        self._limits = limits
        self._replicas_of = replicas_of
        self._is_caught_up = is_caught_up
        self._tail_of = tail_of
        self._behind: list[PendingRead] = []
        self._watching: dict[str, list[PendingRead]] = {}
        """Reads that wait for any record of a book."""
        self._watching_rows: dict[str, dict[str, list[PendingRead]]] = {}
        """Reads that wait for a record of a tag, by book and tag: a change of other rows costs them nothing."""
        self._by_token: dict[Token, PendingRead] = {}
        self._due: list[Timed] = []
        self._fetches: dict[int, _Fetch] = {}
        self._by_lid: dict[tuple[Place, int], _Fetch] = {}
        self._retries: list[tuple[int, PendingRead]] = []
        self._silent: dict[NodeId, int] = {}
        """Replicas that did not answer, and until when they are asked last."""
        self._numbers = first_number
        index.watched += (self._watching_rows,)

    @property
    def pending_count(self) -> int:
        """How many reads wait for something."""
        return len(self._by_token)

    # trying

    def start(self, read: PendingRead, now_us: int) -> Iterable[Unstamped]:
        """Answer the read now, or keep it until it can be answered. It ends as `Overloaded` if too many are kept."""
        if len(self._due) >= min(_MAX_WAITING, _SPARE_MOMENTS + 4 * len(self._by_token)):
            self._due = [entry for entry in self._due if not entry.read.is_done]
            heapq.heapify(self._due)
            if len(self._due) >= _MAX_WAITING:
                text = f"{_MAX_WAITING} reads are waiting; the engine takes no more"
                return [Ended(read.waiter, Overloaded(text, retry_after_s=0.1))]
        effects = self._try(read, now_us)
        if not read.is_done:
            self._by_token[read.waiter.token] = read
            self._numbers += 1
            heapq.heappush(self._due, Timed(read.deadline_us, Due.DEADLINE, self._numbers, read))
            if read.wait_until_us and read.wait_until_us < read.deadline_us:
                heapq.heappush(self._due, Timed(read.wait_until_us, Due.WAIT_END, self._numbers, read))
        return effects

    def _try(self, read: PendingRead, now_us: int) -> list[Unstamped]:
        if read.is_done:
            return []
        if not self._is_caught_up(read):
            read.move(Stage.BEHIND)
            self._behind.append(read)
            return []
        match read.operation:
            case Get() as get:
                return self._try_get(read, get, now_us)
            case Read() as range_read:
                return self._try_range(read, range_read, now_us)
            case Compare(book, tags, lasts):
                return [self._finish(read, Compared(self._changed(book, tags, lasts), self._tail_of(book)))]
            case SetAuxdata(book, seqnum, data):
                if not self._index.has(book, seqnum):
                    return [self._finish(read, self._absent(book, seqnum))]
                self._aux.set(seqnum, data)
                return [self._finish(read, Done())]
            case ListBooks(prefix, after, limit):
                return [self._finish(read, Books(tuple(self._index.books(prefix, after, limit))))]
            case Sync():
                return [self._finish(read, Done())]

    def _changed(self, book: str, tags: Sequence[str], lasts: Sequence[int]) -> tuple[int, ...]:
        """The numbers of those tags that end with another record."""
        last_of = self._index.last
        return tuple([number for number, tag in enumerate(tags) if last_of(book, tag) != lasts[number]])

    def _try_get(self, read: PendingRead, operation: Get, now_us: int) -> list[Unstamped]:
        book, seqnum = operation.book, operation.seqnum
        if not self._index.has(book, seqnum):
            return [self._finish(read, self._absent(book, seqnum))]
        return self._collect(read, array("q", (seqnum,)), now_us, is_rest=True)

    def _absent(self, book: str, seqnum: int) -> BokiError:
        floor = self._index.floor(book, None)
        if seqnum < floor or self._index.was_trimmed(book, seqnum):
            return Trimmed(
                f"record {seqnum} of book {book!r} has been trimmed; go on at next_seqnum",
                next_seqnum=max(floor, seqnum + 1),
            )
        return NotFound(f"book {book!r} has no record {seqnum}")

    def _try_range(self, read: PendingRead, operation: Read, now_us: int) -> list[Unstamped]:
        start = operation.start
        if operation.start_time_us > 0:
            start = max(start, self._index.first_seqnum_at(operation.book, operation.start_time_us))
        seqnums = self._index.page(
            operation.book, operation.tag, start, operation.stop, operation.limit, backward=operation.backward
        )
        if len(seqnums):
            return self._collect(read, seqnums, now_us, is_rest=len(seqnums) < operation.limit)
        if read.wait_until_us > now_us:
            # what came for it may have been trimmed again before its bytes were here
            read.missed_below = max(read.missed_below, self._first_seqnum(read))
            read.seen_until = self._tail_of(operation.book)
            read.move(Stage.WATCHING)
            self._watchers_of(operation).append(read)
            return []
        next_start = operation.start
        if not operation.backward:
            next_start = max(operation.start, self._looked_until(operation))
        return [self._finish(read, Found((), next_start, self._first_seqnum(read), is_end=True))]

    def _watchers_of(self, operation: Read) -> list[PendingRead]:
        if operation.tag is None:
            return self._watching.setdefault(operation.book, [])
        return self._watching_rows.setdefault(operation.book, {}).setdefault(operation.tag, [])

    def _looked_until(self, operation: Read) -> int:
        """A forward read that has come to the end of its range has seen all that stands below this."""
        return min(operation.stop, self._tail_of(operation.book))

    def _first_seqnum(self, read: PendingRead) -> int:
        """Below this, trims have taken records that the read has not seen; no more than its start if they have not."""
        operation = read.operation
        assert isinstance(operation, Read | Get)
        floor = self._index.floor(operation.book, operation.tag if isinstance(operation, Read) else None)
        if isinstance(operation, Read) and floor <= read.seen_until:
            return max(read.missed_below, min(floor, operation.start))
        return floor

    def _collect(self, read: PendingRead, seqnums: array[int], now_us: int, *, is_rest: bool) -> list[Unstamped]:
        """Answer with these records if they are here, else ask for what is not. `is_rest`: the range has no others.

        A backward page is answered whole, or, where its bytes are too many for a page or for the cache, with the half
        nearest to the end, which was asked for first.
        """
        if len(seqnums) > read.most:
            seqnums, is_rest = seqnums[-read.most :], False
        operation = read.operation
        backward = isinstance(operation, Read) and operation.backward
        is_bulk = not (is_rest or backward) and len(seqnums) >= _BULK_RECORDS
        slabs, covered = self._cache.collect(
            seqnums, self._limits.page_bytes, self._index.time_of, self._aux, whole_chunks=is_bulk
        )
        if covered == 0 or (backward and covered < len(seqnums)):
            is_over = covered > 0 and self._cache.find(seqnums[covered]) is not None
            if is_over or covered < read.covered:  # too many bytes for a page; or what was here has been displaced
                read.most, read.covered = (len(seqnums) + 1) // 2, 0
                return self._collect(read, seqnums, now_us, is_rest=is_rest)
            read.covered = covered if backward else 0
            return self._fetch_ahead(read, seqnums[covered:], now_us)
        if sum(len(slab.seqnums) for slab in slabs) < 8 * covered:
            # a record was freed that the index still shows: it is behind, and must catch up with the trim first
            self._pause(read, now_us)
            return []
        is_end = is_rest and covered == len(seqnums)
        next_start = seqnums[0] if backward else seqnums[covered - 1] + 1
        if is_end and isinstance(operation, Read) and not backward:
            next_start = max(next_start, self._looked_until(operation))
        return [self._finish(read, Found(tuple(slabs), next_start, self._first_seqnum(read), is_end))]

    def _pause(self, read: PendingRead, now_us: int) -> None:
        read.move(Stage.PAUSED)
        self._retries.append((now_us + _RETRY_US, read))

    def _finish(self, read: PendingRead, value: Found | Compared | Books | Done | BokiError) -> Ended:
        waiter = read.waiter
        read.end()
        self._by_token.pop(waiter.token, None)
        return Ended(waiter, value)

    def give_up(self, token: Token) -> bool:
        """The caller behind that token waits no more: forget its read, without an answer. False: there is none."""
        read = self._by_token.pop(token, None)
        if read is None:
            return False
        if read.stage is Stage.WATCHING:
            self._forget_watcher(read)
        read.end()
        return True

    # waking up

    def on_applied(
        self, books: Iterable[str], now_us: int, rows: Collection[tuple[str, str]] | None = None
    ) -> list[Unstamped]:
        """The index has gone on, and these books have changed: in all their rows, or in `rows` of those that are
        watched.
        """
        effects: list[Unstamped] = []
        if self._behind:
            behind, self._behind = self._behind, []
            for read in behind:
                effects += self._try(read, now_us)
        if self._watching:
            for book in sorted(books):  # any order, but one that two runs share
                for read in self._watching.pop(book, ()):
                    effects += self._try(read, now_us)
        if self._watching_rows:
            if rows is None:
                rows = [(book, tag) for book in books for tag in self._watching_rows.get(book, ())]
            for book, tag in sorted(rows):
                for read in self._take_row(book, tag):
                    effects += self._try(read, now_us)
        return effects

    def _take_row(self, book: str, tag: str) -> list[PendingRead]:
        """Those that wait for this row, which are to be tried."""
        tags = self._watching_rows.get(book, {})
        waiting = tags.pop(tag, [])
        if not tags:
            self._watching_rows.pop(book, None)
        return waiting

    def _end_wait(self, read: PendingRead, now_us: int) -> list[Unstamped]:
        """A record that it watches for has not come: say so, or, between two terms, as soon as the next one begins.

        What waits for something else is tried when that has happened, and then watches no more.
        """
        read.wait_until_us = 0
        if read.stage is not Stage.WATCHING:
            return []
        effects = self._try(read, now_us)
        self._forget_watcher(read)
        return effects

    def _end_late(self, read: PendingRead) -> list[Unstamped]:
        was_watching = read.stage is Stage.WATCHING
        ended = self._finish(read, too_late(read))
        if was_watching:
            self._forget_watcher(read)
        return [ended]

    def tick(self, now_us: int) -> list[Unstamped]:
        """End waits and deadlines, ask the next replica where one does not answer."""
        effects: list[Unstamped] = []
        while self._due and self._due[0].at_us <= now_us:
            _, why, _, read = heapq.heappop(self._due)
            if not read.is_done:
                effects += self._end_wait(read, now_us) if why is Due.WAIT_END else self._end_late(read)
        self._forget_answered()
        for fetch in list(self._fetches.values()):
            effects += self._ask_again(fetch, now_us)
        due, self._retries = self._retries, []
        for at, read in due:
            if at > now_us:
                self._retries.append((at, read))
            else:
                effects += self._try(read, now_us)
        return effects

    def rests_until(self, now_us: int) -> int:
        """Until when `tick` does nothing: the first deadline; now while replicas are asked or a read is tried again."""
        if self._fetches or self._retries:
            return now_us
        return self._due[0].at_us if self._due else NEVER_US

    def _forget_watcher(self, read: PendingRead) -> None:
        """It watches no more."""
        operation = read.operation
        assert isinstance(operation, Read), "nothing else watches"
        watchers = self._watchers_of(operation)
        watchers.remove(read)
        if watchers:
            return
        if operation.tag is None:
            del self._watching[operation.book]
        else:
            self._take_row(operation.book, operation.tag)

    def _forget_answered(self) -> None:
        if any(read.is_done for read in self._behind):
            self._behind = [read for read in self._behind if not read.is_done]

    # fetching

    def _fetch_ahead(self, read: PendingRead, seqnums: array[int], now_us: int) -> list[Unstamped]:
        """Ask for the first of these, for which the read waits, and for what it will want next: while appends come one
        by one, each record is in a batch of its own.
        """
        effects = self._fetch(read, seqnums[0], now_us)
        if not _wants_more(read):
            return effects
        known_until = seqnums[0] + self._index.locate(seqnums[0])[-1]
        count = 0
        for seqnum in seqnums[1:_AHEAD_RECORDS]:
            if count == self._most_ahead:
                break
            if seqnum < known_until or self._cache.has(seqnum):
                continue
            term, log, shard, lid, run = self._index.locate(seqnum)
            known_until = seqnum + run
            count += 1
            if ((term, log, shard), lid) not in self._by_lid:
                effects += self._begin((term, log, shard), lid, lid + run, seqnum, [], now_us)
        return effects

    def _fetch(self, read: PendingRead, seqnum: int, now_us: int) -> list[Unstamped]:
        read.move(Stage.FETCHING)
        term, log, shard, lid, run = self._index.locate(seqnum)
        place = (term, log, shard)
        waiting = self._by_lid.get((place, lid))
        if waiting is not None:
            waiting.reads.append(read)
            return []
        return self._begin(place, lid, lid + (run if _wants_more(read) else 1), seqnum, [read], now_us)

    def _begin(
        self, place: Place, lid: int, until_lid: int, seqnum: int, reads: list[PendingRead], now_us: int
    ) -> list[Unstamped]:
        self._numbers += 1
        fetch = _Fetch(self._numbers, place, lid, until_lid, seqnum, reads, is_ahead=not reads)
        self._fetches[fetch.request] = fetch
        self._by_lid[place, lid] = fetch
        return self._begin_round(fetch, now_us)

    def _begin_round(self, fetch: _Fetch, now_us: int) -> list[Unstamped]:
        """Ask all replicas, one after the other, those first that rather answer; they may have changed since."""
        self._silent = {node: until_us for node, until_us in self._silent.items() if until_us > now_us}
        replicas = self._replicas_of(fetch.place, shard_incarnation(fetch.place[2]) + fetch.lid)
        fetch.to_ask = deque(sorted(replicas, key=self._silent.__contains__))
        fetch.lacking = len(replicas)
        fetch.errors.clear()
        return self._ask_next(fetch, now_us)

    def _ask_next(self, fetch: _Fetch, now_us: int) -> list[Unstamped]:
        fetch.reads = [read for read in fetch.reads if not read.is_done]
        if not fetch.reads and (not fetch.is_ahead or fetch.asked is not None or not fetch.to_ask):
            self._end(fetch)  # nobody waits; what was only asked ahead is not asked twice
            return []
        fetch.sent_at = now_us
        if fetch.to_ask:
            fetch.asked = fetch.to_ask.popleft()
            size_bytes = _READ_AHEAD_BYTES if fetch.reads else _READ_AHEAD_BYTES // _AHEAD_FETCHES
            message = FetchBatches(fetch.request, *fetch.place, fetch.lid, fetch.until_lid, size_bytes)
            return [Send(fetch.asked, message)]
        fetch.asked = None  # the tick begins the next round
        if not fetch.errors or fetch.lacking:
            return []
        self._end(fetch)
        error = CorruptData(f"no replica can give record {fetch.seqnum}: {'; '.join(fetch.errors)}")
        return [self._finish(read, error) for read in fetch.reads]

    def _ask_again(self, fetch: _Fetch, now_us: int) -> list[Unstamped]:
        """Time has passed: do not wait for a silent replica, nor forever when all were asked."""
        waited_us = now_us - fetch.sent_at
        if fetch.asked is None:
            return self._begin_round(fetch, now_us) if waited_us > _ROUND_US else []
        if waited_us <= _TIMEOUT_US:
            return []
        self._silent[fetch.asked] = now_us + _SILENT_US
        return self._ask_next(fetch, now_us)

    def _end(self, fetch: _Fetch) -> None:
        del self._fetches[fetch.request]
        del self._by_lid[fetch.place, fetch.lid]

    def on_fetched(self, sender: NodeId, message: BatchesFetched, now_us: int) -> list[Unstamped]:
        """A storage node has answered."""
        self._silent.pop(sender, None)
        fetch = self._fetches.get(message.request)
        if fetch is None:
            return []
        error = message.error
        if message.holding is Holding.HAVE:
            try:
                return self._take(fetch, [Batch(data) for data in message.batches], now_us)
            except CorruptData as damage:
                error = f"{sender}: {damage}"
        if message.holding is Holding.FREED:
            # Trimmed where the storage node is, not yet here: catch up, then say so.
            self._end(fetch)
            for read in fetch.reads:
                if not read.is_done:
                    self._pause(read, now_us)
            return []
        fetch.lacking -= 1
        if error:
            fetch.errors.append(error)
        return self._ask_next(fetch, now_us) if sender == fetch.asked else []

    def _take(self, fetch: _Fetch, batches: list[Batch], now_us: int) -> list[Unstamped]:
        """Bytes have come; `CorruptData` if they are not those that were asked for."""
        _check_fit(fetch, batches)
        self._end(fetch)
        for batch in reversed(batches):  # the first is wanted now: the others must not displace it
            # within a run, seqnums and local ids grow together
            self._cache.add(fetch.seqnum + batch.header.first_lid - fetch.lid, batch)
        if self._cache.find(fetch.seqnum) is None:
            size = len(batches[0].data)
            large = Overloaded(f"record {fetch.seqnum} is in a batch of {size} bytes: the record cache is too small")
            return [self._finish(read, large) for read in fetch.reads if not read.is_done]
        return [effect for read in fetch.reads for effect in self._try(read, now_us)]

    def abandon(self) -> list[Unstamped]:
        """This engine has been fenced: end all pending reads."""
        lost = Unavailable("this engine was fenced; read from another one", retry_after_s=0.2)
        return [self._finish(each.read, lost) for each in self._due if not each.read.is_done]


def _wants_more(read: PendingRead) -> bool:
    """Whether it continues with the records behind the first one."""
    return isinstance(read.operation, Read) and read.operation.limit > 1


def _check_fit(fetch: _Fetch, batches: list[Batch]) -> None:
    """These are sound batches of the shard that was asked for, from the record that was asked for."""
    lid = fetch.lid
    for batch in batches:
        header = batch.header
        _ = batch.chunks
        if (header.term, header.log, header.shard) != fetch.place or not header.first_lid <= lid < header.until_lid:
            raise CorruptData("these are not the records that were asked for")
        lid = header.until_lid
    if not batches:
        raise CorruptData("no record came")
