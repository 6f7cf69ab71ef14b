"""Functions as consumers: for each that `@consume`s a queue, messages are leased and it is called with them.

A place for each call that may run at once waits for messages; all that wait for one queue share one read of the log, so
a function without work costs nothing and has no process. What comes of a call settles its messages (see `places`). If
this gateway dies its leases run out, and another one, or itself after a restart, goes on.

When it stops, or a function changes or goes, places that wait end at once and those with a call after it. A place of
the new version begins when the old one's has ended, so that no more calls run at once than the function says.
"""

from __future__ import annotations

import asyncio
from typing import Final

from boki.calls import Consumption, FunctionInfo
from boki.gateway.backend import Backend
from boki.gateway.http.calls import FunctionCalls
from boki.gateway.http.log_access import LogDoor
from boki.gateway.http.places import Place, Work
from boki.gateway.http.suspects import Suspects
from boki.libs.bokiqueue import Queue
from boki.libs.bokiqueue.ways import way_of
from boki.runtime.deadline import Caller
from boki.runtime.logbook import LogAccess, LogBook

LOOK_S: Final = 0.25
"""How soon functions that came or went are noticed."""
REST_S: Final = 2.0
"""What is given back at the end has so long."""


class Consumers:
    """The consuming functions of one gateway."""

    def __init__(self, door: LogDoor, calls: FunctionCalls, backend: Backend) -> None:
        self._appends = door.appends
        self._limits = door.config.limits
        self._calls = calls
        self._backend = backend
        self._suspects = Suspects()
        self._places: dict[str, tuple[FunctionInfo, list[Place]]] = {}
        self._leaving: dict[str, list[Place]] = {}
        self._ticker: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to serve the functions that there are, and those to come."""
        self._look()
        self._ticker = asyncio.get_running_loop().call_later(LOOK_S, self.start)

    def stop(self) -> None:
        """Lease no more. Calls that are under way go on: see `finish`."""
        if self._ticker is not None:
            self._ticker.cancel()
        for name in list(self._places):
            self._end(name)

    async def finish(self) -> None:
        """After `stop`: until the calls that are under way have ended and are settled, and nothing is to be given back,
        also of what consumers over HTTP were about to get.

        If this is cancelled the calls are not waited for any more: their leases run out.
        """
        tasks = [place.task for places in self._leaving.values() for place in places]
        try:
            while not all(task.done() for task in tasks):
                await asyncio.wait(tasks)
            await way_of(self._appends).come_to_rest(REST_S)
        finally:
            for task in tasks:
                task.cancel()

    def _look(self) -> None:
        functions = self._backend.functions
        for name, (info, _) in list(self._places.items()):
            if functions.get(name) != info:
                self._end(name)
        for name, info in functions.items():
            if name not in self._places and info.consumes is not None:
                self._begin(name, info, info.consumes)

    def _begin(self, name: str, info: FunctionInfo, consumes: Consumption) -> None:
        work = Work(info, consumes, self._queue(info, consumes), self._calls, self._suspects)
        old = [place.task for place in self._leaving.get(name, ()) if not place.task.done()]
        old.sort(key=asyncio.Task.cancelling)  # those with a call first: the others are as good as gone
        before = [*old, *[None] * consumes.concurrency][: consumes.concurrency]
        self._places[name] = (info, [Place(work, one) for one in before])

    def _end(self, name: str) -> None:
        _, places = self._places.pop(name)
        for place in places:
            place.leave()
        before = [place for place in self._leaving.pop(name, ()) if not place.task.done()]
        self._leaving[name] = before + places

    def _queue(self, info: FunctionInfo, consumes: Consumption) -> Queue[object]:
        # Not through the door, which ends what waits when the gateway drains: then calls are still to be settled.
        access = LogAccess(self._backend, self._appends, Caller(limits=self._limits))
        return Queue(LogBook(info.book or info.name, access), consumes.queue, group=consumes.group)
