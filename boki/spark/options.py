"""The options of `format("logbook")`: what each may be, checked once, where the query is defined.

Spark hands options over as strings under names without case. Whatever is not known here is refused by name, together
with what exists: a mistyped option would otherwise do nothing, silently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from boki.api.http.exchange import check_url
from boki.errors import InvalidArgument, TooLarge
from boki.log.checks import check_book
from boki.log.ids import MAX_SEQNUM, SYSTEM_BOOK_PREFIX, check_tag, is_system_tag
from boki.log.limits import DEFAULT_LIMITS

DEFAULT_GATEWAY: Final = "http://127.0.0.1:8080"
READ_OPTIONS: Final = ("gateway", "token", "book", "tag", "start", "stop", "partitions", "json", "onTrimmed")
STREAM_OPTIONS: Final = (*(name for name in READ_OPTIONS if name != "stop"), "maxRecordsPerBatch")
WRITE_OPTIONS: Final = ("gateway", "token", "book", "json", "writeId")
STREAM_WRITE_OPTIONS: Final = tuple(name for name in WRITE_OPTIONS if name != "writeId")
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname", "triggerinterval", "outputmode", "__dummyid"})
"""What Spark itself may put among the options of a query."""
_MOST_PARTITIONS: Final = 10_000
_MOST_DIGITS: Final = 19
_WRITE_ID_BYTES: Final = 100
_NO_HEADER: Final = re.compile(r"[^\x20-\x7e\xa0-\xff]")
"""What a header of HTTP cannot say."""

OnTrimmed = Literal["fail", "skip"]


OWN_PREFIXES: Final = (SYSTEM_BOOK_PREFIX, "spark:", "ingest:")
"""Books of the runtime, of the sinks and of pipelines: what is written there follows from what is read elsewhere."""


class Books(msgspec.Struct, frozen=True):
    """Which LogBooks are meant: these, or all whose name starts with the prefix."""

    names: tuple[str, ...] = ()
    prefix: str | None = None

    def takes(self, name: str) -> bool:
        """Whether that book is meant. A prefix takes the system's own books only if it names them.

        >>> Books(prefix="").takes("spark:sinks"), Books(prefix="spark:").takes("spark:sinks")
        (False, True)
        """
        prefix = self.prefix
        if prefix is None:
            return name in self.names
        return name.startswith(prefix) and not any(
            name.startswith(own) and not prefix.startswith(own) for own in OWN_PREFIXES
        )

    def __str__(self) -> str:
        """As the option says it, in whatever order.

        >>> str(Books(("b", "a"))), str(Books(prefix="orders."))
        ('a,b', 'orders.*')
        """
        return ",".join(sorted(self.names)) if self.prefix is None else f"{self.prefix}*"


class Bound(msgspec.Struct, frozen=True):
    """A place in every book: a seqnum, or (if positive) the first record at or after a time of the log."""

    seqnum: int
    time_us: int = 0


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch or a streaming read was asked for."""

    gateway: str
    token: str
    books: Books
    tag: str | None
    start: Bound
    starts_now: bool
    """A stream that begins with what comes after it."""
    stop: Bound | None
    partitions: int | None
    is_json: bool
    on_trimmed: OnTrimmed
    max_records: int | None
    """The most records of a micro-batch; None: all there are."""


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a write was asked for."""

    gateway: str
    token: str
    book: str | None
    """Where all rows go; None: each row names its book in a column."""
    is_json: bool
    write_id: str | None


def read_options(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """The options of a read. `InvalidArgument` names the option that is wrong."""
    values = _known(given, STREAM_OPTIONS if is_stream else READ_OPTIONS, "stream from" if is_stream else "read")
    book = _book(values)
    if not book:
        raise InvalidArgument(
            "the option book is missing: the name of a LogBook, several with commas between, or a prefix with a * "
            "behind it",
            field="book",
        )
    start_text = values.get("start", "earliest")
    start = Bound(0) if start_text in {"earliest", "latest"} else _bound("start", start_text)
    if start_text == "latest" and not is_stream:
        raise InvalidArgument("start=latest is for streams: a batch read ends at what is there now", field="start")
    stop = _bound("stop", values["stop"]) if "stop" in values else None
    _check_order(start, stop)
    books = _books(book)
    tag = check_tag(values["tag"], DEFAULT_LIMITS.tag_bytes) if "tag" in values else None
    if tag is not None and is_system_tag(tag) and books.prefix is not None:
        raise InvalidArgument(
            f"tag={tag} is a system tag, which trims of whole books keep: a book that has nothing else left is in no "
            f"list, so that book={books} would leave it out. Name the books",
            field="tag",
        )
    return ReadOptions(
        gateway=_gateway(values.get("gateway", DEFAULT_GATEWAY)),
        token=_token(values.get("token", "")),
        books=books,
        tag=tag,
        start=start,
        starts_now=start_text == "latest",
        stop=stop,
        partitions=_count(values, "partitions", _MOST_PARTITIONS),
        is_json=_flag(values, "json"),
        on_trimmed=_on_trimmed(values.get("ontrimmed", "fail")),
        max_records=_count(values, "maxRecordsPerBatch", 1 << 40),
    )


def write_options(given: Mapping[str, str], *, is_stream: bool) -> WriteOptions:
    """The options of a write. `InvalidArgument` names the option that is wrong."""
    values = _known(given, STREAM_WRITE_OPTIONS if is_stream else WRITE_OPTIONS, "write")
    book = _book(values)
    write_id = values.get("writeid")
    return WriteOptions(
        gateway=_gateway(values.get("gateway", DEFAULT_GATEWAY)),
        token=_token(values.get("token", "")),
        book=check_book(book) if book else None,
        is_json=_flag(values, "json"),
        write_id=None if write_id is None else _write_id(write_id),
    )


def _known(given: Mapping[str, str], allowed: Iterable[str], what: str) -> dict[str, str]:
    allowed = tuple(allowed)
    known = {name.lower() for name in allowed} | {"path"}
    values = {name.lower(): value for name, value in given.items()}
    if unknown := sorted(name for name in values if name not in known and name not in _OF_SPARK):
        raise InvalidArgument(
            f"there is no option {', '.join(unknown)} to {what} a LogBook: there are {', '.join(allowed)}",
            field=unknown[0],
        )
    return values


def _gateway(url: str) -> str:
    """The option `gateway`, if it is an address at all: whether anything answers there is seen later."""
    try:
        check_url(url)
        _ = urlsplit(url).port
    except ValueError as error:
        raise InvalidArgument(f"gateway: {error}", field="gateway") from None
    return url


def _token(token: str) -> str:
    """The option `token`, if it can be sent at all. What it is stays out of the message: it is a secret."""
    if _NO_HEADER.search(token):
        raise InvalidArgument(
            "the token holds a line break, or another character that no header of HTTP may have: if it is read from a "
            "file, leave the end of the line out",
            field="token",
        )
    return token


def _book(values: Mapping[str, str]) -> str:
    """The option `book`, which may also be said as the path of `load` and `save`."""
    book, path = values.get("book"), values.get("path")
    if book and path and book != path:
        raise InvalidArgument(f"the option book says {book!r:.60} and the path {path!r:.60}: say one", field="book")
    return book or path or ""


def _books(text: str) -> Books:
    """The option `book`.

    >>> _books("a, b"), _books("orders.*")
    (Books(names=('a', 'b'), prefix=None), Books(names=(), prefix='orders.'))
    """
    prefix = text.removesuffix("*")
    if prefix != text and not {"*", ","} & set(prefix):
        if prefix:
            check_book(prefix)
        return Books(prefix=prefix)
    if "*" in text:
        raise InvalidArgument(
            f"a * stands behind a single prefix, as in 'orders.*', and not as in {text!r:.60}",
            field="book",
        )
    names = tuple(dict.fromkeys(check_book(name.strip()) for name in text.split(",")))
    return Books(names)


def _bound(name: str, text: str) -> Bound:
    """A seqnum in digits, or a time.

    >>> _bound("start", "12"), _bound("start", "1970-01-01T00:00:01Z")
    (Bound(seqnum=12, time_us=0), Bound(seqnum=0, time_us=1000000))
    """
    seqnum = _whole(text)
    if seqnum is not None and seqnum <= MAX_SEQNUM:
        return Bound(seqnum)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{name} must be a seqnum in digits or a time such as 2026-01-31T12:00:00Z, not {text!r:.60}", field=name
        ) from None
    since = moment.replace(tzinfo=moment.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    time_us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if time_us <= 0:
        raise InvalidArgument(f"{name} must be a time after 1970, not {text!r:.60}", field=name)
    return Bound(0, time_us)


def _check_order(start: Bound, stop: Bound | None) -> None:
    if stop is None:
        return
    both_times = start.time_us and stop.time_us and start.time_us > stop.time_us
    both_numbers = not (start.time_us or stop.time_us) and start.seqnum > stop.seqnum
    if both_times or both_numbers:
        raise InvalidArgument("start is after stop: nothing lies between them; exchange them", field="start")


def _count(values: Mapping[str, str], name: str, most: int) -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    number = _whole(text)
    if number is None or not 1 <= number <= most:
        raise InvalidArgument(f"{name} must be a whole number, 1 to {most:,}, not {text!r:.60}", field=name)
    return number


def _whole(text: str) -> int | None:
    """The number that these digits are; None if they are none, or more than any number here has.

    >>> _whole("12"), _whole("-1"), _whole("9" * 5000)
    (12, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def _write_id(text: str) -> str:
    if text.startswith("!"):
        raise InvalidArgument(f"writeId must not begin with !, as {text!r:.60} does", field="writeId")
    try:
        return check_tag(text, _WRITE_ID_BYTES)
    except TooLarge:
        raise TooLarge(
            f"writeId may have at most {_WRITE_ID_BYTES} bytes of UTF-8, and {text!r:.60} has more",
            field="writeId",
            limit=_WRITE_ID_BYTES,
        ) from None
    except InvalidArgument:
        raise InvalidArgument(
            f"writeId must not be empty, and must not hold control characters, not {text!r:.60}", field="writeId"
        ) from None


def _flag(values: Mapping[str, str], name: str) -> bool:
    text = values.get(name, "false").lower()
    if text not in {"true", "false"}:
        raise InvalidArgument(f"{name} must be true or false, not {text!r:.60}", field=name)
    return text == "true"


def _on_trimmed(text: str) -> OnTrimmed:
    match text.lower():
        case "fail":
            return "fail"
        case "skip":
            return "skip"
    raise InvalidArgument(f"onTrimmed must be fail or skip, not {text!r:.60}", field="onTrimmed")
