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

from collections.abc import Sequence
from typing import Final

from boki import BokiError, InvalidArgument, NotFound, Overloaded, TooLarge, WrongType
from boki.libs.bokiqueue.records import MAX_BATCH, MAX_MESSAGE_BYTES
from boki.libs.fold import arguments
from boki.libs.fold.arguments import check_key, check_name, check_span, shown

MAX_DELAY_S: Final = arguments.MAX_SECONDS
"""A message may be delayed by a year, and live or be leased for as long. So may a logged call."""
MAX_KEY_CHARS: Final = arguments.MAX_KEY_CHARS
_NAMED: Final = 10

__all__ = ["check_key", "check_span", "shown"]


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
    """The queue was deleted, and made again with another number of shards: what was taken from it is gone."""


def reshaped(name: str) -> Reshaped:
    """The error."""
    return Reshaped(
        f"queue {name!r} was deleted and created again with another number of shards: what was taken before is gone "
        "with it. Take from it again",
        queue=name,
    )


def no_such_group(name: str, group: str) -> NoSuchGroup:
    """The error."""
    option = f" --group {group}" if group else ""
    return NoSuchGroup(
        f"queue {name!r} has no group {group!r}: create it with create_group, in a shell with "
        f"`boki queue replay BOOK {name}{option}`, or over HTTP with POST to its /groups",
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


def leases_lost(queue: str, receipts: list[str], count: int) -> LeaseLost:
    """The error of a caller that wanted to settle this many, and these were not leased."""
    named = ", ".join(receipts[:_NAMED]) + (f" and {len(receipts) - _NAMED:,} more" if len(receipts) > _NAMED else "")
    some, them, theirs = f"{len(receipts):,} of {count:,} messages of queue {queue!r} are", "them", "Their receipts"
    if count == 1:
        some, them, theirs = f"the message of queue {queue!r} is", "it", "Its receipt"
    return LeaseLost(
        f"{some} not leased by this consumer any more: nothing was changed for {them}, and others are given {them}, or "
        f"have settled {them}. {theirs}: {named}",
        queue=queue,
        receipts=receipts,
    )


def check_queue(name: object) -> str:
    """`name`, if it may name a queue."""
    return check_name(name, "queue")


def check_group(name: object) -> str:
    """`name`, if it may name a consumer group; "" is the default group."""
    return "" if name == "" and isinstance(name, str) else check_name(name, "group")


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
    return arguments.check_count(value, field, most, least=least)


def check_reason(reason: object) -> str:
    """Why a message failed, cut to 500 characters. What is no character is spelled: an error's text may hold it."""
    if not isinstance(reason, str):
        raise WrongType(f"reason must be a str, not {type(reason).__name__}", field="reason")
    return reason[:500].encode(errors="backslashreplace").decode()


def check_group_keys(keys: Sequence[str], count: int) -> Sequence[str]:
    """Group keys, "" for none: one for each message, or none at all."""
    if keys:
        if not isinstance(keys, (list, tuple)) or len(keys) != count:
            raise InvalidArgument("group_keys must be a list of one key for each message", field="group_keys")
        for key in keys:
            if key != "":
                check_key(key, "group_key")
    return keys


def check_size(data: bytes) -> bytes:
    """A body, if a record holds it."""
    return arguments.check_size(data, "body", MAX_MESSAGE_BYTES, "a message", "push a reference to it")
