"""Functions as consumers: for each that `@consume`s a queue, messages are leased and it is called with them.

A place for each call that may run at once waits for messages; all that wait for one queue share one read of the log, so
a function without work costs nothing and has no process. The outcome of a call settles its messages (see `places`). If
this gateway dies its leases run out, and another one, or itself after a restart, continues.

When it stops, or a function changes or goes, places that wait end at once and those with a call after it. A place of
the new version begins when the old one's has ended, so that no more calls run at once than the function says.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from boki.errors import BokiError
from boki.faces import GatewayPort
from boki.libs.bokiqueue import Queue
from boki.libs.bokiqueue.consuming import LIBRARY, Consumption, consumption_of
from boki.libs.bokiqueue.face.places import Place, Work
from boki.libs.bokiqueue.face.suspects import Suspects
from boki.libs.bokiqueue.following import Queues
from boki.protocol.calls import FunctionInfo

_log = logging.getLogger("boki.gateway")

LOOK_S: Final = 0.25
"""How soon functions that came or went are noticed."""
REST_S: Final = 2.0
"""What is given back at the end has this long."""


class Consumers(Collector):
    """The consuming functions of one gateway, with a metric of the outcome of their messages."""

    def __init__(self, gateway: GatewayPort) -> None:
        self._settled: dict[str, Counter[str]] = {}
        self._gateway = gateway
        self._suspects = Suspects()
        self._places: dict[str, tuple[FunctionInfo, list[Place]]] = {}
        self._leaving: dict[str, list[Place]] = {}
        self._ticker: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to serve the functions that there are, and those to come."""
        self._look()
        self._ticker = asyncio.get_running_loop().call_later(LOOK_S, self.start)

    def stop(self) -> None:
        """Lease no more. Calls that are under way continue: see `finish`."""
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
            await self._gateway.own_session().shared(Queues).come_to_rest(REST_S)
        finally:
            for task in tasks:
                task.cancel()

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`. Functions that are gone are left out."""
        family = CounterMetricFamily(
            "boki_queue_messages",
            "Messages that this gateway has called functions with, by how they were settled",
            labels=["function", "outcome"],
        )
        for name in [name for name in self._settled if name not in self._places]:
            del self._settled[name]
        for name, settled in self._settled.items():
            for outcome, count in settled.items():
                family.add_metric([name, outcome], count)
        yield family

    def _look(self) -> None:
        functions = self._gateway.functions
        for name, (info, _) in list(self._places.items()):
            if functions.get(name) != info:
                self._end(name)
        for name, info in functions.items():
            if name not in self._places and (settings := info.settings_of(LIBRARY)) is not None:
                try:
                    self._begin(name, info, consumption_of(settings))
                except BokiError as error:
                    _log.warning("%s is not called with messages: %s; deploy it again", name, error)
                    self._places[name] = (info, [])

    def _begin(self, name: str, info: FunctionInfo, consumes: Consumption) -> None:
        settled = self._settled.setdefault(name, Counter())
        work = Work(info, consumes, self._queue(info, consumes), self._gateway, self._suspects, settled)
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
        book = self._gateway.own_session().logbook(info.book or info.name)
        return Queue(book, consumes.queue, group=consumes.group)
