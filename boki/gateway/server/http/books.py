"""LogBooks over HTTP, as JSON: what `boki.api.logbook` offers, for any language."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from boki.api import log_calls
from boki.api.http.exchange import KEY, MAX_WAIT_S
from boki.api.log_calls import DEFAULT_PAGE_RECORDS, NewRecord
from boki.errors import InvalidArgument, KeyReused
from boki.gateway.server.http import records
from boki.gateway.server.http.arguments import json_body, whole_number
from boki.gateway.server.http.bodies import describes_record
from boki.gateway.server.http.endpoints import Asked, Endpoints
from boki.gateway.server.http.openapi_parts import SEQNUM, Seqnum, instead
from boki.log.checks import check_book, check_writable
from boki.log.chunk import Group
from boki.log.ids import MAX_SEQNUM, check_name
from boki.log.operations import Appended, Found, Rejected
from boki.log.record import Record

_SMALL_BODY_BYTES: Final = 16 * 1024
_AUX: Final = "auxiliary data may have at most {limit:,} bytes (limits.aux_bytes): append what is larger as a record"

_SEQNUM: Final = instead(SEQNUM)
_FromSeqnum = Annotated[int, Meta(description="From this seqnum on", extra_json_schema=_SEQNUM)]
_Stop = Annotated[int, Meta(description="Below this seqnum", extra_json_schema=_SEQNUM)]
_UpTo = Annotated[int, Meta(description="Up to this seqnum", extra_json_schema=_SEQNUM)]
_Tag = Annotated[str | None, Meta(description="Only records with this tag; without it, all of the book")]
_Limit = Annotated[int | None, Meta(description="Maximum number", extra_json_schema={"minimum": 1})]
_Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="Seconds to wait if there is nothing yet")]
_Fresh = Annotated[bool, Meta(description="Linearizable: not older than anything acknowledged before")]

_ONE: Final = {"record": records.RecordBody | None}

ENDPOINTS: Final = Endpoints(
    "LogBook",
    {"book": "The LogBook's name", "seqnum": "The record's seqnum"},
    {"seqnum": SEQNUM},
)
_ONE_BOOK: Final = "/logbook/{book}"


def _default_limit(asked: Asked) -> int:
    return min(DEFAULT_PAGE_RECORDS, asked.gateway.limits.page_records)


@ENDPOINTS("GET", "/logbook", "listBooks", "LogBooks by name", answer={"books": list[records.BookBody]})
async def _books(
    asked: Asked,
    prefix: Annotated[str, Meta(description="Only names that start with this")] = "",
    after: Annotated[
        str, Meta(description="Only names that come after this one: the last name of the page before")
    ] = "",
    limit: _Limit = None,
) -> object:
    names = [check_name(name, field) if name else "" for name, field in ((prefix, "prefix"), (after, "after"))]
    wanted = _default_limit(asked) if limit is None else limit
    found = await asked.session.books(names[0], after=names[1], limit=wanted)
    return {"books": [records.book_body(info) for info in found]}


# Appends


@ENDPOINTS(
    "POST",
    f"{_ONE_BOOK}/append",
    "append",
    "Append a record: durable and ordered when this answers. A body that is not JSON is the data itself",
    reads="own",
    value=records.AppendBody,
    body_types=("application/octet-stream",),
    answer={"seqnum": Seqnum},
    has_key=True,
)
async def _append(
    asked: Asked, tag: Annotated[list[str] | None, Meta(description="Tags of a raw body; may be repeated")] = None
) -> object:
    book = asked.parts[0]
    check_writable(check_book(book))
    data, tags = await asked.gateway.body(asked.request), tag or []
    when, key = [], asked.key
    if describes_record(asked.request.headers.get("Content-Type", ""), data):
        if tag:
            raise InvalidArgument("with a JSON body, tags stand in the body", field="tag")
        body = json_body(data, records.APPEND)
        data, tags = body.record()
        when, key = records.conditions(body.when), _one_key(asked, body.key)
    group = log_calls.one_record(data, tags, when, key, asked.gateway.limits)
    return {"seqnum": str((await _appended(asked, book, group))[0])}


@ENDPOINTS(
    "POST",
    f"{_ONE_BOOK}/append_many",
    "appendMany",
    "Append all records or none, as neighbours",
    reads="own",
    value=records.AppendManyBody,
    answer={"seqnums": list[Seqnum]},
    has_key=True,
)
async def _append_many(asked: Asked) -> object:
    book = asked.parts[0]
    check_writable(check_book(book))
    body = json_body(await asked.gateway.body(asked.request), records.APPEND_MANY)
    new = [NewRecord(*one.record()) for one in body.records]
    when, key = records.conditions(body.when), _one_key(asked, body.key)
    group = log_calls.many_records(new, when, key, asked.gateway.limits)
    return {"seqnums": [str(seqnum) for seqnum in await _appended(asked, book, group)]}


async def _appended(asked: Asked, book: str, group: Group) -> Sequence[int]:
    if group.key is None:
        return await asked.session.append(book, group, None)
    # Alone, because only then its own verdict can be seen: whether the key had been used.
    answer = await asked.session.ask(log_calls.append_operation(book, [group], asked.gateway.limits))
    assert isinstance(answer, Appended)
    rejected = answer.rejected[0] if answer.rejected else None
    seqnums = log_calls.seqnums_of(answer.first_seqnum, group, rejected, book)
    if rejected is not None and not await _is_repetition(asked, book, group, rejected):
        raise KeyReused(
            f"key {group.key!r} was used in book {book!r} for other records: use a new key",
            field=KEY,
            seqnum=str(seqnums[0]),
        )
    return seqnums


async def _is_repetition(asked: Asked, book: str, group: Group, rejected: Rejected) -> bool:
    """Whether the key's first use appended the same. Records trimmed since then can no longer be compared."""
    wanted = [(bytes(data), tuple(tags)) for data, tags in group.records]
    if len(rejected.seqnums) != len(wanted):
        return False
    by_seqnum = dict(zip(rejected.seqnums, wanted, strict=True))
    start, stop = rejected.seqnums[0], rejected.seqnums[-1] + 1
    while start < stop:
        limit = min(len(wanted), asked.gateway.limits.page_records)
        page = await asked.session.logbook(book).read(start=start, stop=stop, limit=limit)
        if not page.records:
            break
        for record in page.records:
            if record.seqnum in by_seqnum and by_seqnum[record.seqnum] != (record.data, record.tags):
                return False
        start = page.next_start
    return True


def _one_key(asked: Asked, in_body: str | None) -> str | None:
    """The key of an append: from its header or its body."""
    in_header = asked.key
    if None not in (in_header, in_body) and in_header != in_body:
        raise InvalidArgument(f"{KEY} and the body name different keys: send one", field="key")
    return in_body if in_header is None else in_header


# Reads


def _record_answer(record: Record | None) -> object:
    return {"record": None if record is None else records.record_body(record)}


@ENDPOINTS("GET", f"{_ONE_BOOK}/records/{{seqnum}}", "getRecord", "Exactly that record", answer=records.RecordBody)
async def _get(asked: Asked) -> object:
    book, seqnum = asked.parts
    return records.record_body(await asked.session.logbook(book).get(whole_number(seqnum, "seqnum")))


@ENDPOINTS(
    "GET",
    f"{_ONE_BOOK}/read",
    "read",
    "A page of records, ascending. It may be shorter than the limit, and is empty only at the end",
    answer=records.PageBody,
)
async def _read(
    asked: Asked,
    tag: _Tag = None,
    start: _FromSeqnum = 0,
    stop: _Stop = MAX_SEQNUM,
    limit: _Limit = None,
    backward: Annotated[bool, Meta(description="The last ones in the range")] = False,
    wait_s: _Wait = 0.0,
    start_time_us: Annotated[int, Meta(description="From this time on, in microseconds since the epoch")] = 0,
    fresh: _Fresh = False,
) -> object:
    limits = asked.gateway.limits
    wanted = _default_limit(asked) if limit is None else limit
    read = log_calls.read_page(check_book(asked.parts[0]), tag, start, stop, wanted, limits)
    if backward and wait_s:
        raise InvalidArgument("a backward read looks at what is there: leave wait_s out", field="wait_s")
    read = msgspec.structs.replace(
        read, backward=backward, fresh=fresh, wait_us=ceil(wait_s * 1e6), start_time_us=start_time_us
    )
    found = await asked.session.ask(read, wait_s)
    assert isinstance(found, Found)
    return records.page_body(found, limits.page_bytes, is_backward=backward)


@ENDPOINTS("GET", f"{_ONE_BOOK}/read_next", "readNext", "The first record from a seqnum on", answer=_ONE)
async def _read_next(asked: Asked, tag: _Tag = None, min_seqnum: _FromSeqnum = 0, wait_s: _Wait = 0.0) -> object:
    logbook = asked.session.logbook(asked.parts[0])
    return _record_answer(await logbook.read_next(tag, min_seqnum=min_seqnum, wait_s=wait_s))


@ENDPOINTS("GET", f"{_ONE_BOOK}/read_prev", "readPrev", "The last record up to a seqnum", answer=_ONE)
async def _read_prev(asked: Asked, tag: _Tag = None, max_seqnum: _UpTo = MAX_SEQNUM) -> object:
    return _record_answer(await asked.session.logbook(asked.parts[0]).read_prev(tag, max_seqnum=max_seqnum))


@ENDPOINTS("GET", f"{_ONE_BOOK}/check_tail", "checkTail", "The last record", answer=_ONE)
async def _check_tail(asked: Asked, tag: _Tag = None, fresh: _Fresh = False) -> object:
    return _record_answer(await asked.session.logbook(asked.parts[0]).check_tail(tag, fresh=fresh))


# The book itself


@ENDPOINTS("PUT", f"{_ONE_BOOK}/records/{{seqnum}}/auxdata", "setAuxdata", "Cache bytes beside a record", reads="own")
async def _set_auxdata(asked: Asked) -> None:
    book, seqnum = asked.parts
    data = await asked.gateway.body(asked.request, asked.gateway.limits.aux_bytes, _AUX)
    await asked.session.logbook(book).set_auxdata(whole_number(seqnum, "seqnum"), data)


@ENDPOINTS(
    "POST",
    f"{_ONE_BOOK}/trim",
    "trim",
    "Records below a seqnum are gone",
    reads="json",
    value=records.TrimBody,
    max_bytes=_SMALL_BODY_BYTES,
)
async def _trim(asked: Asked) -> None:
    wanted: records.TrimBody = asked.value
    before = whole_number(str(wanted.before), "before")
    await asked.session.logbook(asked.parts[0]).trim(before, tag=wanted.tag)


@ENDPOINTS("POST", f"{_ONE_BOOK}/sync", "sync", "Catch up with all that is acknowledged")
async def _sync(asked: Asked) -> None:
    await asked.session.logbook(asked.parts[0]).sync()


@ENDPOINTS(
    "PUT",
    f"{_ONE_BOOK}/retention",
    "setRetention",
    "Have the book trimmed by age and size",
    reads="json",
    value=records.RetentionBody,
    max_bytes=_SMALL_BODY_BYTES,
)
async def _set_retention(asked: Asked) -> None:
    wanted: records.RetentionBody = asked.value
    await asked.session.logbook(asked.parts[0]).set_retention(age_s=wanted.age_s, size_bytes=wanted.size_bytes)


@ENDPOINTS("DELETE", _ONE_BOOK, "deleteBook", "Delete the book")
async def _delete(asked: Asked) -> None:
    await asked.session.logbook(asked.parts[0]).delete()
