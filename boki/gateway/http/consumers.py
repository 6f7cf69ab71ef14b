"""Functions as consumers: for each that `@consume`s a queue, messages are leased and it is called with them.

A place for each call that may run at once waits for messages; all that wait for one queue share one read of the log, so
a function without work costs nothing and has no process. What comes of a call settles its messages: acked if it
returned, back later if it raised (or a dead letter, with the reason), back at once and uncounted if it was never begun.
If this gateway dies its leases run out, and another one, or itself after a restart, goes on.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from boki.calls import Call, Consumption, Encoding, FunctionInfo, Outcome, Payload
from boki.errors import BokiError, NotFound
from boki.gateway.backend import Backend
from boki.gateway.http.calls import FunctionCalls
from boki.gateway.http.log_access import LogDoor
from boki.libs.bokiqueue import LeaseLost, Message, Queue
from boki.log.operations import Failure
from boki.runtime.deadline import Caller
from boki.runtime.logbook import LogAccess, LogBook

_log = logging.getLogger("boki.gateway")

LOOK_S: Final = 0.25
"""How soon functions that came or went are noticed."""
WAIT_S: Final = 3_600.0
PAUSE_S: Final = 0.5
"""Before trying again what the system could not do."""
LEASE_MARGIN_S: Final = 15.0
"""A lease outlasts the function's own time by this much."""
MAX_RETRY_S: Final = 3_600.0
_ENCODINGS: Final[tuple[Encoding, ...]] = ("bytes", "text", "json")


class Consumers:
    """The consuming functions of one gateway."""

    def __init__(self, door: LogDoor, calls: FunctionCalls, backend: Backend) -> None:
        self._door = door
        self._calls = calls
        self._backend = backend
        self._places: dict[str, tuple[FunctionInfo, list[asyncio.Task[None]]]] = {}
        self._ticker: asyncio.TimerHandle | None = None
        self._seen: Mapping[str, FunctionInfo] | None = None

    def start(self) -> None:
        """Begin to serve the functions that there are, and those to come."""
        self._look()
        self._ticker = asyncio.get_running_loop().call_later(LOOK_S, self.start)

    def stop(self) -> None:
        """Lease no more. What was leased and not begun comes back when its lease runs out."""
        if self._ticker is not None:
            self._ticker.cancel()
        for name in list(self._places):
            self._end(name)

    def _look(self) -> None:
        functions = self._backend.functions
        wanted = {name: info for name, info in functions.items() if info.consumes is not None}
        for name, (info, _) in list(self._places.items()):
            if wanted.get(name) != info:
                self._end(name)
        for name, info in wanted.items():
            if name not in self._places and info.consumes is not None:
                places = [
                    asyncio.get_running_loop().create_task(self._serve(info, info.consumes))
                    for _ in range(info.consumes.concurrency)
                ]
                self._places[name] = (info, places)

    def _end(self, name: str) -> None:
        _, places = self._places.pop(name)
        for place in places:
            place.cancel()

    async def _serve(self, info: FunctionInfo, consumes: Consumption) -> None:
        """One place: messages, a call, and so on."""
        queue = self._queue(info, consumes)
        is_open = False
        while True:
            try:
                if not is_open:
                    await queue.create()
                    if consumes.group:
                        await queue.create_group(consumes.group)
                    is_open = True
                lease_s = info.timeout_s + LEASE_MARGIN_S
                messages = await queue.lease_many(max(consumes.batch, 1), lease_s, wait_s=WAIT_S)
                if messages:
                    await self._call_with_all(info, consumes, queue, messages, lease_s)
            except NotFound as error:
                _log.warning("%s: %s; it is made again", info.name, error)  # dropped, by whoever
                is_open = False
                await asyncio.sleep(PAUSE_S)
            except BokiError as error:
                level = logging.DEBUG if error.retryable else logging.WARNING
                _log.log(level, "%s cannot consume %s now: %s", info.name, consumes.queue, error)
                await asyncio.sleep(PAUSE_S)
            except Exception:  # noqa: BLE001  # whatever it is, the place goes on
                _log.exception("%s cannot consume %s now, and tries again", info.name, consumes.queue)
                await asyncio.sleep(PAUSE_S)

    def _queue(self, info: FunctionInfo, consumes: Consumption) -> Queue[Any]:
        access = LogAccess(self._door, self._door.appends, Caller(limits=self._door.config.limits))
        return Queue(LogBook(info.book or info.name, access), consumes.queue, group=consumes.group)

    async def _call_with_all(
        self,
        info: FunctionInfo,
        consumes: Consumption,
        queue: Queue[Any],
        messages: list[Message[Any]],
        lease_s: float,
    ) -> None:
        """One call with those that are new, and one with each that has failed before: it may be what failed."""
        if consumes.batch:
            unfit = [message for message in messages if _ENCODINGS[message.form] == "bytes"]
            if unfit:
                await queue.bury(*unfit, reason="a batch of JSON cannot hold bytes: consume it without batch")
            messages = [message for message in messages if message not in unfit]
        calls = [[message] for message in messages if message.deliveries > 1]
        new = [message for message in messages if message.deliveries <= 1]
        if new:
            calls.insert(0, new)
        while calls:
            await self._call(info, consumes, queue, calls.pop(0))
            if calls:  # each call has the whole of a lease before it
                await queue.extend(*(message for one in calls for message in one), lease_s=lease_s)

    async def _call(
        self, info: FunctionInfo, consumes: Consumption, queue: Queue[Any], messages: list[Message[Any]]
    ) -> None:
        payload = payload_of(messages) if consumes.batch else _single(messages[0])
        invocation_id = os.urandom(16).hex()
        timeout_us = int(info.timeout_s * 1e6)
        call = Call(invocation_id, info.name, payload, info.book or info.name, timeout_us, 0, {}, "", "")
        try:
            outcome = await self._calls.run(call)
        except BokiError as error:
            outcome = Outcome(None, Failure.of(error))
        try:
            await self._settle(info, consumes, queue, messages, outcome)
        except LeaseLost as error:
            _log.warning("%s took longer than its messages were leased: %s", info.name, error)

    async def _settle(
        self,
        info: FunctionInfo,
        consumes: Consumption,
        queue: Queue[Any],
        messages: list[Message[Any]],
        outcome: Outcome,
    ) -> None:
        failure = outcome.failure
        if failure is None:
            await queue.ack(*messages)
        elif failure.outcome == "not_applied" and failure.retryable:
            await queue.release(*messages)
            await asyncio.sleep(PAUSE_S)
        else:
            _log.info("%s failed on %d messages of %s: %s", info.name, len(messages), consumes.queue, failure.message)
            times = max(message.deliveries for message in messages) - 1
            delay_s = min(MAX_RETRY_S, consumes.retry_s * 2 ** min(times, 20))
            await queue.nack(*messages, delay_s=delay_s, reason=failure.message)


def _single(message: Message[Any]) -> Payload:
    return Payload(_ENCODINGS[message.form], message.data)


def payload_of(messages: list[Message[Any]]) -> Payload:
    """The messages, none of them bytes, as a JSON list."""
    items = []
    for message in messages:
        is_json = _ENCODINGS[message.form] == "json"
        items.append(message.data if is_json else msgspec.json.encode(message.data.decode()))
    return Payload("json", b"[" + b",".join(items) + b"]")
