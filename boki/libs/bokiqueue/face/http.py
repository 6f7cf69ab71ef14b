"""Queues over HTTP: BokiQueue for any language. Consumers that wait are held until a message comes (long poll).

All requests of this gateway for one queue share its fold. A push under an `Idempotency-Key` happens once within 24
hours; a pop under one is given the same messages again within an hour, so that a lost answer loses none, as long as it
is among the last 10,000 of its shard.
"""

from __future__ import annotations

from contextlib import nullcontext
from hashlib import sha256
from typing import Any, Final, Literal

import msgspec
from aiohttp.web import BaseRequest, Response

from boki.errors import Outcome
from boki.faces import GatewayPort, Route
from boki.gateway.http import answers, arguments
from boki.gateway.http.arguments import json_body, query, query_int, query_seconds
from boki.gateway.http.bodies import message_value
from boki.libs.bokiqueue import Queue, queue_names
from boki.libs.bokiqueue.groups import TAKE_BYTES
from boki.libs.bokiqueue.messages import letter_shape, message_shape, settings_shape
from boki.libs.bokiqueue.records import MAX_BATCH, MAX_MESSAGE_BYTES
from boki.libs.bokiqueue.refusals import MAX_DELAY_S, MAX_KEY_CHARS, check_count
from boki.log.checks import check_book, check_writable
from boki.runtime.http_exchange import MAX_WAIT_S
from boki.runtime.logbook import LogSession

MAX_COUNT: Final = 1_000
"""Messages of one answer."""


class PushMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `push_many`: JSON values, pushed all or none."""

    messages: list[Any]
    delay_s: float = 0
    ttl_s: float = 0
    group_keys: list[str] = []
    wait_s: float = 0


class SettleMany(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `settle`."""

    verb: Literal["ack", "nack", "extend", "release", "bury"]
    receipts: list[str]
    group: str = ""
    delay_s: float = 0
    lease_s: float = 30
    reason: str = ""


class Wished(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that creates a queue, or changes it: what is left out stays, or is the default."""

    shards: int = 1
    max_deliveries: int | None = None
    max_length: int | None = None
    retain_s: float | None = None


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that creates a group, or lets one begin anew: a seqnum in digits, "earliest", or "now"."""

    group: str = ""
    start: str = "earliest"
    start_time_s: float | None = None


class Dead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `redrive` and `purge`: dead letters by their handles, or all."""

    handles: list[str] = []
    group: str = ""


_PUSH_MANY: Final = msgspec.json.Decoder(PushMany)
_SETTLE: Final = msgspec.json.Decoder(SettleMany)
_WISHED: Final = msgspec.json.Decoder(Wished)
_START: Final = msgspec.json.Decoder(Start)
_DEAD: Final = msgspec.json.Decoder(Dead)


class Queues:
    """The handlers of `/queue`."""

    def __init__(self, gateway: GatewayPort) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """What is answered here."""
        one = "/queue/{book}/{queue}"
        return [
            Route("GET", "/queue/{book}", self.names),
            Route("GET", one, self.stats),
            Route("PUT", one, self.set_up),
            Route("POST", one, self.push),
            Route("POST", f"{one}/push_many", self.push_many),
            Route("POST", f"{one}/pop", self.pop),
            Route("POST", f"{one}/settle", self.settle),
            Route("GET", f"{one}/peek", self.peek),
            Route("GET", f"{one}/dead", self.dead),
            Route("POST", f"{one}/redrive", self.redrive),
            Route("POST", f"{one}/purge", self.purge),
            Route("POST", f"{one}/groups", self.create_group),
            Route("DELETE", f"{one}/groups/{{group}}", self.drop_group),
            Route("POST", f"{one}/replay", self.replay),
        ]

    def _queue(self, session: LogSession, book: str, queue: str, group: str = "") -> Queue[Any]:
        check_writable(check_book(book))
        return Queue(session.logbook(book), queue, group=group)

    async def names(self, request: BaseRequest, book: str) -> Response:
        """The queues of a book."""
        query(request, ())
        session = self._gateway.session(request)
        with self._gateway.admitted():
            names = await queue_names(session.logbook(book))
        return self._answer(session, {"queues": names})

    async def stats(self, request: BaseRequest, book: str, queue: str) -> Response:
        """The queue in figures."""
        query(request, ())
        session = self._gateway.session(request)
        with self._gateway.admitted():
            stats = await self._queue(session, book, queue).stats()
        return self._answer(session, msgspec.to_builtins(stats))

    async def set_up(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Create the queue if there is none, then change what the body names."""
        wished = await self._body(request, _WISHED)
        session = self._gateway.session(request)
        handle = self._queue(session, book, queue)
        with self._gateway.admitted():
            changed = {"max_deliveries": wished.max_deliveries, "max_length": wished.max_length}
            named = {name: value for name, value in changed.items() if value is not None}
            await handle.create(shards=wished.shards, retain_s=wished.retain_s or 0, **named)  # refused as a whole
            settings = await handle.configure(**changed, retain_s=wished.retain_s)
        return self._answer(session, settings_shape(settings))

    # Messages

    async def push(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Push the body: JSON, text or bytes, as `message_value` reads it. A JSON string is text."""
        values = query(request, {"delay_s", "ttl_s", "group_key", "wait_s"})
        spans = [query_seconds(values, name, MAX_DELAY_S) for name in ("delay_s", "ttl_s")]
        wait_s = query_seconds(values, "wait_s", MAX_WAIT_S)
        with self._gateway.admitted(waits=wait_s > 0):
            body = await self._gateway.body(request)
            session = self._gateway.session(request, wait_s)
            with self._gateway.connected(request) if wait_s else nullcontext():
                name = await self._queue(session, book, queue).push(
                    message_value(request.headers.get("Content-Type", ""), body),
                    key=_key(request),
                    delay_s=spans[0],
                    ttl_s=spans[1],
                    group_key=values.get("group_key", ""),
                    wait_s=wait_s,
                )
        return self._answer(session, {"id": name})

    async def push_many(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Push JSON values, all or none."""
        query(request, ())
        body = await self._gateway.body(request)
        asked = json_body(body, _PUSH_MANY)
        with self._gateway.admitted(waits=asked.wait_s > 0):
            session = self._gateway.session(request, min(max(asked.wait_s, 0), MAX_WAIT_S))
            with self._gateway.connected(request) if asked.wait_s else nullcontext():
                ids = await self._queue(session, book, queue).push_many(
                    asked.messages,
                    key=_key(request),
                    delay_s=asked.delay_s,
                    ttl_s=asked.ttl_s,
                    group_keys=asked.group_keys,
                    wait_s=min(asked.wait_s, MAX_WAIT_S),
                )
        return self._answer(session, {"ids": ids})

    async def pop(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Take messages, for good or under a lease, waiting for the first. If the client leaves others have them."""
        values = query(request, {"wait_s", "count", "lease_s", "group"})
        wait_s = query_seconds(values, "wait_s", MAX_WAIT_S)
        lease_s = query_seconds(values, "lease_s", MAX_DELAY_S)
        count = check_count(query_int(values, "count", 1), "count", MAX_COUNT)
        op = _key(request)
        session = self._gateway.lasting_session(request, wait_s)
        handle = self._queue(session, book, queue, values.get("group", ""))
        how_it_ends: Outcome = "unknown" if op else "not_applied"  # under an op it is kept for who asks again
        with (
            self._gateway.admitted(waits=wait_s > 0),
            self._gateway.connected(request),
            self._gateway.polling(how_it_ends),
        ):
            if "lease_s" in values:
                found = await handle.lease_many(count, lease_s, wait_s=wait_s, op=op)
            else:
                found = await handle.pop_many(count, wait_s=wait_s, op=op)
        return self._answer(session, {"messages": [message_shape(one) for one in found]})

    async def settle(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Ack, nack, extend, release or bury leased messages by their receipts."""
        asked = await self._body(request, _SETTLE, self._gateway.limits.request_bytes)
        session = self._gateway.lasting_session(request)
        handle = self._queue(session, book, queue, asked.group)
        with self._gateway.admitted():
            if asked.verb == "ack":
                await handle.ack(*asked.receipts)
            elif asked.verb == "nack":
                await handle.nack(*asked.receipts, delay_s=asked.delay_s, reason=asked.reason)
            elif asked.verb == "extend":
                await handle.extend(*asked.receipts, lease_s=asked.lease_s)
            elif asked.verb == "release":
                await handle.release(*asked.receipts)
            else:
                await handle.bury(*asked.receipts, reason=asked.reason)
        return self._answer(session, {})

    async def peek(self, request: BaseRequest, book: str, queue: str) -> Response:
        """The messages that come next, without taking them."""
        values = query(request, {"count", "group"})
        session = self._gateway.session(request)
        handle = self._queue(session, book, queue, values.get("group", ""))
        count = check_count(query_int(values, "count", 10), "count", MAX_COUNT)
        with self._gateway.admitted(min(count * MAX_MESSAGE_BYTES, TAKE_BYTES)):
            found = await handle.peek(count)
        return self._answer(session, {"messages": [message_shape(one) for one in found]})

    # Dead letters and groups

    async def dead(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Dead letters, with their reasons."""
        values = query(request, {"limit", "group"})
        session = self._gateway.session(request)
        handle = self._queue(session, book, queue, values.get("group", ""))
        limit = check_count(query_int(values, "limit", 100), "limit", MAX_BATCH)
        with self._gateway.admitted(min(limit * MAX_MESSAGE_BYTES, TAKE_BYTES)):
            letters = await handle.dead_letters(limit)
        return self._answer(session, {"dead": [letter_shape(one) for one in letters]})

    async def redrive(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Let dead letters be taken again."""
        asked = await self._body(request, _DEAD)
        session = self._gateway.session(request)
        with self._gateway.admitted():
            count = await self._queue(session, book, queue, asked.group).redrive(*asked.handles)
        return self._answer(session, {"count": count})

    async def purge(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Drop dead letters for good."""
        asked = await self._body(request, _DEAD)
        session = self._gateway.session(request)
        with self._gateway.admitted():
            count = await self._queue(session, book, queue, asked.group).purge(*asked.handles)
        return self._answer(session, {"count": count})

    async def create_group(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Have a consumer group."""
        asked = await self._body(request, _START)
        session = self._gateway.session(request)
        with self._gateway.admitted():
            await self._queue(session, book, queue).create_group(
                asked.group, start=_start(asked.start), start_time_s=asked.start_time_s
            )
        return self._answer(session, {})

    async def drop_group(self, request: BaseRequest, book: str, queue: str, group: str) -> Response:
        """Have no such consumer group."""
        query(request, ())
        session = self._gateway.session(request)
        with self._gateway.admitted():
            await self._queue(session, book, queue).drop_group(group)
        return self._answer(session, {})

    async def replay(self, request: BaseRequest, book: str, queue: str) -> Response:
        """Let a group begin anew."""
        asked = await self._body(request, _START)
        session = self._gateway.session(request)
        with self._gateway.admitted():
            await self._queue(session, book, queue, asked.group).replay(
                start=_start(asked.start), start_time_s=asked.start_time_s
            )
        return self._answer(session, {})

    async def _body(self, request: BaseRequest, decoder: msgspec.json.Decoder[Any], limit: int = 64 * 1024) -> Any:
        query(request, ())
        body = await self._gateway.body(request, limit)
        return json_body(body or b"{}", decoder)

    def _answer(self, session: LogSession, body: object) -> Response:
        return answers.json_answer(body, session.caller.positions)


def _key(request: BaseRequest) -> str | None:
    """The idempotency key, if there is one. It may be longer than a queue's: then it goes by its digest."""
    key = arguments.key(request.headers)
    return key if key is None or len(key) <= MAX_KEY_CHARS else sha256(key.encode()).hexdigest()


def _start(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
