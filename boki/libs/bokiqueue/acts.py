"""What all consumers of a queue in one process share: its folds, and the acts by which they ask for messages.

The stream is read by a follower (`boki.libs.fold.follower`): of the callers that wait one reads for all, within its own
call, and the folds wake those that were given something. Acts are appended beside the reading. Where no caller waits
nothing is read but by the clean-up (`cleanup`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from secrets import token_bytes
from typing import Any, Final

from boki import BokiError, DeadlineExceeded, LogBook, Page, Record
from boki.libs.bokiqueue import demand, records
from boki.libs.bokiqueue.bodies import Bodies, BodyStore
from boki.libs.bokiqueue.cleanup import ANSWER_S, CleanUp
from boki.libs.bokiqueue.demand import EARLY_US, Demand, Line, Outstanding, Settlement, Want
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.records import Carry, Push, Saved, Setup
from boki.libs.bokiqueue.refusals import no_such_group, reshaped
from boki.libs.bokiqueue.sessions import Given, Handed
from boki.libs.bokiqueue.settings import newest_settings
from boki.libs.bokiqueue.supply import Pace, Surplus
from boki.libs.bokiqueue.upkeep import Upkeep, history, newest_state
from boki.libs.fold.follower import LONG_WAIT_S, Follower
from boki.libs.fold.registry import Tasks
from boki.libs.fold.retrying import uncertain

_TRIES: Final = 5
_MARGIN_S: Final = 0.0005

_log = logging.getLogger("boki.queue")


class Following:
    """A queue in this process.

    `taker` names the process, among all that ever take from the queue; by default it draws a name. It writes a
    checkpoint after `save_records` of a shard (see `upkeep`).
    """

    def __init__(
        self,
        queue: str,
        shards: int,
        *,
        taker: bytes | None = None,
        save_records: int | None = None,
        tasks: Tasks | None = None,
        store: BodyStore | None = None,
    ) -> None:
        self.queue = queue
        self.shards = shards
        self.taker = token_bytes(8) if taker is None else taker
        self.lines = [Line(shard, self.taker) for shard in range(shards)]
        tag = records.stream_tag(queue, 0) if shards == 1 else records.feed_tag(queue)
        self.follower = Follower(self, tag, before_read=self._before_read)
        self.clock = self.follower.clock
        self.tasks = Tasks() if tasks is None else tasks
        self.bodies = Bodies(shards, store or BodyStore())
        self.upkeep = Upkeep(queue, self.lines, self.bodies, self.tasks, self.catch_up, save_records)
        self.surplus = Surplus()
        self.pace = Pace(self.clock)
        self.entering = asyncio.Lock()
        """Held by the call that makes a group for all that came to take from it."""
        self.may_stand = False
        """Whether takes may stand: all readers of this queue know what that is (`records.VERSION`)."""
        self.pushing = 0
        """Messages that this process is about to push into a queue with a maximum length."""
        self.occupied: tuple[tuple[int, ...], int, int, int] | None = None
        """The last records of the shards, from when until when, and how many messages lived in the full queue then."""
        self._wants: dict[tuple[str, int], dict[Want, None]] = {}
        """Those that any message of their kind serves, in the order of their coming."""
        self._turn = 0
        self._has_ridden = False
        self._pushed = self.taker[0]
        self._is_starting = False
        self._checked_stop = 0
        """Where the last page ends in which the queue's settings were looked at."""
        self._missed: set[tuple[int, int]] = set()
        """(record, from where on the stream was there) for which this fold has begun again."""
        self._behind_from: int | None = None
        """The folds begin here and were not brought up to the end yet; None: they were."""
        self._may_be_late = False
        """Whether the deadline of the reader may be over: an append was too slow for it, or only for itself."""
        self.cleanup = CleanUp(self.follower, self.lines, self.surplus, self.tasks, self.start_acts, self._kinds)
        self._reads_until = (0.0, 0.0)

    @property
    def is_busy(self) -> bool:
        """Whether a caller waits here, or something is under way or to be said."""
        return self.follower.is_busy or self.cleanup.is_at_work or any(line.is_busy for line in self.lines)

    def let_go(self) -> None:
        """It is followed no more."""
        self.bodies.clear()

    def next_shard(self) -> int:
        """Where the next push goes: in turn, each process from another start."""
        self._pushed += 1
        return self._pushed % self.shards

    # Waiting

    async def receive(self, logbook: LogBook, want: Want) -> list[tuple[Line, Delivery]]:
        """What the want is given. `Reshaped` if the queue is another one by now."""
        if self.surplus and (served := self.surplus.take(want)):
            self.pace.took(want.kind, len(served))
            want.result = served
            return served
        for line, delivery in self.surplus.pop_group(want.group):  # it is there, if only under another lease
            line.release(want.group, (delivery,))
        if not want.op:
            self._wants.setdefault(want.kind, {})[want] = None
        served = await self._wait(logbook, want)
        return served or []

    async def settle(self, logbook: LogBook, shard: int, settle: records.Settle) -> list[bool]:
        """Which of the messages it was true for, and so has changed."""
        if not self.follower.is_loaded:
            await self.catch_up(logbook)
        settlement = Settlement(settle)
        line = self.lines[shard]
        line.settlements.append(settlement)
        try:
            verdicts: list[bool] = await self._wait(logbook, settlement)
        except BokiError as error:
            if line.withdraw(settlement):
                raise uncertain(error) from error
            raise
        return verdicts

    async def _wait(self, logbook: LogBook, waiter: Want | Settlement) -> Any:
        if self.follower.is_loaded:
            self._start_soon(logbook)
            if isinstance(waiter, Want):
                left_s = -self.clock.since(self._reads_until)
                if left_s > 0 and left_s > self._due_s(waiter):
                    self.follower.look_again()
        try:
            return await self._follow(self.follower.wait(logbook, waiter))
        finally:
            if isinstance(waiter, Want) and (wants := self._wants.get(waiter.kind)) is not None:
                wants.pop(waiter, None)
            if waiter.result is None and waiter.error is None:  # it was cancelled, or its call is over
                self.cleanup.begin(logbook, is_urgent=True)
            elif not self.follower.waiters and self.may_stand:
                self.cleanup.begin(logbook)

    async def catch_up(self, logbook: LogBook) -> None:
        """Until the folds have come to what this LogBook sees now."""
        newest = await logbook.read_prev(self.follower.tag)
        seqnum = 0 if newest is None else newest.seqnum
        if not self.follower.is_loaded or self.follower.next_start <= seqnum:
            await self._arrive(logbook, seqnum)

    async def wait_for_record(self, logbook: LogBook, wait_s: float) -> None:
        """Until something happens to the queue, or for this long."""
        await self._arrive(logbook, self.follower.next_start, wait_s)

    async def _arrive(self, logbook: LogBook, seqnum: int, wait_s: float | None = None) -> None:
        def ready() -> bool | None:
            return True if self.follower.is_loaded and self.follower.next_start > seqnum else None

        await self._follow(self.follower.wait_until(logbook, ready, wait_s))

    async def _follow(self, waiting: Awaitable[Any]) -> Any:
        try:
            return await waiting
        except BokiError as error:
            if self.follower.is_over:
                raise reshaped(self.queue) from error
            raise

    def _before_read(self, logbook: LogBook) -> float:
        """Ask for what callers wait for; how long the reader may wait for a record before something is due."""
        if self._may_be_late:
            self._may_be_late = False
            return 0.0  # if it is over this fails, and others append what it has not
        if self._behind_from is not None:
            if self._behind_from != self.follower.next_start:
                self._behind_from = self.follower.next_start
                return 0.0
            self._behind_from = None
        self._start_now(logbook)
        if self.follower.is_over:
            return 0.0
        wait_s = self._patience_s()
        now = self.clock.here()
        self._reads_until = now[0] + wait_s, now[1] + wait_s
        return wait_s

    def _patience_s(self) -> float:
        wait_s = LONG_WAIT_S
        groups: set[str] = set()
        kinds: set[tuple[str, int]] = set()
        loop_s, waited_s = self.clock.here()
        for waiter in self.follower.waiters:
            if isinstance(waiter, Want) and not waiter.is_done and waiter.wait_s is not None:
                left_s = waiter.wait_s - max(loop_s - waiter.since[0], waited_s - waiter.since[1])
                left_s = left_s if left_s > 0 else ANSWER_S
                wait_s = min(wait_s, left_s)
                groups.add(waiter.group)
                kinds.add(waiter.kind)
        for line in self.lines:
            if line.outstanding is not None and not line.outstanding.is_under_way:
                wait_s = min(wait_s, 0.05 * line.outstanding.tries)
            if line.is_pausing(self.clock):
                wait_s = min(wait_s, demand.REFUSED_S)
            elif line.outstanding is None and kinds:
                due_us = [line.wakes_us(kinds), *(line.next_due_us(name) for name in groups)]
                if soonest_us := min((one for one in due_us if one), default=0):
                    wait_s = min(wait_s, self._until_s(soonest_us))
        return max(wait_s, 0.002)

    def _due_s(self, want: Want) -> float:
        """How soon the reader must look for this one: its time is over, or something is due that it may be given."""
        due_us = [own_us for line in self.lines if (own_us := line.next_due_us(want.group))]
        left_s = LONG_WAIT_S if want.wait_s is None else want.wait_s
        return min(left_s, self._until_s(min(due_us)) if due_us else LONG_WAIT_S)

    def _until_s(self, due_us: int) -> float:
        return (due_us + EARLY_US - self.clock.now_us()) / 1e6 + _MARGIN_S

    # Reading: the source of the follower

    async def load(self, logbook: LogBook) -> int:
        """Begin from the newest checkpoints. See `boki.libs.fold.follower.Source`."""
        self.bodies.clear()
        loaded = await asyncio.gather(*(newest_state(logbook, self.queue, shard) for shard in range(self.shards)))
        for line, (state, resume) in zip(self.lines, loaded, strict=True):
            line.begin(state, resume)
        for line in self.lines:  # before anything can fail: what is covered by now is not read again
            given = line.state.takers.last.get(self.taker)
            if given is not None:
                self._hear_again(logbook, line, given)
            line.give_back_unknown()
        self._behind_from = -1
        return min(resume for _, resume in loaded)

    def _hear_again(self, logbook: LogBook, line: Line, given: Given) -> None:
        """A checkpoint says what the last act of this process came to, or only that it was counted."""
        outstanding = line.outstanding
        is_mine = outstanding is not None and outstanding.act.number == given.number
        if outstanding is not None and is_mine and given.is_forgotten and outstanding.asks:
            outstanding.is_uncertain = True
            text = f"what came of an act of queue {self.queue!r} is forgotten: others were given too much since"
            self._refuse(logbook, line, outstanding, BokiError(text))
        else:
            self._served(line, given)

    async def take(self, logbook: LogBook, page: Page) -> bool:
        """Fold a page, and wake those that it serves."""
        self.bodies.let_go()
        for record in page.records:
            if not await self._fold(logbook, record, page.next_start):
                return False
        if any(line.settlements for line in self.lines):
            self._start_soon(logbook)  # what no caller was there to take goes back
        if self.may_stand or any(line.is_giving_back for line in self.lines):
            self.cleanup.begin(logbook)
        return True

    async def _fold(self, logbook: LogBook, record: Record, page_stop: int) -> bool:
        """Go on by a record that was read. False if that cannot be from here: begin again from a checkpoint."""
        kind = records.sound(record)
        is_of_others = isinstance(kind, Setup) and kind.settings.shards != self.shards
        if is_of_others or (kind is None and records.is_newer(record.data)):
            if record.seqnum >= self._checked_stop:  # once a page: strangers may append many
                _, settings, _ = await newest_settings(logbook, self.queue)  # which refuses a queue of a later format
                if settings is None or settings.shards != self.shards:
                    self.follower.end(reshaped(self.queue))
                    return True
                self._checked_stop = page_stop
            kind = None  # the queue's settings do not say so
        if kind is None or not records.belongs(kind, record.tags, self.queue, self.shards):
            self._pass_by(record)
            return True
        line = self.lines[kind.shard]
        if record.seqnum < line.resume:
            self._passed(record)
            return True
        state = line.state
        part = state.history_for(kind) if record.seqnum > state.at else None
        if part is not None:  # if this fails the record is read again: it has not been passed yet
            segments, kept_from = await history(logbook, self.queue, line.shard, self.shards, *part)
            if kept_from > part[0] and (record.seqnum, kept_from) not in self._missed:
                self._missed.add((record.seqnum, kept_from))
                return False  # others go by what was trimmed since: they had read it, or began from a later checkpoint
            state.put_before(segments)
        self._passed(record)
        self._apply(logbook, line, record, kind)
        return True

    def _apply(self, logbook: LogBook, line: Line, record: Record, kind: records.Kind) -> None:
        state = line.state
        first_pos = state.backlog.first_pos
        given = state.apply(record.seqnum, record.time, kind)
        line.saved_records += 1
        line.saved_bytes += len(record.data)
        is_due = False
        if isinstance(kind, Push | Carry):
            self.bodies.keep(record.seqnum, kind, state)
            # If it let go of what has expired, maybe no other process consumes.
            is_due = state.backlog.first_pos > first_pos
        self.bodies.pass_by(state, given)
        for handed in state.handed:
            if handed.taker == self.taker:
                self._handed(line, handed)
                is_due = True
        if given is not None and isinstance(kind, records.Act) and kind.taker == self.taker:
            self._served(line, given)
            line.give_back_unknown()
            is_due = True
        if isinstance(kind, Saved):
            self.upkeep.saved(logbook, line, kind)
        elif is_due:
            self.upkeep.consider(logbook, line)

    def _passed(self, record: Record) -> None:
        """The reading goes on behind it."""
        self.follower.next_start = record.next_seqnum
        self.clock.hear(record.time)

    def _pass_by(self, record: Record) -> None:
        """A record that does not count. It is logged when they are 1, 10, 100, …: strangers may append many."""
        line = self.lines[0]
        state = line.state
        before = state.passed_by
        if record.seqnum >= line.resume:
            state.pass_by(record.seqnum)
            line.saved_records += 1  # so that a checkpoint drops it
            line.saved_bytes += len(record.data)
        self._passed(record)
        if state.passed_by > before and str(state.passed_by).rstrip("0") == "1":
            _log.warning(
                "queue %s: record %d is not a valid queue record and is passed by; %d so far",
                *(self.queue, record.seqnum, state.passed_by),
            )

    # Serving

    def _served(self, line: Line, given: Given) -> None:
        """An act of this process counts: those that wait for it are given what it came to."""
        own = line.outstanding
        if own is not None and own.act.number == given.number and own.asked is not None:
            self.clock.hear_answer(given.time_us, own.asked)
            self.pace.act_s = self.clock.since(own.asked)
        for outstanding, index, deliveries in line.settle(given, self.queue):
            want, take = outstanding.wants[index], outstanding.act.takes[index]
            if want is None:
                line.release(take.group, self._share_out(line, (take.group, take.lease_us), deliveries))
            elif deliveries or want.wait_s is None:
                if want.is_done:
                    line.release(want.group, () if want.op else deliveries)
                want.finish([(line, one) for one in deliveries])

    def _handed(self, line: Line, handed: Handed) -> None:
        """A standing take of this process was given messages."""
        line.hear(handed.group, handed.deliveries)
        kind = handed.group, handed.lease_us
        self.surplus.add(kind, [(line, one) for one in self._share_out(line, kind, handed.deliveries)])

    def _share_out(self, line: Line, kind: tuple[str, int], deliveries: list[Delivery]) -> list[Delivery]:
        """Give them to those that wait; what is left."""
        wants = self._wants.get(kind)
        at = 0
        while wants and at < len(deliveries):
            want = next(iter(wants))
            del wants[want]
            if not want.is_done:
                share = deliveries[at : at + want.count]
                at += len(share)
                want.finish([(line, one) for one in share])
        if at:
            self.pace.took(kind, at)
        return deliveries[at:] if at else deliveries

    def give_back(self, logbook: LogBook, group: str, served: Iterable[tuple[Line, Delivery]]) -> None:
        """A caller that was served is gone before it could take its messages."""
        for line, delivery in served:
            line.release(group, (delivery,))
        self._start_soon(logbook)
        self.cleanup.begin(logbook)

    # Acts

    def _start_soon(self, logbook: LogBook) -> None:
        """When all that runs in this turn has said what it wants: then one act asks for all of it."""
        if not self._is_starting:
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start_now, logbook)

    def _start_now(self, logbook: LogBook) -> None:
        self._is_starting = False
        self.start_acts(logbook)
        if self.follower.is_loaded and self._behind_from is None:
            self._finish_late()

    def ride(self, logbook: LogBook) -> None:
        """This process is about to push: an act that is soon due shares the request, and costs no round of its own."""
        if not self._has_ridden and self.may_stand and self.follower.waiters:
            self._has_ridden = True  # once a turn of the loop: all that is appended in it shares one request
            asyncio.get_running_loop().call_soon(self._got_off)
            self.start_acts(logbook, is_riding=True)

    def _got_off(self) -> None:
        self._has_ridden = False

    def start_acts(
        self, logbook: LogBook, *, is_tidying: bool = False, is_riding: bool = False
    ) -> list[asyncio.Task[None]]:
        """Append what is to be asked for, at every shard that has no act on its way."""
        if not self.follower.is_loaded or self._behind_from is not None or self.follower.is_over:
            return []
        begun = []
        asked: Demand | None = None
        now_us = self.clock.now_us() - EARLY_US
        self._turn = (self._turn + 1) % self.shards  # each shard is the first to be asked in its turn
        for line in (*self.lines[self._turn :], *self.lines[: self._turn]):
            if line.outstanding is None and not line.is_pausing(self.clock):
                if asked is None:
                    wants = [waiter for waiter in self.follower.waiters if isinstance(waiter, Want)]
                    ahead = self.pace.ahead if self.may_stand else None
                    asked = Demand(
                        wants, self.lines, self.clock, ahead=ahead, is_tidying=is_tidying, is_riding=is_riding
                    )
                line.compose(asked, now_us)
            if line.outstanding is not None and not line.outstanding.is_under_way:
                line.outstanding.is_under_way = True
                line.outstanding.asked = line.outstanding.asked or self.clock.here()
                begun.append(self.tasks.spawn(self._append_act(logbook, line, line.outstanding)))
        return [task for task in begun if task is not None]

    def _kinds(self) -> set[tuple[str, int]] | None:
        """The kinds of messages that callers wait for; None if no take may stand."""
        return {kind for kind, wants in self._wants.items() if wants} if self.may_stand else None

    async def _append_act(self, logbook: LogBook, line: Line, outstanding: Outstanding) -> None:
        act = outstanding.act
        try:
            await logbook.append(records.encode(act), records.tags_of(act, self.queue, self.shards))
            return
        except DeadlineExceeded as error:  # of the call that began it, or of the append alone: it is made again
            outstanding.is_uncertain |= error.outcome == "unknown"
            outstanding.is_under_way = False
            self._may_be_late = True
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
        self.follower.look_again()

    def _refuse(self, logbook: LogBook, line: Line, outstanding: Outstanding, error: BokiError) -> None:
        if line.outstanding is outstanding:
            if outstanding.is_uncertain:
                error = uncertain(error)
            line.refused_at = self.clock.here()
            kinds = outstanding.act.kinds
            wants = [one for one in self.follower.waiters if isinstance(one, Want) and one.kind in kinds]
            for waiter in (*line.refuse(error), *wants):
                waiter.finish(None, BokiError.from_body(error.body()))
            self.cleanup.begin(logbook)

    def _finish_late(self) -> None:
        """Callers that have waited long enough, or do not wait and have asked everywhere, get nothing."""
        for want in [one for one in self.follower.waiters if not one.is_done]:
            if not isinstance(want, Want):
                if want.ready is not None and want.ready():  # no page says so: an act was refused
                    want.finish(True)
            elif want.group and not any(want.group in line.state.groups for line in self.lines):
                want.finish(None, no_such_group(self.queue, want.group))  # dropped meanwhile
            elif want.wait_s is not None:
                late_s = self.clock.since(want.since) - want.wait_s + _MARGIN_S
                # While an act asks for it, it waits for the answer: no other may be there to take what comes.
                if late_s >= 0 and (late_s > ANSWER_S or not self._is_under_way(want)):
                    want.finish([])
            elif not self._is_under_way(want) and not any(
                line.may_probe(want) or line.is_giving_back for line in self.lines
            ):
                want.finish([])

    def _is_under_way(self, want: Want) -> bool:
        """Whether an outstanding act asks for messages that this one may get."""
        return any(line.outstanding is not None and want.kind in line.outstanding.act.kinds for line in self.lines)
