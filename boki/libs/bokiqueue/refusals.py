"""What the queue library refuses, and what to do next. All of them are `BokiError`s and certain: nothing changed.

BokiError
├── NotFound
│   ├── NoSuchQueue     push to it first, or create it
│   └── NoSuchGroup     create it first
├── LeaseLost           the message is not leased by this consumer any more: nothing was settled
└── Overloaded
    └── QueueFull       the queue is at its maximum length
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from boki import BokiError, InvalidArgument, NotFound, Overloaded, TooLarge, WrongType

MAX_DELAY_S: Final = 365 * 24 * 3_600.0
"""A message may be delayed by a year, and live or be leased for as long. So may a logged call."""
MAX_MESSAGE_BYTES: Final = 1_000_000
"""A body; a record holds a little more than that."""
MAX_BATCH: Final = 10_000
MAX_KEY_CHARS: Final = 100
MAX_SHARDS: Final = 256
NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,100}")
UNFIT: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
"""Control characters, and what is no character at all: UTF-8 cannot say it."""


class NoSuchQueue(NotFound):
    """The book has no queue of that name."""

    code = "no_such_queue"


class NoSuchGroup(NotFound):
    """The queue has no consumer group of that name."""

    code = "no_such_group"


class LeaseLost(BokiError):
    """The lease has run out, or the message was settled before: nothing changed."""

    code = "lease_lost"
    http_status = 409


class QueueFull(Overloaded):
    """The queue is at its maximum length. Nothing was pushed."""

    code = "queue_full"


def no_such_queue(name: str, book: str) -> NoSuchQueue:
    """The error."""
    return NoSuchQueue(f"there is no queue {name!r} in book {book!r}: push to it, or create it", queue=name, book=book)


class Reshaped(NoSuchQueue):
    """The queue was deleted, and made anew with another number of shards: what was taken from it is gone."""


def reshaped(name: str) -> Reshaped:
    """The error."""
    return Reshaped(
        f"queue {name!r} was deleted and made anew with another number of shards: what was taken before is gone with "
        "it. Take from it again",
        queue=name,
    )


def no_such_group(name: str, group: str) -> NoSuchGroup:
    """The error."""
    option = f" --group {group}" if group else ""
    return NoSuchGroup(
        f"queue {name!r} has no group {group!r}: create it with create_group, in a shell with "
        f"`boki queue replay{option}`, or over HTTP with POST to its /groups",
        queue=name,
        group=group,
    )


def too_large_a_push(error: TooLarge) -> TooLarge:
    """The error in the words of whoever pushes, if it is about what one append may have."""
    if error.details.get("field") != "records":
        return error
    limit = error.details["limit"]
    return TooLarge(
        f"one push_many may have at most {limit:,} bytes in all: push in several calls", field="bodies", limit=limit
    )


def uncertain(error: BokiError) -> BokiError:
    """The error, for somebody whose request may have been carried out all the same."""
    return BokiError.from_body(msgspec.structs.replace(error.body(), outcome="unknown"))


def check_queue(name: object) -> str:
    """`name`, if it may name a queue."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidArgument(
            f"a queue's name must be 1 to 100 characters of A-Z a-z 0-9 . _ -, not {name!r:.60}", field="queue"
        )
    if name in {".", ".."}:
        raise InvalidArgument(
            f"a queue's name must not be {name!r}, which URLs cannot hold: choose another name", field="queue"
        )
    return name


def check_group(name: object) -> str:
    """`name`, if it may name a consumer group; "" is the default group."""
    if name == "" and isinstance(name, str):
        return name
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidArgument(
            f"a group's name must be 1 to 100 characters of A-Z a-z 0-9 . _ -, not {name!r:.60}", field="group"
        )
    return name


def check_key(key: object, field: str) -> str:
    """`key`, if it may be a group key, an op or a de-duplication key."""
    if not isinstance(key, str):
        raise WrongType(f"{field} must be a str, not {type(key).__name__}: write {field}=str(...)", field=field)
    if not 0 < len(key) <= MAX_KEY_CHARS or UNFIT.search(key):
        raise InvalidArgument(
            f"{field} must be 1 to {MAX_KEY_CHARS} characters, no control characters, and be text: {key!r:.60}",
            field=field,
        )
    return key


def shown(number: object) -> str:
    """A number for a message: one of thousands of digits is not spelled."""
    if isinstance(number, int):
        return f"{number:,}" if abs(number) < 1 << 64 else "a number that is far too large"
    return f"{number:,.15g}" if isinstance(number, float) else str(number)


def check_span(value: object, field: str, *, least_s: float = 0.0) -> int:
    """A span of time in microseconds, from seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongType(f"{field} must be a number of seconds, not {type(value).__name__}", field=field)
    if not least_s <= value <= MAX_DELAY_S:
        raise InvalidArgument(
            f"{field} must be {least_s:g} to {MAX_DELAY_S:,.0f} seconds (a year), not {shown(value)}", field=field
        )
    return round(value * 1e6)


def check_life(delay_s: object, ttl_s: object) -> tuple[int, int]:
    """How long a message is delayed and lives, in microseconds: both count from its push."""
    delay_us, ttl_us = check_span(delay_s, "delay_s"), check_span(ttl_s, "ttl_s")
    if 0 < ttl_us <= delay_us:
        raise InvalidArgument(
            f"ttl_s must be longer than delay_s, both from the push on: after {shown(ttl_s)} s the message would be "
            f"dropped, and it could be taken after {shown(delay_s)} s only",
            field="ttl_s",
        )
    return delay_us, ttl_us


def check_count(value: object, field: str, most: int = MAX_BATCH, *, least: int = 1) -> int:
    """A whole number."""
    if type(value) is not int:
        raise WrongType(f"{field} must be an int, not {type(value).__name__}", field=field)
    if not least <= value <= most:
        raise InvalidArgument(f"{field} must be {least:,} to {most:,}, not {shown(value)}", field=field)
    return value


def check_size(data: bytes) -> bytes:
    """A body, if a record holds it."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"a message may have at most {MAX_MESSAGE_BYTES:,} bytes, not {len(data):,}: push a reference to it",
            field="body",
            limit=MAX_MESSAGE_BYTES,
        )
    return data
