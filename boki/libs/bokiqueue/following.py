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
from boki.libs.bokiqueue.leavings import Leavings
from boki.libs.bokiqueue.membership import MEMBER_US
from boki.libs.bokiqueue.refusals import reshaped, uncertain
from boki.libs.bokiqueue.room import Occupied
from boki.libs.bokiqueue.snapshots import Given
from boki.libs.bokiqueue.standing import Handed
from boki.libs.bokiqueue.surplus import Surplus
from boki.libs.bokiqueue.upkeep import Upkeep
from boki.libs.bokiqueue.waiting import EARLY_US, due_s, finish_late, patience_s
from boki.libs.bokiqueue.ways import way_of

PAGE_RECORDS: Final = 1_000
_TRIES: Final = 5


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
        self.next_start = 0
        self._begun_below = 0
        self.page_stop = self.checked_stop = 0
        """Where the page that is folded ends, and the last one in which the queue's settings were looked at."""
        self._missed: set[tuple[int, int]] = set()
        """(record, from where on the stream was there) for which this fold has begun anew."""
        self.may_stand = False
        """Whether takes may stand: all who read this queue know what that is (`records.VERSION`)."""
        self.surplus = Surplus()
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
        self.leavings = Leavings(self)

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits here, or something is under way or to be said."""
        return bool(self.waiters or self.tasks) or any(line.outstanding or line.settlements for line in self.lines)

    # Waiting

    async def wait(self, logbook: LogBook, waiter: Waiter) -> Any:
        """Until the waiter has what it waits for. `Reshaped` if the queue is another one by now."""
        if self.is_over:
            raise reshaped(self.queue)
        if isinstance(waiter, Want) and self.surplus:
            if served := self.surplus.take(waiter):
                waiter.finish(served)
                return served
            for line, delivery in self.surplus.pop_group(waiter.group):  # it is there, if only under another lease
                line.release(waiter.group, (delivery,))
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
                self.leavings.see_through(logbook, is_urgent=True)
            elif not self.waiters and self.may_stand:
                self.leavings.see_through(logbook)
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
                await self._read_on(logbook, patience_s(self))

    def _shorten_read(self, waiter: Waiter) -> None:
        """The leader waits for longer than this one can: let it look again."""
        if self._read is not None and waiter.patience_s is not None:
            left_s = waiter.patience_s
            if isinstance(waiter, Want):
                left_s = min(left_s, due_s(self, waiter.group, waiter.lines))
            now = self.clock.here()
            if left_s < max(self._read_ends[0] - now[0], self._read_ends[1] - now[1]):
                self._read.cancel()

    # Reading

    async def load(self, logbook: LogBook) -> None:
        """Begin from the newest checkpoints, and read on to the end. For the leader."""
        self.is_loaded = False
        self.bodies.clear()
        loaded = await asyncio.gather(*(newest_state(logbook, self.queue, shard) for shard in range(self.shards)))
        self.next_start = min(resume for _, resume in loaded)
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
        if not self.is_loaded or self.next_start <= seqnum:
            await self.wait(logbook, Arrival(seqnum))

    async def wait_for_record(self, logbook: LogBook, wait_s: float) -> None:
        """Until something happens to the queue, or so long."""
        await self.wait(logbook, Arrival(self.next_start, wait_s, self.clock.here()))

    def next_shard(self) -> int:
        """Where the next push goes: in turn, each process from another start."""
        self._pushed += 1
        return self._pushed % self.shards

    async def _read_on(self, logbook: LogBook, wait_s: float) -> bool:
        """One page; False if there was none. It may be cut short by somebody with less patience."""
        reading = asyncio.ensure_future(
            logbook.read(self._tag, start=self.next_start, limit=PAGE_RECORDS, wait_s=wait_s)
        )
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
        if self.next_start < page.first_seqnum and (self.next_start > 0 or page.first_seqnum != self._begun_below):
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
        self.next_start = max(self.next_start, page.next_start)
        if any(line.settlements for line in self.lines):
            self._start_soon(logbook)  # what nobody was there to take goes back
            if any(line.is_giving_back for line in self.lines):
                self.leavings.see_through(logbook)
        return True

    def begins_anew_for(self, seqnum: int, kept_from: int) -> bool:
        """Whether a later checkpoint may help with that record: not if it has come up again, though none was missed."""
        is_new = (seqnum, kept_from) not in self._missed
        self._missed.add((seqnum, kept_from))
        return is_new

    def passed(self, record: Record) -> None:
        """The reading goes on behind it."""
        self.next_start = record.next_seqnum
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
            take = outstanding.act.takes[index]
            line.release(take.group, self._share_out(line, (take.group, take.lease_us), deliveries))

    def handed(self, line: Line, handed: Handed) -> None:
        """A standing take of this process was given messages."""
        line.hear(handed.deliveries, is_popped=not handed.lease_us)
        kind = handed.group, handed.lease_us
        self.surplus.add(kind, [(line, one) for one in self._share_out(line, kind, handed.deliveries)])

    def _share_out(self, line: Line, kind: tuple[str, int], deliveries: list[Delivery]) -> list[Delivery]:
        """Give them to those who wait; what is left."""
        at = 0
        for waiter in self.waiters:
            if at == len(deliveries):
                break
            if (
                isinstance(waiter, Want)
                and not waiter.is_done
                and not waiter.op
                and waiter.kind == kind
                and (waiter.lines is None or line.shard in waiter.lines)
            ):
                share = deliveries[at : at + waiter.count]
                at += len(share)
                waiter.finish([(line, one) for one in share])
        return deliveries[at:]

    def tidy(self, logbook: LogBook, *, is_last: bool) -> None:
        """Nobody here has wanted for a while what standing takes were given: it goes back, and so does their credit.

        `is_last`: all of it, and the log is told what was received.
        """
        for group, (line, delivery) in self.surplus.pop_old(is_all=is_last):
            line.release(group, (delivery,))
        if self.is_loaded and not self.is_over:
            self.start_acts(logbook, is_tidying=is_last or not self._has_wants())

    def _has_wants(self) -> bool:
        return any(isinstance(waiter, Want) for waiter in self.waiters)

    def look_after(self, logbook: LogBook) -> None:
        """Standing takes were given something: see that nothing of it is left lying."""
        if self.is_untidy:
            self.leavings.see_through(logbook)

    async def come_to_rest(self) -> None:
        """Until no act is on its way."""
        while tasks := [task for task in self.tasks if task is not asyncio.current_task() and not task.cancelling()]:
            await asyncio.wait(tasks)

    @property
    def is_untidy(self) -> bool:
        """Whether there is something that `tidy` would give back, withdraw or say."""
        kinds = {want.kind for want in self.waiters if isinstance(want, Want)}
        return bool(self.surplus) or any(line.owes_receipt or line.has_excess(kinds) for line in self.lines)

    def give_back(self, logbook: LogBook, group: str, served: Iterable[tuple[Line, Delivery]]) -> None:
        """Somebody who was served is gone before it could take its messages."""
        by_line: dict[Line, list[Delivery]] = {}
        for line, delivery in served:
            by_line.setdefault(line, []).append(delivery)
        for line, deliveries in by_line.items():
            line.release(group, deliveries)
        self._start_soon(logbook)
        self.leavings.see_through(logbook)

    # Acts

    def start_acts(self, logbook: LogBook, *, is_tidying: bool = False) -> None:
        """Append what is to be asked for, at every shard that has no act on its way."""
        demand: Demand | None = None
        now_us = self.clock.now_us() - EARLY_US
        self._turn = (self._turn + 1) % self.shards  # each shard is the first to be asked in its turn
        for line in (*self.lines[self._turn :], *self.lines[: self._turn]):
            if line.outstanding is None:
                if demand is None:
                    demand = Demand(
                        self.waiters,
                        self.lines,
                        is_sure=self.clock.is_sure,
                        may_stand=self.may_stand,
                        is_tidying=is_tidying,
                    )
                if line.settlements or demand.is_anything:
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
            finish_late(self)

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
            self.leavings.see_through(logbook)

    def _wants_of(self, outstanding: Outstanding) -> list[Waiter]:
        kinds = outstanding.act.kinds
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
