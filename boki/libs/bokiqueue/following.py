"""A queue in this process: what all its callers share. Its folds, one reader of the stream, and one act of a shard at a
time.

While a caller waits, one task follows the stream. It appends what callers want, and each page goes to those that wait.
It continues until no act is on its way, all that no caller received was given back, and no credit stands for callers
that are gone. Callers that only look (`catch_up`) read by themselves if no reader is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from secrets import token_bytes
from typing import Any, Final

import msgspec

from boki import BokiError, LogBook, Page
from boki.extending import uncertain
from boki.libs.bokiqueue import callers, lines, records
from boki.libs.bokiqueue.callers import Bodies, BodyStore, Kind, Served, Want, Wants, finish
from boki.libs.bokiqueue.folds import Folds
from boki.libs.bokiqueue.lines import Asked, Demand, Line, Outstanding
from boki.libs.bokiqueue.messages import NoSuchQueue, no_such_group, reshaped
from boki.libs.bokiqueue.records import Settle, Take
from boki.libs.fold.clock import Moment
from boki.libs.fold.follower import LONG_WAIT_S, Follower, Waiter
from boki.libs.fold.registry import Registry, Tasks
from boki.libs.fold.retrying import as_told, until_decided
from boki.retry import Backoff

PAUSE_S: Final = 0.1  # after a read that failed
GRACE_S: Final = 0.2  # a consumer that has just been served has this long to ask again
RECEIPT_ROUNDS: Final = 10
"""Rounds of `GRACE_S` after which receipts are reported, if nothing else is."""
_PROBES: Final = 3  # of a shard for one caller: its first answer may say what time it is
_AGAIN: Final = Backoff(first_s=0.0, jitter=0.0, tries=5)
"""An act whose outcome is unknown is appended again under its number: the fold counts it once."""

NEVER: Final[Moment] = (0.0, 0.0)


class Following:
    """A queue in this process.

    `taker` names the process among all that ever take from the queue. `save_records`: see `folds`.
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
        self.queue, self.shards = queue, shards
        self.taker = token_bytes(8) if taker is None else taker
        self.lines = [Line(shard, self.taker) for shard in range(shards)]
        tag = records.stream_tag(queue, 0) if shards == 1 else records.feed_tag(queue)
        self.follower = Follower(self, tag, before_read=self._before_read)
        self.clock = self.follower.clock
        self.tasks = Tasks() if tasks is None else tasks
        self.bodies = Bodies(shards, store or BodyStore())
        self.wants = Wants(self.clock)
        self.folds = Folds(
            *(queue, self.taker, self.lines, self.wants, self.follower, self.bodies, self.tasks, save_records)
        )
        self.entering = asyncio.Lock()
        """Held by the call that makes a group for all that came to take from it."""
        self.pushing = 0
        """Messages that this process is about to push into a queue with a maximum length."""
        self.occupied: tuple[tuple[int, ...], int, int, int] | None = None
        """The last records of the shards, from when until when, and how many messages lived in the full queue then."""
        self.reader: asyncio.Task[None] | None = None
        self._duty = Waiter()
        """What the reader waits for: that nothing is left to do."""
        self._logbook: LogBook | None = None
        """The reader's, which has no deadline."""
        self._reads_until = self._tidied = NEVER
        self._rounds = 0  # of `GRACE_S`
        self._is_urgent = False
        """Whether a caller is gone that does not come again in a moment."""
        self._has_ridden = self._is_starting = False
        self._turn, self._pushed = 0, self.taker[0]
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

    def has_group(self, group: str) -> bool:
        """Whether it is there, in all shards."""
        return group in self.lines[0].state.groups and all(group in line.state.groups for line in self.lines[1:])

    # Callers

    async def receive(self, logbook: LogBook, want: Want) -> list[Served]:
        """What the want is given. If this raises and the follower is over, the queue is another one by now."""
        if self.wants.surplus and not want.op:
            groups = [line.state.groups.get(want.kind[0]) for line in self.lines]
            served, ended = self.wants.take(want.kind, want.count, groups)
            for shard, delivery, _ in ended:  # else no later delivery is confirmed, and leases in use are fenced
                self.lines[shard].received(delivery.token)
            if served:
                return served
            lines.release(self.lines, want.kind[0], self.wants.pop_others(want.kind))
        if want.wait_s is not None:
            want.wait_s = logbook.session.caller.deadline.wait_s(want.wait_s)
        if want.op or want.wait_s is None or self._has_no_room(want.kind):
            return await self._take_own(logbook, want)
        is_first = not self.wants.waiting.get(want.kind)
        self.wants.add(want)
        if self.reader is not None and (is_first or want.wait_s < -self.clock.since(self._reads_until)):
            self.follower.look_again()
        try:
            given: list[Served] | None = await self._wait(logbook, want, want.kind[0])
        finally:
            self.wants.remove(want)
        return await self._take_own(logbook, want) if given is None else given

    def _has_no_room(self, kind: Kind) -> bool:
        return any(line.has_no_room(kind) for line in self.lines)

    async def _take_own(self, logbook: LogBook, want: Want) -> list[Served]:
        """Ask each shard for this caller alone. An op is always asked for first: it may have been answered long ago."""
        asked = self._in_turn() if want.shard is None else [self.lines[want.shard]]
        group = want.kind[0]

        def ready() -> bool | None:
            now_us = self.clock.now_us() - lines.EARLY_US
            return True if any(line.has(group, now_us) for line in asked) else None

        is_first, now_us = bool(want.op), lines.SOME_DAY_US  # only the log knows what time it is
        while True:
            for line in asked:
                due_us = now_us
                for _ in range(_PROBES):
                    if not (is_first or line.is_giving_back or line.has(group, due_us)):
                        break
                    own = Asked(Take(group, want.count, want.kind[1], want.op))
                    if served := await self._ask(logbook, line, own):
                        return list(served)
                    is_first, due_us = False, line.state.time_us
            left_s = want.left_s(self.clock)
            if left_s <= callers.MARGIN_S:
                return []
            soonest_us = min([due_us for line in asked if (due_us := line.next_due_us(group))], default=0)
            wait_s = min(left_s, self._until_s(soonest_us)) if soonest_us else left_s
            await self.follower.wait_until(logbook, ready, wait_s)
            now_us = self.clock.now_us() - lines.EARLY_US

    async def settle(
        self, logbook: LogBook, settle: Settle, handles: Iterable[tuple[int, int, int]]
    ) -> list[tuple[int, int, int]]:
        """Do it to all of these (shard, position, token), by acts of each shard; those for which it was not true. An
        error that comes when others of them are settled says that its outcome is unknown.
        """
        by_shard: dict[int, list[tuple[int, int]]] = {}
        for shard, pos, token in handles:
            by_shard.setdefault(shard, []).append((pos, token))
        if not self.follower.is_loaded:
            await self.follower.catch_up(logbook)
        lost: list[tuple[int, int, int]] = []
        is_begun = False
        for line in [self.lines[shard] for shard in by_shard]:
            for some in records.runs(by_shard[line.shard], lambda _: 0, 1, lines.MAX_SETTLED):
                try:
                    verdicts = await self._ask(logbook, line, Asked(msgspec.structs.replace(settle, messages=some)))
                except BokiError as error:
                    raise (uncertain(error) if is_begun else error) from error
                is_begun = True
                lost += [(line.shard, *one) for one, is_true in zip(some, verdicts, strict=True) if not is_true]
        return lost

    async def _ask(self, logbook: LogBook, line: Line, asked: Asked) -> Any:
        """The result, from the next act of that shard."""
        line.asked.append(asked)
        part, asked.caller = asked.part, asyncio.get_running_loop().create_future()
        group = part.group if isinstance(part, Take) and not part.op else None
        try:
            return await self._wait(logbook, asked.caller, group)
        except BokiError as error:
            if line.withdraw(asked):
                raise uncertain(error) from error
            raise

    async def _wait(self, logbook: LogBook, waiter: asyncio.Future[Any], group: str | None) -> Any:
        """What it waits for. If its caller is cancelled when it was served, that goes back to the group."""
        logbook.session.caller.deadline.timeout_s()  # `DeadlineExceeded`
        if self.follower.is_over:
            raise reshaped(self.queue)
        self._start_soon(logbook)
        self._keep_reading(logbook)
        try:
            return await waiter
        except BokiError:
            raise
        except BaseException:
            is_answered = waiter.done() and not waiter.cancelled()
            if group is not None and is_answered and waiter.exception() is None:  # else that would be raised here
                self.give_back(logbook, group, waiter.result() or ())
            waiter.cancel()
            self.hurry()
            raise

    def give_back(self, logbook: LogBook, group: str, served: Iterable[Served]) -> None:
        """A caller was served, and is gone."""
        lines.release(self.lines, group, served)
        self._start_soon(logbook)
        self._keep_reading(logbook)

    # The reader

    def _own(self, logbook: LogBook) -> LogBook:
        self._logbook = self._logbook or logbook.session.logbook(logbook.name, detached=True)
        return self._logbook

    def _keep_reading(self, logbook: LogBook) -> None:
        """Have a reader, if there is anything to read for."""
        if (self.reader is None or self.reader.done()) and self._is_needed:
            self._tidied, self._rounds = self.clock.here(), 0
            self.reader = Tasks().spawn(self._read_on(self._own(logbook)))

    @property
    def _callers(self) -> Iterator[asyncio.Future[Any]]:
        """All that wait for messages, or for what they settle."""
        yield from [want for some in self.wants.waiting.values() for want in some if not want.done()]
        asked = [one.caller for line in self.lines for one in line.all_asked]
        yield from [caller for caller in asked if caller is not None and not caller.done()]

    @property
    def has_callers(self) -> bool:
        """Whether any waits."""
        return next(self._callers, None) is not None

    @property
    def _is_needed(self) -> bool:
        return any(self.wants.waiting.values()) or any(line.is_busy for line in self.lines) or self._is_untidy

    @property
    def _is_untidy(self) -> bool:
        """Whether standing takes were given, or stand for, what no caller wants, or the log knows of no receipt."""
        kinds = self.wants.kinds
        return bool(self.wants.surplus) or any(line.owes_receipt or line.has_excess(kinds) for line in self.lines)

    async def _read_on(self, logbook: LogBook) -> None:
        failed: Moment | None = None
        try:
            while not self.follower.is_over and self._is_needed:
                self._duty, reads = Waiter(), self.follower.next_start
                try:
                    await self.follower.wait(logbook, self._duty)
                    failed = None
                except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear of it
                    failed = self.clock.here() if failed is None or reads != self.follower.next_start else failed
                    if not self.has_callers and self.clock.since(failed) > callers.ANSWER_S:
                        return
                    self._fail(as_told(error, "reading"))
                    await asyncio.sleep(PAUSE_S)
            if self.follower.is_over:
                self._fail(reshaped(self.queue))  # who came while this paused
        except asyncio.CancelledError:
            # the event loop ends with all that is in it: what no caller here takes must not stay with this process
            if last := self._tidy(logbook, is_last=True):
                await asyncio.wait(last, timeout=1.0)
            raise
        finally:
            self.reader = None

    def _fail(self, error: BokiError) -> None:
        """The log cannot be read, or the queue is another one: all that wait are told so."""
        for waiter in list(self._callers):
            finish(waiter, None, error)

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
        self._start_acts(logbook)
        self._finish_late()
        if self.follower.is_over:
            return 0.0
        wait_s = min(self._tidy_in_time(logbook), self._patience_s())
        if not self._is_needed:
            self._duty.finish(None)
        now, wait_s = self.clock.here(), max(wait_s, 0.002)
        self._reads_until = now[0] + wait_s, now[1] + wait_s
        return wait_s

    def _finish_late(self) -> None:
        """Callers whose time is over, whose group was dropped, or for which no credit can be granted."""
        for kind, some in self.wants.waiting.items():
            group, error = kind[0], None
            if some and group and not any(group in line.state.groups for line in self.lines):
                error = no_such_group(self.queue, group)
            if some and (error is not None or self._has_no_room(kind)):
                for want in some:
                    finish(want, None, error)
        self.wants.finish_late({kind for line in self.lines if line.outstanding for kind in line.outstanding.kinds})

    def _tidy_in_time(self, logbook: LogBook) -> float:
        """How long until the next look at what no caller wants."""
        if not self._is_untidy:
            self._is_urgent = self._is_urgent and any(line.is_busy for line in self.lines)
            self._tidied, self._rounds = self.clock.here(), 0
            return LONG_WAIT_S
        if self._is_urgent or self.clock.since(self._tidied) >= GRACE_S - callers.MARGIN_S:
            self._rounds, self._tidied = self._rounds + 1, self.clock.here()
            is_last = self._is_urgent or self._rounds % RECEIPT_ROUNDS == 0
            self._is_urgent = self._is_urgent and any(line.outstanding is not None for line in self.lines)
            self._tidy(logbook, is_last=is_last)
        return GRACE_S - self.clock.since(self._tidied)

    def _tidy(self, logbook: LogBook, *, is_last: bool) -> list[asyncio.Task[None]]:
        """What no caller has wanted for a while goes back, and so does its credit. `is_last`: all of it, and the log is
        told what was received.
        """
        for group, served in self.wants.pop_old(is_all=is_last):
            lines.release(self.lines, group, served)
        return self._start_acts(logbook, is_tidying=is_last or not self.wants.kinds)

    def _patience_s(self) -> float:
        """How long until something is due for callers that wait, or for a shard."""
        kinds = self.wants.kinds
        wait_s = self.wants.patience_s() if kinds else LONG_WAIT_S
        for line in self.lines:
            if line.is_pausing(self.clock):
                wait_s = min(wait_s, lines.REFUSED_S)
            elif line.outstanding is None and kinds and (due_us := line.wakes_us(kinds)):
                wait_s = min(wait_s, self._until_s(due_us))
        return wait_s

    def _until_s(self, due_us: int) -> float:
        return (due_us + lines.EARLY_US - self.clock.now_us()) / 1e6 + callers.MARGIN_S

    # Reading: the source of the follower

    async def load(self, logbook: LogBook) -> int:
        """See `boki.libs.fold.follower.Source`."""
        start = await self.folds.load(logbook)
        for line in self.folds.forgotten:
            self._forget(logbook, line)
        self._behind_from = -1
        return start

    async def take(self, logbook: LogBook, page: Page) -> bool:
        """See `boki.libs.fold.follower.Source`."""
        try:
            if not await self.folds.take(logbook, page):
                return False
        except NoSuchQueue as error:
            self.follower.end(error)
            self._fail(error)
            return True
        for line in self.folds.forgotten:
            self._forget(logbook, line)
        self.bodies.let_go([line.state for line in self.lines])
        if any(line.asked for line in self.lines):
            self._start_soon(logbook)  # what no caller was there to take goes back
        self._keep_reading(logbook)
        return True

    # Acts

    def _start_soon(self, logbook: LogBook) -> None:
        """When all that runs in this turn has said what it wants: then one act asks for all of it."""
        if self.follower.is_loaded and not self._is_starting:
            self._is_starting = True
            asyncio.get_running_loop().call_soon(self._start_acts, logbook)

    def ride(self, logbook: LogBook) -> None:
        """This process is about to push: an act that is soon due shares the request, and costs no round of its own."""
        if not self._has_ridden and any(self.wants.waiting.values()):
            self._has_ridden = True  # once a turn of the loop: all that is appended in it shares one request
            asyncio.get_running_loop().call_soon(setattr, self, "_has_ridden", False)
            self._start_acts(logbook, is_riding=True)

    def _in_turn(self) -> list[Line]:
        """All shards: each is the first to be asked in its turn."""
        self._turn = (self._turn + 1) % self.shards
        return [*self.lines[self._turn :], *self.lines[: self._turn]]

    def _start_acts(
        self, logbook: LogBook, *, is_tidying: bool = False, is_riding: bool = False
    ) -> list[asyncio.Task[None]]:
        """Append what is to be asked for, at every shard that has no act on its way. For callers that wait in a deleted
        queue nothing is asked: they wait for the record that creates it again.
        """
        self._is_starting = False
        if not self.follower.is_loaded or self._behind_from is not None or self.follower.is_over:
            return []
        begun = []
        wanted: Demand | None = None
        now_us = self.clock.now_us() - lines.EARLY_US
        for line in self._in_turn():
            is_resting = self.folds.is_gone and not line.asked
            if line.outstanding is None and not is_resting and not line.is_pausing(self.clock):
                wanted = wanted or Demand(
                    self.wants, self.lines, self.clock, is_tidying=is_tidying, is_riding=is_riding
                )
                if (act := line.compose(wanted, now_us)) is not None:
                    act.asked = self.clock.here()
                    begun.append(self.tasks.spawn(self._append_act(self._own(logbook), line, act)))
        return [task for task in begun if task is not None]

    async def _append_act(self, logbook: LogBook, line: Line, outstanding: Outstanding) -> None:
        act = outstanding.act
        data, tags = records.encode(act), records.tags_of(act, self.queue, self.shards)

        async def append() -> int:
            if line.outstanding is not outstanding:  # the fold has come to it
                return 0
            return await self.folds.append_if_exists(logbook, lambda exists: logbook.append(data, tags, when=exists))

        try:
            outstanding.seqnum = await until_decided(append, "an act of a queue", _AGAIN, is_patient=False)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait for this act must hear of it
            self._refuse(logbook, line, outstanding, as_told(error, f"an act of queue {self.queue!r}"))
            self.follower.look_again()
            return
        if line.outstanding is outstanding and line.is_act_forgotten:
            self._forget(logbook, line)
            self.follower.look_again()

    def _forget(self, logbook: LogBook, line: Line) -> None:
        """The fold has passed the act that is on its way, and does not know its outcome: none comes."""
        if line.outstanding is not None and line.outstanding.has_outcome:
            why = "this process was silent for too long, others were given too much since, or its book was deleted"
            text = f"the outcome of a command of queue {self.queue!r} is forgotten: {why}"
            self._refuse(logbook, line, line.outstanding, BokiError(text, outcome="unknown"))
        line.outstanding = None

    def _refuse(self, logbook: LogBook, line: Line, outstanding: Outstanding | None, error: BokiError) -> None:
        if outstanding is not None and line.outstanding is outstanding:
            line.refused_at = self.clock.here()
            line.refuse(error)
            is_gone = isinstance(error, NoSuchQueue)
            if is_gone:
                line.forget_own()
            for kind in () if is_gone else outstanding.kinds:
                for want in self.wants.waiting.get(kind, ()):
                    finish(want, None, error)
            self._keep_reading(logbook)


class Queues(Registry[Following]):
    """The queues that are followed over one connection to the log, and the bodies that they keep together."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies = BodyStore()

    async def come_to_rest(self, patience_s: float) -> None:
        """Wait until no background work is left: checkpoints, trims, giving back."""
        for followed in self:
            followed.hurry()
        if readers := [one.reader for one in self if one.reader is not None and not one.has_callers]:
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
