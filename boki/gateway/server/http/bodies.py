"""What a body means, on every route alike, also under a content type that a tool made up.

`curl -d` calls every body a form. So a form, like no content type at all, says nothing: then JSON is JSON, and a body
that could be meant in two ways is refused with the header that settles it.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from boki.api.http.exchange import ENCODINGS
from boki.errors import InvalidArgument
from boki.protocol.calls import Encoding

_SAYS_NOTHING: Final = frozenset({"", "application/x-www-form-urlencoded"})
_any_json: Final = msgspec.json.Decoder()


def payload_encoding(content_type: str, wanted: Encoding) -> Encoding:
    """How the body is to be read for a function that takes `wanted`: an explicit content type decides.

    Others are mostly what a tool made up (curl's form for `-d`), and say nothing; but a form of several parts is
    `InvalidArgument`, unless the function takes bytes.

    >>> payload_encoding("application/x-www-form-urlencoded", "json")
    'json'
    >>> payload_encoding("application/json; charset=utf-8", "text")
    'json'
    """
    kind = _kind(content_type)
    if kind == "multipart/form-data" and wanted != "bytes":
        takes = "JSON" if wanted == "json" else wanted
        raise InvalidArgument(
            f"the function takes {takes}, not a form of several parts (curl -F): send the {takes} itself (curl -d)",
            field="Content-Type",
        )
    return "json" if _is_json(kind) else ENCODINGS.get(kind, wanted)


def message_value(content_type: str, body: bytes) -> Any:
    """The body as a queue's message: JSON, text or bytes.

    Without a content type that says which, an object or a list is JSON, and anything else is bytes.
    """
    kind = _kind(content_type)
    is_untyped = kind in _SAYS_NOTHING
    try:
        if _is_json(kind) or (is_untyped and _begins_with(body, b"{[")):
            return _any_json.decode(body)
        return body.decode() if kind.startswith("text/") else body
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not is_untyped:
            raise InvalidArgument(f"the body is not what its content type says: {error}", field="body") from None
        raise InvalidArgument(
            f"the body looks like JSON and is not ({error}): fix it, or send it as it is with the header "
            "Content-Type: text/plain or application/octet-stream",
            field="body",
        ) from None


def describes_record(content_type: str, body: bytes) -> bool:
    """Whether the body of an append is JSON that describes the record; else it is the record's data."""
    kind = _kind(content_type)
    if kind in _SAYS_NOTHING and _begins_with(body, b"{"):
        raise InvalidArgument(
            "a JSON object may describe the record or be its data: send the header Content-Type: application/json if "
            "it describes the record (text, json or base64, with tags), or application/octet-stream if it is the data",
            field="Content-Type",
        )
    return kind == "application/json"


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def _begins_with(body: bytes, characters: bytes) -> bool:
    start = body[:64].lstrip(b" \t\r\n")[:1]
    return bool(start) and start in characters
