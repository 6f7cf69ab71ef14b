"""Queues under chaos: processes of producers and consumers, killed and halted on the way, and its outcome all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from boki.api.logbook import LogBook
from boki.client import Client
from boki.errors import BokiError
from boki.libs.bokiqueue import Queue
from boki.log.ids import MAX_SEQNUM
from boki.verify.chaos.faults import becomes_so
from boki.verify.chaos.queue_work import BOOK, DONE, JOBS, RESULT, TICKETS, Line, WorkOrders, read_lines
from boki.verify.chaos.users import Users
from boki.verify.histories.queues import Pushed, Taken, find_lost_and_doubled, find_torn_effects, find_wrong_ops

KILL, STOP = "kill-consumer", "stop-consumer"
_PROCESSES: Final = 2
_STOP_WITHIN_S: Final = 60.0
_STUCK_S: Final = 60.0
"""How soon queues run empty is up to the machine. If not one message comes out of them for this long, they are
stuck.
"""
_PAGE: Final = 1000


class QueueWatch:
    """The processes of one run. `violations`: what must not have come of it."""

    def __init__(self, url: str, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self.violations: list[str] = []
        self.done_count = 0
        """Messages that have come out, of both queues."""
        self._url = url
        self._files = {f"q{number + 1}": folder / f"queue-q{number + 1}.jsonl" for number in range(_PROCESSES)}
        orders = {name: WorkOrders(url=url, name=name, file=str(file)) for name, file in self._files.items()}
        self.users: Final = Users("boki.verify.chaos.queue_work", "consumer", orders, Random(f"{seed}/queues"), tell)

    async def finish(self) -> None:
        """Let the producers end and the queues run empty, and judge. The cluster is well again."""
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                await self.users.order("stop")
            await self._judge()
        except TimeoutError:
            self.violations.append(f"producers still push {_STOP_WITHIN_S:g} s after the last fault")
        except (BokiError, OSError) as error:
            self.violations.append(f"queues could not be read when every fault was over: {error!r}")

    async def _judge(self) -> None:
        async with Client(self._url) as client:
            book = client.logbook(BOOK)
            await self._run_empty(book)
            await self.users.order("end")
            results: list[str] = []
            start = 0
            while (page := await book.read(RESULT, start=start)).records:
                results += [record.data.decode() for record in page.records]
                start = page.next_start
            queue: Queue[Any] = Queue(book, DONE)
            passed_on: list[str] = []
            while popped := await queue.pop_many(_PAGE):
                passed_on += [str(message.value) for message in popped]
        lines = {name: read_lines(file) for name, file in self._files.items()}
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
        await self.users.close()


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
