"""Objects over HTTP: BokiStore for any language.

The version of an object is its ETag: `If-Match` makes a change conditional on it, and so does `If-None-Match: *` on
that there is no object. An update under an `Idempotency-Key` counts once within 24 hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec
from aiohttp.web import BaseRequest, Response, StreamResponse

from boki.api.logbook import LogSession
from boki.errors import BokiError, InvalidArgument, TooLarge, WrongState
from boki.faces import GatewayPort, Route
from boki.gateway.server.http import answers, arguments
from boki.gateway.server.http.arguments import json_body, query, query_int, query_seconds
from boki.libs.bokistore import Store, Transaction, Version, far
from boki.libs.bokistore.face.changes import MAX_CHANGES, Change, Wanted, carry_out, patched
from boki.libs.bokistore.face.views import answer
from boki.libs.bokistore.json_values import is_same
from boki.libs.bokistore.maps import MAX_PAGE
from boki.libs.bokistore.refusals import NoSuchObject, WrongVersion
from boki.log.checks import check_book, check_writable

JSON_PATCH: Final = "application/json-patch+json"
HEARTBEAT_S: Final = 15.0
WATCH_S: Final = 3600.0
"""A watch ends after that time, and its client asks again."""
MAX_HISTORY: Final = 1_000

_ANY: Final = msgspec.json.Decoder(Any)
_CHANGE: Final = msgspec.json.Decoder(Change)
_WANTED: Final = msgspec.json.Decoder(Wanted)
_VIEWS: Final = msgspec.json.Decoder(far.Wanted)


class Fork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body that makes a fork. `at`: a seqnum in digits; "": now."""

    name: str
    at: str = ""


_FORK: Final = msgspec.json.Decoder(Fork)


class Objects:
    """The handlers of `/store`."""

    def __init__(self, gateway: GatewayPort) -> None:
        self._gateway = gateway

    def routes(self) -> list[Route]:
        """What is answered here."""
        one = "/store/{book}/{object}"
        return [
            Route("GET", "/store/{book}", self.names),
            Route("POST", "/store/{book}/transactions", self.transact),
            Route("POST", "/store/{book}/forks", self.fork),
            Route("POST", "/store/{book}/views", self.views),
            Route("GET", one, self.get),
            Route("PUT", one, self.put),
            Route("PATCH", one, self.patch),
            Route("DELETE", one, self.delete),
            Route("POST", one, self.update),
            Route("GET", f"{one}/history", self.history),
            Route("GET", f"{one}/watch", self.watch),
            Route("GET", f"{one}/items", self.items),
        ]

    def _store(self, session: LogSession, book: str) -> Store:
        check_writable(check_book(book))
        return Store(session.logbook(book))

    # One object

    async def get(self, request: BaseRequest, book: str, name: str) -> Response:
        """The object, or the value at a path of it; as of a seqnum or a time, if one is named."""
        values = query(request, {"path", "at", "time_s"})
        session = self._gateway.session(request)
        store, path = self._store(session, book), values.get("path", "")
        with self._gateway.admitted():
            if "at" in values or "time_s" in values:
                at = query_int(values, "at", 0) if "at" in values else None
                time = query_seconds(values, "time_s", 1e11) if "time_s" in values else None
                past = store.at(at, time=time).object(name)
                value, version = await past.get(path, _NOTHING), await past.version()
            else:
                async with store.transaction() as txn:
                    value = await txn.object(name).get(path, _NOTHING)
                    version = await txn.object(name).version()
        if value is _NOTHING:
            raise _missing(name, book, path)
        answer = self._answer(session, value, version)
        if version and f'"{version}"' in request.headers.get("If-None-Match", "").replace(" ", "").split(","):
            return Response(status=304, headers=answer.headers)
        return answer

    async def put(self, request: BaseRequest, book: str, name: str) -> Response:
        """Put the body: the whole object, or the value at a path."""
        values = query(request, {"path"})
        value = json_body(await self._gateway.body(request), _ANY)

        async def put(txn: Transaction) -> None:
            await txn.object(name).set(values.get("path", ""), value)

        return await self._change(request, book, name, put)

    async def patch(self, request: BaseRequest, book: str, name: str) -> Response:
        """Merge the body, a JSON Merge Patch, or apply it, if its type says that it is a JSON Patch."""
        values = query(request, {"path"})
        patch = json_body(await self._gateway.body(request), _ANY)
        path = values.get("path", "")
        is_json_patch = request.content_type == JSON_PATCH

        async def apply(txn: Transaction) -> None:
            target = txn.object(name)
            if is_json_patch:
                value = await target.get(path, _NOTHING)
                if value is _NOTHING:
                    raise _missing(name, book, path)
                await target.set(path, patched(value, patch))
            else:
                await target.merge(path, patch)

        return await self._change(request, book, name, apply)

    async def delete(self, request: BaseRequest, book: str, name: str) -> Response:
        """Take the object away, or the value at a path."""
        values = query(request, {"path"})
        path = values.get("path", "")

        async def delete(txn: Transaction) -> None:
            if not await txn.object(name).delete(path):
                raise _missing(name, book, path)

        return await self._change(request, book, name, delete)

    async def _change(
        self,
        request: BaseRequest,
        book: str,
        name: str,
        work: Callable[[Transaction], Any],
    ) -> Response:
        """Change an object if it has the version that the request names; the new one."""
        wanted = _wanted_version(request)
        session = self._gateway.lasting_session(request)
        store = self._store(session, book)

        async def change(txn: Transaction) -> Transaction:
            if wanted is not None:
                version = await txn.object(name).version()
                exists = await txn.object(name).exists()
                fits = exists if wanted == "*" else not exists if wanted == "" else wanted == str(version)
                if not fits:
                    raise WrongVersion(
                        f"object {name!r} of book {book!r} has version {version if exists else 'none'}, which is not "
                        "the one that the request names: read it, and decide again",
                        object=name,
                        version=str(version),
                    )
            await work(txn)
            return txn

        with self._gateway.admitted():
            txn = await store.run(change, key=arguments.key(request.headers))
        return self._answer(session, {"version": str(txn.seqnum)}, txn.seqnum)

    async def update(self, request: BaseRequest, book: str, name: str) -> Response:
        """One update, by its name; what it returns."""
        query(request, ())
        change = json_body(await self._gateway.body(request), _CHANGE)
        session = self._gateway.lasting_session(request)
        with self._gateway.admitted():
            target = self._store(session, book).object(name)
            result = await carry_out(target, change, arguments.key(request.headers))
        return self._answer(session, {"result": result})

    # Several

    async def names(self, request: BaseRequest, book: str) -> Response:
        """The names of the objects, or of the maps (`kind=maps`), in order."""
        values = query(request, {"prefix", "after", "limit", "kind"})
        kind = values.get("kind", "objects")
        if kind not in {"objects", "maps"}:
            raise InvalidArgument(f"kind must be objects or maps, not {kind!r:.40}", field="kind")
        session = self._gateway.session(request)
        with self._gateway.admitted():
            store = self._store(session, book)
            names = await (store.maps if kind == "maps" else store.objects)(
                prefix=values.get("prefix", ""),
                after=values.get("after"),
                limit=query_int(values, "limit", 100, MAX_PAGE),
            )
        return self._answer(session, {kind: names})

    async def transact(self, request: BaseRequest, book: str) -> Response:
        """Read, test and update any objects, all or none."""
        query(request, ())
        wanted = json_body(await self._gateway.body(request), _WANTED)
        if len(wanted.reads) + len(wanted.tests) + len(wanted.updates) > MAX_CHANGES:
            raise TooLarge(f"a transaction may have at most {MAX_CHANGES:,} reads, tests and updates", field="body")
        session = self._gateway.lasting_session(request)
        store = self._store(session, book)

        async def work(txn: Transaction) -> tuple[Transaction, list[Any], list[Any]]:
            await txn.prefetch(*wanted.names())
            reads = [await txn.object(one.object).get(one.path) for one in wanted.reads]
            for test in wanted.tests:
                found = await txn.object(test.object).get(test.path)
                if not is_same(found, test.value):
                    raise WrongState(
                        f"a test does not hold: {test.path or 'the whole'} of object {test.object!r} is another value, "
                        "so nothing was changed",
                        object=test.object,
                    )
            results = [await carry_out(txn.object(change.object), change) for change in wanted.updates]
            return txn, reads, results

        with self._gateway.admitted():
            txn, reads, results = await store.run(work, key=arguments.key(request.headers))
        return self._answer(session, {"seqnum": str(txn.seqnum), "reads": reads, "results": results})

    async def items(self, request: BaseRequest, book: str, name: str) -> Response:
        """Items of a map, in the order of their keys."""
        values = query(request, {"prefix", "start", "stop", "after", "limit"})
        session = self._gateway.session(request)
        with self._gateway.admitted():
            found = await self._store(session, book).open_map(name)
            items = await found.scan(
                prefix=values.get("prefix", ""),
                start=values.get("start", ""),
                stop=values.get("stop"),
                after=values.get("after"),
                limit=query_int(values, "limit", 100, MAX_PAGE),
            )
        return self._answer(session, {"items": [{"key": key, "value": value} for key, value in items]})

    async def views(self, request: BaseRequest, book: str) -> Response:
        """Answer questions of many objects as of one moment, and give views, to those who keep none: `boki.Client`."""
        query(request, ())
        wanted = json_body(await self._gateway.body(request), _VIEWS)
        session = self._gateway.session(request)
        with self._gateway.admitted():
            store = self._store(session, book)
            views = await store.way.run(answer(store.way.reader, wanted))
        return self._answer(session, views)

    async def fork(self, request: BaseRequest, book: str) -> Response:
        """Make another book a copy of all objects of this one."""
        query(request, ())
        wanted = json_body(await self._gateway.body(request), _FORK)
        at = arguments.whole_number(wanted.at, "at") if wanted.at else 0
        session = self._gateway.lasting_session(request)
        check_writable(check_book(wanted.name))
        with self._gateway.admitted():
            fork = await self._store(session, book).fork(wanted.name, at=at)
        return self._answer(session, {"book": fork.book})

    # The past

    async def history(self, request: BaseRequest, book: str, name: str) -> Response:
        """The first versions of an object that are kept, from a seqnum on."""
        values = query(request, {"start", "limit"})
        start, limit = query_int(values, "start", 0), query_int(values, "limit", 100, MAX_HISTORY)
        session = self._gateway.session(request)
        versions: list[dict[str, Any]] = []
        with self._gateway.admitted():
            async with aclosing(self._store(session, book).history(name)) as history:
                async for version in history:
                    if version.seqnum >= start:
                        versions.append(version_body(version))
                    if len(versions) == limit:
                        break
        return self._answer(session, {"versions": versions})

    async def watch(self, request: BaseRequest, book: str, name: str) -> StreamResponse:
        """The object as it is, and each version that comes, as server-sent events."""
        query(request, ())
        session = self._gateway.session(request, WATCH_S)
        response = StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        with self._gateway.admitted(waits=True), self._gateway.connected(request):
            async with aclosing(self._store(session, book).watch(name)) as versions:
                first = await anext(versions)
                await response.prepare(request)
                await response.write(_event(first))
                with suppress(BokiError), self._gateway.polling("not_applied"):  # at the deadline, or the gateway stops
                    await _pass_on(response, versions)
        return response

    def _answer(self, session: LogSession, body: object, version: int | None = None) -> Response:
        response = answers.json_answer(body, session.caller.positions)
        if version:
            response.headers["ETag"] = f'"{version}"'
        return response


_NOTHING: Final = object()


async def _pass_on(response: StreamResponse, versions: AsyncGenerator[Version, None]) -> None:
    """Versions as they come; while none does, comments that show whether the client is still there."""
    while True:
        coming = asyncio.ensure_future(anext(versions))
        try:
            while not (await asyncio.wait([coming], timeout=HEARTBEAT_S))[0]:
                await response.write(b": boki\n\n")
            await response.write(_event(coming.result()))
        finally:
            coming.cancel()


def _event(version: Version) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (version.seqnum, msgspec.json.encode(version_body(version)))


def version_body(version: Version) -> dict[str, Any]:
    """A version as JSON."""
    body = msgspec.to_builtins(version)
    body["seqnum"] = str(version.seqnum)
    assert isinstance(body, dict)
    return body


def _wanted_version(request: BaseRequest) -> str | None:
    """The version that a change is for: in digits, "*" any, "" none; None: whatever there is."""
    match, none = request.headers.get("If-Match"), request.headers.get("If-None-Match")
    if match is None and none is None:
        return None
    if none is not None:
        if none.strip() != "*" or match is not None:
            raise InvalidArgument(
                "If-None-Match may only be *, and stand alone: there is no object", field="If-None-Match"
            )
        return ""
    assert match is not None
    text = match.strip()
    if text == "*":
        return text
    version = text.strip('"')
    if not version.isascii() or not version.isdecimal():
        raise InvalidArgument(f'If-Match must be * or one version such as "123", not {match!r:.60}', field="If-Match")
    return version


def _missing(name: str, book: str, path: str) -> NoSuchObject:
    what = f"nothing at {path!r} of object {name!r}" if path else f"no object {name!r}"
    return NoSuchObject(f"there is {what} in book {book!r}", object=name)
