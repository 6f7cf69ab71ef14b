"""What processes do with queues: push, pop under ops, lease, settle and commit, by the code that everybody uses.

A `Worker` is what a process does, through all its incarnations: what it was told it remembers as if it had written it
down, so a push under way is made again under its key, and a pop under its op.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from boki.errors import BokiError
from boki.libs.bokiqueue import LeaseLost, Message, Queue
from boki.libs.bokiqueue.following import Following, queues_of
from boki.verify.histories.queues import BURIED, Endings, Leased, Pushed, Taken
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.hand_outs import watched
from boki.verify.sim.processes import Process

BOOK: Final = "queues"
TICKETS, JOBS, DONE = "tickets", "jobs", "done"
"""`tickets` are popped permanently under ops; `jobs` are leased, and mostly end in a record and a message of `done`."""
RESULT: Final = "result"
COPY: Final = "copy"
"""A second group that is given every ticket, if the run has one."""
_POISON: Final = "poison"
"""A job with this in its name fails whenever it is tried."""
_CALM_LEASE_S: Final = 5.0
_WAIT_S: Final = 1.0
_CALM_WAIT_S: Final = 0.5
_RETRY_S: Final = 0.1
_KEYS: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What the queues of a run are like, and how they are used. `groups`: of tickets; `quota`: pushes of a producer.

    `has_loose_pops`: tickets are also popped without an op. `job_wait_s`: how long a consumer waits for a job, which is
    without limit in a gateway. `job_count`: how many jobs it takes at most. `travel_us`: about how long a read
    and an append take.
    """

    shards: int
    groups: tuple[str, ...]
    has_loose_pops: bool
    max_deliveries: int
    lease_s: float
    pause_s: float
    job_wait_s: float
    job_count: int
    quota: int
    save_records: int
    travel_us: int


@dataclass(slots=True)
class Ledger:
    """What all workers together were told: for the checkers."""

    pushed: list[Pushed] = field(default_factory=list)
    taken: list[Taken] = field(default_factory=list)
    leased: list[Leased] = field(default_factory=list)
    endings: Endings = field(default_factory=Endings)
    unheard: Counter[str] = field(default_factory=Counter)
    """By queue, how many pops without an op have not come to an end that somebody was told."""
    delays_us: dict[str, int] = field(default_factory=dict)
    given_to_the_gone: set[str] = field(default_factory=set)
    is_calm: bool = False
    """Nothing strikes any more, and nobody begins anything that is to fail."""


class Worker:
    """A producer of tickets and one of jobs, takers of tickets, and one who does jobs."""

    def __init__(self, name: str, plan: Plan, ledger: Ledger, clock: Clockwork, rng: Random) -> None:
        self.name = name
        self._plan = plan
        self._ledger = ledger
        self._clock = clock
        self._rng = rng
        self._numbers = dict.fromkeys((TICKETS, JOBS), 0)
        self._under_way: dict[str, tuple[list[str], dict[str, Any]]] = {}
        self._unanswered: set[str] = set()
        """The queues that this incarnation is pushing to."""
        self._ops = dict.fromkeys(plan.groups, 0)
        self._pops = 0
        self.empty_since_us = dict.fromkeys(plan.groups, 0)
        """By group: when a pop under the present op began that was given nothing."""
        self._process: Process | None = None
        self.followed: list[Following] = []
        """The queues as the present incarnation sees them."""

    @property
    def is_producing(self) -> bool:
        """Whether some push is not acknowledged yet, or to be made."""
        if self._under_way or self._unanswered:
            return True
        return not self._ledger.is_calm and min(self._numbers.values()) < self._plan.quota

    @property
    def _wait_s(self) -> float:
        return _CALM_WAIT_S if self._ledger.is_calm else _WAIT_S

    # Living

    async def run(self, process: Process) -> None:
        """One incarnation."""
        book = process.logbook(BOOK)
        plan = self._plan
        self._process = process
        self._unanswered = set()
        process.on_term_waited = lambda: self._clock.sometimes("a term changed while a consumer waited")
        self.followed = [
            watched(
                Following(queue, shards, taker=self._rng.randbytes(8), save_records=plan.save_records),
                self._ledger.given_to_the_gone,
            )
            for queue, shards in ((TICKETS, 1), (JOBS, plan.shards), (DONE, 1))
        ]
        for each in self.followed:
            queues_of(book).put(book.name, each.queue, each)
        tickets: Queue[str] = Queue(book, TICKETS)
        jobs: Queue[str] = Queue(book, JOBS)
        done: Queue[str] = Queue(book, DONE)
        await self._until_done(partial(self._set_up, tickets, jobs, done))
        steps: list[Callable[[], Awaitable[None]]] = [partial(self._produce, queue) for queue in (tickets, jobs)]
        steps += [partial(self._take_ticket, Queue(book, TICKETS, group=group)) for group in self._plan.groups]
        steps.append(partial(self._do_job, jobs, done))
        for step in steps:
            process.loop.create_task(self._go_on(process, step))

    async def _set_up(self, tickets: Queue[str], jobs: Queue[str], done: Queue[str]) -> None:
        await tickets.create()
        await jobs.create(shards=self._plan.shards, max_deliveries=self._plan.max_deliveries)
        await done.create()
        if COPY in self._plan.groups:  # before the first push, for it is to be given every one
            for group in self._plan.groups:
                await tickets.create_group(group)

    async def _until_done(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except BokiError as error:
                self._clock.note(f"{self.name} is refused: {error.code}")
                await asyncio.sleep(_RETRY_S * (1 + self._rng.random()))
            else:
                return

    async def _go_on(self, process: Process, step: Callable[[], Awaitable[None]]) -> None:
        """One step after the other; what fails is done again."""
        try:
            while True:
                await self._until_done(step)
        except Exception as error:  # noqa: BLE001 - a bug ends this task, and must not hide in it
            process.loop.raised.append(f"{self.name}: {error!r}")

    # Pushing

    async def _produce(self, queue: Queue[str]) -> None:
        if queue.name not in self._under_way:
            await asyncio.sleep(self._plan.pause_s * self._rng.random() * 2)
            if self._ledger.is_calm or self._numbers[queue.name] >= self._plan.quota:
                await asyncio.get_running_loop().create_future()  # there is nothing more to push, in this incarnation
            self._under_way[queue.name] = self._draw_push(queue.name)
        payloads, options = self._under_way[queue.name]
        if "key" not in options:  # made once, whatever its outcome
            del self._under_way[queue.name]
        unanswered = self._unanswered  # of this incarnation: the task of one that died may end later
        unanswered.add(queue.name)
        try:
            ids = await queue.push_many(payloads, **options)
        finally:
            unanswered.discard(queue.name)
        self._under_way.pop(queue.name, None)
        self._ledger.pushed += [Pushed(queue.name, *row) for row in zip(payloads, ids, strict=True)]

    def _draw_push(self, queue: str) -> tuple[list[str], dict[str, Any]]:
        rng = self._rng
        count = rng.choice((1, 1, 1, 1, 1, 3))
        payloads = []
        for _ in range(count):
            self._numbers[queue] += 1
            is_poison = queue == JOBS and self._plan.max_deliveries and rng.random() < 0.15
            payloads.append(f"{self.name}-{queue}-{_POISON if is_poison else ''}{self._numbers[queue]}")
        options: dict[str, Any] = {} if rng.random() < 0.2 else {"key": payloads[0]}
        if queue == JOBS and rng.random() < 0.6:
            options["group_keys"] = [f"key-{rng.randrange(_KEYS)}" for _ in payloads]
        if queue == JOBS and rng.random() < 0.2:
            options["delay_s"] = rng.randint(50, 1500) / 1000
            self._ledger.delays_us |= dict.fromkeys(payloads, round(options["delay_s"] * 1e6))
        self._ledger.pushed += [Pushed(queue, payload) for payload in payloads]
        return payloads, options

    # Tickets

    async def _take_ticket(self, queue: Queue[str]) -> None:
        if self._plan.has_loose_pops and not self._ledger.is_calm and self._rng.random() < 0.5:
            await self._take_any_ticket(queue)
            return
        op = f"{self.name}-{self._ops[queue.group]}"
        is_waiting = self._rng.random() < 0.9
        begun_us = self._clock.now_us
        message = await queue.pop(wait_s=self._wait_s if is_waiting else 0, op=op)
        if message is None:
            self.empty_since_us[queue.group] = begun_us
            await asyncio.sleep(0 if is_waiting else _RETRY_S)
            return
        name = queue_of(queue.group)
        row = Taken(name, f"{self.name}/{queue.group}", op, message.value, message.id)
        if row in self._ledger.taken:
            self._clock.sometimes("a repeated pop was given its message again")
        self._ledger.taken.append(row)
        self._clock.note(f"{self.name} is given {row.payload} for {op}")
        if self._ledger.is_calm or self._rng.random() < 0.8:  # else it asks for that one again
            self._ops[queue.group] += 1

    async def _take_any_ticket(self, queue: Queue[str]) -> None:
        """Without an op: at most once."""
        name = queue_of(queue.group)
        assert self._process is not None
        self._process.loses_next_append = self._rng.random() < 0.3
        self._ledger.unheard[name] += 1
        message = await queue.pop(wait_s=_WAIT_S)
        self._ledger.unheard[name] -= 1
        if message is not None:
            self._pops += 1
            op = f"{self.name}-any-{self._pops}"  # as the checkers have it: each is another one
            row = Taken(name, f"{self.name}/{queue.group}/any", op, message.value, message.id)
            self._ledger.taken.append(row)
            self._clock.note(f"{self.name} is given {row.payload}")

    # Jobs

    async def _do_job(self, jobs: Queue[str], done: Queue[str]) -> None:
        is_calm = self._ledger.is_calm
        lease_s = _CALM_LEASE_S if is_calm else self._plan.lease_s
        is_waiting = self._rng.random() < 0.9
        wait_s = self._plan.job_wait_s if is_waiting else 0
        messages = await jobs.lease_many(self._plan.job_count, lease_s, wait_s=wait_s)
        if not messages:
            await asyncio.sleep(0 if is_waiting else _RETRY_S)
        rows = [self._note_lease(message, round(lease_s * 1e6)) for message in messages]
        for message, row in zip(messages, rows, strict=True):
            await self._do(jobs, done, message, row, lease_s)

    async def _do(self, jobs: Queue[str], done: Queue[str], message: Message[str], row: Leased, lease_s: float) -> None:
        is_calm = self._ledger.is_calm
        if self._rng.random() < 0.1:
            await jobs.extend(message, lease_s=lease_s)
        if not is_calm:
            await self._dawdle(row, lease_s)
        if _POISON in message.value:
            await self._fail(jobs, message, row)
        elif self._rng.random() < 0.7:
            await self._commit(jobs, done, message, row)
        elif self._rng.random() < 0.7 or is_calm:
            await self._ack(jobs, message, row)
        elif self._rng.random() < 0.7:
            row.is_given_up = True
            await jobs.nack(message, delay_s=self._rng.choice((0, 0.2)), reason="not now")

    async def _dawdle(self, row: Leased, lease_s: float) -> None:
        """Mostly be quick, sometimes take about as long as the lease, or so long that it ends while the ack travels."""
        way = self._rng.random()
        if way < 0.25:
            left_us = row.until_us - self._clock.now_us - self._rng.random() * self._plan.travel_us
            await asyncio.sleep(max(0.0, left_us / 1e6))
        else:
            await asyncio.sleep(lease_s * self._rng.uniform(*((0.7, 1.3) if way < 0.4 else (0, 0.3))))

    def _note_lease(self, message: Message[str], lease_us: int) -> Leased:
        delay_us = self._ledger.delays_us.get(message.value, 0)
        token = message.delivery.token
        for before in self._ledger.leased:
            if before.id == message.id and before.token < token and not before.is_given_up:
                self._clock.sometimes("a lease ran out, and another consumer was given the message")
        if delay_us:
            self._clock.sometimes("a delayed message became due")
        row = Leased(
            JOBS,
            message.value,
            message.id,
            message.shard,
            token,
            message.until - lease_us,
            message.until,
            message.time + delay_us,
            bool(delay_us),
            message.group_key,
        )
        self._ledger.leased.append(row)
        self._clock.note(f"{self.name} has leased {message.value} at {token}", row)
        return row

    async def _fail(self, jobs: Queue[str], message: Message[str], row: Leased) -> None:
        way = self._rng.random()
        if way < 0.2 and not self._ledger.is_calm:
            return  # its lease brings it back
        row.is_given_up = True
        if way < 0.3:
            await jobs.bury(message, reason=f"{BURIED}{self.name} is weary of it")
        elif way < 0.6:
            await jobs.nack(message, reason="poison")
        else:
            try:
                async with jobs.process(message):
                    raise _PoisonedError("poison")
            except _PoisonedError:
                pass

    async def _ack(self, jobs: Queue[str], message: Message[str], row: Leased) -> None:
        row.is_given_up = True
        endings = self._ledger.endings
        endings.maybe_acked.append(message.value)
        try:
            with self._maybe_late(row):
                await jobs.ack(message)
        except LeaseLost:
            endings.maybe_acked.remove(message.value)
        else:
            row.is_done = True
            endings.acked.append(message.value)

    async def _commit(self, jobs: Queue[str], done: Queue[str], message: Message[str], row: Leased) -> None:
        await done.create()
        row.is_given_up = True
        try:
            with self._maybe_late(row):
                async with jobs.process(message) as out:
                    out.append(message.value.encode(), tags=[RESULT])
                    out.push(done, message.value)
        except LeaseLost:
            self._clock.sometimes("a commit was refused, because its lease was lost")
        else:
            row.is_done = True
            self._clock.note(f"{self.name} has done {message.value}")
            self._ledger.endings.committed.add(message.value)

    @contextmanager
    def _maybe_late(self, row: Leased) -> Iterator[None]:
        """Sometimes what is appended here comes to the log only when another consumer has the message."""
        process = self._process
        assert process is not None
        if not self._ledger.is_calm and self._rng.random() < 0.2:
            process.holds_appends = lambda: not self._ledger.is_calm and not self._is_given_on(row)
        try:
            yield
        finally:
            process.holds_appends = None

    def _is_given_on(self, row: Leased) -> bool:
        return any(other.id == row.id and other.token > row.token for other in reversed(self._ledger.leased))


class _PoisonedError(Exception):
    """A job cannot be done."""


def queue_of(group: str) -> str:
    """The tickets of a group, as a queue of its own in the eyes of the checkers."""
    return f"{TICKETS}/{group}" if group else TICKETS
