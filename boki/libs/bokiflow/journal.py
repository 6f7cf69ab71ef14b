"""Appends the records of one execution to its journal, several in flight, and knows which of them are durable.

Each record goes to its own place (`Expect(journal, count=place)`), so records may be in flight together and the log
refuses those of an execution that was overtaken. Records of pure steps may wait for the next one, and travel with it.

If an answer is lost or an append fails, the writer **settles** before anything else happens: it reads what stands in
the journal, finds its own records there, and appends the missing ones. If it finds those of another execution, this one
is overtaken.

Two executions with several appends in flight could overtake each other again and again: the first one of each is
refused, because the second one of the other has taken its place, and that does not count behind a refused one. So what
follows an execution that was overtaken writes **in turn**: one append at a time, which counts if it is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from boki import BokiError, ConditionFailed, Expect, LogBook, NewRecord
from boki.extending import begin_append, leave_append
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.records import (
    Beat,
    Began,
    Continued,
    Done,
    Ended,
    Entry,
    Fact,
    Fired,
    Intended,
    Marked,
    encode_entry,
)
from boki.libs.fold.codec import runs
from boki.libs.fold.retrying import PATIENT, until_answered

PAGE_RECORDS: Final = 1_000
_TOGETHER: Final = 1_000
"""Maximum number of records of one append."""
_BESIDE_BYTES: Final = 1 << 18
"""Maximum size of the records that travel with a group of another library: it leaves room for them (`fold.outbox`)."""


class JournalWriter:
    """See the module. `changed` is called whenever more is durable, or when `is_overtaken` or `error` is set."""

    _kept_bytes = 0
    """Size of the records that wait for the next one, at most."""
    progress_run: int
    """The number of the last run that had made progress: see `Entry.progress_run`."""

    def __init__(
        self,
        logbook: LogBook,
        tag: str,
        history: History,
        writer: int,
        life: int,
        changed: Callable[[], None],
        *,
        run: int,
        in_turn: bool = False,
    ) -> None:
        """`run`: the number of this run of the call. `in_turn`: have one append in flight at most."""
        self._logbook = logbook
        self._tags = [tag]
        self._tag = tag
        self._writer = writer
        self._life = life
        self._run = run
        self.progress_run = history.progress_run
        self._beats = {(fact.n, fact.details) for entry in history.entries if isinstance(fact := entry.fact, Beat)}
        """What steps had said of how far they had come before this execution."""
        self._base = history.place
        self._changed = changed
        self.place = history.place
        """The place of the next record."""
        self.durable = history.place
        """Every record below this place is durable."""
        self.firm = history.place
        """What has an effect waits until this is durable."""
        self.is_overtaken = False
        self.error: BokiError | None = None
        """Why the journal cannot be written."""
        self._next_start = history.next_start
        """Where the records that are not known to be durable begin, or would."""
        self._sent: dict[int, bytes] = {}
        """Records that are not known to be durable, by place."""
        self._kept: list[bytes] = []
        """Those of them that wait for the next record."""
        self._arrived: dict[int, Sequence[int]] = {}
        """Seqnums of durable records behind others that are not, by their first place."""
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._is_settling = False
        self._in_turn = in_turn
        self._is_due = False
        """Whether what is kept is to leave once all that was sent is durable."""
        self.is_begun = history.began_us > 0
        """Whether the journal says when the workflow began."""
        self._begun_at = history.place
        """The place behind the record that says so."""
        self.seen = max((entry.seen for entry in history.entries), default=history.cursor)
        """Up to which message of the inbox the journal says when they were delivered."""
        self.append_count = 0
        self.read_at = 0
        """As of where the body has read since the last record; the next one says so."""
        self._watched: tuple[int, asyncio.Future[int]] | None = None
        """The place of a record, and its seqnum when that is known."""
        self.refuse: Callable[[], None] | None = None
        """Called in place of an append: the call is not accepted yet."""

    def add(self, fact: Fact, seen: int, at_us: int, began_us: int, *, lazily: bool = False) -> None:
        """Record a fact at the next place. It leaves with the next `flush`. `lazily`: nothing waits for it."""
        self._place(fact, seen, at_us, began_us)
        if not lazily:
            self.firm = self.place

    def _place(self, fact: Fact, seen: int, at_us: int, began_us: int) -> None:
        if self._is_progress(fact):
            self.progress_run = self._run
        data = self._encoded(fact, seen, at_us, began_us)
        if not self.is_begun:
            self._begun_at = self.place + 1
        self.is_begun, self.read_at, self.seen = True, 0, seen
        self._sent[self.place] = data
        self._kept_bytes = len(data) + (self._kept_bytes if self._kept else 0)
        self._kept.append(data)
        self.place += 1

    def _is_progress(self, fact: Fact) -> bool:
        """Whether the body moves on by this, or a step says that it has come further. A heartbeat that repeats what an
        earlier run has said is no progress: else a step that kills its worker again and again would never be paused.
        """
        if isinstance(fact, Beat):
            return (fact.n, fact.details) not in self._beats
        return isinstance(fact, Done | Fired | Intended | Marked | Continued)

    def _encoded(self, fact: Fact, seen: int, at_us: int, began_us: int) -> bytes:
        entry = Entry(
            self._writer,
            self._base,
            seen,
            at_us,
            fact,
            0 if self.is_begun else began_us,
            self._life,
            self.read_at,
            progress_run=self.progress_run,
        )
        return encode_entry(entry)

    def begin(self, seen: int, at_us: int, began_us: int) -> bool:
        """Record when the workflow began; False if the journal says so already."""
        if self.is_begun:
            return False
        self.add(Began(), seen, at_us, began_us)
        return True

    @property
    def is_begin_durable(self) -> bool:
        """Whether it is durable when the workflow began."""
        return self.is_begun and self.durable >= self._begun_at

    def note_seen(self, seen: int, at_us: int, began_us: int) -> None:
        """Record how far the inbox was read, so that a life after a kill in a pause does not read that again."""
        if seen > self.seen:
            self.add(Began(), seen, at_us, began_us)

    def seal(self) -> None:
        """Something with an effect follows: it waits for all records, those that could have waited included."""
        self.firm = self.place

    def flush_firm(self) -> None:
        """Append what was recorded, unless nothing waits for any of it; no more is kept than one append holds."""
        if self._kept and self._kept_bytes > self._most_bytes:
            self.seal()
        if self._kept and self.firm > self.place - len(self._kept):
            self.flush()

    def finish(self, tag: str, end: Ended, seen: int, at_us: int, began_us: int) -> bool:
        """The workflow has ended: what was not sent yet has this tag, too. False if all was sent."""
        if self._kept and seen > self.seen:  # else a later life would be given what was delivered since the last one
            self.add(end, seen, at_us, began_us)
        self._tags = [self._tag, tag]
        return bool(self._kept)

    def leave_end(self, end: Ended, seen: int, at_us: int, began_us: int) -> None:
        """Have the engine append a record of the end with the end of the run, if it can: nothing waits for it."""
        data = self._encoded(end, seen, at_us, began_us)
        leave_append(self._logbook, [data], self._tags, Expect(self._tag, count=self.place))

    def leave(self) -> bool:
        """Have the engine append what was not sent yet, with the end of the run; False if it is to be appended here."""
        if self._kept:
            when = Expect(self._tag, count=self.place - len(self._kept))
            if not leave_append(self._logbook, self._kept, self._tags, when):
                return False
            self._kept.clear()
        return True

    def flush(self) -> None:
        """Append what was recorded and not sent, in as many appends as it needs."""
        if self._kept and self.refuse is not None:
            self.refuse()
            return
        while self._kept and not self._is_settling and self.error is None and not self.is_overtaken:
            self._is_due = self._in_turn and len(self._sent) > len(self._kept)
            if self._is_due:
                return
            some, place = next(self._together(self._kept)), self.place - len(self._kept)
            del self._kept[: len(some)]
            self._append(place, some)

    def _together(self, records: Sequence[bytes]) -> Iterator[list[bytes]]:
        """The records by append: results of steps that waited may be more than one request holds."""
        return runs(records, len, self._most_bytes, _TOGETHER)

    @property
    def _most_bytes(self) -> int:
        """Of the records of one append, unless it has one alone."""
        return self._logbook.session.caller.limits.request_bytes // 2

    @property
    def is_firm(self) -> bool:
        """Whether all is durable that has an effect or came before one."""
        return self.durable >= self.firm

    @property
    def is_sent_firm(self) -> bool:
        """The same of what was sent."""
        return self.durable >= min(self.firm, self.place - len(self._kept))

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way, or waits to be."""
        return not self._sent

    @property
    def last_seqnum(self) -> int:
        """The seqnum of the last record that is known to be durable."""
        return self._next_start - 1

    async def rest(self) -> None:
        """Wait until nothing is under way any more."""
        while self._in_flight:
            await asyncio.wait(set(self._in_flight))

    def watch(self) -> None:
        """Remember where the last record comes to stand, instead of what was watched before: see `watched`."""
        self._watched = self.place - 1, asyncio.get_running_loop().create_future()

    async def watched(self) -> int:
        """The seqnum of the record that is watched, once it is durable."""
        self.flush()
        assert self._watched is not None, "a record is watched"
        return await self._watched[1]

    async def commit(
        self,
        fact: Fact,
        seen: int,
        at_us: int,
        began_us: int,
        records: Sequence[NewRecord],
        conditions: Sequence[Expect],
    ) -> Sequence[int] | None:
        """Record a fact in one group with records of another library: all of them or none, and none unless these
        conditions hold, too. The seqnums of the records; None if nothing was appended: the log has refused the
        conditions, or this execution was overtaken or cannot write (`is_overtaken`, `error`).

        Call it after `rest`, and add nothing until it returns. If this place of the journal is taken, the group is
        refused with it: so what is in the group is there once, however many executions of the run try to append it.
        """
        if self._kept and self._kept_bytes > _BESIDE_BYTES:
            self.flush()
            await self.rest()
            if self.is_overtaken or self.error is not None:
                return None
        before = self.read_at, self.is_begun, self.seen, self.progress_run
        self._place(fact, seen, at_us, began_us)
        mine, self._kept = self._kept, []
        start = self.place - len(mine)
        group = [*records, *(NewRecord(data, (self._tag,)) for data in mine)]
        when = (Expect(self._tag, count=start), *conditions)
        self.append_count += 1
        seqnums = await self._decide(group, when, mine)
        if seqnums is not None:
            self.firm = self.place
            self._arrive(start, seqnums[len(records) :])
            return seqnums[: len(records)]
        self.place -= 1
        del self._sent[self.place]
        self._kept = mine[:-1]
        self.read_at, self.is_begun, self.seen, self.progress_run = before
        return None

    async def _decide(
        self, group: Sequence[NewRecord], when: Sequence[Expect], mine: list[bytes]
    ) -> Sequence[int] | None:
        """Append the group until the log has decided; None: it stands nowhere, and never will."""
        tries, is_doubtful, count = 0, False, self._base
        while True:
            tries += 1
            try:
                return await self._logbook.append_many(group, when=tuple(when))
            except BokiError as error:
                is_refused, count = isinstance(error, ConditionFailed), self._counted(error)
                is_doubtful = is_doubtful or error.outcome == "unknown"
                if not is_refused and not is_doubtful and self._is_final(error):
                    self.error = error
                    return None
            if is_refused:
                if is_doubtful:  # an earlier try may be what stands in the way: see all that was decided before
                    await until_answered(self._logbook.sync)
                stood = await until_answered(self._read_unsure)
                if [data for data, _ in stood[: len(mine)]] == mine:
                    last = stood[len(mine) - 1][1]
                    return range(last + 1 - len(group), last + 1)  # a group's records are neighbours
                self.is_overtaken = bool(stood) or not self._base <= count <= self.durable
                return None
            await asyncio.sleep(PATIENT.pause_s(tries))

    def _append(self, place: int, data: list[bytes]) -> None:
        self.append_count += 1
        try:
            appending = begin_append(self._logbook, data, self._tags, Expect(self._tag, count=place))
        except BokiError as error:
            self._settle_soon(error)
            return
        self._in_flight.add(appending)
        appending.add_done_callback(partial(self._on_appended, place))

    def _on_appended(self, place: int, appending: asyncio.Future[Sequence[int]]) -> None:
        self._in_flight.discard(appending)
        if appending.cancelled():
            return  # its process ends
        error = appending.exception()
        if error is None:
            seqnums = appending.result()
            self._arrive(place, seqnums)
        elif isinstance(error, BokiError):
            self._settle_soon(error)
        else:
            raise error

    def _arrive(self, start: int, seqnums: Sequence[int]) -> None:
        """The records from this place on are durable."""
        self._arrived[start] = seqnums
        before = self.durable
        while (reached := self._arrived.pop(self.durable, None)) is not None:
            for place, seqnum in enumerate(reached, self.durable):
                del self._sent[place]
                if self._watched is not None and self._watched[0] == place and not self._watched[1].done():
                    self._watched[1].set_result(seqnum)
            self.durable, self._next_start = self.durable + len(reached), reached[-1] + 1
        if self.durable != before:
            if self._is_due:
                self.flush()
            self._changed()

    # after an error

    def _settle_soon(self, error: BokiError) -> None:
        if not self._is_settling:
            self._is_settling = True
            task = asyncio.get_running_loop().create_task(self._settle(error))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    async def _settle(self, error: BokiError) -> None:
        """Find out which records stand in the journal, and append the others."""
        me = asyncio.current_task()
        tries = 0
        while (others := {task for task in self._in_flight if task is not me}) or not self._is_final(error):
            if others:
                await asyncio.wait(others)
            await asyncio.sleep(PATIENT.pause_s(tries) if tries else 0)
            tries += 1
            try:
                await self._resend(self._counted(error))
                break
            except BokiError as again:
                error = again
        else:
            self.error = error
        self._is_settling = False
        asyncio.get_running_loop().call_soon(self._changed)
        self.flush()

    async def _resend(self, count: int) -> None:
        """Compare the journal with what was sent, and append what is missing; raises if that is not decided. `count`:
        the number of records that the journal has ever had. If fewer are known, an earlier life's were trimmed, of
        which this execution did not know; if fewer than when it began, they were forgotten. Its places are wrong.
        """
        stood = await self._read_unsure()
        start, stop = self.durable, self.place
        mine = [self._sent[place] for place in range(start, stop)]
        is_known = self._base <= count <= start + len(stood)
        if [data for data, _ in stood] != mine[: len(stood)] or not is_known:
            self.is_overtaken = True
            return
        self._kept.clear()
        self._arrived.clear()
        missing = mine[len(stood) :]
        seqnums = [seqnum for _, seqnum in stood]
        for some in self._together(missing):
            when = Expect(self._tag, count=start + len(seqnums))
            seqnums += await self._logbook.append_many([(item, self._tags) for item in some], when=when)
        if mine:
            self._arrive(start, seqnums)

    async def _read_unsure(self) -> list[tuple[bytes, int]]:
        """What stands in the journal behind the records that are known to be durable, with its seqnums."""
        stood: list[tuple[bytes, int]] = []
        start = self._next_start
        while True:
            page = await self._logbook.read(self._tag, start=start, limit=PAGE_RECORDS)
            if not page.records:
                return stood
            stood += [(record.data, record.seqnum) for record in page.records]
            start = page.records[-1].next_seqnum

    def _counted(self, error: BokiError) -> int:
        """How many records the journal has ever had, if that is why the log refused; else what this began with."""
        is_told = isinstance(error, ConditionFailed) and error.details.get("tag") == self._tag
        return int(error.details.get("actual_count", self._base)) if is_told else self._base

    @staticmethod
    def _is_final(error: BokiError) -> bool:
        """Whether the journal can never be written: the record is too large, or the deadline has passed."""
        return error.outcome == "not_applied" and not error.retryable and not isinstance(error, ConditionFailed)
