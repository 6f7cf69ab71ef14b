"""Messages and dead letters as users see them, how values become bodies and values again, and what is refused.

All errors are `BokiError`s, and certain: nothing changed.

BokiError
├── NotFound
│   ├── NoSuchQueue     push to it first, or create it
│   └── NoSuchGroup     create it first
├── LeaseLost           the message is not leased by this consumer any more: nothing was settled
└── Overloaded
    └── QueueFull       the queue is at its maximum length
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from boki import BokiError, InvalidArgument, NotFound, Overloaded, WrongType
from boki.extending import encode_any
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.records import BYTES, JSON, MAX_MESSAGE_BYTES, TEXT, Settings
from boki.libs.fold import arguments
from boki.libs.fold.arguments import check_key, check_name, check_span, few_of, shown

T = TypeVar("T")

ENCODINGS: Final[tuple[Literal["bytes", "text", "json"], ...]] = ("bytes", "text", "json")
"""What the forms of bodies are called elsewhere."""
_FORMS: Final[dict[str, int]] = {name: form for form, name in enumerate(ENCODINGS)}


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


def reshaped(name: str) -> NoSuchQueue:
    """The error about a queue that was deleted, and made again with another number of shards."""
    return NoSuchQueue(
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


def leases_lost(queue: str, receipts: list[str], count: int) -> LeaseLost:
    """The error of a caller that wanted to settle this many, and these were not leased."""
    some, them, theirs = f"{len(receipts):,} of {count:,} messages of queue {queue!r} are", "them", "Their receipts"
    if count == 1:
        some, them, theirs = f"the message of queue {queue!r} is", "it", "Its receipt"
    return LeaseLost(
        f"{some} not leased by this consumer any more: nothing was changed for {them}, and others are given {them}, or "
        f"have settled {them}. {theirs}: {few_of(receipts)}",
        queue=queue,
        receipts=receipts,
    )


# Arguments


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


def check_reason(reason: object) -> str:
    """Why a message failed, cut to 500 characters. What is no character is spelled: an error's text may hold it."""
    if not isinstance(reason, str):
        raise WrongType(f"reason must be a str, not {type(reason).__name__}", field="reason")
    return reason[:500].encode(errors="backslashreplace").decode()


def check_group_keys(keys: Sequence[str], count: int) -> Sequence[str]:
    """Group keys, "" for none: one for each message, or none at all."""
    if keys and (not isinstance(keys, (list, tuple)) or len(keys) != count):
        raise InvalidArgument("group_keys must be a list of one key for each message", field="group_keys")
    for key in keys:
        if key != "":
            check_key(key, "group_key")
    return keys


def _numbers(text: object, count: int, example: str, what: str, field: str) -> tuple[int, ...]:
    parts = text.split("-") if isinstance(text, str) else []
    if len(parts) != count or not all(part.isascii() and part.isdigit() and len(part) <= 19 for part in parts):
        raise InvalidArgument(f"{what} has the form {example}, not {text!r:.60}", field=field)
    return tuple(map(int, parts))


def parse_receipt(receipt: object) -> tuple[int, int, int]:
    """(shard, position, token) of a receipt."""
    shard, pos, token = _numbers(receipt, 3, "0-17-8796093022208", "a receipt", "receipt")
    return shard, pos, token


def parse_handle(handle: object) -> tuple[int, int]:
    """The shard and the position that a dead letter's handle names."""
    shard, pos = _numbers(handle, 2, "0-17", "a dead letter's handle", "handle")
    return shard, pos


# Bodies


def encode_body(value: object) -> tuple[int, bytes]:
    """A value as a body, and the form that it has: bytes and text as they are, all else as JSON."""
    try:
        payload = encode_any(value, "body")
    except InvalidArgument as error:
        raise WrongType(
            f"a message must be bytes, text or what JSON can say, not {type(value).__name__}: {error}", field="body"
        ) from None
    body = arguments.check_size(payload.data, "body", MAX_MESSAGE_BYTES, "a message", "push a reference to it")
    return _FORMS[payload.encoding], body


def decode_body(form: int, data: bytes, kind: Any) -> Any:
    """The value of a body."""
    try:
        if kind is not None and kind not in (bytes, str):
            return msgspec.json.decode(data, type=kind)
        if form == BYTES:
            return data if kind is not str else data.decode()
        if form == TEXT:
            return data.decode() if kind is not bytes else data
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        wanted = "JSON" if kind is None else getattr(kind, "__name__", repr(kind))
        raise InvalidArgument(f"the message does not hold {wanted}: {error}", field="body") from None


# What users see


class Message(Generic[T]):
    """A message that was taken. `data` are its bytes, `value` what was pushed.

    `id` names it in the queue, `deliveries` counts how often it was given out in this group, and `time` is the log's
    time of its push, in microseconds since the epoch. `until` is when its lease runs out, in the same, also
    after an `extend` of this very message; 0 if it was popped, permanently.
    """

    __slots__ = ("_kind", "data", "delivery", "form", "group", "is_settled", "queue", "shard")

    def __init__(
        self, queue: str, shard: int, group: str, delivery: Delivery, form: int, data: bytes, kind: type[T] | None
    ) -> None:
        self.queue = queue
        self.shard = shard
        self.group = group
        self.delivery = delivery
        self.form = form
        self.data = data
        self.is_settled = not delivery.until_us
        """Whether there is nothing to be said about it any more."""
        self._kind = kind

    def __repr__(self) -> str:
        return f"<Message {self.id} of {self.queue!r}, {len(self.data)} bytes>"

    @property
    def id(self) -> str:
        """Names the message in its book: the seqnum of its record and its place in it."""
        return f"{self.delivery.spot.seqnum}-{self.delivery.spot.index}"

    @property
    def receipt(self) -> str:
        """Names this delivery: with it somebody else can settle the message."""
        return f"{self.shard}-{self.delivery.spot.pos}-{self.delivery.token}"

    @property
    def deliveries(self) -> int:
        """1 when it is given out for the first time."""
        return self.delivery.deliveries

    @property
    def time(self) -> int:
        """When it was pushed."""
        return self.delivery.spot.time_us

    @property
    def until(self) -> int:
        """When the lease runs out."""
        return self.delivery.until_us

    @property
    def group_key(self) -> str:
        """Its group key; "" if it has none."""
        return self.delivery.spot.key

    @property
    def value(self) -> T:
        """What was pushed: bytes, text, or the JSON value, as the queue's `type` if it has one.

        `InvalidArgument` if the body is not of that type.
        """
        value: T = decode_body(self.form, self.data, self._kind)
        return value


def handle_of(message: Message[Any] | str, queue: str, group: str) -> tuple[int, int, int]:
    """(shard, position, token) of a lease of that queue and group, by its message or receipt."""
    if isinstance(message, str):
        return parse_receipt(message)
    if not isinstance(message, Message):
        raise WrongType(f"give a Message or its receipt, not {type(message).__name__}", field="message")
    if message.queue != queue or message.group != group:
        raise InvalidArgument(
            f"message {message.id} was taken from queue {message.queue!r} by group {message.group!r}: settle it there",
            field="message",
        )
    if not message.delivery.until_us:
        raise InvalidArgument(f"message {message.id} was popped, for good: only a lease is settled", field="message")
    return message.shard, message.delivery.spot.pos, message.delivery.token


class DeadLetter(msgspec.Struct, frozen=True):
    """A message that failed too often, or that a consumer gave up. `id` is the message's, `handle` names it here.

    Of one whose body cannot be read any more `data` is empty.
    """

    handle: str
    id: str
    reason: str
    deliveries: int
    pushed_us: int
    died_us: int
    form: int
    data: bytes


# As JSON objects: the same over HTTP and on the command line


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    """What was pushed: as text or JSON if it was pushed so and is that, else as base64."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    base64: str | msgspec.UnsetType = msgspec.UNSET


class MessageShape(_Data, frozen=True, kw_only=True):
    """A message. `receipt` names its lease, `until_us` says when that ends: "" and 0 if it was popped, or peeked."""

    id: str
    receipt: str
    deliveries: int
    time_us: int
    until_us: int
    group_key: str


class LetterShape(_Data, frozen=True, kw_only=True):
    """A dead letter."""

    handle: str
    id: str
    reason: str
    deliveries: int
    pushed_us: int
    died_us: int


class SettingsShape(msgspec.Struct, frozen=True):
    """The settings of a queue."""

    shards: int
    max_deliveries: int
    max_length: int
    retain_s: float


def message_shape(message: Message[Any]) -> MessageShape:
    """A message as JSON."""
    return MessageShape(
        id=message.id,
        receipt=message.receipt if message.until else "",
        deliveries=message.deliveries,
        time_us=message.time,
        until_us=message.until,
        group_key=message.group_key,
        **_body(message.form, message.data),
    )


def settings_shape(held: Settings) -> SettingsShape:
    """Settings as JSON."""
    return SettingsShape(held.shards, held.max_deliveries, held.max_length, held.retain_us / 1e6)


def letter_shape(letter: DeadLetter) -> LetterShape:
    """A dead letter as JSON."""
    told = msgspec.structs.asdict(letter)
    return LetterShape(**_body(told.pop("form"), told.pop("data")), **told)


def _body(form: int, data: bytes) -> dict[str, Any]:
    try:
        if form == JSON:
            msgspec.json.decode(data)
            return {"json": msgspec.Raw(data)}
        if form == TEXT:
            return {"text": data.decode()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # a stranger's, since the library pushes what it can read: it must not spoil the whole answer
    return {"base64": base64.b64encode(data).decode()}
