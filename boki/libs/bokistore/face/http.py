"""Objects over HTTP: BokiStore for any language.

The version of an object is its ETag: `If-Match` makes a change conditional on it, and so does `If-None-Match: *` on
that there is no object. An update under an `Idempotency-Key` counts once within 24 hours.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal

import msgspec
from aiohttp.web import BaseRequest, StreamResponse
from msgspec import Meta

from boki.errors import BokiError, DeadlineExceeded, InvalidArgument, TooLarge, WrongState
from boki.gateway.server.http import arguments
from boki.gateway.server.http.endpoints import EVENTS, Asked, Endpoints
from boki.gateway.server.http.events import error_event
from boki.libs.bokistore import Store, Transaction, Version, far
from boki.libs.bokistore.face.changes import (
    MAX_CHANGES,
    Amount,
    Change,
    NamedChange,
    Place,
    PlacePath,
    Test,
    Verb,
    carry_out,
)
from boki.libs.bokistore.face.patches import patched
from boki.libs.bokistore.face.shapes import ItemShape, VersionShape, version_shape
from boki.libs.bokistore.face.views import answer
from boki.libs.bokistore.json_values import is_equal
from boki.libs.bokistore.maps import MAX_PAGE
from boki.libs.bokistore.queries import Question
from boki.libs.bokistore.refusals import NoSuchObject, WrongVersion
from boki.log.checks import check_book, check_writable
from boki.log.ids import MAX_SEQNUM

JSON_PATCH: Final = "application/json-patch+json"
WATCH_S: Final = 3600.0
"""A watch ends after that time, and its client asks again."""
MAX_HISTORY: Final = 1_000

Path = Annotated[str, Meta(description="A value within it, such as cart.items.0; without it, the whole object")]
Limit = Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Maximum number of them")]
Prefix = Annotated[str, Meta(description="Only those that begin so")]
After = Annotated[str | None, Meta(description="Only those above this one: the last one of the page before")]
Seqnum = Annotated[str, Meta(description="The seqnum of the record that made it what it is, as digits; also the ETag")]
Time = Annotated[float, Meta(ge=0, le=1e11, description="As of this time, in seconds since the epoch")]
Moment = Annotated[int, Meta(ge=-1, le=MAX_SEQNUM, description="As of this seqnum; -1: now")]

ENDPOINTS: Final = Endpoints("Objects", {"book": "The LogBook's name", "object": "The object's name"})
ONE: Final = "/store/{book}/{object}"
_CHANGED: Final = {"version": Seqnum}
_IF_MATCH: Final = {"If-Match": "Change it only if this is its version, or * if it exists; else 412"}
_IF_ANY: Final = _IF_MATCH | {"If-None-Match": "*: change it only if it does not exist; else 412"}
_NOTHING: Final = object()


def _store(asked: Asked) -> Store:
    check_writable(check_book(asked.parts[0]))
    return Store(asked.session.logbook(asked.parts[0]))


def _missing(asked: Asked, path: str) -> NoSuchObject:
    book, name, *_ = asked.parts
    what = f"nothing at {path!r} of object {name!r}" if path else f"no object {name!r}"
    return NoSuchObject(f"there is {what} in book {book!r}", object=name)


# Several objects


@ENDPOINTS(
    *("GET", "/store/{book}", "listObjects", "The names of the objects that exist, or of the maps, in order"),
    answer={"objects": list[str] | msgspec.UnsetType, "maps": list[str] | msgspec.UnsetType},
)
async def _names(
    asked: Asked,
    kind: Literal["objects", "maps"] = "objects",
    prefix: Prefix = "",
    after: After = None,
    limit: Limit = 100,
) -> object:
    store = _store(asked)
    listed = store.maps if kind == "maps" else store.objects
    return {kind: await listed(prefix=prefix, after=after, limit=limit)}


@ENDPOINTS(
    *("POST", "/store/{book}/transactions", "transact"),
    "Read, test and update any objects, all or none; 409 if a test does not hold",
    reads="body",
    answer={"seqnum": str, "reads": list[Any], "results": list[Any]},
    has_key=True,
    max_bytes=None,
    lasts=True,
)
async def _transact(
    asked: Asked, reads: tuple[Place, ...] = (), tests: tuple[Test, ...] = (), updates: tuple[NamedChange, ...] = ()
) -> object:
    if len(reads) + len(tests) + len(updates) > MAX_CHANGES:
        raise TooLarge(f"a transaction may have at most {MAX_CHANGES:,} reads, tests and updates", field="body")
    if not asked.request.headers.keys().isdisjoint({"If-Match", "If-None-Match"}):
        raise InvalidArgument(
            "a transaction has no single version that If-Match could mean: say in `tests` what must hold",
            field="If-Match",
        )
    names = [*(one.object for one in reads), *(one.object for one in tests), *(one.object for one in updates)]

    async def work(txn: Transaction) -> tuple[Transaction, list[Any], list[Any]]:
        await txn.prefetch(*names)
        found = [await txn.object(one.object).get(one.path) for one in reads]
        for test in tests:
            if not is_equal(await txn.object(test.object).get(test.path), test.value):
                raise WrongState(
                    f"a test does not hold: {test.path or 'the whole'} of object {test.object!r} is another value, "
                    "so nothing was changed",
                    object=test.object,
                )
        results = [await carry_out(txn.object(change.object), change) for change in updates]
        return txn, found, results

    txn, found, results = await _store(asked).run(work, key=asked.key)
    return {"seqnum": str(txn.seqnum), "reads": found, "results": results}


@ENDPOINTS(
    *("POST", "/store/{book}/forks", "forkStore"),
    "Make another book a copy of all objects, as they are or as of a seqnum",
    reads="body",
    answer={"book": str},
    lasts=True,
)
async def _fork(asked: Asked, name: str, at: str = "") -> object:
    seqnum = arguments.whole_number(at, "at") if at else 0
    check_writable(check_book(name))
    return {"book": (await _store(asked).fork(name, at=seqnum)).book}


@ENDPOINTS(
    *("POST", "/store/{book}/views", "lookAtObjects"),
    "Answer questions of many objects as of one moment, for boki.Client",
    reads="body",
    answer=far.Views,
    max_bytes=None,
)
async def _views(
    asked: Asked, questions: tuple[tuple[str, Question], ...] = (), objects: tuple[str, ...] = (), at: Moment = -1
) -> object:
    store = _store(asked)
    return await store.way.run(answer(store.way.reader, far.Wanted(list(questions), list(objects), at)))


# One object


@ENDPOINTS(
    *("GET", ONE, "getObject", "The object, or a value of it; its version is the ETag"),
    answer=Any,
    takes_headers={"If-None-Match": "304 if it still has this version"},
)
async def _get(
    asked: Asked,
    path: Path = "",
    at: Annotated[int | None, Meta(description="As of this seqnum")] = None,
    time_s: Time | None = None,
) -> object:
    store, name = _store(asked), asked.parts[1]
    if at is None and time_s is None:
        async with store.transaction() as txn:
            value = await txn.object(name).get(path, _NOTHING)
            version = await txn.object(name).version()
    else:
        past = store.at(at, time=time_s).object(name)
        value, version = await past.get(path, _NOTHING), await past.version()
    if value is _NOTHING:
        raise _missing(asked, path)
    if version:
        asked.headers["ETag"] = f'"{version}"'
    return value


@ENDPOINTS(
    *("PUT", ONE, "putObject", "Put the body"),
    reads="json",
    answer=_CHANGED,
    has_key=True,
    takes_headers=_IF_ANY,
    max_bytes=None,
    lasts=True,
)
async def _put(asked: Asked, path: Path = "") -> object:
    return await _change(asked, lambda txn: txn.object(asked.parts[1]).set(path, asked.value))


@ENDPOINTS(
    *("PATCH", ONE, "patchObject", "Merge the body (RFC 7396), or apply it as a JSON Patch (RFC 6902)"),
    reads="json",
    answer=_CHANGED,
    has_key=True,
    takes_headers=_IF_ANY,
    body_types=("application/merge-patch+json", JSON_PATCH),
    max_bytes=None,
    lasts=True,
)
async def _patch(asked: Asked, path: Path = "") -> object:
    async def apply(txn: Transaction) -> None:
        target = txn.object(asked.parts[1])
        if asked.request.content_type != JSON_PATCH:
            await target.merge(path, asked.value)
            return
        value = await target.get(path, _NOTHING)
        if value is _NOTHING:
            raise _missing(asked, path)
        await target.set(path, patched(value, asked.value))

    return await _change(asked, apply)


@ENDPOINTS(
    *("DELETE", ONE, "deleteObject", "Delete it"),
    answer=_CHANGED,
    has_key=True,
    takes_headers=_IF_MATCH,
    lasts=True,
)
async def _delete(asked: Asked, path: Path = "") -> object:
    async def delete(txn: Transaction) -> None:
        if not await txn.object(asked.parts[1]).delete(path):
            raise _missing(asked, path)

    return await _change(asked, delete)


async def _change(asked: Asked, work: Callable[[Transaction], Awaitable[None]]) -> object:
    """Change an object if it has the version that the request names; the new one."""
    wanted = _wanted_version(asked.request)

    async def change(txn: Transaction) -> Transaction:
        if wanted is not None:
            await _check_version(asked, txn, wanted)
        await work(txn)
        return txn

    txn = await _store(asked).run(change, key=asked.key)
    asked.headers["ETag"] = f'"{txn.seqnum}"'
    return {"version": str(txn.seqnum)}


async def _check_version(asked: Asked, txn: Transaction, wanted: str) -> None:
    book, name = asked.parts
    version, exists = await txn.object(name).version(), await txn.object(name).exists()
    if not (exists if wanted == "*" else not exists if wanted == "" else wanted == str(version)):
        raise WrongVersion(
            f"object {name!r} of book {book!r} has version {version if exists else 'none'}, which is not "
            "the one that the request names: read it, and decide again",
            object=name,
            version=str(version),
        )


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


@ENDPOINTS(
    *("POST", ONE, "updateObject", "One update by its name, such as increment; what it returns"),
    reads="body",
    answer={"result": Any},
    has_key=True,
    takes_headers=_IF_ANY,
    max_bytes=None,
    lasts=True,
)
async def _update(
    asked: Asked,
    update: Verb,
    path: PlacePath = "",
    value: Any = None,
    values: tuple[Any, ...] = (),
    by: Amount = 1,
    limit: int = 0,
    index: int = -1,
) -> object:
    change = Change(update, path, value, list(values), by, limit, index)
    store, name, wanted = _store(asked), asked.parts[1], _wanted_version(asked.request)
    if wanted is None:
        return {"result": await carry_out(store.object(name), change, asked.key)}

    async def act(txn: Transaction) -> Any:
        await _check_version(asked, txn, wanted)
        return await carry_out(txn.object(name), change)

    return {"result": await store.run(act, key=asked.key)}


# The past, and what comes


@ENDPOINTS(
    *("GET", f"{ONE}/history", "objectHistory", "Its versions, with what wrote them"),
    answer={"versions": list[VersionShape]},
)
async def _history(
    asked: Asked,
    start: Annotated[int, Meta(description="From this seqnum on")] = 0,
    limit: Annotated[int, Meta(ge=1, le=MAX_HISTORY, description="Maximum number of versions")] = 100,
) -> object:
    versions: list[VersionShape] = []
    async with aclosing(_store(asked).history(asked.parts[1], start=start)) as history:
        async for version in history:
            versions.append(version_shape(version))
            if len(versions) == limit:
                break
    return {"versions": versions}


@ENDPOINTS(
    *("GET", f"{ONE}/watch", "watchObject"),
    "It, and each version that comes, as server-sent events: id is the version. An event `error` carries an Error",
    answer=EVENTS,
    takes_headers={"Last-Event-ID": "The version that a client has which comes back: it is not sent again"},
    streams_s=WATCH_S,
)
async def _watch(asked: Asked) -> StreamResponse:
    known = asked.request.headers.get("Last-Event-ID", "")
    versions = _store(asked).watch(asked.parts[1])
    with asked.gateway.events(asked.request) as events:
        async with aclosing(versions):
            first = await anext(versions)
            await events.begin()
            if not events.is_head:
                if known != str(first.seqnum):
                    await events.send(_event(first))
                try:
                    with asked.gateway.polling("not_applied"):
                        await events.follow(_events(versions))
                except DeadlineExceeded:
                    pass  # the client asks again
                except BokiError as error:
                    await events.send(error_event("error", error))
    return events.response


async def _events(versions: AsyncGenerator[Version, None]) -> AsyncGenerator[bytes, None]:
    async for version in versions:
        yield _event(version)


def _event(version: Version) -> bytes:
    return b"id: %d\ndata: %b\n\n" % (version.seqnum, msgspec.json.encode(version_shape(version)))


@ENDPOINTS(
    *("GET", f"{ONE}/items", "scanMap", "Items of a map, in the order of their keys"),
    answer={"items": list[ItemShape]},
)
async def _items(
    asked: Asked,
    prefix: Prefix = "",
    start: Annotated[str, Meta(description="From this key on")] = "",
    stop: Annotated[str | None, Meta(description="Below this key")] = None,
    after: After = None,
    limit: Limit = 100,
) -> object:
    found = await _store(asked).open_map(asked.parts[1])
    items = await found.scan(prefix=prefix, start=start, stop=stop, after=after, limit=limit)
    return {"items": [ItemShape(key, value) for key, value in items]}
