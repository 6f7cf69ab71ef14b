"""Records, books and appends as JSON.

Seqnums are strings, because they have 63 bits and JavaScript's numbers have 53. The data of a record stands in `text`
if it is UTF-8, else in `base64`; so does UTF-8 with many control characters, each of which JSON writes in six bytes.
An append names its data `text` (or `data`), `json` or `base64`.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from boki.api import log_calls
from boki.errors import InvalidArgument
from boki.gateway.server.http.arguments import whole_number
from boki.gateway.server.http.openapi_parts import (
    SEQNUM,
    Json,
    Seqnum,
    Time,
    array_of,
    component,
    definitions_of,
    instead,
)
from boki.log.checks import check_condition_count
from boki.log.limits import MAX_CONDITIONS
from boki.log.operations import BookInfo, Found
from boki.log.record import Expect, Record

_ESCAPED: Final = bytes(set(range(32)) - set(b"\b\t\n\f\r"))
"""What JSON writes as `\\u00XX`."""
_ESCAPE_BYTES: Final = 5
"""What such an escape adds."""
_encode: Final = msgspec.json.Encoder().encode
_ANY_SEQNUM: Final[Json] = {"anyOf": [SEQNUM, {"type": "integer", "minimum": 0}]}


class DataBody(msgspec.Struct, frozen=True):
    """Bytes as text if they are valid UTF-8, else in base64."""

    text: Annotated[str, Meta(description="The data, if it is valid UTF-8")] | UnsetType = UNSET
    base64: (
        Annotated[
            str,
            Meta(description="The data, if it is not valid UTF-8", extra_json_schema={"contentEncoding": "base64"}),
        ]
        | UnsetType
    ) = UNSET


class RecordBody(msgspec.Struct, frozen=True):
    """A record. Its data stands in `text` if it is valid UTF-8, else in `base64`."""

    seqnum: Seqnum
    tags: Sequence[str]
    time_us: Time
    text: Annotated[str, Meta(description="The data, if it is valid UTF-8")] | UnsetType = UNSET
    base64: (
        Annotated[
            str,
            Meta(description="The data, if it is not valid UTF-8", extra_json_schema={"contentEncoding": "base64"}),
        ]
        | UnsetType
    ) = UNSET
    auxdata: DataBody | UnsetType = UNSET


def record_body(record: Record) -> RecordBody:
    """A record as readers get it. `auxdata` is there only if the record came with some."""
    auxdata = UNSET if record.auxdata is None else DataBody(**data_body(record.auxdata))
    return RecordBody(str(record.seqnum), record.tags, record.time, auxdata=auxdata, **data_body(record.data))


def data_body(data: bytes) -> dict[str, str]:
    """Bytes as JSON.

    >>> data_body(b"hello"), data_body(bytes([255])), data_body(bytes(3))
    ({'text': 'hello'}, {'base64': '/w=='}, {'base64': 'AAAA'})
    """
    if _ESCAPE_BYTES * (len(data) - len(data.translate(None, _ESCAPED))) <= len(data) // 3:
        with suppress(UnicodeDecodeError):
            return {"text": data.decode()}
    return {"base64": b64encode(data).decode("ascii")}


class PageBody(msgspec.Struct, frozen=True):
    """A page of records."""

    records: Annotated[list[msgspec.Raw], Meta(extra_json_schema=instead(array_of(component("Record"))))]
    next_start: Annotated[Seqnum, Meta(description="Where the next page starts")]
    first_seqnum: Annotated[Seqnum, Meta(description="Records below this have been trimmed")]
    is_end: Annotated[bool, Meta(description="Whether there was nothing more in the range")]


def page_body(found: Found, max_bytes: int, *, is_backward: bool) -> PageBody:
    """A page as readers get it. It ends before the record whose JSON would cross `max_bytes`, but for a lone one."""
    records = log_calls.records_of(found)
    encoded: list[msgspec.Raw] = []
    left_bytes = max_bytes
    for record in reversed(records) if is_backward else records:
        body = _encode(record_body(record))
        left_bytes -= len(body)
        if encoded and left_bytes < 0:
            break
        encoded.append(msgspec.Raw(body))
    is_whole = len(encoded) == len(records)
    next_start = found.next_start
    if is_backward:
        encoded.reverse()
        next_start = next_start if is_whole else records[-len(encoded)].seqnum
    elif not is_whole:
        next_start = records[len(encoded)].seqnum
    return PageBody(encoded, str(next_start), str(found.first_seqnum), found.is_end and is_whole)


class BookBody(msgspec.Struct, frozen=True, kw_only=True):
    """A book as lists show it."""

    name: str
    record_count: int
    first_seqnum: Seqnum
    last_seqnum: Seqnum
    last_time_us: Time
    size_bytes: int
    retention_age_s: float | None
    retention_size_bytes: int | None


def book_body(info: BookInfo) -> BookBody:
    """A book as lists show it."""
    return BookBody(
        name=info.name,
        record_count=info.record_count,
        first_seqnum=str(info.first_seqnum),
        last_seqnum=str(info.last_seqnum),
        last_time_us=info.last_time_us,
        size_bytes=info.size_bytes,
        retention_age_s=info.retention_age_s,
        retention_size_bytes=info.retention_size_bytes,
    )


class ExpectBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition of an append, with one of last_seqnum and count; with neither, the tag has no record."""

    tag: str
    last_seqnum: Annotated[
        str | int | None,
        Meta(description="Holds if the tag's last record is this one; 0: none", extra_json_schema=instead(_ANY_SEQNUM)),
    ] = None
    count: Annotated[
        int | None,
        Meta(
            description="Holds if this many records of the tag have ever been appended; the tag begins with `!`",
            extra_json_schema={"minimum": 0},
        ),
    ] = None

    def expect(self) -> Expect:
        """The condition; with neither number, that there is no record of the tag."""
        if self.last_seqnum is None:
            return Expect(self.tag, 0) if self.count is None else Expect(self.tag, count=self.count)
        return Expect(self.tag, whole_number(str(self.last_seqnum), "when.last_seqnum"), self.count)


_When = ExpectBody | Annotated[list[ExpectBody], Meta(extra_json_schema={"maxItems": MAX_CONDITIONS})]


class NewRecordBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record to append: exactly one of text, data, json, base64."""

    text: Annotated[str | None, Meta(description="The data as text, stored as UTF-8")] = None
    data: Annotated[str | None, Meta(description="The same as text")] = None
    json: (
        Annotated[msgspec.Raw, Meta(description="The data as a JSON value, stored as it is written here")] | UnsetType
    ) = UNSET
    base64: Annotated[bytes | None, Meta(description="The data as bytes")] = None
    tags: list[str] = []

    def record(self) -> tuple[bytes, list[str]]:
        """Data and tags."""
        forms: list[bytes] = [value.encode() for value in (self.text, self.data) if value is not None]
        if self.base64 is not None:
            forms.append(self.base64)
        if self.json is not UNSET:
            forms.append(bytes(self.json))
        if len(forms) != 1:
            raise InvalidArgument(
                f"a record has its data in exactly one of text, data, json and base64, not in {len(forms)} of them",
                field="data",
            )
        return forms[0], self.tags


class AppendBody(NewRecordBody, frozen=True, forbid_unknown_fields=True):
    """A record to append: exactly one of text, data, json, base64."""

    when: _When = []
    key: str | None = None


class AppendManyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An append of several records, all or none."""

    records: list[NewRecordBody]
    when: _When = []
    key: str | None = None


class TrimBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which records are to go."""

    before: Annotated[str | int, Meta(extra_json_schema=instead(_ANY_SEQNUM))]
    tag: str | None = None


class RetentionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For how long and how much a book keeps; null lifts a bound."""

    age_s: Annotated[float | None, Meta(extra_json_schema={"exclusiveMinimum": 0})] = None
    size_bytes: Annotated[int | None, Meta(extra_json_schema={"exclusiveMinimum": 0})] = None


def conditions(when: ExpectBody | list[ExpectBody]) -> list[Expect]:
    """The conditions of an append, checked."""
    if isinstance(when, ExpectBody):
        return [when.expect()]
    check_condition_count(len(when))
    return [one.expect() for one in when]


APPEND: Final = msgspec.json.Decoder(AppendBody)
APPEND_MANY: Final = msgspec.json.Decoder(AppendManyBody)


def components() -> dict[str, Json]:
    """The schemas that the OpenAPI document has by name."""
    kinds = (DataBody, RecordBody, PageBody, ExpectBody, NewRecordBody, AppendBody, AppendManyBody, BookBody)
    found = definitions_of(*kinds)
    found["Data"] |= {"minProperties": 1, "maxProperties": 1}
    return found
