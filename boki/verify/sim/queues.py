"""BokiQueue in the simulator: the library as users have it, in processes that die, over simulated engines.

What is promised: every acknowledged push is taken once by an op, or ends once if it is leased; in order, by shard and
by key; nothing is lost or stuck; dead letters say why. Processes die and stall while the faults of the run last;
when everything is healed the queues must run empty, and what is found then is compared with all that anybody was told.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Final

from boki.api.logbook import LogBook
from boki.libs.bokiqueue import Queue
from boki.libs.bokiqueue.callers import MOST_AHEAD
from boki.libs.bokiqueue.following import Following, queues_of
from boki.log.record import Record
from boki.verify.histories.facts import Violation
from boki.verify.histories.queues import (
    Pushed,
    find_lost_and_doubled,
    find_torn_effects,
    find_wrong_endings,
    find_wrong_leases,
    find_wrong_ops,
)
from boki.verify.sim.options import Options
from boki.verify.sim.processes import Process
from boki.verify.sim.queue_work import BOOK, COPY, DONE, JOBS, RESULT, TICKETS, Ledger, Plan, Worker, queue_of
from boki.verify.sim.users import Users

if TYPE_CHECKING:
    from boki.verify.sim.nodes import World

_MOST_CREDIT: Final = 1 + MOST_AHEAD
"""Messages of one kind that a process here may have asked one shard for: it has one consumer of each."""
_PAGE: Final = 1000
_AUDITOR: Final = b"auditor-"
"""Who takes all from the last queue in the end: a name drawn by the system would be another one each time."""


class QueueClients:
    """The processes that use the queues of a run, if it has any."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._clock = world.clock
        self._rng = world.clock.queue_rng
        self._plan = _draw_plan(world.options, self._rng)
        self._ledger = Ledger()
        self._passed_on: list[str] = []
        self._depths: dict[str, int] = {}
        self._undelivered: dict[str, list[str]] = {}
        """Of each group, tickets that ended as dead letters because their consumers were gone."""
        self._empty_us = 0
        self.workers: list[Worker] = []
        options = world.options
        self.users = Users(
            world,
            self._rng,
            crashes=options.queue_crashes,
            trouble=options.queue_trouble,
            loses_reads=not self._plan.has_loose_pops,  # else nobody could tell which message was lost with one
        )
        for number in range(options.queues):
            name = f"worker-{number + 1}"
            rng = Random(f"{options.seed}:queues:{name}")
            worker = Worker(name, self._plan, self._ledger, self._clock, rng)
            self.workers.append(worker)
            self.users.add(name, worker.run)

    # The end

    def calm(self) -> None:
        """Everything is healed: nothing strikes any more, and somebody begins to check whether the queues run empty."""
        self._ledger.is_calm = True
        if not self.workers:
            self.users.has_read_ends = True
            return
        self.users.calm()
        auditor = self.users.read_ends("auditor", self._audit)
        queues_of(auditor.logbook(BOOK)).put(BOOK, DONE, Following(DONE, 1, taker=_AUDITOR))

    @property
    def is_over(self) -> bool:
        """Whether every queue has run empty, and its outcome has been read."""
        return self.users.has_read_ends

    async def _audit(self, process: Process) -> bool:
        """Read the outcome, once everything is done; whether that was done."""
        if not await self._is_done(process):
            return False
        await self._read_ends(process)
        return True

    async def _read_ends(self, process: Process) -> None:
        book, endings = process.logbook(BOOK), self._ledger.endings
        endings.results = [record.data.decode() async for record in _records(book, RESULT)]
        done: Queue[str] = Queue(book, DONE)
        while popped := await done.pop_many(_PAGE, op=f"audit-{len(self._passed_on)}"):
            self._passed_on += [message.value for message in popped]
        for group in self._plan.groups:
            letters = await Queue[str](book, TICKETS, group=group).dead_letters()
            self._undelivered[queue_of(group)] = [letter.data.decode() for letter in letters]
            if letters:
                self._clock.sometimes("a pop that nobody received became a dead letter")
        for letter in await Queue[str](book, JOBS).dead_letters():
            endings.dead[letter.data.decode()] = (letter.reason, letter.deliveries)
            self._clock.sometimes("a message became a dead letter")

    async def _is_done(self, process: Process) -> bool:
        """Whether the queues are empty, and every taker has asked since: it may have died before it was told."""
        if any(worker.is_producing for worker in self.workers):
            return False
        if not self._empty_us:
            begun_us = self._clock.now_us
            if await self._are_empty(process):
                self._empty_us = begun_us
        asked_us = [since_us for worker in self.workers for since_us in worker.empty_since_us.values()]
        return 0 < self._empty_us <= min(asked_us)

    async def _are_empty(self, process: Process) -> bool:
        for name in (TICKETS, JOBS):
            stats = await Queue[str](process.logbook(BOOK), name).stats()
            self._depths[name] = stats.depth + sum(group.unconfirmed for group in stats.groups)
        return not any(self._depths.values())

    def end(self) -> None:
        """All processes end here, and none begins."""
        if self.users.is_ended:
            return
        self.users.end()

    # Judging

    def check(self) -> list[Violation]:
        """What was told, and what is found in the end."""
        if not self.workers:
            return []
        if not self.is_over:
            where = ", ".join(worker.name for worker in self.workers if worker.is_producing)
            text = f"a minute after everything was healed queues hold {self._depths}, and these still push: {where}"
            return [Violation("liveness", text), *self._check(is_whole=False)]
        return self._check(is_whole=True)

    def _check(self, *, is_whole: bool) -> list[Violation]:
        ledger = self._ledger
        found = [
            Violation("an op is given one message", text)
            for text in find_wrong_ops(ledger.taken, is_ordered=not self._plan.has_loose_pops)
        ]
        found += [Violation("leases hold, and order", text) for text in find_wrong_leases(ledger.leased)]
        found += [Violation("credit is what consumers ask for", text) for text in self._find_excess_credit()]
        found += [
            Violation("a session that is gone is given nothing", text) for text in sorted(ledger.given_to_the_gone)
        ]
        if is_whole:
            found += [Violation("each message ends once", text) for text in self._find_wrong_ends()]
            found += [Violation("all folds are the same", text) for text in self._find_different_folds()]
        return found

    def _find_wrong_ends(self) -> Iterator[str]:
        ledger = self._ledger
        for group in self._plan.groups:
            name = queue_of(group)
            pushed = [Pushed(name, push.payload, push.id) for push in ledger.pushed if push.queue == TICKETS]
            taken = {(row.op, row.payload): row.payload for row in ledger.taken if row.queue == name}
            # who has received one, and died before it said so, leaves a dead letter as well
            undelivered = set(self._undelivered.get(name, ())) - set(taken.values())
            yield from find_lost_and_doubled(name, pushed, [*taken.values(), *undelivered], ledger.unheard[name])
        yield from find_wrong_endings(JOBS, ledger.pushed, ledger.endings, self._plan.max_deliveries)
        yield from find_torn_effects(JOBS, ledger.endings.results, self._passed_on)

    def _find_excess_credit(self) -> Iterator[str]:
        """Standing takes that may be given more messages than a process has consumers of one kind."""
        for worker in self.workers:
            for followed in worker.followed:
                for line in followed.lines:
                    for one in line.state.standing.of(followed.taker):
                        if one.available > _MOST_CREDIT:
                            yield f"{worker.name} may be given {one.available} of {followed.queue}, shard {line.shard}"

    def _find_different_folds(self) -> Iterator[str]:
        """States of a shard in several processes that have come equally far, and differ."""
        lines = [
            (worker.name, followed.queue, line)
            for worker in self.workers
            for followed in worker.followed
            for line in followed.lines
            if followed.follower.is_loaded
        ]
        lines.sort(key=lambda row: (row[1], row[2].shard, row[2].state.at))
        for (one, queue, mine), (other, its_queue, its) in pairwise(lines):
            are_equally_far = (queue, mine.shard, mine.state.at) == (its_queue, its.shard, its.state.at)
            if are_equally_far and mine.state.snapshot() != its.state.snapshot():
                yield f"{queue}: {one} and {other} see shard {mine.shard} differently at {mine.state.at}"


async def _records(book: LogBook, tag: str) -> AsyncIterator[Record]:
    start = 0
    while (page := await book.read(tag, start=start)).records:
        for record in page.records:
            yield record
        start = page.next_start


def _draw_plan(options: Options, rng: Random) -> Plan:
    return Plan(
        shards=options.queue_shards,
        groups=rng.choice((("",), ("",), ("", COPY))),
        has_loose_pops=rng.random() < 0.5,
        max_deliveries=rng.choice((0, 2, 3, 3)),
        lease_s=rng.choice((0.3, 0.6, 1.2)),
        pause_s=rng.choice((0.15, 0.3)),
        quota=rng.choice((5, 8, 12)),
        save_records=rng.choice((8, 20, 60)),
        job_wait_s=rng.choice((0.5, 1.0, 3_600.0)),
        job_count=Random(f"{options.seed}:job-count").choice((1, 1, 3)),
        travel_us=12 * options.link_us + 4 * options.sync_us,
    )
