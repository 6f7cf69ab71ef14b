"""A queue in this process: what all its callers share. Its folds, one reader of the stream, and one act of a shard at a
time.

While a caller waits, one task follows the stream. It appends what callers want, folds what comes, and wakes those that
are served. It continues until no act is on its way, everything that no caller received was given back, and no credit
stands for callers that are gone. Without callers nothing is read. Callers that only look (`catch_up`) read by
themselves if no reader is there. An act whose outcome is unknown is appended again, under its number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from secrets import token_bytes
from typing import Any, Final

from boki import BokiError, LogBook, Page
from boki.libs.bokiqueue import lines, records
from boki.libs.bokiqueue.demand import Served, Settlement, Want, Wants
from boki.libs.bokiqueue.lines import Demand, Line, Outstanding
from boki.libs.bokiqueue.messages import Reshaped, reshaped
from boki.libs.bokiqueue.reading import Folds
from boki.libs.bokiqueue.sessions import Given, Handed
from boki.libs.bokiqueue.upkeep import Bodies, BodyStore, Upkeep
from boki.libs.fold.clock import Moment
from boki.libs.fold.follower import LONG_WAIT_S, Follower, Waiter
from boki.libs.fold.registry import Registry, Tasks
from boki.libs.fold.retrying import uncertain

PAUSE_S: Final = 0.1
"""After a read that failed."""
GRACE_S: Final = 0.2
"""A consumer that has just been served has this long to ask again."""
SURPLUS_BYTES: Final = 8 * 1024 * 1024  # of bodies kept for messages that came ahead of callers
RECEIPT_ROUNDS: Final = 10
"""Rounds of `GRACE_S` after which receipts are reported, if nothing else is."""
_TRIES: Final = 5

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
        self.wants = Wants(self.clock)
        self._folds = Folds(
            *(queue, self.taker, self.lines, self.follower, self.bodies, self.upkeep),
            served=self._served,
            handed=self._handed,
        )
        self.entering = asyncio.Lock()
        """Held by the call that makes a group for all that came to take from it."""
        self.may_stand = False
        """Whether takes may stand: all readers of this queue know what that is (`records.VERSION`)."""
        self.pushing = 0
        """Messages that this process is about to push into a queue with a maximum length."""
        self.occupied: tuple[tuple[int, ...], int, int, int] | None = None
        """The last records of the shards, from when until when, and how many messages lived in the full queue then."""
        self.waiters: dict[Waiter, None] = {}
        """Callers that wait for messages, or for what they settle."""
        self.reader: asyncio.Task[None] | None = None
        self._duty = Waiter()
        """What the reader waits for: that nothing is left to do."""
        self._logbook: LogBook | None = None
        """The reader's, which has no deadline."""
        self._reads_until: Moment = (0.0, 0.0)
        self._tidied: Moment = (0.0, 0.0)
        self._rounds = 0  # of `GRACE_S`
        self._is_urgent = False
        """Whether a caller is gone that does not come again in a moment."""
        self._turn = 0
        self._has_ridden = False
        self._pushed = self.taker[0]
        self._is_starting = False
        self._behind_from: int | None = None
        """The folds begin here and were not brought up to the end yet; None: they were."""

    @property
    def is_busy(self) -> bool:
        """Whether a caller waits here, or something is under way or to be said."""
        return self.follower.is_busy or self.reader is not None or any(line.is_busy for line in self.lines)

    def let_go(self) -> None:
        """It is followed no more."""
        self.bodies.clear()

    def next_shard(self) -> int:
        """Where the next push goes: in turn, each process from another start."""
        self._pushed += 1
        return self._pushed % self.shards

    async def receive(self, logbook: LogBook, want: Want) -> list[Served]:
        """What the want is given. `Reshaped` if the queue is another one by now."""
        if self.wants.surplus and not want.op:
            if served := self.wants.take(want, [line.state for line in self.lines]):
                want.result = served
                return served
            self._release(want.group, self.wants.pop_others(want))
        if want.op or want.wait_s is None:
            return await self._take_own(logbook, want)
        self.wants.add(want)
        try:
            return await self._wait(logbook, want) or []
        finally:
            self.wants.remove(want)

    async def _take_own(self, logbook: LogBook, want: Want) -> list[Served]:
        """Ask each shard for this caller alone. An op is always asked for first: it may have been answered long ago."""
        asked = self._in_turn() if want.shard is None else [self.lines[want.shard]]
        is_first, now_us = True, lines.SOME_DAY_US  # only the log knows what time it is
        while True:
            for line in asked:
                due_us = now_us
                for _ in range(lines.PROBES):
                    if not (want.op and is_first) and not line.is_giving_back and not line.has(want.group, due_us):
                        break
                    want.is_done, want.result = False, None
                    if served := await self._ask(logbook, line, want):
                        return list(served)
                    is_first, due_us = False, line.state.time_us
            if want.left_s(self.clock) <= lines.MARGIN_S:
                return []

            def ready() -> bool | None:
                now_us = self.clock.now_us() - lines.EARLY_US
                return True if any(line.has(want.group, now_us) for line in asked) else None

            wait_s = lines.due_s(want, asked, self.clock)
            await self._follow(self.follower.wait_until(logbook, ready, wait_s))
            now_us = self.clock.now_us() - lines.EARLY_US

    async def settle(self, logbook: LogBook, shard: int, settle: records.Settle) -> list[bool]:
        """Which of the messages it was true for, and so has changed."""
        if not self.follower.is_loaded:
            await self.catch_up(logbook)
        verdicts: list[bool] = await self._ask(logbook, self.lines[shard], Settlement(settle))
        return verdicts

    async def _ask(self, logbook: LogBook, line: Line, waiter: Settlement | Want) -> Any:
        """The result, from the next act of that shard."""
        if isinstance(waiter, Settlement):
            line.settlements.append(waiter)
        else:
            line.own.append(waiter)
        try:
            return await self._wait(logbook, waiter)
        except BokiError as error:
            if line.withdraw(waiter):
                raise uncertain(error) from error
            raise

    async def _wait(self, logbook: LogBook, waiter: Waiter) -> Any:
        deadline = logbook.session.caller.deadline
        deadline.timeout_s()  # `DeadlineExceeded`
        if self.follower.is_over:
            raise reshaped(self.queue)
        if isinstance(waiter, Want) and waiter.wait_s is not None:
            waiter.wait_s = deadline.wait_s(waiter.wait_s)
            if self.reader is not None and lines.due_s(waiter, self.lines, self.clock) < -self.clock.since(
                self._reads_until
            ):
                self.follower.look_again()
        awake = asyncio.get_running_loop().create_future()
        waiter.wake = lambda: None if awake.done() else awake.set_result(None)
        self.waiters[waiter] = None
        self._start_soon(logbook)
        self._keep_reading(logbook)
        try:
            if not waiter.is_done:
                await awake
        finally:
            del self.waiters[waiter]
            if not waiter.is_done:  # it was cancelled, and is given nothing more
                waiter.is_done = True
                self.hurry()
        if waiter.error is not None:
            raise reshaped(self.queue) if self.follower.is_over else waiter.error
        return waiter.result

    def give_back(self, logbook: LogBook, group: str, served: Iterable[Served]) -> None:
        """A caller that was served is gone before it could take its messages."""
        self._release(group, served)
        self._start_soon(logbook)
        self._keep_reading(logbook)

    def _release(self, group: str, served: Iterable[Served]) -> None:
        for shard, delivery in served:
            self.lines[shard].release(group, (delivery,))

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

    def _own(self, logbook: LogBook) -> LogBook:
        self._logbook = self._logbook or logbook.session.logbook(logbook.name, detached=True)
        return self._logbook

    def _keep_reading(self, logbook: LogBook) -> None:
        """Have a reader, if there is anything to read for."""
        if (self.reader is None or self.reader.done()) and self._is_needed:
            self._tidied, self._rounds = self.clock.here(), 0
            self.reader = Tasks().spawn(self._read_on(self._own(logbook)))

    @property
    def _is_needed(self) -> bool:
        return bool(self.waiters) or any(line.is_busy for line in self.lines) or self._is_untidy

    @property
    def _is_untidy(self) -> bool:
        """Whether standing takes were given, or stand for, what no caller wants, or the log knows of no receipt."""
        if not self.may_stand:
            return False
        kinds = self.wants.kinds
        return bool(self.wants.surplus) or any(line.owes_receipt or line.has_excess(kinds) for line in self.lines)

    async def _read_on(self, logbook: LogBook) -> None:
        failed: Moment | None = None
        try:
            while not self.follower.is_over and self._is_needed:
                self._duty = Waiter()
                reads = self.follower.next_start
                try:
                    await self.follower.wait(logbook, self._duty)
                    failed = None
                except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                    failed = self.clock.here() if failed is None or reads != self.follower.next_start else failed
                    if not self.waiters and self.clock.since(failed) > lines.ANSWER_S:
                        return
                    self._fail(error if isinstance(error, BokiError) else BokiError(f"reading failed: {error!r}"))
                    await asyncio.sleep(PAUSE_S)
        except asyncio.CancelledError:
            # the event loop ends with all that is in it: what no caller here takes must not stay with this process
            if last := self._tidy(logbook, is_last=True):
                await asyncio.wait(last, timeout=1.0)
            raise
        finally:
            self.reader = None

    def _fail(self, error: BokiError) -> None:
        """The log cannot be read: all that wait are told so."""
        for waiter in list(self.waiters):
            waiter.finish(None, BokiError.from_body(error.body()))

    def hurry(self) -> None:
        """Wait no longer for consumers that may come again."""
        if self.reader is not None:
            self._is_urgent = True
            self.follower.look_again()

    def _before_read(self, logbook: LogBook) -> float:
        """Ask for what callers wait for; how long the reader may wait for a record before something is due."""
        if self._behind_from is not None:
            if self._behind_from != self.follower.next_start:
                self._behind_from = self.follower.next_start
                return 0.0
            self._behind_from = None
        self._start_now(logbook)
        lines.finish_late(self.wants, self.lines, self.clock, self.queue)
        if self.follower.is_over:
            return 0.0
        wait_s = LONG_WAIT_S
        if not self._is_untidy:
            self._tidied, self._rounds = self.clock.here(), 0
            self._is_urgent = self._is_urgent and any(line.is_busy for line in self.lines)
        else:
            if self._is_urgent or self.clock.since(self._tidied) >= GRACE_S - lines.MARGIN_S:
                self._rounds += 1
                self._tidied = self.clock.here()
                is_last = self._is_urgent or self._rounds % RECEIPT_ROUNDS == 0
                self._is_urgent = self._is_urgent and any(line.outstanding is not None for line in self.lines)
                self._tidy(logbook, is_last=is_last)
            wait_s = GRACE_S - self.clock.since(self._tidied)
        if not self._is_needed:
            self._duty.finish(None)
        wait_s = max(min(wait_s, lines.patience_s(self.wants, self.lines, self.clock)), 0.002)
        now = self.clock.here()
        self._reads_until = now[0] + wait_s, now[1] + wait_s
        return wait_s

    def _tidy(self, logbook: LogBook, *, is_last: bool) -> list[asyncio.Task[None]]:
        """What no caller has wanted for a while goes back, and so does its credit. `is_last`: all of it, and the log is
        told what was received.
        """
        for group, served in self.wants.pop_old(is_all=is_last):
            self._release(group, (served,))
        return self.start_acts(logbook, is_tidying=is_last or not self.wants.kinds)

    # Reading: the source of the follower

    async def load(self, logbook: LogBook) -> int:
        """See `boki.libs.fold.follower.Source`."""
        start = await self._folds.load(logbook)
        for line in self.lines:  # before anything can fail: what is covered by now is not read again
            given = line.state.takers.last.get(self.taker)
            if given is not None:
                self._hear_again(logbook, line, given)
            line.give_back_unknown()
        self._behind_from = -1
        return start

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
        """See `boki.libs.fold.follower.Source`."""
        if not self.wants.surplus or self.bodies.kept_bytes > SURPLUS_BYTES:
            self.bodies.let_go([line.state for line in self.lines])
        try:
            if not await self._folds.take(logbook, page):
                return False
        except Reshaped as error:
            self.follower.end(error)
            self._fail(error)
            return True
        if any(line.settlements for line in self.lines):
            self._start_soon(logbook)  # what no caller was there to take goes back
        self._keep_reading(logbook)
        return True

    def _handed(self, line: Line, handed: Handed) -> None:
        """A standing take of this process was given messages."""
        _, group, lease_us, deliveries = handed
        line.hear(group, deliveries)
        kind = group, lease_us
        self.wants.keep(line.shard, kind, self.wants.serve(line.shard, kind, deliveries))

    def _served(self, line: Line, given: Given) -> None:
        """An act of this process counts: those that wait for it are given what it came to."""
        own = line.outstanding
        if own is not None and own.act.number == given.number and own.asked is not None:
            self.clock.hear_answer(given.time_us, own.asked)
            self.wants.act_s = self.clock.since(own.asked)
        for kind, deliveries in line.settle(given, self.queue):
            line.release(kind[0], self.wants.serve(line.shard, kind, deliveries))

    # Acts

    def _start_soon(self, logbook: LogBook) -> None:
        """When all that runs in this turn has said what it wants: then one act asks for all of it."""
        if self.follower.is_loaded and not self._is_starting:
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start_now, logbook)

    def _start_now(self, logbook: LogBook) -> None:
        self._is_starting = False
        self.start_acts(logbook)

    def ride(self, logbook: LogBook) -> None:
        """This process is about to push: an act that is soon due shares the request, and costs no round of its own."""
        if not self._has_ridden and self.may_stand and self.waiters:
            self._has_ridden = True  # once a turn of the loop: all that is appended in it shares one request
            asyncio.get_running_loop().call_soon(setattr, self, "_has_ridden", False)
            self.start_acts(logbook, is_riding=True)

    def _in_turn(self) -> list[Line]:
        """All shards: each is the first to be asked in its turn."""
        self._turn = (self._turn + 1) % self.shards
        return [*self.lines[self._turn :], *self.lines[: self._turn]]

    def start_acts(
        self, logbook: LogBook, *, is_tidying: bool = False, is_riding: bool = False
    ) -> list[asyncio.Task[None]]:
        """Append what is to be asked for, at every shard that has no act on its way."""
        if not self.follower.is_loaded or self._behind_from is not None or self.follower.is_over:
            return []
        begun = []
        asked: Demand | None = None
        now_us = self.clock.now_us() - lines.EARLY_US
        for line in self._in_turn():
            if line.outstanding is None and not line.is_pausing(self.clock):
                line.give_back_again()
                if asked is None:
                    asked = Demand(
                        *(self.wants, self.lines, self.clock),
                        may_stand=self.may_stand,
                        is_tidying=is_tidying,
                        is_riding=is_riding,
                    )
                line.compose(asked, now_us)
            if line.outstanding is not None and not line.outstanding.is_under_way:
                line.outstanding.is_under_way = True
                line.outstanding.asked = line.outstanding.asked or self.clock.here()
                begun.append(self.tasks.spawn(self._append_act(self._own(logbook), line, line.outstanding)))
        return [task for task in begun if task is not None]

    async def _append_act(self, logbook: LogBook, line: Line, outstanding: Outstanding) -> None:
        act = outstanding.act
        try:
            await logbook.append(records.encode(act), records.tags_of(act, self.queue, self.shards))
            return
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
            line.refuse(error)
            for want in [one for one in self.wants if one.kind in outstanding.kinds]:
                want.finish(None, BokiError.from_body(error.body()))
            self._keep_reading(logbook)


class Queues(Registry[Following]):
    """The queues that are followed over one connection to the log, and the bodies that they keep together."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = BodyStore()

    async def come_to_rest(self, patience_s: float) -> None:
        """Until nothing continues beside what is waited for: checkpoints, trims, giving back."""
        for followed in self:
            followed.hurry()
        if readers := [one.reader for one in self if one.reader is not None and not one.waiters]:
            _, late = await asyncio.wait(readers, timeout=patience_s)
            for task in late:
                task.cancel()
        await self.tasks.come_to_rest(patience_s)


def queues_of(logbook: LogBook) -> Queues:
    """The queues that are followed over this connection to the log."""
    return logbook.session.shared(Queues)


def following(logbook: LogBook, queue: str, shards: int) -> Following:
    """The queue, as all calls of this connection share it."""
    queues, now_s = queues_of(logbook), asyncio.get_running_loop().time()
    found = queues.find(logbook.name, queue, now_s)
    if found is None or found.shards != shards or found.follower.is_over:
        found = Following(queue, shards, tasks=queues.tasks, store=queues.bodies)
        queues.put(logbook.name, queue, found, now_s)
    return found
