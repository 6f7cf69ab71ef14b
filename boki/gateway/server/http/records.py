"""Records, books and appends as JSON.

Seqnums are strings, because they have 63 bits and JavaScript's numbers have 53. The data of a record stands in `text`
if it is UTF-8, else in `base64`; so does UTF-8 with many control characters, each of which JSON writes in six bytes.
An append names its data `text` (or `data`), `json` or `base64`.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from typing import Any, Final

import msgspec

from boki.api import log_calls
from boki.errors import InvalidArgument
from boki.gateway.server.http.arguments import whole_number
from boki.log.checks import check_condition_count
from boki.log.operations import BookInfo, Found
from boki.log.record import Expect, Record

_ESCAPED: Final = bytes(set(range(32)) - set(b"\b\t\n\f\r"))
"""What JSON writes as `\\u00XX`."""
_ESCAPE_BYTES: Final = 5
"""What such an escape adds."""
_encode: Final = msgspec.json.Encoder().encode


def record_body(record: Record) -> dict[str, Any]:
    """A record as readers get it. `auxdata` is there only if the record came with some."""
    body: dict[str, Any] = {"seqnum": str(record.seqnum), "tags": record.tags, "time_us": record.time}
    body |= data_body(record.data)
    if record.auxdata is not None:
        body["auxdata"] = data_body(record.auxdata)
    return body


def data_body(data: bytes) -> dict[str, str]:
    """Bytes as JSON.

    >>> data_body(b"hello"), data_body(bytes([255])), data_body(bytes(3))
    ({'text': 'hello'}, {'base64': '/w=='}, {'base64': 'AAAA'})
    """
    if _ESCAPE_BYTES * (len(data) - len(data.translate(None, _ESCAPED))) <= len(data) // 3:
        with suppress(UnicodeDecodeError):
            return {"text": data.decode()}
    return {"base64": b64encode(data).decode("ascii")}


def page_body(found: Found, max_bytes: int, *, is_backward: bool) -> dict[str, Any]:
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
    return {
        "records": encoded,
        "next_start": str(next_start),
        "first_seqnum": str(found.first_seqnum),
        "is_end": found.is_end and is_whole,
    }


def book_body(info: BookInfo) -> dict[str, Any]:
    """A book as lists show it."""
    return {
        "name": info.name,
        "record_count": info.record_count,
        "first_seqnum": str(info.first_seqnum),
        "last_seqnum": str(info.last_seqnum),
        "last_time_us": info.last_time_us,
        "size_bytes": info.size_bytes,
        "retention_age_s": info.retention_age_s,
        "retention_size_bytes": info.retention_size_bytes,
    }


class ExpectBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition as it comes."""

    tag: str
    last_seqnum: str | int | None = None
    count: int | None = None

    def expect(self) -> Expect:
        """The condition; with neither number, that there is no record of the tag."""
        if self.last_seqnum is None:
            return Expect(self.tag, 0) if self.count is None else Expect(self.tag, count=self.count)
        return Expect(self.tag, whole_number(str(self.last_seqnum), "when.last_seqnum"), self.count)


class RecordBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record to be appended: its data in exactly one of four forms."""

    text: str | None = None
    data: str | None = None
    json: msgspec.Raw = msgspec.Raw()
    base64: bytes | None = None
    tags: list[str] = []

    def record(self) -> tuple[bytes, list[str]]:
        """Data and tags."""
        forms: list[bytes] = [value.encode() for value in (self.text, self.data) if value is not None]
        if self.base64 is not None:
            forms.append(self.base64)
        if self.json:
            forms.append(bytes(self.json))
        if len(forms) != 1:
            raise InvalidArgument(
                f"a record has its data in exactly one of text, data, json and base64, not in {len(forms)} of them",
                field="data",
            )
        return forms[0], self.tags


class AppendBody(RecordBody, frozen=True, forbid_unknown_fields=True):
    """An append of one record."""

    when: ExpectBody | list[ExpectBody] = []
    key: str | None = None


class AppendManyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An append of several records, all or none."""

    records: list[RecordBody]
    when: ExpectBody | list[ExpectBody] = []
    key: str | None = None


class TrimBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which records are to go."""

    before: str | int
    tag: str | None = None


class RetentionBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """For how long and how much a book keeps; null lifts a bound."""

    age_s: float | None = None
    size_bytes: int | None = None


def conditions(when: ExpectBody | list[ExpectBody]) -> list[Expect]:
    """The conditions of an append, checked."""
    if isinstance(when, ExpectBody):
        return [when.expect()]
    check_condition_count(len(when))
    return [one.expect() for one in when]


APPEND: Final = msgspec.json.Decoder(AppendBody)
APPEND_MANY: Final = msgspec.json.Decoder(AppendManyBody)
TRIM: Final = msgspec.json.Decoder(TrimBody)
RETENTION: Final = msgspec.json.Decoder(RetentionBody)
