"""The system book `boki:calls` behind the LogBook API: followed, written, and kept short.

An append whose answer is lost may have happened, and a ledger must know. So each is of a kind that can be repeated: an
acceptance under its key, or under the condition that its id has no record yet; everything else under the condition that
the call's last record is still the one that is known. The loser of such a race reads what the winner wrote, and often
the winner is the same append, a moment earlier.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from boki.api.append_gatherer import AppendGatherer
from boki.api.deadline import Caller, Deadline
from boki.api.log_calls import FirstUse, first_record, many_records, one_record, records_of
from boki.api.logbook import LogBook, LogSession
from boki.api.port import LogPort
from boki.books.calls.checkpoints import newest_checkpoint, write_checkpoint
from boki.books.calls.ledger import (
    BOOK,
    CODEC,
    TAKEN_OVER_TAG,
    Accepted,
    CallEntry,
    Checkpoint,
    Entry,
    Finished,
    Ledger,
    Retrying,
    Started,
    Suspended,
    TakenOver,
    acceptance_tags,
    accepted_of,
    end_tags,
    entry_of,
    finished_of,
    id_of,
    id_tag,
    owner_tag,
    waiting_of,
)
from boki.books.calls.lives import fitting
from boki.books.calls.runs import Runs
from boki.books.calls.waiting import Owner, Waiting
from boki.errors import (
    BokiError,
    ConditionFailed,
    DeadlineExceeded,
    NoSuchInvocation,
    NotFound,
    Trimmed,
    Unavailable,
)
from boki.host.clock import now_us
from boki.libs.fold.follower import PAGE_RECORDS, Follower
from boki.libs.fold.retrying import until_answered, until_decided
from boki.log.ids import MAX_SEQNUM
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.operations import Append, Found, Read, TrimBook
from boki.log.record import Expect, Page, Record
from boki.protocol.calls import Outcome, Suspension, ends_tag
from boki.retry import Backoff

_log = logging.getLogger("boki.protocol.calls")

_WHAT: Final = f"a request to book {BOOK}"
_BACKOFF: Final = Backoff(jitter=0.0)
"""Without jitter, so that simulations are repeatable."""
_LONGEST_POLL_S: Final = 3600.0
"""The engine is in this process: nothing on the way gives up."""


class CallBook:
    """The book and the ledger that it folds into. One per engine; `me` is this engine's incarnation."""

    def __init__(
        self, port: LogPort, me: Owner, limits: Limits = DEFAULT_LIMITS, clock: Callable[[], int] = now_us
    ) -> None:
        self.ledger = Ledger()
        self.unsaved_count = 0
        """Records since the last checkpoint."""
        self.me = me
        self._limits = limits
        self._clock = clock
        deadline = Deadline(clock=lambda: asyncio.get_running_loop().time())
        self._access = LogSession(
            port, AppendGatherer(port, limits), Caller(deadline=deadline, limits=limits, is_runtime=True)
        )
        self._book = self._access.logbook(BOOK)
        self._follower = Follower(self, None, page_records=min(PAGE_RECORDS, limits.page_records))
        self._is_recovering = False
        self._ends: dict[str, asyncio.Future[tuple[Finished, int] | None]] = {}
        """Unfinished calls whose end is waited for here: the record and its time; None: look for yourself."""
        self._on_entry: Callable[[Entry, int], None] = lambda *_: None
        self._on_recovered: Callable[[], None] = lambda: None

    # following

    async def recover(self) -> None:
        """Fold the book up to its tail. `VersionTooNew` if a newer Boki has written there."""
        await self._follower.catch_up(self._book)

    async def load(self, logbook: LogBook) -> int:
        """See `boki.libs.fold.follower.Source`."""
        await logbook.sync()
        self.ledger = Ledger(await newest_checkpoint(self._book))
        self.unsaved_count = 0
        self._is_recovering = True
        return self.ledger.fold_from

    async def take(self, logbook: LogBook, page: Page) -> bool:  # noqa: ARG002 - nothing is read
        """See `boki.libs.fold.follower.Source`."""
        for record in page.records:
            entry = CODEC.decode(record.data)
            self.ledger.apply(record.seqnum, record.time, entry)
            self.unsaved_count = 0 if isinstance(entry, Checkpoint) else self.unsaved_count + 1
            if isinstance(entry, Finished) and not self.ledger.has_later(entry.id):
                self._tell_end(entry.id, (entry, record.time))
            if not self._is_recovering:
                self._on_entry(entry, record.seqnum)
        if page.is_end and self._is_recovering:
            self._is_recovering = False
            for invocation_id in list(self._ends):  # it may have ended by what was trimmed
                self._tell_end(invocation_id, None)
            self._on_recovered()
        return True

    async def follow(self, on_entry: Callable[[Entry, int], None], on_recovered: Callable[[], None]) -> None:
        """Fold what comes, forever; `on_entry` is told of each record, and its seqnum, after it was folded.

        If others have trimmed what was not yet read, the ledger is made again, and `on_recovered` is told.
        """
        self._on_entry, self._on_recovered = on_entry, on_recovered
        await self._follower.follow(self._book, _BACKOFF)

    async def end_of(self, invocation_id: str, wait_s: float) -> tuple[Finished, int] | None:
        """The end of a call that the ledger knows as unfinished, and the time of its record, when the fold comes to it.

        None after `wait_s`, or if it is to be looked for in the book. However many wait, and for whatever calls, the
        log is read once.
        """
        if invocation_id not in self.ledger.waiting:
            return None
        end = self._ends.get(invocation_id)
        if end is None:
            end = self._ends[invocation_id] = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([end], timeout=wait_s)
        return end.result() if done else None

    def _tell_end(self, invocation_id: str, found: tuple[Finished, int] | None) -> None:
        end = self._ends.pop(invocation_id, None)
        if end is not None:
            end.set_result(found)

    # the life of a call

    async def accept(self, entry: Accepted, key: str | None) -> tuple[Accepted, int, Waiting | None]:
        """Log the acceptance: the entry that counts, its time, and, if that is this call and it has not begun, what is
        to be run by its owner.

        Under a key that was used before, the entry of the first use counts. What is raised is a definite refusal.
        """
        tag = id_tag(entry.call.id)
        when = (Expect(tag, 0),) if key is None else ()
        try:
            seqnums = await self._accept(entry, when, key)
            if not isinstance(seqnums, FirstUse):
                return self._accepted_now(entry, seqnums[0])
            seqnum = seqnums[0]
        except ConditionFailed as error:  # an earlier try, here or at another engine, has been carried out
            seqnum = error.actual_seqnum
        last = await until_answered(partial(self.last, entry.call.id), _WHAT, _BACKOFF)
        if last is None:  # the key belongs to another call
            record = await until_answered(partial(self._book.get, seqnum), _WHAT, _BACKOFF)
            return accepted_of(record), record.time, None
        known, record = last
        self.ledger.learn(record.seqnum, record.time, known)
        if isinstance(known, Accepted):
            return known, record.time, waiting_of(known, record.seqnum, record.time)
        return entry, record.time, None

    async def accept_after(self, entry: Accepted, last_seqnum: int) -> tuple[Accepted, int, Waiting | None] | None:
        """Log the acceptance if that record is the last one of its id (0: there is none); see `accept`. Else nothing
        happens: None. What is raised is a definite refusal.
        """
        try:
            (seqnum,) = await self._accept(entry, (Expect(id_tag(entry.call.id), last_seqnum),), None)
        except ConditionFailed:
            return None
        return self._accepted_now(entry, seqnum)

    async def _accept(self, entry: Accepted, when: tuple[Expect, ...], key: str | None) -> Sequence[int]:
        limits = self._limits
        group = one_record(CODEC.encode(entry), [id_tag(entry.call.id), *acceptance_tags(entry)], when, key, limits)
        return await until_decided(lambda: self._access.append(BOOK, group, None), _WHAT, _BACKOFF, is_patient=False)

    async def accept_ended(self, entry: Accepted, end: Finished, appends: Sequence[Append], key: str | None) -> bool:
        """Log the acceptance and the end of a call as neighbours, under the key, or else if its id has no record yet;
        what its run has left goes into the same batch. False: the key or the id is taken, or the end does not fit.
        """
        ended = CODEC.encode(end)
        if len(ended) > self._limits.record_bytes:
            return False
        tag = id_tag(entry.call.id)
        records = [
            (CODEC.encode(entry), [tag, *acceptance_tags(entry)]),
            (ended, [tag, *end_tags(end)]),
        ]
        group = many_records(records, (Expect(tag, 0),) if key is None else (), key, self._limits)
        beside = asyncio.ensure_future(self.append_beside(appends))
        append = partial(self._access.append, BOOK, group, None)
        try:
            seqnums = await until_decided(append, _WHAT, _BACKOFF, is_patient=False)
        except ConditionFailed:
            return False
        except asyncio.CancelledError:
            beside.cancel()
            raise
        finally:
            await beside
        is_new = not isinstance(seqnums, FirstUse)  # perhaps of this append, which was repeated
        if is_new:
            self.ledger.learn(seqnums[1], 0, end)
        return is_new

    def _accepted_now(self, entry: Accepted, seqnum: int) -> tuple[Accepted, int, Waiting | None]:
        """The answer to the append tells all but the time of the record: it is about now."""
        about_us = self._clock()
        self.ledger.learn(seqnum, about_us, entry)
        return entry, about_us, waiting_of(entry, seqnum, about_us)

    async def newest(self, invocation_id: str) -> tuple[CallEntry, Record] | None:
        """The call's last record, which the ledger learns; None if there is none."""
        last = await until_answered(partial(self.last, invocation_id), _WHAT, _BACKOFF)
        if last is not None:
            self.ledger.learn(last[1].seqnum, last[1].time, last[0])
        return last

    async def append_after(self, entry: CallEntry, expected_seqnum: int, tags: Sequence[str] = ()) -> int:
        """Append a record of a call if that one is still its last: its seqnum. Else learn what the last one is: 0."""
        tag = id_tag(id_of(entry))
        append = partial(self._book.append, CODEC.encode(entry), [tag, *tags], when=Expect(tag, expected_seqnum))
        try:
            seqnum = await until_decided(append, _WHAT, _BACKOFF)
        except ConditionFailed:
            await self._catch_up(id_of(entry))
            return 0
        self.ledger.learn(seqnum, 0, entry)
        return seqnum

    async def carry(self, carried: Accepted, expected_seqnum: int) -> bool:
        """Append an acceptance in the name of the call's owner, if that record is still the call's last and nothing has
        taken over from the owner. Else learn what has become of the call.

        Of the owner this engine knows what its fold knows. Without the condition, a call that was carried behind the
        claim of its heir would belong to the lost owner again.
        """
        tag, owner = id_tag(carried.call.id), owner_tag(carried.owner)
        append = partial(
            self._book.append,
            CODEC.encode(carried),
            [tag, *acceptance_tags(carried)],
            when=(Expect(tag, expected_seqnum), Expect(owner, 0)),
        )
        try:
            seqnum = await until_decided(append, _WHAT, _BACKOFF)
        except ConditionFailed as error:
            await (self._learn_heir(carried.owner) if error.tag == owner else self._catch_up(carried.call.id))
            return False
        self.ledger.learn(seqnum, 0, carried)
        return True

    async def _learn_heir(self, lost: Owner) -> None:
        """There is a claim to an owner's calls, so it was fenced before: fold the claim, and see that it covers all."""
        await until_answered(self.recover, _WHAT, _BACKOFF)
        if lost in self.ledger.owners():
            await self.take_over(lost)
            await until_answered(self.recover, _WHAT, _BACKOFF)

    async def begin(self, waiting: Waiting, runs: Runs) -> Waiting | None:
        """Record that a run of the call begins here: how it waits from then on; None if it is over or another's."""
        starts = waiting.starts + 1
        while (found := await self._mine(waiting)) is not None:
            if found.starts >= starts:
                return found
            started = Started(found.id, found.accepted_seqnum, found.due_us, self.me, starts, runs)
            waiting = await self._after(started, found, waiting)
        return None

    async def retry_later(self, waiting: Waiting, next_us: int, runs: Runs) -> Waiting | None:
        """Record that a run has failed and when the next is due: how the call waits then; None: over or another's."""
        while (found := await self._mine(waiting)) is not None:
            if found.state == "retrying":
                return found
            retrying = Retrying(found.id, found.accepted_seqnum, next_us, self.me, found.starts, runs)
            waiting = await self._after(retrying, found, waiting)
        return None

    async def suspend(self, waiting: Waiting, suspension: Suspension, runs: Runs) -> Waiting | None:
        """Record that a run has ended and what the next waits for: how the call waits then; None: over or another's."""
        while (found := await self._mine(waiting)) is not None:
            if found.state == "suspended":
                return found
            suspended = Suspended(found.id, found.accepted_seqnum, self.me, runs, suspension)
            waiting = await self._after(suspended, found, waiting)
        return None

    async def _after(self, entry: CallEntry, found: Waiting, known: Waiting) -> Waiting:
        """Append a record behind that of `found`: where the life of the call is known to have come."""
        seqnum = await self.append_after(entry, found.seqnum)
        return msgspec.structs.replace(found, seqnum=seqnum) if seqnum else known

    async def _mine(self, known: Waiting) -> Waiting | None:
        """The call, if it is unfinished, this engine's, and in the life in which it waited as is `known`."""
        found = self.ledger.waiting.get(known.id)
        if found is None or found.owner != self.me or await self._is_over(known, found):
            return None
        return found

    async def _is_over(self, known: Waiting, found: Waiting) -> bool:
        """Whether the call has ended between these two of its records, and was run again: the body that runs is of the
        life before, and has no part in this one.
        """
        start = known.seqnum + 1
        while start < found.seqnum:
            read = partial(self._book.read, id_tag(known.id), start=start, stop=found.seqnum)
            page = await until_answered(read, _WHAT, _BACKOFF)
            if any(isinstance(entry_of(each), Finished) for each in page.records):
                return True
            if page.is_end:
                break
            start = page.next_start
        return False

    async def finish(self, entry: Finished, known: Waiting, appends: Sequence[Append] = ()) -> Outcome | None:
        """Record how the life of the call ended in which it waited as is `known`, unless that has been done or it is
        another's by now: the outcome that counts. None: that life had ended, and the call runs again.

        What its run has left to be appended goes into the same batch. It is in the log when this returns, though others
        may have read of the end before, if it was refused there and had to be repeated.
        """
        if not appends:
            return await self._finish(entry, known)
        beside = asyncio.ensure_future(self.append_beside(appends))
        try:
            return await self._finish(entry, known)
        except asyncio.CancelledError:
            beside.cancel()  # it repeats for as long as the log refuses: an engine that stops must not wait for it
            raise
        finally:
            await beside

    async def append_beside(self, appends: Sequence[Append]) -> None:
        """Append what a run has left. Of each its condition decides, also when it is repeated."""
        for append in appends:
            try:
                await until_decided(partial(self._access.ask, append), _WHAT, _BACKOFF)
            except BokiError as error:
                _log.warning("what a call left to be appended to book %s was refused: %s", append.book, error)

    async def _finish(self, entry: Finished, known: Waiting) -> Outcome | None:
        entry = fitting(entry, self._limits.record_bytes)
        while (found := self.ledger.waiting.get(entry.id)) is not None:
            if found.owner != self.me:
                return await self.outcome(entry.id)
            if await self._is_over(known, found):
                return None
            entry = msgspec.structs.replace(entry, accepted_seqnum=found.accepted_seqnum)  # it may have been carried
            if await self.append_after(entry, found.seqnum, end_tags(entry)):
                return entry.outcome
        return await self._catch_up(entry.id) or entry.outcome

    async def take_over(self, lost: Owner) -> None:
        """Claim the unfinished calls of an owner that can append no more, unless another has; the fold tells which.

        Again, if calls are this owner's although the fold knows the last claim: earlier versions carry a call forward
        in the name of an owner that was taken over meanwhile.
        """
        last_claim = await self._claim(lost, 0)
        if 0 < last_claim < self.ledger.fold_from and lost in self.ledger.owners():
            await self._claim(lost, last_claim)

    async def _claim(self, lost: Owner, last_claim: int) -> int:
        """Append the claim to an owner's calls if the last one is that record (0: there is none); else its seqnum."""
        tag, entry = owner_tag(lost), CODEC.encode(TakenOver(lost, self.me))
        append = partial(self._book.append, entry, [tag, TAKEN_OVER_TAG], when=Expect(tag, last_claim))
        try:
            await until_decided(append, _WHAT, _BACKOFF)
        except ConditionFailed as error:
            return int(error.actual_seqnum)
        return 0

    async def _catch_up(self, invocation_id: str) -> Outcome | None:
        """The call has another last record than was known: learn it. Its outcome, if it is that it has finished."""
        last = await until_answered(partial(self.last, invocation_id), _WHAT, _BACKOFF)
        if last is None:
            _log.warning(
                "the records of call %s are gone before it has finished: was book %s trimmed?", invocation_id, BOOK
            )
            self.ledger.lose(invocation_id)
            return None
        entry, record = last
        self.ledger.learn(record.seqnum, record.time, entry)
        return entry.outcome if isinstance(entry, Finished) else None

    async def find(self, invocation_id: str, timeout_s: float | None = None) -> tuple[CallEntry, Record] | None:
        """The last record of a call that somebody asks for by its id; None if there is no such call.

        The log is asked, because another engine may just have changed the call. If it does not answer within
        `timeout_s`, this is what this engine has of the call; only the log may say that there is none, and is waited
        for then. None: it is waited for in any case.
        """
        if timeout_s is None or timeout_s > 0:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self.last(invocation_id, fresh=True)
            except (TimeoutError, DeadlineExceeded, Unavailable):
                if timeout_s is None:
                    raise
        return await self.last(invocation_id) or await self.last(invocation_id, fresh=True)

    async def last(self, invocation_id: str, *, fresh: bool = False) -> tuple[CallEntry, Record] | None:
        """The call's last record, as this engine has it or as it is now; None if there is none."""
        record = await self._book.check_tail(id_tag(invocation_id), fresh=fresh)
        if record is None:
            return None
        entry = entry_of(record)
        assert isinstance(entry, CallEntry), "others carry no id"
        return entry, record

    async def acceptance(self, seqnum: int) -> tuple[Accepted, int]:
        """The acceptance that is the record of that seqnum, and its time. `Trimmed`"""
        record = await self._book.get(seqnum)
        return accepted_of(record), record.time

    async def ended(self, tag: str, below: int, since_us: int, limit: int) -> list[tuple[Finished, Record]]:
        """The last ends with that tag below a seqnum and not before a time, the newest first; fewer than `limit`, if
        a page holds no more; none, if there are none.
        """
        read = Read(BOOK, tag, 0, below, limit, backward=True, start_time_us=since_us)
        found = await self._access.ask(read)
        assert isinstance(found, Found)
        return [(finished_of(record), record) for record in reversed(list(records_of(found)))]

    async def with_ends(self, ids: list[str]) -> list[str]:
        """Those of the calls that ended calls report to, and maybe others."""
        compared = await self._access.compare(BOOK, [(ends_tag(each), 0) for each in ids])
        return ids if compared is None else [ids[number] for number in compared.changed]

    async def wait_for_more(self, invocation_id: str, after: Record, wait_s: float) -> None:
        """Return when the call has a record after this one, or when `wait_s` is over."""
        await self._book.read_next(id_tag(invocation_id), min_seqnum=after.next_seqnum, wait_s=wait_s)

    async def outcome(self, invocation_id: str) -> Outcome:
        """The call's outcome, once it is recorded, by whomever. `NoSuchInvocation` if its records are trimmed."""
        while True:
            found = await until_answered(partial(self.last, invocation_id), _WHAT, _BACKOFF)
            if found is None:
                raise NoSuchInvocation(f"the records of call {invocation_id} have been trimmed", outcome="unknown")
            entry, record = found
            if isinstance(entry, Finished):
                return entry.outcome
            await until_answered(partial(self.wait_for_more, invocation_id, record, _LONGEST_POLL_S), _WHAT, _BACKOFF)

    async def load_call(self, waiting: Waiting) -> tuple[Accepted, int] | None:
        """The acceptance of an unfinished call, with its payload, and the time of the record; None if it is gone."""
        try:
            record = await until_answered(partial(self._book.get, waiting.accepted_seqnum), _WHAT, _BACKOFF)
        except (NotFound, Trimmed):  # it has been carried forward, or is over
            await self._catch_up(waiting.id)
            found = self.ledger.waiting.get(waiting.id)
            if found is None or found.accepted_seqnum == waiting.accepted_seqnum:
                self.ledger.lose(waiting.id)
                return None
            return await self.load_call(found)
        return accepted_of(record), record.time

    async def checkpoint(self) -> None:
        """Write down which calls are unfinished, so that the next start need not read further back."""
        await write_checkpoint(self._book, self.ledger, self._limits.record_bytes)
        self.unsaved_count = 0

    async def first_seqnum_at(self, time_us: int) -> int | None:
        """The first record at or after that time; None if there is none."""
        found = await self._access.ask(Read(BOOK, None, 0, MAX_SEQNUM, 1, start_time_us=time_us))
        assert isinstance(found, Found)
        first = first_record(found)
        return None if first is None else first.seqnum

    async def trim(self, floor: int) -> None:
        """Trim everything below that seqnum."""
        await self._access.ask(TrimBook(BOOK, floor))
