"""What all consumers of a queue in one process share: its fold, the reading of its stream, and the acts.

There is no timer. Of those who wait one **leads**: it reads the stream on, within its own call, and the fold wakes
whoever has got something; then another one goes on. Acts are appended beside it by whoever finds something to be asked
for. Where nobody waits, nothing is read but to give back what was left (`leavings`). What time it is: see `clock`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from secrets import token_bytes
from typing import Any, Final

from boki import BokiError, DeadlineExceeded, LogBook, Record
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.bodies import Bodies, BodyStore
from boki.libs.bokiqueue.checkpoints import newest_state
from boki.libs.bokiqueue.clock import LogClock
from boki.libs.bokiqueue.dealing import Dealing
from boki.libs.bokiqueue.demand import Arrival, Demand, Line, Outstanding, Settlement, Waiter, Want
from boki.libs.bokiqueue.folding import fold
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.leavings import ANSWER_S, Leavings, Rest
from boki.libs.bokiqueue.membership import MEMBER_US
from boki.libs.bokiqueue.refusals import no_such_group, reshaped, uncertain
from boki.libs.bokiqueue.room import Occupied
from boki.libs.bokiqueue.snapshots import Given
from boki.libs.bokiqueue.upkeep import Upkeep
from boki.libs.bokiqueue.ways import way_of

PAGE_RECORDS: Final = 1_000
LONG_WAIT_S: Final = 3_600.0
_TRIES: Final = 5
_MARGIN_S: Final = 0.0005
_LEAST_WAIT_S: Final = 0.002
_EARLY_US: Final = 1_000
"""The log's time may lag so much behind our guess: who asks early gets nothing, and would ask again at once."""


def following(logbook: LogBook, queue: str, shards: int) -> Following:
    """The one that all handles of the queue over this way to the log share."""
    way, now_s = way_of(logbook.origin), asyncio.get_running_loop().time()
    found = way.find(logbook.name, queue, now_s)
    if found is None or found.shards != shards or found.is_over:
        found = Following(queue, shards, store=way.bodies)
        way.put(logbook.name, found, now_s)
    return found


def adopt(logbook: LogBook, followed: Following) -> None:
    """Let all handles of the queue over this way to the log share that one."""
    way_of(logbook.origin).put(logbook.name, followed)


class Following:
    """A queue in this process.

    `taker` names the process, among all that ever take from the queue; by default it draws a name. It says that it is
    there for `member_us` at a time, and writes a checkpoint after `save_records` of a shard (see `upkeep`).
    """

    def __init__(
        self,
        queue: str,
        shards: int,
        *,
        taker: bytes | None = None,
        member_us: int = MEMBER_US,
        save_records: int | None = None,
        store: BodyStore | None = None,
    ) -> None:
        self.queue = queue
        self.shards = shards
        self.taker = token_bytes(8) if taker is None else taker
        self.lines = [Line(shard, self.taker) for shard in range(shards)]
        self.waiters: dict[Waiter, None] = {}
        """All who wait, in the order of their coming."""
        self.entering = asyncio.Lock()
        """Held by the one who makes a group for all who came to take from it."""
        self._is_starting = False
        self._turn = 0
        self._pushed = self.taker[0]
        self.pushing = 0
        """Messages that this process is about to push into a queue with a maximum length."""
        self.occupied: Occupied | None = None
        """How full it was when somebody looked who wanted to push, and found no room."""
        self.clock = LogClock(lambda: asyncio.get_running_loop().time())
        self._tag = records.stream_tag(queue, 0) if shards == 1 else records.feed_tag(queue)
        self._next = 0
        self._begun_below = 0
        self.page_stop = self.checked_stop = 0
        """Where the page that is folded ends, and the last one in which the queue's settings were looked at."""
        self._missed: set[tuple[int, int]] = set()
        """(record, from where on the stream was there) for which this fold has begun anew."""
        self.is_loaded = False
        self.is_over = False
        """Whether the queue is another one by now (`end`)."""
        self._leader: Waiter | None = None
        self._leads_with: LogBook | None = None
        self._may_be_late = False
        """Whether the deadline of who leads may be over: an append was too slow for it, or only for itself."""
        self._read: asyncio.Future[Any] | None = None
        self._read_ends: tuple[float, float] = (0.0, 0.0)
        self.bodies = Bodies(shards, BodyStore() if store is None else store)
        self.tasks: set[asyncio.Task[None]] = set()
        """What goes on beside those who wait."""
        self.upkeep = Upkeep(self, save_records)
        self.dealing = Dealing(self, member_us)
        self._leavings = Leavings(self)

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits here, or something is under way or to be said."""
        return bool(self.waiters or self.tasks) or any(line.outstanding or line.settlements for line in self.lines)

    # Waiting

    async def wait(self, logbook: LogBook, waiter: Waiter) -> Any:
        """Until the waiter has what it waits for. `Reshaped` if the queue is another one by now."""
        if self.is_over:
            raise reshaped(self.queue)
        self.waiters[waiter] = None
        try:
            await self._wait(logbook, waiter)
        except BokiError as error:
            is_certain = not any(isinstance(waiter, Settlement) and line.withdraw(waiter) for line in self.lines)
            if not is_certain and error.outcome == "not_applied":
                raise uncertain(error) from error
            raise
        finally:
            del self.waiters[waiter]
            if not waiter.is_done:
                waiter.is_done = True  # it was cancelled, or its call is over: nobody must serve it
                self._leavings.see_through(logbook)
        if waiter.error is not None:
            raise waiter.error
        return waiter.result

    async def _wait(self, logbook: LogBook, waiter: Waiter) -> None:
        if self.is_loaded:
            self._start_soon(logbook)
            self._shorten_read(waiter)
        loop = asyncio.get_running_loop()
        while not waiter.is_done:
            if self._leader is None:
                self._leader, self._leads_with, self._may_be_late = waiter, logbook, False
                try:
                    await self._lead(logbook, waiter)
                finally:
                    self._leader = self._leads_with = None
                    self._hand_over()
            else:
                awake: asyncio.Future[None] = loop.create_future()
                waiter.wake = lambda awake=awake: None if awake.done() else awake.set_result(None)
                try:
                    await awake
                except asyncio.CancelledError:
                    if awake.done():
                        self._hand_over(waiter)  # it may have been woken to lead
                    raise
                finally:
                    waiter.wake = None

    def _hand_over(self, but: Waiter | None = None) -> None:
        """Let another one lead, if nobody does."""
        if self._leader is not None:
            return
        for waiter in self.waiters:
            if waiter is not but and not waiter.is_done and waiter.wake is not None:
                waiter.wake()
                return

    async def _lead(self, logbook: LogBook, waiter: Waiter) -> None:
        if not self.is_loaded:
            await self.load(logbook)
        while not waiter.is_done:
            await asyncio.sleep(0)  # who was just woken says first what it wants next
            if self._may_be_late:
                self._may_be_late = False
                await self._read_on(logbook, 0)  # if it is over this fails, and others append what it has not
            self._start_now(logbook)
            if not waiter.is_done:
                await self._read_on(logbook, self._patience_s())

    def _finish_late(self) -> None:
        """Who has waited long enough, or does not wait and has asked everywhere, gets nothing."""
        for waiter in list(self.waiters):
            if waiter.is_done:
                continue
            if isinstance(waiter, Want) and waiter.group and not self._has_group(waiter.group):
                waiter.finish(None, no_such_group(self.queue, waiter.group))  # dropped meanwhile
            elif isinstance(waiter, Rest | Arrival) and self._has_come(waiter):
                waiter.finish(None)
            elif waiter.patience_s is not None:
                late_s = self.clock.since(waiter.since) - waiter.patience_s + _MARGIN_S
                # While an act asks for it, it waits for the answer: nobody else may be there to take what comes.
                if late_s >= 0 and (late_s > ANSWER_S or not self._is_under_way(waiter)):
                    waiter.finish([])
            elif isinstance(waiter, Want) and not self._is_asked_for(waiter):
                waiter.finish([])

    def _has_come(self, waiter: Rest | Arrival) -> bool:
        return self._next > waiter.seqnum if isinstance(waiter, Arrival) else self._leavings.are_done(waiter)

    def _has_group(self, name: str) -> bool:
        return any(name in line.state.groups for line in self.lines)

    def _is_asked_for(self, want: Want) -> bool:
        """Whether an act may still bring something to one that does not wait."""
        return any(line.may_probe(want) for line in self.lines) or self._is_under_way(want)

    def _is_under_way(self, waiter: Waiter) -> bool:
        """Whether an outstanding act asks for messages that this one may get."""
        return isinstance(waiter, Want) and any(
            (take.group, take.lease_us) == waiter.kind
            for line in self.lines
            if line.outstanding is not None
            for take in line.outstanding.act.takes
        )

    def _patience_s(self) -> float:
        """How long the leader may wait for a record before something is due here."""
        patience_s = LONG_WAIT_S
        groups: dict[str, frozenset[int] | None] = {}
        if self.dealing.look_again_us:
            patience_s = max(0.05, (self.dealing.look_again_us - self.clock.lately_us()) / 1e6)
        for waiter in self.waiters:
            if not waiter.is_done and waiter.patience_s is not None:
                left_s = waiter.patience_s - self.clock.since(waiter.since)
                patience_s = min(patience_s, left_s if left_s > 0 else ANSWER_S)
                if isinstance(waiter, Want):
                    groups[waiter.group] = waiter.lines
        for line in self.lines:
            if line.outstanding is not None and not line.outstanding.is_under_way:
                patience_s = min(patience_s, 0.05 * line.outstanding.tries)
        for name, lines in groups.items():
            patience_s = min(patience_s, self._due_s(name, lines))
        return max(patience_s, _LEAST_WAIT_S)

    def _due_s(self, name: str, lines: frozenset[int] | None) -> float:
        """When a delayed message or the end of a lease is due in shards that can be asked now."""
        due_us = 0
        for line in self.lines:
            group = line.state.groups.get(name)
            if group is not None and line.outstanding is None and (lines is None or line.shard in lines):
                own_us = group.next_due_us()
                due_us = min(due_us or own_us, own_us or due_us)
        return (due_us + _EARLY_US - self.clock.now_us()) / 1e6 + _MARGIN_S if due_us else LONG_WAIT_S

    def _shorten_read(self, waiter: Waiter) -> None:
        """The leader waits for longer than this one can: let it look again."""
        if self._read is not None and waiter.patience_s is not None:
            patience_s = waiter.patience_s
            if isinstance(waiter, Want):
                patience_s = min(patience_s, self._due_s(waiter.group, waiter.lines))
            now = self.clock.here()
            if patience_s < max(self._read_ends[0] - now[0], self._read_ends[1] - now[1]):
                self._read.cancel()

    # Reading

    async def load(self, logbook: LogBook) -> None:
        """Begin from the newest checkpoints, and read on to the end. For the leader."""
        self.is_loaded = False
        self.bodies.clear()
        loaded = await asyncio.gather(*(newest_state(logbook, self.queue, shard) for shard in range(self.shards)))
        self._next = min(resume for _, resume in loaded)
        for line, (state, resume) in zip(self.lines, loaded, strict=True):
            line.begin(state, resume)
        self.is_loaded = True
        for line in self.lines:  # before anything can fail: what is covered by now is not read again
            given = line.state.takers.given.get(self.taker)
            if given is not None:
                self._hear_again(logbook, line, given)
            line.give_back_unknown()
        while await self._read_on(logbook, 0):
            pass

    def _hear_again(self, logbook: LogBook, line: Line, given: Given) -> None:
        """A checkpoint says what the last act of this process came to, or only that it was counted."""
        outstanding = line.outstanding
        if given.is_forgotten and outstanding is not None and outstanding.act.number == given.number:
            outstanding.is_uncertain = True
            text = f"what came of an act of queue {self.queue!r} is forgotten: others were given too much since"
            self._refuse(logbook, line, outstanding, BokiError(text))
        else:
            self.served(line, given)

    def end(self) -> None:
        """It was deleted and made anew with another number of shards: nothing of this is true any more."""
        self.is_over = True
        for waiter in list(self.waiters):
            waiter.finish(None, reshaped(self.queue))

    async def catch_up(self, logbook: LogBook) -> None:
        """Until the fold has come to what this LogBook sees now."""
        newest = await logbook.read_prev(self._tag)
        seqnum = 0 if newest is None else newest.seqnum
        if not self.is_loaded or self._next <= seqnum:
            await self.wait(logbook, Arrival(seqnum))

    async def wait_for_record(self, logbook: LogBook, wait_s: float) -> None:
        """Until something happens to the queue, or so long."""
        await self.wait(logbook, Arrival(self._next, wait_s, self.clock.here()))

    def next_shard(self) -> int:
        """Where the next push goes: in turn, each process from another start."""
        self._pushed += 1
        return self._pushed % self.shards

    async def _read_on(self, logbook: LogBook, wait_s: float) -> bool:
        """One page; False if there was none. It may be cut short by somebody with less patience."""
        reading = asyncio.ensure_future(logbook.read(self._tag, start=self._next, limit=PAGE_RECORDS, wait_s=wait_s))
        begun_us = self.clock.now_us()
        if wait_s:
            self._read = reading
            now = self.clock.here()
            self._read_ends = (now[0] + wait_s, now[1] + wait_s)
        try:
            page = await reading
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                reading.cancel()
                raise
            return False
        finally:
            self._read = None
        if self._next < page.first_seqnum and (self._next > 0 or page.first_seqnum != self._begun_below):
            # Others have trimmed what was not read yet. From 0 on that may be right, if there is no checkpoint twice.
            self._begun_below = page.first_seqnum
            await self.load(logbook)
            return True
        self.bodies.let_go()
        self.clock.wait_over(wait_s, page.records[-1].time if page.records else 0, begun_us)
        if not page.records:
            return False
        self.page_stop = page.next_start
        for record in page.records:
            if not await fold(self, logbook, record):
                await self.load(logbook)
                return True
        self._next = max(self._next, page.next_start)
        if any(line.settlements for line in self.lines):
            self._start_soon(logbook)  # what nobody was there to take goes back
            if any(line.is_giving_back for line in self.lines):
                self._leavings.see_through(logbook)
        return True

    def begins_anew_for(self, seqnum: int, kept_from: int) -> bool:
        """Whether a later checkpoint may help with that record: not if it has come up again, though none was missed."""
        is_new = (seqnum, kept_from) not in self._missed
        self._missed.add((seqnum, kept_from))
        return is_new

    def passed(self, record: Record) -> None:
        """The reading goes on behind it."""
        self._next = record.next_seqnum
        self.clock.hear(record.time)

    # Serving

    def served(self, line: Line, given: Given) -> None:
        """An act of this process counts: whoever waits for it is given what it came to."""
        own = line.outstanding
        if own is not None and own.act.number == given.number and own.asked is not None:
            self.clock.hear_answer(given.time_us, own.asked)
        for outstanding, index, deliveries in line.settle(given, self.queue):
            want = outstanding.wants[index]
            if want is not None:
                if deliveries or want.patience_s is None:
                    if want.is_done:
                        line.release(want.group, () if want.op else deliveries)
                    want.finish([(line, one) for one in deliveries])
                continue
            self._share_out(line, outstanding, index, deliveries)

    def _share_out(self, line: Line, outstanding: Outstanding, index: int, deliveries: list[Delivery]) -> None:
        take = outstanding.act.takes[index]
        at = 0
        for waiter in self.waiters:
            if at == len(deliveries):
                break
            if (
                isinstance(waiter, Want)
                and not waiter.is_done
                and not waiter.op
                and waiter.kind == (take.group, take.lease_us)
                and (waiter.lines is None or line.shard in waiter.lines)
            ):
                share = deliveries[at : at + waiter.count]
                at += len(share)
                waiter.finish([(line, one) for one in share])
        line.release(take.group, deliveries[at:])

    def give_back(self, logbook: LogBook, group: str, served: Iterable[tuple[Line, Delivery]]) -> None:
        """Somebody who was served is gone before it could take its messages."""
        by_line: dict[Line, list[Delivery]] = {}
        for line, delivery in served:
            by_line.setdefault(line, []).append(delivery)
        for line, deliveries in by_line.items():
            line.release(group, deliveries)
        self._start_soon(logbook)
        self._leavings.see_through(logbook)

    # Acts

    def start_acts(self, logbook: LogBook) -> None:
        """Append what is to be asked for, at every shard that has no act on its way."""
        demand: Demand | None = None
        now_us = self.clock.now_us() - _EARLY_US
        self._turn = (self._turn + 1) % self.shards  # each shard is the first to be asked in its turn
        for line in (*self.lines[self._turn :], *self.lines[: self._turn]):
            if line.outstanding is None:
                if demand is None:
                    demand = Demand(self.waiters, self.lines, is_sure=self.clock.is_sure)
                if line.settlements or demand.missing or demand.special:
                    line.compose(demand, now_us)
            if line.outstanding is not None and not line.outstanding.is_under_way:
                line.outstanding.is_under_way = True
                line.outstanding.asked = line.outstanding.asked or self.clock.here()
                self.spawn(self._append_act(logbook, line, line.outstanding))

    def _start_soon(self, logbook: LogBook) -> None:
        """When all that runs in this turn has said what it wants: then one act asks for all of it."""
        if not self._is_starting:
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start_now, logbook)

    def _start_now(self, logbook: LogBook) -> None:
        self._is_starting = False
        if self.is_loaded and not self.is_over:
            if self.shards > 1:
                self.dealing.bind(logbook)
            self.start_acts(logbook)
            self._finish_late()

    async def _append_act(self, logbook: LogBook, line: Line, outstanding: Outstanding) -> None:
        tags = records.record_tags(self.queue, line.shard, self.shards)
        if records.ends_leases(outstanding.act):
            tags = (*tags, records.fence_tag(self.queue, line.shard))
        try:
            await logbook.append(records.encode(outstanding.act), tags)
        except DeadlineExceeded as error:  # of whoever began it, or of the append alone: who leads makes it again
            outstanding.is_uncertain |= error.outcome == "unknown"
            outstanding.is_under_way = False
            self._may_be_late |= logbook is self._leads_with
        except BokiError as error:
            outstanding.tries += 1
            outstanding.is_uncertain |= error.outcome == "unknown"
            if error.outcome == "unknown" and outstanding.tries < _TRIES:
                outstanding.is_under_way = False
            else:
                self._refuse(logbook, line, outstanding, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for this act must hear of it
            outstanding.is_uncertain = True
            self._refuse(logbook, line, outstanding, BokiError(f"an act of queue {self.queue!r} failed: {error!r}"))
        else:
            return
        if self._read is not None:
            self._read.cancel()

    def _refuse(self, logbook: LogBook, line: Line, outstanding: Outstanding, error: BokiError) -> None:
        if line.outstanding is outstanding:
            if outstanding.is_uncertain:
                error = uncertain(error)
            for want in (*line.refuse(error), *self._wants_of(outstanding)):
                want.finish(None, BokiError.from_body(error.body()))
            self._leavings.see_through(logbook)

    def _wants_of(self, outstanding: Outstanding) -> list[Waiter]:
        kinds = {(take.group, take.lease_us) for take in outstanding.act.takes}
        return [waiter for waiter in self.waiters if isinstance(waiter, Want) and waiter.kind in kinds]

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it beside what is under way."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def settle(self, logbook: LogBook, shard: int, settle: records.Settle) -> list[bool]:
        """Which of the messages it was true for, and so has changed."""
        if not self.is_loaded:
            await self.catch_up(logbook)
        settlement = Settlement(settle)
        self.lines[shard].settlements.append(settlement)
        verdicts: list[bool] = await self.wait(logbook, settlement)
        return verdicts
