"""Random transactions over lists, by several processes whose operations interleave: histories for the checker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Final

from boki import BokiError, WrongState
from boki.libs.bokistore import ConflictError
from boki.libs.bokistore.accesses import Access
from boki.libs.bokistore.requests import Requests
from boki.libs.bokistore.transactions import Transaction
from boki.libs.fold.steps import Steps
from boki.log.memory import MemoryLog
from boki.verify.histories.txns import Op, Read, Told, Txn, Wrote
from tests.libs.bokistore.interleaving import Process, Running, Scheduler, logbook

LISTS: Final = {"x": ("o1", "x"), "y": ("o1", "y.l"), "z": ("o2", "z"), "t": ("o3", "l"), "u": ("o4", "l")}
"""Each list is a field of an object; two of them share one."""


@dataclass
class Workload:
    """A run of many transactions by a seed. `begin` makes a transaction: an ablation replaces it."""

    seed: int
    processes: int = 3
    callers: int = 6
    lose: float = 0.1
    begin: Callable[[Process], Transaction] = Process.begin
    log: MemoryLog = field(default_factory=MemoryLog)
    txns: list[Txn] = field(default_factory=list)
    conflicts: int = 0
    upkeep: Callable[[Process, Random], Steps[Any] | None] = lambda _process, _rng: None
    """What a process does beside its transactions."""

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        book = logbook(self.log)
        self.scheduler = Scheduler(book, self.rng, lose=self.lose)
        self._processes = [Process(book) for _ in range(self.processes)]
        self._values = count(1)
        self._numbers = count(1)

    def run(self, transactions: int) -> list[Txn]:
        """That many transactions, and what their callers were told."""
        under_way: dict[int, tuple[Running, _Caller]] = {}
        started = 0
        while started < transactions or under_way:
            while started < transactions and len(under_way) < self.callers:
                caller = _Caller(self, started, self.rng.choice(self._processes))
                running = self.scheduler.start(caller.work())
                under_way[id(running)] = (running, caller)
                started += 1
            self._disturb(under_way)
            if self.scheduler.running:
                self.scheduler.turn()
            for key, (running, caller) in list(under_way.items()):
                if running.is_over:
                    del under_way[key]
                    self._note(running, caller)
        return self.txns

    def _disturb(self, under_way: dict[int, tuple[Running, _Caller]]) -> None:
        """Forget caches; stop a caller permanently, with what it was doing; do what else is to be done."""
        process = self.rng.choice(self._processes)
        if self.rng.random() < 0.02:
            process.rows.clear()
        if self.rng.random() < 0.01 and self.scheduler.running:
            running = self.rng.choice(self.scheduler.running)
            if id(running) in under_way:
                self.scheduler.running.remove(running)
                _, caller = under_way.pop(id(running))
                self.txns.append(caller.told("info", self.scheduler.now))
        if self.rng.random() < 0.1:
            steps = self.upkeep(process, self.rng)
            if steps is not None:
                self.scheduler.start(steps)

    def _note(self, running: Running, caller: _Caller) -> None:
        error = running.error
        if error is None:
            told: Told = "ok"
        elif isinstance(error, ConflictError):
            self.conflicts += 1
            told = "fail"
        elif isinstance(error, BokiError) and not isinstance(error, WrongState):
            told = "fail" if error.outcome == "not_applied" else "info"
        else:
            raise error
        self.txns.append(caller.told(told, self.scheduler.now))


class _Caller:
    """One transaction: what it does, and what it has seen so far."""

    def __init__(self, workload: Workload, number: int, process: Process) -> None:
        self._workload = workload
        self._number = number
        self._process = process
        self._asked = workload.scheduler.now
        self._ops: list[Op] = []

    def told(self, told: Told, now: int) -> Txn:
        """What is known of it. Callers of one process overlap, so it says nothing about their order."""
        return Txn(self._number, tuple(self._ops), told, None, float(self._asked), float(now))

    def work(self) -> Steps[Any]:
        """Carry it out: mostly a transaction; now and then a lone update or read."""
        rng = self._workload.rng
        if rng.random() < 0.2:
            yield from self._step(self._process.direct, rng)
            return
        txn = self._workload.begin(self._process)
        for _ in range(rng.randint(1, 4)):
            yield from self._step(txn, rng)
        yield from txn.commit()

    def _step(self, access: Access, rng: Random) -> Steps[None]:
        key = rng.choice(list(LISTS))
        name, path = LISTS[key]
        requests: Requests[Any] = Requests(access, name, None)
        if rng.random() < 0.5:
            value = next(self._workload._values)
            self._ops.append(Wrote(key, value))
            yield from requests.append(path, [value], 0, None)
        else:
            found = yield from requests.get(path, [])
            self._ops.append(Read(key, tuple(found)))
