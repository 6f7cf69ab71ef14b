"""Follower: one stream of a book, read once by a process for all callers who wait for it. There is no timer.

Of the callers who wait one **leads**: it reads the stream, within its own call, and the fold wakes each caller that has
what it waits for; then another one leads. Where no caller waits, nothing is read. A read that waits for records is cut
short when a caller comes who needs to look sooner.

A caller sees what it has seen before, wherever that was: the leader reads as far as all who wait for it have seen, and
they have seen what it has read (`LogSession.saw`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar

from boki import BokiError, LogBook, LogSession, Page, Record
from boki.libs.fold.clock import LogClock, Moment
from boki.libs.fold.fold import Fold
from boki.retry import Backoff

_log = logging.getLogger("boki.libs")

PAGE_RECORDS: Final = 1_000
LONG_WAIT_S: Final = 3_600.0
"""The longest read of a leader. The session cuts it into requests that no peer minds."""
_MARGIN_S: Final = 0.0005
_LEAST_WAIT_S: Final = 0.002

F = TypeVar("F", bound=Fold[Any])


class Source(Protocol):
    """What a follower feeds: the fold of a library, with what it does when a record comes."""

    async def load(self, logbook: LogBook) -> int:
        """Begin from the newest checkpoint; the seqnum at which to read on. It may come again at any time, because
        records that were not read yet were trimmed: then a newer checkpoint covers them.
        """

    async def take(self, logbook: LogBook, page: Page) -> bool:
        """Fold the page, which is empty if there is nothing new (`page.is_end`: as far as it could be known). False:
        that is not possible from here, begin again with `load`. If it raises, the page is read again: applying a record
        twice must change nothing.
        """


class FromTheBeginning(Generic[F]):
    """The source of a fold without checkpoints: it is made again from all records that there are.

    `read` gives the record's value, None for what is skipped.
    """

    def __init__(
        self,
        make: Callable[[], F],
        read: Callable[[Record], Any | None],
        on_page: Callable[[F], object] | None = None,
    ) -> None:
        self.fold = make()
        self.on_page = on_page
        """Called with the fold after each page that has records."""
        self._make = make
        self._read = read

    async def load(self, logbook: LogBook) -> int:  # noqa: ARG002 - nothing is read
        """See `Source`."""
        self.fold = self._make()
        return 0

    async def take(self, logbook: LogBook, page: Page) -> bool:  # noqa: ARG002 - nothing is read
        """See `Source`."""
        for record in page.records:
            value = self._read(record)
            if value is not None:
                self.fold.apply(record.seqnum, record.time, value)
        if self.on_page is not None and page.records:
            self.on_page(self.fold)
        return True


class Waiter:
    """A caller that waits: until `finish`, or for `patience_s` seconds from `since` on (None: without limit)."""

    __slots__ = ("error", "from_read", "is_done", "patience_s", "ready", "result", "session", "since", "wake")

    def __init__(
        self,
        patience_s: float | None = None,
        since: Moment = (0.0, 0.0),
        ready: Callable[[], Any] | None = None,
    ) -> None:
        self.patience_s = patience_s
        self.since = since
        self.ready = ready
        """Asked after each page: what is not None ends the wait, and is its result."""
        self.from_read = 0
        """The read from which on the end of the stream is new enough for it; 0: it does not wait for the end."""
        self.is_done = False
        self.result: Any = None
        self.error: BokiError | None = None
        self.wake: Callable[[], None] | None = None
        self.session: LogSession | None = None

    def finish(self, result: Any, error: BokiError | None = None) -> None:
        """It has what it waits for."""
        if not self.is_done:
            self.is_done, self.result, self.error = True, result, error
            if self.wake is not None:
                self.wake()


class Follower:
    """One stream: the records of `tag` (None: of the whole book) in the book of the LogBooks that are given."""

    def __init__(
        self,
        source: Source,
        tag: str | None,
        *,
        page_records: int = PAGE_RECORDS,
        before_read: Callable[[LogBook], float] | None = None,
    ) -> None:
        """`before_read` is called with the leader's LogBook before each read, to ask the log for what callers wait for;
        it returns the maximum number of seconds that the read may wait.
        """
        self.source = source
        self._before_read = before_read
        self.tag = tag
        self.clock = LogClock(self._begin_clock)
        self.next_start = 0
        """Every record below this was folded."""
        self.is_loaded = False
        self.is_over = False
        """`end` was called: what waits, and what comes, raises its error."""
        self.waiters: dict[Waiter, None] = {}
        """All who wait, in the order of their coming."""
        self._page_records = page_records
        self._ended: BokiError | None = None
        self._begun_below = 0
        self._reads = 0
        self._leader: Waiter | None = None
        self._read: asyncio.Future[Page] | None = None
        self._read_ends: Moment = (0.0, 0.0)
        self._seen: LogSession | None = None
        """What any of the callers had seen when it came."""

    @property
    def is_busy(self) -> bool:
        """Whether a caller waits."""
        return bool(self.waiters)

    def _begin_clock(self) -> float:
        """The event loop's time. The clock is read several times for each caller that waits: it asks the loop itself
        from now on.
        """
        self.clock.loop_s = asyncio.get_running_loop().time
        return self.clock.loop_s()

    # Waiting

    async def catch_up(self, logbook: LogBook) -> None:
        """Return when the fold has come to the end of the stream, as this caller sees it now. Costs one read, which
        all share who come while another one is under way.
        """
        waiter = Waiter()
        waiter.from_read = self._reads + 1
        await self.wait(logbook, waiter)

    async def wait_until(self, logbook: LogBook, ready: Callable[[], Any], wait_s: float | None = None) -> Any:
        """What `ready` returns, as soon as that is not None; it is asked now and after each page. None after `wait_s`
        seconds, or just before the deadline of the caller's call.
        """
        if wait_s is not None:
            wait_s = logbook.session.caller.deadline.wait_s(wait_s)
        waiter = Waiter(wait_s, self.clock.here(), ready)
        if self.is_loaded:
            self._ask(waiter)
        return waiter.result if waiter.is_done else await self.wait(logbook, waiter)

    async def wait_for_more(self, logbook: LogBook, wait_s: float | None = None) -> None:
        """Return when another record was folded, or after `wait_s` seconds."""
        start = self.next_start
        await self.wait_until(logbook, lambda: True if self.next_start > start else None, wait_s)

    async def follow(self, logbook: LogBook, backoff: Backoff) -> None:
        """Read for as long as this is not cancelled, also if no caller waits. Errors that do not pass are raised."""
        tries = 0
        while True:
            reads = self._reads
            try:
                await self.wait(logbook, Waiter())
            except BokiError as error:
                if not error.retryable:
                    raise
                tries = tries + 1 if reads == self._reads else 1
                _log.info("repeating a read of book %s: %s", logbook.name, error)
                await asyncio.sleep(backoff.pause_s(tries))

    async def wait(self, logbook: LogBook, waiter: Waiter) -> Any:
        """Until the waiter has what it waits for: its result."""
        if self._ended is not None:
            raise BokiError.from_body(self._ended.body())
        waiter.session = logbook.session
        self._note_seen(logbook)
        self.waiters[waiter] = None
        try:
            if self.is_loaded:
                self._shorten_read(waiter)
            while not waiter.is_done:
                if self._leader is None:
                    await self._lead(logbook, waiter)
                else:
                    await self._sleep(waiter)
        finally:
            del self.waiters[waiter]
            waiter.is_done = True  # a caller that was cancelled is given nothing more
            self._hand_over()  # it may have been served after it was woken to lead
        if waiter.error is not None:
            raise waiter.error
        return waiter.result

    async def _sleep(self, waiter: Waiter) -> None:
        awake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter.wake = lambda: None if awake.done() else awake.set_result(None)
        try:
            await awake
        except asyncio.CancelledError:
            if awake.done():
                self._hand_over(waiter)  # it may have been woken to lead
            raise
        finally:
            waiter.wake = None

    def _hand_over(self, but: Waiter | None = None) -> None:
        """Wake one who waits, to lead if no other does."""
        if self._leader is None:
            for waiter in self.waiters:
                if waiter is not but and not waiter.is_done and waiter.wake is not None:
                    waiter.wake()
                    return

    async def _lead(self, logbook: LogBook, waiter: Waiter) -> None:
        self._leader = waiter
        try:
            if not self.is_loaded:
                await self._load(logbook)
            while not waiter.is_done:
                await asyncio.sleep(0)  # callers that were just woken say first what they wait for next
                most_s = self._before_read(logbook) if self._before_read is not None else LONG_WAIT_S
                if not waiter.is_done:
                    await self.read_on(logbook, min(most_s, self._patience_s()))
        finally:
            self._leader = None
            self._hand_over()

    # Reading

    async def _load(self, logbook: LogBook) -> None:
        self.is_loaded = False
        self.share_seen(logbook.session)
        self.next_start = await self.source.load(logbook)
        self.is_loaded = True

    async def read_on(self, logbook: LogBook, wait_s: float) -> bool:
        """Read and fold one page, for the leader; False if none came. A caller with less patience may cut it short."""
        self._reads += 1
        number = self._reads
        self.share_seen(logbook.session)
        page = await self._page(logbook, wait_s)
        if page is None:
            return False
        self._note_seen(logbook)
        if self.next_start < page.first_seqnum and (self.next_start > 0 or page.first_seqnum != self._begun_below):
            # Others have trimmed what was not read yet. From 0 on that may be right, but not twice.
            self._begun_below = page.first_seqnum
            await self._load(logbook)
            return True
        if not await self.source.take(logbook, page):
            await self._load(logbook)
            return True
        self.next_start = max(self.next_start, page.next_start)
        if page.records:
            self.clock.hear(page.records[-1].time)
        self._finish(logbook.session, number if page.is_end else 0)
        return bool(page.records)

    async def _page(self, logbook: LogBook, wait_s: float) -> Page | None:
        self.clock.read_begins(logbook.session.caller.deadline.clock)
        reading = asyncio.ensure_future(
            logbook.read(self.tag, start=self.next_start, limit=self._page_records, wait_s=wait_s)
        )
        if wait_s:
            now = self.clock.here()
            self._read, self._read_ends = reading, (now[0] + wait_s, now[1] + wait_s)
        try:
            page = await reading
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                return None  # cut short
            reading.cancel()
            raise
        finally:
            self._read = None
            with suppress(RuntimeError):  # a caller that its loop has left behind is closed later: its clock is gone
                self.clock.read_ends()
        return page

    def _note_seen(self, logbook: LogBook) -> None:
        if self._seen is None:
            self._seen = logbook.session.logbook(logbook.name, detached=True).session
        self._seen.saw(logbook.session)

    def share_seen(self, session: LogSession) -> None:
        """Let the session read no older log than those who wait here have seen, and than what was folded came from: for
        the read of the leader, and for a caller that is given what others have read.
        """
        if self._seen is not None:
            session.saw(self._seen)

    def _finish(self, session: LogSession, ended_read: int) -> None:
        """Wake all who have what they wait for. `ended_read`: the read of that number came to the end of the stream."""
        now = self.clock.here()
        looking = [
            waiter
            for waiter in self.waiters  # most wait for their `finish` alone, and there may be thousands
            if not waiter.is_done and (waiter.ready is not None or waiter.from_read or waiter.patience_s is not None)
        ]
        finished = [waiter for waiter in looking if self._has_what_it_wants(waiter, ended_read, now)]
        for waiter in finished:
            if waiter.session is not None and waiter.session is not session:
                waiter.session.saw(session)

    def _has_what_it_wants(self, waiter: Waiter, ended_read: int, now: Moment) -> bool:
        if waiter.is_done:
            return False
        if 0 < waiter.from_read <= ended_read:
            waiter.finish(None)
        elif waiter.ready is not None:
            self._ask(waiter)
        if waiter.patience_s is not None:
            waited_s = max(now[0] - waiter.since[0], now[1] - waiter.since[1])
            if waited_s >= waiter.patience_s - _MARGIN_S:
                waiter.finish(None)
        return waiter.is_done

    def _ask(self, waiter: Waiter) -> None:
        result = waiter.ready() if waiter.ready is not None else None
        if result is not None:
            waiter.finish(result)

    def _patience_s(self) -> float:
        """How long the leader may wait for a record before another caller has to be told something."""
        wait_s = LONG_WAIT_S
        now = self.clock.here()
        for waiter in self.waiters:
            if waiter.is_done:
                continue
            if waiter.from_read:
                return 0.0
            if waiter.patience_s is not None:
                waited_s = max(now[0] - waiter.since[0], now[1] - waiter.since[1])
                wait_s = min(wait_s, waiter.patience_s - waited_s)
        return max(wait_s, _LEAST_WAIT_S)

    def _shorten_read(self, waiter: Waiter) -> None:
        """Let the leader look again, if it waits for longer than this caller can."""
        if self._read is None or (waiter.patience_s is None and not waiter.from_read):
            return
        left_s = 0.0 if waiter.from_read else (waiter.patience_s or 0.0)
        now = self.clock.here()
        if left_s < max(self._read_ends[0] - now[0], self._read_ends[1] - now[1]):
            self._read.cancel()

    def look_again(self) -> None:
        """Cut the leader's read short, because what its length was decided by has changed."""
        if self._read is not None:
            self._read.cancel()

    def end(self, error: BokiError) -> None:
        """Nothing of the fold is true any more: all who wait, and all who come, are told so."""
        self.is_over, self._ended = True, error
        for waiter in list(self.waiters):
            waiter.finish(None, BokiError.from_body(error.body()))
