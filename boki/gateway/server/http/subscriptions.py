"""Subscriptions over HTTP: server-sent events, one per record, at the reader's own speed.

`start=now` is a linearizable tail that is known before the first byte of the answer leaves: whatever is appended after
that is delivered, whichever gateway it goes through.

One page is read, sent, and only then the next one is asked for, so a slow reader costs one page of memory, and the
gateway's budget counts it; one that stalls is cut off. Pages are small: their `limit` grows from one record until a
page has as many bytes as a stream may hold, and what is more than that is dropped and read again later.

The event's id is the seqnum: a browser that reconnects says it in `Last-Event-ID`, and continues after it. Records that
a trim took away unread are told as an event `trimmed`, whose id lies before the next record, so that a reconnecting
reader continues there and is told once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec
from aiohttp.web import BaseRequest, StreamResponse
from msgspec import Meta

from boki.api.deadline import Caller
from boki.api.log_calls import Cursor
from boki.api.logbook import LogSession
from boki.errors import BokiError, InvalidArgument, Trimmed
from boki.gateway.server.http.arguments import whole_number
from boki.gateway.server.http.connections import while_connected
from boki.gateway.server.http.endpoints import EVENTS, Asked, Endpoints
from boki.gateway.server.http.events import HEARTBEAT, EventStream, error_event
from boki.gateway.server.http.log_access import LogDoor
from boki.gateway.server.http.openapi_parts import POSITION, SEQNUM
from boki.gateway.server.http.records import record_body
from boki.log.checks import check_book
from boki.log.limits import KIB
from boki.log.operations import Found, Read
from boki.log.record import Record

PAGE_BYTES: Final = 256 * KIB
"""A page of events ends before the record that would cross this; a lone record may have more."""

FIRST_PAGES: Final = 4
"""Streams that read their first page at once: many that begin together must not hold a page each."""

_encode = msgspec.json.Encoder(enc_hook=str).encode

ENDPOINTS: Final = Endpoints("LogBook", {"book": "The LogBook's name"}, uses_log=False)
"""It has a session of its own: without a deadline."""


class Subscriptions:
    """The handler of `/logbook/{book}/subscribe`."""

    def __init__(self, door: LogDoor) -> None:
        self._door = door
        self._beginning = asyncio.Semaphore(FIRST_PAGES)
        self._encoding = asyncio.Lock()

    @ENDPOINTS(
        *("GET", "/logbook/{book}/subscribe", "subscribe"),
        "Records and those to come, as server-sent events: id is the seqnum, data a Record. An event `trimmed` or "
        "`error` carries an Error and is the last one",
        answer=EVENTS,
        takes_headers={
            "Last-Event-ID": SEQNUM | {"description": "Continue after this seqnum"},
            POSITION["name"]: POSITION["description"],
        },
        is_admitted=False,
    )
    async def subscribe(
        self,
        asked: Asked,
        tag: Annotated[str | None, Meta(description="Only records with this tag; without it, all of the book")] = None,
        start: Annotated[str, Meta(description="A seqnum, or now")] = "0",
        on_trimmed: Annotated[
            Literal["raise", "skip"], Meta(description="What to do about records trimmed unread")
        ] = "raise",
    ) -> StreamResponse:
        """Records from `start` on, and those to come, until the reader leaves."""
        request, book = asked.request, check_book(asked.parts[0])
        access = LogSession(self._door, self._door.appends, self._caller(request))
        cursor = Cursor(book, tag, _start(request, start), on_trimmed, access.caller)
        self._door.core.begin_stream()
        try:
            if not cursor.is_placed:
                with while_connected(request):
                    cursor.take(await self._ask(access, cursor.read()))
            events = EventStream(request, self._door.config.timeouts)
            await events.begin()
            if events.is_head:
                return events.response
            try:
                await self._follow(request, events, access, cursor)
            except Trimmed as error:
                await events.send(error_event("trimmed", error, error.next_seqnum - 1))
            except BokiError as error:
                await events.send(error_event("error", error))
        finally:
            self._door.core.end_stream()
        return events.response

    def _caller(self, request: BaseRequest) -> Caller:
        timeouts = self._door.config.timeouts
        return Caller(
            self._door.positions(request), limits=self._door.config.limits, longest_poll_s=timeouts.heartbeat_s
        )

    async def _follow(self, request: BaseRequest, events: EventStream, access: LogSession, cursor: Cursor) -> None:
        size = _PageSize()
        async with self._beginning:  # without a wait, which would keep others from beginning
            first = await self._read(request, access, cursor, size, can_wait=False)
        await self._pass_on(events, first)
        while request.transport is not None and not request.transport.is_closing():
            await self._pass_on(events, await self._read(request, access, cursor, size))

    async def _pass_on(self, events: EventStream, page: bytes) -> None:
        core = self._door.core
        core.hold_for_stream(len(page))
        try:
            await events.send(page)
        finally:
            core.release_for_stream(len(page))

    async def _ask(self, access: LogSession, read: Read) -> Found:
        found = await access.ask(read, read.wait_us / 1e6)
        assert isinstance(found, Found)
        return found

    async def _read(
        self, request: BaseRequest, access: LogSession, cursor: Cursor, size: _PageSize, *, can_wait: bool = True
    ) -> bytes:
        """The next page as events. Nothing else of it is alive when this returns."""
        read = cursor.read()
        wait_us = read.wait_us if can_wait else 0
        read = msgspec.structs.replace(read, limit=min(read.limit, size.limit), wait_us=wait_us)
        with while_connected(request):
            found = await self._ask(access, read)
        page = cursor.take(found)
        if page is None:
            return HEARTBEAT if wait_us else b""
        async with self._encoding:
            await asyncio.sleep(0)  # a page of large records takes milliseconds: others are served between two of them
            events, count = _events(page.records)
        if count < len(page.records):
            cursor.go_back(page.records[count].seqnum)
        size.learn(len(events), count)
        return events


def _start(request: BaseRequest, text: str) -> int | Literal["now"]:
    if text != "now" and not text.isdecimal():
        raise InvalidArgument(f"start must be a seqnum or now, not {text[:60]!r}", field="start")
    start: int | Literal["now"] = "now" if text == "now" else whole_number(text, "start")
    last = request.headers.get("Last-Event-ID")
    return whole_number(last, "Last-Event-ID") + 1 if last else start


class _PageSize:
    """How many records to ask for at once, so that their events are about `PAGE_BYTES`."""

    def __init__(self) -> None:
        self.limit = 1

    def learn(self, size_bytes: int, count: int) -> None:
        """The last page had this many bytes and records. It grows slowly, because the next records may be larger."""
        fitting = PAGE_BYTES * count // size_bytes
        self.limit = max(1, min(2 * max(self.limit, count), fitting))


def _events(records: Sequence[Record]) -> tuple[bytes, int]:
    """The first records as events, and how many. JSON has no line breaks of its own, so each is one `data` line."""
    events = bytearray()
    for count, record in enumerate(records):
        event = b"id: %d\ndata: %b\n\n" % (record.seqnum, _encode(record_body(record)))
        if count and len(events) + len(event) > PAGE_BYTES:
            return bytes(events), count
        events += event
    return bytes(events), len(records)
