"""Producers and consumers of queues on a cluster under fault, as a process that may be killed at any moment.

What it was told it writes to a file at once, line by line; started again under the same name it continues from there:
the push that was under way is made again under its key, the pop under its op. The word `stop` on its standard input
ends the producers, `end` the consumers, too.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from boki.client import Client
from boki.errors import BokiError
from boki.libs.bokiqueue import Queue
from boki.verify.chaos.users import word_on_stdin

BOOK: Final = "chaos-queues"
TICKETS, JOBS, DONE = "tickets", "jobs", "done"
"""`tickets` are popped permanently under ops; `jobs` are leased, and each ends in a record and a message of `done`."""
RESULT: Final = "result"
CONSUMERS: Final = 2
"""Of each of the two queues, in each process."""
_LEASE_S: Final = 3.0
_WAIT_S: Final = 1.0
_PAUSE_S: Final = 0.05
_RETRY_S: Final = 0.3


class WorkOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do, and where it writes down what it was told."""

    url: str
    name: str
    file: str


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that a producer has begun or was told (`op` empty), or that a consumer was given."""

    queue: str
    who: str
    payload: str
    id: str = ""
    op: str = ""


def read_lines(file: Path) -> list[Line]:
    """What a process has written; the last line may have been cut off by its end."""
    if not file.exists():
        return []
    rows = file.read_bytes().split(b"\n")
    return [msgspec.json.decode(row, type=Line) for row in rows[:-1]]


class QueueWork:
    """One process: a producer of each queue, and consumers."""

    def __init__(self, orders: WorkOrders) -> None:
        self._name = orders.name
        self._client = Client(orders.url)
        self._book = self._client.logbook(BOOK)
        file = Path(orders.file)
        self._lines = read_lines(file)
        end = file.read_bytes().rfind(b"\n") + 1 if file.exists() else 0
        self._file = file.open("r+b" if file.exists() else "wb", buffering=0)
        self._file.truncate(end)
        self._file.seek(end)
        self._is_producing = True
        self._is_consuming = True

    async def run(self) -> None:
        """Work until the standard input says otherwise, or ends."""
        await self._set_up()
        consumers = [
            asyncio.create_task(self._go_on(step, lambda: self._is_consuming))
            for number in range(CONSUMERS)
            for step in (self._ticket_taker(f"{self._name}.{number}"), self._work)
        ]
        producers = [
            asyncio.create_task(self._go_on(self._producer(queue), lambda: self._is_producing))
            for queue in (TICKETS, JOBS)
        ]
        await word_on_stdin("stop")
        self._is_producing = False
        await asyncio.gather(*producers)
        print("stopped", flush=True)
        await word_on_stdin("end")
        self._is_consuming = False
        await asyncio.gather(*consumers)
        await self._client.close()
        print("ended", flush=True)

    async def _set_up(self) -> None:
        """Have the queues; a job never becomes a dead letter, however often its consumer is killed."""
        lacking = [TICKETS, JOBS, DONE]
        while lacking:
            try:
                await Queue(self._book, lacking[-1]).create(max_deliveries=0)
                lacking.pop()
            except BokiError:
                await asyncio.sleep(_RETRY_S)

    async def _go_on(self, step: Callable[[], Awaitable[None]], is_wanted: Callable[[], bool]) -> None:
        """One step after the other; what fails is done again."""
        while is_wanted():
            try:
                await step()
            except BokiError:
                await asyncio.sleep(_RETRY_S)

    def _note(self, line: Line) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")

    def _producer(self, queue: str) -> Callable[[], Awaitable[None]]:
        handle: Queue[Any] = Queue(self._book, queue)
        mine = [line for line in self._lines if line.queue == queue and line.who == self._name and not line.op]
        number = sum(bool(line.id) for line in mine)
        begun = number + 1 if mine and not mine[-1].id else 0

        async def step() -> None:
            nonlocal number, begun
            payload = f"{self._name}-{queue}-{number + 1}"
            if begun <= number:
                begun = number + 1
                self._note(Line(queue, self._name, payload))
            told = await handle.push(payload, key=payload)
            number += 1
            self._note(Line(queue, self._name, payload, told))
            await asyncio.sleep(_PAUSE_S)

        return step

    def _ticket_taker(self, who: str) -> Callable[[], Awaitable[None]]:
        handle: Queue[Any] = Queue(self._book, TICKETS)
        number = sum(1 for line in self._lines if line.queue == TICKETS and line.who == who and line.op)

        async def step() -> None:
            nonlocal number
            op = f"{who}-{number}"
            message = await handle.pop(wait_s=_WAIT_S, op=op)
            if message is not None:
                self._note(Line(TICKETS, who, str(message.value), message.id, op))
                number += 1

        return step

    async def _work(self) -> None:
        jobs: Queue[Any] = Queue(self._book, JOBS)
        done: Queue[Any] = Queue(self._book, DONE)
        await done.create(max_deliveries=0)
        message = await jobs.lease(_LEASE_S, wait_s=_WAIT_S)
        if message is not None:
            async with jobs.process(message) as out:
                out.append(str(message.value).encode(), tags=[RESULT])
                out.push(done, message.value)


if __name__ == "__main__":
    uvloop.run(QueueWork(msgspec.json.decode(sys.argv[1], type=WorkOrders)).run())
