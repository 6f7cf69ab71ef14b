"""The worker processes of all pools: started, idle, told to go, killed and counted.

This file moves workers through their life; which calls they run is decided in `boki.dispatch.core`, which
also takes from here, after each event, the effects that have gathered and the time at which something is due.
"""

from __future__ import annotations

from typing import Final

from boki.dispatch.orders import (
    BACKOFF,
    LEAVE_US,
    STALL_US,
    Budget,
    Counts,
    DispatchEffect,
    KillWorker,
    PoolStats,
    RetireWorker,
    StartWorker,
)
from boki.dispatch.slots import Event, Phase, Pool, PoolKey, Worker
from boki.protocol.effects import Trace

NEVER: Final = 1 << 62
_WARNING: Final = 30


class Fleet:
    """All pools and their workers."""

    def __init__(self, budget: Budget) -> None:
        self.pools: dict[PoolKey, Pool] = {}
        self.workers: dict[int, Worker] = {}
        self.effects: list[DispatchEffect] = []
        self.due_us = NEVER
        self._budget = budget
        self._next_worker = 1
        self._counts: dict[tuple[str, bool], Counts] = {}
        self._starved: dict[PoolKey, Pool] = {}
        """Pools whose calls wait for room in the engine."""

    def due(self, at_us: int) -> None:
        """Something is to be looked at then."""
        self.due_us = min(self.due_us, at_us)

    def trace(self, text: str) -> None:
        """Let an operator know."""
        self.effects.append(Trace(_WARNING, text))

    @property
    def has_room(self) -> bool:
        """Whether the engine may run one more worker."""
        return len(self.workers) < self._budget.engine_workers

    def start_missing(self, pool: Pool, now_us: int) -> None:
        """Start the workers that the pool's queue and its least number ask for, a few at a time, unless it is backing
        off. One that becomes ready, or ends, lets the next ones start.
        """
        if now_us < pool.retry_us or not (missing := pool.missing()):
            return
        wanted = min(missing, self._budget.starting_workers - pool.count_starting())
        room = self._budget.engine_workers - len(self.workers)
        counts = self._counts_of(pool)
        for _ in range(min(wanted, room)):
            counts.starts += 1
            counts.cold_starts += not pool.count(Phase.READY)
            worker = Worker(self._next_worker, pool, now_us)
            self._next_worker += 1
            self.workers[worker.id] = worker
            pool.add(worker)
            self.due(now_us + self._budget.start_us)
            self.effects.append(StartWorker(worker.id, pool.key, pool.memory_bytes))
        if wanted > room and pool.queued:
            self._starve(pool, now_us)

    def _starve(self, pool: Pool, now_us: int) -> None:
        """Calls of the pool wait for a worker of another one to end: let go one that has nothing to do."""
        if not self._starved:
            self.trace(
                f"{len(self.workers)} worker processes run, the most of an engine: calls of {pool.name} wait for one "
                "of them to end"
            )
        self._starved[pool.key] = pool
        for worker in self.workers.values():
            if worker.phase is Phase.READY and not worker.calls and _is_spare(worker) and worker.pool is not pool:
                self._let_go(worker, now_us)
                return

    def take_starved(self) -> list[Pool]:
        """The pools whose calls wait for a worker of any pool to end: one has."""
        starved, self._starved = self._starved, {}
        return [pool for pool in starved.values() if pool.queued and not pool.retired]

    def ready(self, worker: Worker, now_us: int) -> None:
        """The worker takes calls, and so its pool's starts succeed."""
        worker.move(Event.HELLO)
        worker.has_started = True
        worker.pool.broken, worker.pool.retry_us = "", 0
        self.rest(worker, now_us)

    def progress(self, worker: Worker, begun: int, now_us: int) -> bool:
        """Take note of how many calls the worker has begun. Whether it was stalled and is no longer."""
        worker.begun = begun
        was_stalled, worker.stalled = worker.stalled, False
        if begun < worker.sent:
            oldest = next((live for live in worker.calls.values() if live.order >= begun), None)
            worker.stalled = oldest is not None and now_us - oldest.sent_us >= STALL_US
        return was_stalled and not worker.stalled

    def rest(self, worker: Worker, now_us: int) -> None:
        """The worker has nothing to do."""
        worker.since_us = now_us
        if worker.phase is Phase.DRAINING:
            worker.move(Event.EMPTY)
            worker.was_let_go = True
            self.due(now_us + LEAVE_US)
            self.effects.append(RetireWorker(worker.id))
        elif self._starved and not worker.pool.queued and _is_spare(worker):
            self._let_go(worker, now_us)
        else:
            self.due(now_us + self._budget.idle_us)

    def retire(self, pool: Pool, now_us: int) -> None:
        """The pool's version is no longer called: workers leave when their calls have ended."""
        pool.retired = True
        for worker in list(pool.workers.values()):
            if worker.phase is Phase.STARTING:
                self.kill(worker, "replaced", "was killed because its module has changed")
            elif worker.phase is Phase.READY:
                self._let_go(worker, now_us)
        self.forget_empty(pool)

    def forget_empty(self, pool: Pool) -> None:
        """A retired pool is gone with its last worker."""
        if pool.retired and not pool.workers:
            self.pools.pop(pool.key, None)

    def kill(self, worker: Worker, kind: str, reason: str) -> None:
        """End the worker; `reason` continues after "the worker process" where its callers are told."""
        if worker.phase is Phase.KILLED:
            return
        worker.move(Event.KILL)
        worker.reason = reason
        kills = self._counts_of(worker.pool).kills
        kills[kind] = kills.get(kind, 0) + 1
        self.effects.append(KillWorker(worker.id))

    def exited(self, worker: Worker, how: str, now_us: int, *, is_innocent: bool) -> str:
        """The worker is gone; returns why. One that never took a call lets its pool back off: it cannot import its
        module, or something in it ends it by itself; unless it `is_innocent`.
        """
        pool = worker.pool
        self._counts_of(pool).exits += worker.phase in (Phase.STARTING, Phase.READY, Phase.DRAINING)
        worker.move(Event.EXIT)
        del self.workers[worker.id]
        del pool.workers[worker.id]
        why = worker.reason or how
        if not worker.sent and not worker.was_let_go and not pool.retired and not is_innocent:
            pool.failures += 1
            pool.broken = f"{pool.name} cannot be run: its worker process {why}"
            pool.retry_us = now_us + BACKOFF.pause_us(pool.failures)
            self.due(pool.retry_us)
            self.trace(pool.broken)
        return why

    def check(self, worker: Worker, now_us: int) -> None:
        """Time has passed: too slow a start, too long a rest, too slow a leave."""
        budget = self._budget
        if worker.phase is Phase.STARTING:
            if now_us >= worker.since_us + budget.start_us:
                self.kill(worker, "start", f"did not finish importing within {budget.start_us / 1_000_000:g} s")
            else:
                self.due(worker.since_us + budget.start_us)
        elif worker.phase is Phase.READY and not worker.calls:
            if now_us < worker.since_us + budget.idle_us:
                self.due(worker.since_us + budget.idle_us)
            elif _is_spare(worker):
                self._let_go(worker, now_us)
            else:
                self.rest(worker, now_us)
        elif worker.phase is Phase.LEAVING:
            if now_us >= worker.since_us + LEAVE_US:
                self.kill(worker, "stop", "was killed because it did not exit when it was told to")
            else:
                self.due(worker.since_us + LEAVE_US)

    def _let_go(self, worker: Worker, now_us: int) -> None:
        worker.move(Event.RETIRE)
        if not worker.calls:
            self.rest(worker, now_us)

    def _counts_of(self, pool: Pool) -> Counts:
        return self._counts.setdefault((pool.key.module, pool.key.is_async), Counts())

    def stats(self) -> list[PoolStats]:
        """Every pool that takes calls, and older versions while they have workers."""
        return [self._stats_of(pool) for pool in self.pools.values()]

    def _stats_of(self, pool: Pool) -> PoolStats:
        counts = self._counts_of(pool)
        return PoolStats(
            module=pool.key.module,
            is_async=pool.key.is_async,
            version=pool.key.version,
            workers=pool.count(Phase.READY, Phase.DRAINING),
            starting=pool.count(Phase.STARTING),
            running=pool.running,
            waiting=sum(len(worker.calls) for worker in pool.workers.values()) - pool.running,
            queued=pool.queued,
            starts=counts.starts,
            cold_starts=counts.cold_starts,
            exits=counts.exits,
            kills=dict(counts.kills),
        )


def _is_spare(worker: Worker) -> bool:
    """Whether its pool has more workers than the least that was asked for."""
    return worker.pool.count(Phase.READY, Phase.STARTING) > worker.pool.least
