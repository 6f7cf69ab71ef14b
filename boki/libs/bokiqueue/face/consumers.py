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
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import msgspec
from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from boki.api.payloads.values import is_json
from boki.errors import BokiError, CallLost, NotFound
from boki.faces import GatewayPort
from boki.libs.bokiqueue import LeaseLost, Message, Queue
from boki.libs.bokiqueue.consuming import LIBRARY, Consumption, consumption_of
from boki.libs.bokiqueue.following import Queues
from boki.libs.bokiqueue.messages import ENCODINGS
from boki.libs.bokiqueue.records import JSON, TEXT, runs
from boki.libs.fold.arguments import few_of
from boki.log.operations import Failure
from boki.protocol.calls import Call, FunctionInfo, Outcome, Payload

MAX_EXCUSES: Final = 3
MAX_REMEMBERED: Final = 10_000

Name = tuple[str, str, str, str]
"""A message: the book, the queue, the group, its id."""


class Suspects:
    """The suspects of one gateway."""

    def __init__(self) -> None:
        self._excuses: dict[Name, int] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def __contains__(self, name: Name) -> bool:
        return name in self._excuses

    def excuse(self, names: list[Name], failure: Failure) -> bool:
        """Whether the failure is not to count, because it may be another call's; if so they are suspects now."""
        is_shared = failure.code == CallLost.code and failure.details.get("calls", 1) > 1
        if not is_shared or any(self._excuses.get(name, 0) >= MAX_EXCUSES for name in names):
            return False
        for name in names:
            self._excuses[name] = self._excuses.pop(name, 0) + 1
        while len(self._excuses) > MAX_REMEMBERED:
            del self._excuses[next(iter(self._excuses))]
        return True

    def clear(self, names: list[Name]) -> None:
        """These are done."""
        for name in names:
            self._excuses.pop(name, None)

    def turn(self, module: str) -> asyncio.Lock:
        """Held by the one suspect of the module that is called now."""
        return self._turns.setdefault(module, asyncio.Lock())


_log = logging.getLogger("boki.gateway")

WAIT_S: Final = 3_600.0
PAUSE_S: Final = 0.5
"""Before trying again what the system could not do."""
LEASE_MARGIN_S: Final = 15.0
"""A lease outlasts the function's own time by this much."""
MAX_RETRY_S: Final = 3_600.0
NAMED: Final = 3
"""Messages of a call that a log line names."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a function consumes, and with what help."""

    info: FunctionInfo
    consumes: Consumption
    queue: Queue[Any]
    gateway: GatewayPort
    suspects: Suspects
    settled: Counter[str]
    """How many messages of the function were settled, by how, for the metrics: counted once that is in the log."""

    @property
    def lease_s(self) -> float:
        """How long messages are leased for a call."""
        return self.info.timeout_s + LEASE_MARGIN_S

    def name(self, message: Message[Any]) -> Name:
        """The message, among all of this gateway."""
        return self.info.book or self.info.name, self.consumes.queue, self.consumes.group, message.id


class Stage(Enum):
    """What a place is doing."""

    HELD = "held"
    """The place whose place it takes has not ended yet."""
    CLOSED = "closed"
    """Its queue, or its group, may not be there: it is about to have them."""
    IDLE = "idle"
    """It waits for messages or for a suspect's turn, or pauses: it can end at once."""
    BUSY = "busy"
    """It has messages to call the function with."""
    LEAVING = "leaving"
    """It ends after what it has begun, or after the place before it."""
    ENDED = "ended"


class Event(Enum):
    """What moves a place through its life."""

    FREED = "freed"
    """The place before it has ended."""
    OPENED = "opened"
    TAKEN = "taken"
    REST = "rest"
    """Its messages are settled, or something failed."""
    LOST = "lost"
    """The queue or the group is not there."""
    LEAVE = "leave"
    """The gateway stops, or the function was changed or has gone."""
    END = "end"


NEXT: Final[dict[tuple[Stage, Event], Stage]] = {
    (Stage.HELD, Event.FREED): Stage.CLOSED,
    # not at once: of what comes after it no more may begin than have ended
    (Stage.HELD, Event.LEAVE): Stage.LEAVING,
    (Stage.CLOSED, Event.OPENED): Stage.IDLE,
    (Stage.IDLE, Event.TAKEN): Stage.BUSY,
    (Stage.BUSY, Event.REST): Stage.IDLE,
    (Stage.BUSY, Event.LEAVE): Stage.LEAVING,
    **{(stage, Event.LEAVE): Stage.ENDED for stage in (Stage.CLOSED, Stage.IDLE)},
    **{(stage, Event.LOST): Stage.CLOSED for stage in (Stage.CLOSED, Stage.IDLE, Stage.BUSY)},
    **{(stage, Event.REST): stage for stage in (Stage.CLOSED, Stage.IDLE, Stage.LEAVING)},
    **{(Stage.LEAVING, event): Stage.LEAVING for event in (Event.FREED, Event.LOST)},
    (Stage.LEAVING, Event.END): Stage.ENDED,
}


class Place:
    """One place. It begins when `before`, whose place it takes, has ended."""

    def __init__(self, work: Work, before: asyncio.Task[None] | None = None) -> None:
        self._work = work
        self.stage = Stage.HELD
        self.task = asyncio.get_running_loop().create_task(self._serve(before))

    def move(self, event: Event) -> None:
        """Go where the table says."""
        assert (self.stage, event) in NEXT, f"a place that is {self.stage.value} has no {event.value}"
        self.stage = NEXT[self.stage, event]

    @property
    def _is_leaving(self) -> bool:
        return self.stage is Stage.LEAVING

    def leave(self) -> None:
        """Take nothing more: at once if no call is under way, else after it."""
        self.move(Event.LEAVE)
        if self.stage is Stage.ENDED:
            self.task.cancel()

    async def _serve(self, before: asyncio.Task[None] | None) -> None:
        """Messages, a call, and so on."""
        name, queue = self._work.info.name, self._work.consumes.queue
        if before is not None:
            await asyncio.wait([before])
        self.move(Event.FREED)
        while not self._is_leaving:
            try:
                if messages := await self._take():
                    self.move(Event.TAKEN)
                    await self._call_with_all(messages)
                    self.move(Event.REST)
            except NotFound as error:
                _log.warning("%s: %s; it is made again", name, error)  # dropped, by whoever
                await self._pause(Event.LOST)
            except BokiError as error:
                level = logging.DEBUG if error.retryable else logging.WARNING
                _log.log(level, "%s cannot consume %s now: %s", name, queue, error)
                await self._pause()
            except Exception:  # noqa: BLE001  # whatever it is, the place continues
                _log.exception("%s cannot consume %s now, and tries again", name, queue)
                await self._pause()
        self.move(Event.END)

    async def _take(self) -> list[Message[Any]]:
        queue, consumes = self._work.queue, self._work.consumes
        if self.stage is Stage.CLOSED:
            await queue.create()
            if consumes.group:
                await queue.create_group(consumes.group)
            self.move(Event.OPENED)
        return await queue.lease_many(max(consumes.batch, 1), self._work.lease_s, wait_s=WAIT_S)

    async def _pause(self, event: Event = Event.REST) -> None:
        self.move(event)
        if not self._is_leaving:
            await asyncio.sleep(PAUSE_S)

    # Calls

    async def _call_with_all(self, messages: list[Message[Any]]) -> None:
        """One call with those that are new, more if they are too large for one, and one with each that may be what
        failed before.
        """
        calls = self._calls_of(await self._fit(messages))
        while calls:
            if self._is_leaving:
                await self._release(_all(calls))
                return
            if not self._is_suspect(calls[0][0]):
                await self._call(calls.pop(0))
            elif not await self._call_alone(calls):
                return
            if calls and not self._is_leaving:  # each call has the whole of a lease before it
                calls = await self._extended(calls)

    async def _extended(self, calls: list[list[Message[Any]]]) -> list[list[Message[Any]]]:
        """The calls for which the messages are still ours: what somebody else has settled takes no others along."""
        try:
            await self._work.queue.extend(*_all(calls), lease_s=self._work.lease_s)
        except LeaseLost as error:
            _log.warning(
                "%s is not called with messages that were lost while others ran: %s", self._work.info.name, error
            )
            lost = set(error.receipts)
            return [kept for one in calls if (kept := [message for message in one if message.receipt not in lost])]
        return calls

    async def _fit(self, messages: list[Message[Any]]) -> list[Message[Any]]:
        """Those that the function can be called with; the others are buried."""
        info = self._work.info
        unfit = [one for one in messages if self._work.consumes.batch and item_of(one, info) is None]
        if unfit:
            reason = "a batch of JSON cannot hold bytes: consume it without batch"
            with suppress(LeaseLost):  # those are somebody else's by now
                await self._work.queue.bury(*unfit, reason=reason)
                self._work.settled["dead"] += len(unfit)
                self._say_dead(unfit, reason)
        return [one for one in messages if one not in unfit]

    def _calls_of(self, messages: list[Message[Any]]) -> list[list[Message[Any]]]:
        new = [one for one in messages if one.deliveries <= 1 and not self._is_suspect(one)]
        singly = [[one] for one in messages if one not in new]
        most_bytes = self._work.gateway.limits.request_bytes - 1  # a list has a comma or bracket more than items
        return [*runs(new, lambda one: len(item_of(one, self._work.info) or one.data) + 1, most_bytes), *singly]

    def _is_suspect(self, message: Message[Any]) -> bool:
        return self._work.name(message) in self._work.suspects

    async def _call_alone(self, calls: list[list[Message[Any]]]) -> bool:
        """Call with the first, a suspect, while no other suspect is. If one is: give all back, and wait for it."""
        turn = self._work.suspects.turn(self._work.info.module)
        if not turn.locked():
            async with turn:
                await self._call(calls.pop(0))
            return True
        await self._release(_all(calls))
        self.move(Event.REST)
        if not self._is_leaving:
            async with turn:
                pass
        return False

    async def _call(self, messages: list[Message[Any]]) -> None:
        info = self._work.info
        payload = payload_of(messages, info) if self._work.consumes.batch else single_payload(messages[0], info)
        invocation_id = os.urandom(16).hex()
        timeout_us = int(info.timeout_s * 1e6)
        call = Call(invocation_id, info.name, payload, info.book or info.name, timeout_us, 0, {}, "", "")
        try:
            outcome = await self._work.gateway.run(call)
        except BokiError as error:
            outcome = Outcome(None, Failure.of(error))
        try:
            await self._settle(messages, outcome.failure)
        except LeaseLost as error:
            _log.warning("%s took longer than its messages were leased: %s", info.name, error)

    async def _settle(self, messages: list[Message[Any]], failure: Failure | None) -> None:
        work = self._work
        names = [work.name(message) for message in messages]
        if failure is None:
            work.suspects.clear(names)
            await work.queue.ack(*messages)
            work.settled["acked"] += len(messages)
            return
        if failure.outcome == "not_applied" and failure.retryable:
            await self._release(messages)
            if not self._is_leaving:
                await asyncio.sleep(PAUSE_S)  # others may still be to be given back
            return
        if work.suspects.excuse(names, failure):
            self._say_failed(messages, "which does not count", failure)
            await self._release(messages)
            return
        attempt = max(message.deliveries for message in messages)
        delay_s = min(MAX_RETRY_S, work.consumes.retry_s * 2 ** min(attempt - 1, 20))
        most = work.queue.max_deliveries
        dead = [one for one in messages if most and one.deliveries >= most]
        again = "" if len(dead) == len(messages) else f", again in {delay_s:,g} s"
        self._say_failed(messages, f"attempt {attempt}" + (f" of {most}" if most else "") + again, failure)
        try:
            await work.queue.nack(*messages, delay_s=delay_s, reason=failure.message)
        except LeaseLost as error:
            self._say_dead([one for one in dead if one.receipt not in error.receipts], failure.message)
            raise
        work.settled["dead"] += len(dead)
        work.settled["failed"] += len(messages) - len(dead)
        self._say_dead(dead, failure.message)

    async def _release(self, messages: list[Message[Any]]) -> None:
        """Give messages back, uncounted."""
        await self._work.queue.release(*messages)
        self._work.settled["released"] += len(messages)

    def _say_failed(self, messages: list[Message[Any]], attempt: str, failure: Failure) -> None:
        info, queue = self._work.info, self._work.consumes.queue
        _log.info("%s failed on %s of %s (%s): %s", info.name, ids_text(messages), queue, attempt, failure.message)

    def _say_dead(self, messages: list[Message[Any]], reason: str) -> None:
        queue, group = self._work.queue, self._work.consumes.group
        option = f" --group {group}" if group else ""
        for one in messages:
            _log.warning(
                "message %s of %s is a dead letter after %d deliveries: %s; `boki queue dlq %s %s%s` lists it, "
                "`boki queue redrive` lets it be delivered again",
                *(one.id, queue.name, one.deliveries, reason, queue.logbook.name, queue.name, option),
            )


def ids_text(messages: list[Message[Any]]) -> str:
    """Which messages they are, for a log line: a few by their ids."""
    named = few_of([one.id for one in messages], NAMED)
    return f"message {named}" if len(messages) == 1 else f"{len(messages)} messages ({named})"


def _all(calls: list[list[Message[Any]]]) -> list[Message[Any]]:
    return [message for one in calls for message in one]


def single_payload(message: Message[Any], info: FunctionInfo) -> Payload:
    """The message as a payload. A function that takes text takes JSON as the text that it was pushed as."""
    encoding = ENCODINGS[message.form]
    if info.payload_encoding == "text" and encoding == "json" and not message.data.startswith(b'"'):
        encoding = "text"
    return Payload(encoding, message.data)


def payload_of(messages: list[Message[Any]], info: FunctionInfo) -> Payload:
    """The messages, each of which is an item, as a JSON list."""
    return Payload("json", b"[" + b",".join(item_of(message, info) or b"" for message in messages) + b"]")


def item_of(message: Message[Any], info: FunctionInfo) -> bytes | None:
    """The message as an item of a JSON list; None if it is bytes that are no JSON.

    Text is a string if the function's items may be strings, else the JSON that it says, as in a call with one message.
    """
    if message.form == JSON:
        return message.data
    is_string = takes_strings((info.payload_schema or {}).get("items", {}), info.payload_schema or {})
    if not is_string and is_json(message.data):
        return message.data
    return msgspec.json.encode(message.data.decode()) if message.form == TEXT else None


def takes_strings(schema: dict[str, Any], whole: dict[str, Any]) -> bool:
    """Whether a string may stand where a JSON schema says this. `whole`: the schema whose definitions it refers to.

    >>> takes_strings({"type": "object"}, {}), takes_strings({"anyOf": [{"type": "string"}, {"type": "null"}]}, {})
    (False, True)
    """
    if "$ref" in schema:
        return takes_strings(whole.get("$defs", {}).get(schema["$ref"].rpartition("/")[2], {}), {})
    if "anyOf" in schema:
        return any(takes_strings(one, whole) for one in schema["anyOf"])
    if "enum" in schema:
        return any(isinstance(one, str) for one in schema["enum"])
    kind = schema.get("type", "string")
    return "string" in kind if isinstance(kind, list) else kind == "string"


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
        loop = asyncio.get_running_loop()
        beat = round(loop.time() / LOOK_S) + 1  # when an idle gateway is awake anyway
        self._ticker = loop.call_at(beat * LOOK_S, self.start)

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
        old = [place for place in self._leaving.get(name, ()) if not place.task.done()]
        old.sort(key=lambda place: place.stage is Stage.ENDED)  # those with a call first: the others are about to go
        before = [*(place.task for place in old), *[None] * consumes.concurrency][: consumes.concurrency]
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
