"""Queues under chaos: processes of producers and consumers, killed and halted on the way, and what came of it all.

Their faults are a schedule of their own beside that of the cluster's: a consumer that dies loses what it was about to
do at any moment, whatever else is going on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from boki.chaos.faults import becomes_so
from boki.chaos.queue_work import BOOK, DONE, JOBS, RESULT, TICKETS, Line, WorkOrders, read_lines
from boki.client import Client
from boki.errors import BokiError
from boki.histories.queues import Pushed, Taken, find_lost_and_doubled, find_torn_effects, find_wrong_ops
from boki.libs.bokiqueue import Queue
from boki.log.ids import MAX_SEQNUM
from boki.runtime.logbook import LogBook

KILL, STOP = "kill-consumer", "stop-consumer"
_PROCESSES: Final = 2
_CALM_S: Final = (1.5, 6.0)
_STOPPED_S: Final = (0.5, 5.0)
"""Longer than a lease, now and then."""
_STOP_WITHIN_S: Final = 60.0
_STUCK_S: Final = 60.0
"""How soon queues run empty is up to the machine. If not one message comes out of them for so long, they are stuck."""
_PAGE: Final = 1000


class QueueWatch:
    """The processes of one run. `faults` counts what was done to them, `violations` what must not have come of it."""

    def __init__(self, url: str, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self.faults: Counter[str] = Counter()
        self.violations: list[str] = []
        self.done_count = 0
        """Messages that have come out, of both queues."""
        self._url = url
        self._folder = folder
        self._random = Random(f"{seed}/queues")
        self._tell = tell
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._is_calm = asyncio.Event()

    async def start(self) -> None:
        """Start the processes."""
        for number in range(_PROCESSES):
            await self._spawn(f"q{number + 1}")

    async def _spawn(self, name: str) -> None:
        orders = WorkOrders(url=self._url, name=name, file=str(self._file(name)))
        self._processes[name] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "boki.chaos.queue_work", msgspec.json.encode(orders).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    def _file(self, name: str) -> Path:
        return self._folder / f"queue-{name}.jsonl"

    async def hurt(self) -> None:
        """Kill one of the processes, halt another, and go on like that, one at a time, until `calm`: then all run."""
        await self._kill("q1")
        await self._stop("q2")
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._random.uniform(*_CALM_S)):
                    await self._is_calm.wait()
            if self._is_calm.is_set():
                return
            name = self._random.choice(sorted(self._processes))
            await (self._kill(name) if self._random.random() < 0.5 else self._stop(name))

    def calm(self) -> None:
        """Hurt them no more."""
        self._is_calm.set()

    async def _kill(self, name: str) -> None:
        process = self._processes[name]
        process.kill()
        await process.wait()
        await self._spawn(name)
        self.faults[KILL] += 1
        self._tell(f"{KILL}: {name} was killed and started again")

    async def _stop(self, name: str) -> None:
        process = self._processes[name]
        os.kill(process.pid, signal.SIGSTOP)
        hold_s = self._random.uniform(*_STOPPED_S)
        try:
            await asyncio.sleep(hold_s)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        self.faults[STOP] += 1
        self._tell(f"{STOP}: {name} stood still for {hold_s:.1f} s")

    async def finish(self) -> None:
        """Let the producers end and the queues run empty, and judge. The cluster is well again."""
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                for process in self._processes.values():
                    await _say(process, "stop")
                for process in self._processes.values():
                    assert process.stdout is not None
                    await process.stdout.readline()
            await self._judge()
        except TimeoutError:
            self.violations.append(f"producers still push {_STOP_WITHIN_S:g} s after the last fault")
        except (BokiError, OSError) as error:
            self.violations.append(f"queues could not be read when every fault was over: {error!r}")

    async def _judge(self) -> None:
        async with Client(self._url) as client:
            book = client.logbook(BOOK)
            await self._run_empty(book)
            for process in self._processes.values():
                await _say(process, "end")
            for process in self._processes.values():
                await process.wait()
            results: list[str] = []
            start = 0
            while (page := await book.read(RESULT, start=start)).records:
                results += [record.data.decode() for record in page.records]
                start = page.next_start
            queue: Queue[Any] = Queue(book, DONE)
            passed_on: list[str] = []
            while popped := await queue.pop_many(_PAGE):
                passed_on += [str(message.value) for message in popped]
        lines = {name: read_lines(self._file(name)) for name in self._processes}
        self.violations += violations_of([line for each in lines.values() for line in each], results, passed_on)
        self.done_count = len(results) + sum(bool(line.op) for each in lines.values() for line in each)

    async def _run_empty(self, book: LogBook) -> None:
        """Nothing is pushed any more: until all is taken, or nothing comes out."""
        depths: dict[str, int] = {}
        depth = MAX_SEQNUM

        async def is_less() -> bool:
            depths.update([(name, (await Queue(book, name).stats()).depth) for name in (TICKETS, JOBS)])
            return sum(depths.values()) < depth

        while depth:
            if not await becomes_so(is_less, _STUCK_S):
                self.violations.append(f"after the last fault nothing came out of queues for {_STUCK_S:g} s: {depths}")
                return
            depth = sum(depths.values())

    async def close(self) -> None:
        """Leave no process behind."""
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


def violations_of(lines: list[Line], results: list[str], passed_on: list[str]) -> list[str]:
    """What all processes wrote down, the records made of jobs, and the messages that were passed on with them."""
    pushed = [Pushed(line.queue, line.payload, line.id) for line in lines if not line.op]
    taken = [Taken(line.queue, line.who, line.op, line.payload, line.id) for line in lines if line.op]
    tickets = list({(row.op, row.payload): row.payload for row in taken}.values())
    found = [*find_wrong_ops(taken), *find_lost_and_doubled(TICKETS, pushed, tickets)]
    found += find_lost_and_doubled(JOBS, pushed, results)
    found += find_torn_effects(JOBS, results, passed_on)
    known = {row.queue for row in pushed if row.id}
    found += [f"{queue}: not one push was acknowledged" for queue in (TICKETS, JOBS) if queue not in known]
    return found


async def _say(process: asyncio.subprocess.Process, word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n".encode())
    await process.stdin.drain()
