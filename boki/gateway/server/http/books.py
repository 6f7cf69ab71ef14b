"""LogBooks over HTTP, as JSON: what `boki.api.logbook` offers, for any language."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import msgspec
from aiohttp.web import BaseRequest, Response

from boki.api import log_calls
from boki.api.http.exchange import KEY, MAX_WAIT_S
from boki.api.log_calls import DEFAULT_PAGE_RECORDS, NewRecord
from boki.api.logbook import LogSession
from boki.errors import InvalidArgument, KeyReused
from boki.faces import Route
from boki.gateway.server.http import answers, arguments, records
from boki.gateway.server.http.arguments import (
    json_body,
    query,
    query_flag,
    query_int,
    query_list,
    query_seconds,
    whole_number,
)
from boki.gateway.server.http.bodies import describes_record
from boki.gateway.server.http.connections import read_body, while_connected
from boki.gateway.server.http.log_access import LogDoor
from boki.log.checks import check_book, check_writable
from boki.log.chunk import Group
from boki.log.ids import MAX_SEQNUM, check_name
from boki.log.operations import Appended, Found, Rejected
from boki.log.record import Record


class LogBooks:
    """The handlers of `/logbook`, but for subscriptions and the binary endpoint."""

    def __init__(self, door: LogDoor) -> None:
        self._door = door
        self._limits = door.config.limits
        self._default_limit = min(DEFAULT_PAGE_RECORDS, self._limits.page_records)

    def routes(self) -> list[Route]:
        """What is answered here."""
        return [
            Route("GET", "/logbook", self.books),
            Route("DELETE", "/logbook/{book}", self.delete),
            Route("POST", "/logbook/{book}/append", self.append),
            Route("POST", "/logbook/{book}/append_many", self.append_many),
            Route("GET", "/logbook/{book}/records/{seqnum}", self.get),
            Route("PUT", "/logbook/{book}/records/{seqnum}/auxdata", self.set_auxdata),
            Route("GET", "/logbook/{book}/read", self.read),
            Route("GET", "/logbook/{book}/read_next", self.read_next),
            Route("GET", "/logbook/{book}/read_prev", self.read_prev),
            Route("GET", "/logbook/{book}/check_tail", self.check_tail),
            Route("POST", "/logbook/{book}/trim", self.trim),
            Route("POST", "/logbook/{book}/sync", self.sync),
            Route("PUT", "/logbook/{book}/retention", self.set_retention),
        ]

    async def books(self, request: BaseRequest) -> Response:
        """List books by name, a page at a time."""
        values = query(request, {"prefix", "after", "limit"})
        limit = query_int(values, "limit", self._default_limit)
        prefix, after = (check_name(values[name], name) if values.get(name) else "" for name in ("prefix", "after"))
        access = self._door.access(request)
        with self._door.admitted():
            found = await access.books(prefix, after=after, limit=limit)
        return self._answer(access, {"books": [records.book_body(info) for info in found]})

    # Appends

    async def append(self, request: BaseRequest, book: str) -> Response:
        """Append a record: a JSON body that describes it, or a raw body that is its data."""
        check_writable(check_book(book))
        values = query(request, {"tag"}, "tag")
        with self._door.admitted():
            body = await read_body(request, self._limits.request_bytes, self._door.config.timeouts)
            if describes_record(request.headers.get("Content-Type", ""), body):
                if values:
                    raise InvalidArgument("with a JSON body, tags stand in the body", field="tag")
                asked = json_body(body, records.APPEND)
                data, tags = asked.record()
                when, key = records.conditions(asked.when), _one_key(request, asked.key)
            else:
                data, tags, when, key = body, query_list(request, "tag"), [], arguments.key(request.headers)
            group = log_calls.one_record(data, tags, when, key, self._limits)
            access = self._door.access(request)
            seqnums = await self._append(access, book, group)
        return self._answer(access, {"seqnum": str(seqnums[0])})

    async def append_many(self, request: BaseRequest, book: str) -> Response:
        """Append several records, all or none."""
        check_writable(check_book(book))
        query(request, ())
        with self._door.admitted():
            body = await read_body(request, self._limits.request_bytes, self._door.config.timeouts)
            asked = json_body(body, records.APPEND_MANY)
            new = [NewRecord(*one.record()) for one in asked.records]
            when, key = records.conditions(asked.when), _one_key(request, asked.key)
            group = log_calls.many_records(new, when, key, self._limits)
            access = self._door.access(request)
            seqnums = await self._append(access, book, group)
        return self._answer(access, {"seqnums": [str(seqnum) for seqnum in seqnums]})

    async def _append(self, access: LogSession, book: str, group: Group) -> Sequence[int]:
        if group.key is None:
            return await access.append(book, group, None)
        # Alone, because only then its own verdict can be seen: whether the key had been used.
        answer = await access.ask(log_calls.append_operation(book, [group], self._limits))
        assert isinstance(answer, Appended)
        rejected = answer.rejected[0] if answer.rejected else None
        seqnums = log_calls.seqnums_of(answer.first_seqnum, group, rejected, book)
        if rejected is not None and not await self._is_repetition(access, book, group, rejected):
            raise KeyReused(
                f"key {group.key!r} was used in book {book!r} for other records: use a new key",
                field=KEY,
                seqnum=str(seqnums[0]),
            )
        return seqnums

    async def _is_repetition(self, access: LogSession, book: str, group: Group, rejected: Rejected) -> bool:
        """Whether the key's first use appended the same. Records trimmed since then can no longer be compared."""
        wanted = [(bytes(data), tuple(tags)) for data, tags in group.records]
        if len(rejected.seqnums) != len(wanted):
            return False
        by_seqnum = dict(zip(rejected.seqnums, wanted, strict=True))
        start, stop = rejected.seqnums[0], rejected.seqnums[-1] + 1
        while start < stop:
            limit = min(len(wanted), self._limits.page_records)
            page = await access.logbook(book).read(start=start, stop=stop, limit=limit)
            if not page.records:
                break
            for record in page.records:
                if record.seqnum in by_seqnum and by_seqnum[record.seqnum] != (record.data, record.tags):
                    return False
            start = page.next_start
        return True

    # Reads

    async def get(self, request: BaseRequest, book: str, seqnum: str) -> Response:
        """Exactly that record."""
        query(request, ())
        access = self._door.access(request)
        with self._door.admitted():
            record = await access.logbook(book).get(whole_number(seqnum, "seqnum"))
        return self._answer(access, records.record_body(record))

    async def read(self, request: BaseRequest, book: str) -> Response:
        """A page of records."""
        values = query(request, {"tag", "start", "stop", "limit", "backward", "wait_s", "start_time_us", "fresh"})
        wait_s = query_seconds(values, "wait_s", MAX_WAIT_S)
        start = query_int(values, "start", 0)
        stop = query_int(values, "stop", MAX_SEQNUM)
        limit = query_int(values, "limit", self._default_limit)
        read = log_calls.read_page(check_book(book), values.get("tag"), start, stop, limit, self._limits)
        read = msgspec.structs.replace(
            read,
            backward=query_flag(values, "backward"),
            fresh=query_flag(values, "fresh"),
            wait_us=ceil(wait_s * 1e6),
            start_time_us=query_int(values, "start_time_us", 0),
        )
        if read.backward and read.wait_us:
            raise InvalidArgument("a backward read looks at what is there: leave wait_s out", field="wait_s")
        access = self._door.access(request, wait_s)
        with self._door.admitted(waits=wait_s > 0), while_connected(request):
            found = await access.ask(read, wait_s)
        assert isinstance(found, Found)
        return self._answer(access, records.page_body(found, self._limits.page_bytes, is_backward=read.backward))

    async def read_next(self, request: BaseRequest, book: str) -> Response:
        """The first record from a seqnum on."""
        values = query(request, {"tag", "min_seqnum", "wait_s"})
        wait_s = query_seconds(values, "wait_s", MAX_WAIT_S)
        access = self._door.access(request, wait_s)
        min_seqnum = query_int(values, "min_seqnum", 0)
        with self._door.admitted(waits=wait_s > 0), while_connected(request):
            record = await access.logbook(book).read_next(values.get("tag"), min_seqnum=min_seqnum, wait_s=wait_s)
        return self._record_answer(access, record)

    async def read_prev(self, request: BaseRequest, book: str) -> Response:
        """The last record up to a seqnum."""
        values = query(request, {"tag", "max_seqnum"})
        access = self._door.access(request)
        max_seqnum = query_int(values, "max_seqnum", MAX_SEQNUM)
        with self._door.admitted():
            record = await access.logbook(book).read_prev(values.get("tag"), max_seqnum=max_seqnum)
        return self._record_answer(access, record)

    async def check_tail(self, request: BaseRequest, book: str) -> Response:
        """The last record."""
        values = query(request, {"tag", "fresh"})
        access = self._door.access(request)
        with self._door.admitted():
            record = await access.logbook(book).check_tail(values.get("tag"), fresh=query_flag(values, "fresh"))
        return self._record_answer(access, record)

    # The book itself

    async def set_auxdata(self, request: BaseRequest, book: str, seqnum: str) -> Response:
        """Cache the body beside a record."""
        query(request, ())
        with self._door.admitted():
            data = await read_body(request, self._limits.aux_bytes, self._door.config.timeouts, _AUX)
            access = self._door.access(request)
            await access.logbook(book).set_auxdata(whole_number(seqnum, "seqnum"), data)
        return self._answer(access, {})

    async def trim(self, request: BaseRequest, book: str) -> Response:
        """Trim the book, or a tag of it."""
        asked = json_body(await self._small_body(request), records.TRIM)
        access = self._door.access(request)
        with self._door.admitted():
            await access.logbook(book).trim(whole_number(str(asked.before), "before"), tag=asked.tag)
        return self._answer(access, {})

    async def sync(self, request: BaseRequest, book: str) -> Response:
        """Catch up with all that is acknowledged; the answer's `Boki-Position` says how far that is."""
        query(request, ())
        access = self._door.access(request)
        with self._door.admitted():
            await access.logbook(book).sync()
        return self._answer(access, {})

    async def set_retention(self, request: BaseRequest, book: str) -> Response:
        """Bound the book by age and size."""
        asked = json_body(await self._small_body(request), records.RETENTION)
        access = self._door.access(request)
        with self._door.admitted():
            await access.logbook(book).set_retention(age_s=asked.age_s, size_bytes=asked.size_bytes)
        return self._answer(access, {})

    async def delete(self, request: BaseRequest, book: str) -> Response:
        """Delete the book."""
        query(request, ())
        access = self._door.access(request)
        with self._door.admitted():
            await access.logbook(book).delete()
        return self._answer(access, {})

    async def _small_body(self, request: BaseRequest) -> bytes:
        query(request, ())
        return await read_body(request, _SMALL_BODY_BYTES, self._door.config.timeouts)

    def _record_answer(self, access: LogSession, record: Record | None) -> Response:
        body = None if record is None else records.record_body(record)
        return self._answer(access, {"record": body})

    def _answer(self, access: LogSession, body: object) -> Response:
        return answers.json_answer(body, access.caller.positions)


_AUX = "auxiliary data may have at most {limit:,} bytes (limits.aux_bytes): append what is larger as a record"
_SMALL_BODY_BYTES = 16 * 1024


def _one_key(request: BaseRequest, in_body: str | None) -> str | None:
    """The key of an append: from its header or its body."""
    in_header = arguments.key(request.headers)
    if None not in (in_header, in_body) and in_header != in_body:
        raise InvalidArgument(f"{KEY} and the body name different keys: send one", field="key")
    return in_body if in_header is None else in_header
