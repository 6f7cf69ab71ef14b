"""Queues over HTTP: BokiQueue for any language. Consumers that wait are held until a message comes (long poll).

All requests of a gateway for one queue share its fold. A push under an `Idempotency-Key` happens once within 24 hours;
a pop under one gets the same messages again within an hour, as long as it is among the last 10,000 of its shard.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from boki import LogBook
from boki.api.http.exchange import MAX_WAIT_S
from boki.gateway.server.http.bodies import message_value
from boki.gateway.server.http.endpoints import Asked, Endpoints
from boki.libs.bokiqueue import Queue, QueueStats, messages, queue_names
from boki.libs.bokiqueue.groups import TAKE_BYTES
from boki.libs.bokiqueue.messages import LetterShape, MessageShape, SettingsShape
from boki.libs.bokiqueue.records import MAX_MESSAGE_BYTES
from boki.libs.fold.arguments import MAX_KEY_CHARS, MAX_SECONDS, check_count
from boki.log.checks import check_book, check_writable

MAX_COUNT: Final = 1_000
"""Messages of one answer."""

Delay = Annotated[float, Meta(ge=0, le=MAX_SECONDS, description="Seconds until it can be taken")]
Life = Annotated[float, Meta(ge=0, le=MAX_SECONDS, description="Seconds after which it is dropped if not taken")]
Lease = Annotated[float, Meta(ge=0, le=MAX_SECONDS, description="Seconds until others get what is not acked")]
Wait = Annotated[float, Meta(ge=0, le=MAX_WAIT_S, description="Seconds to wait for a message, or for room")]
Count = Annotated[int, Meta(description="Maximum number of messages, up to 1,000")]
Limit = Annotated[int, Meta(description="Maximum number of dead letters, up to 10,000")]
Group = Annotated[str, Meta(description="The consumer group; without it, the default one")]
GroupKey = Annotated[str, Meta(description="Messages of one key are taken in order and one at a time")]
Start = Annotated[str, Meta(description='A seqnum in digits, "earliest", or "now"')]
Handles = Annotated[list[str], Meta(description="Dead letters by their handles; without any, all")]

ENDPOINTS: Final = Endpoints(
    "Queues", {"book": "The LogBook's name", "queue": "The queue's name", "group": "The consumer group"}
)
ONE: Final = "/queue/{book}/{queue}"
_MESSAGES: Final = {"messages": list[MessageShape]}


def _book(asked: Asked) -> LogBook:
    check_writable(check_book(asked.parts[0]))
    return asked.session.logbook(asked.parts[0])


def _queue(asked: Asked, group: str = "") -> Queue[Any]:
    return Queue(_book(asked), asked.parts[1], group=group)


def _key(asked: Asked) -> str | None:
    """The idempotency key, if there is one. It may be longer than a queue's: then it goes by its digest."""
    key = asked.key
    return key if key is None or len(key) <= MAX_KEY_CHARS else sha256(key.encode()).hexdigest()


def _bytes(asked: Any) -> int:
    count: int = getattr(asked, "count", 0) or getattr(asked, "limit", 0)
    return min(count * MAX_MESSAGE_BYTES, TAKE_BYTES)


@ENDPOINTS("GET", "/queue/{book}", "listQueues", "The queues of a book", answer={"queues": list[str]})
async def _names(asked: Asked) -> object:
    return {"queues": await queue_names(_book(asked))}


@ENDPOINTS("GET", ONE, "queueStats", "The queue in figures: depth, ages, in flight, by group", answer=QueueStats)
async def _stats(asked: Asked) -> object:
    return await _queue(asked).stats()


@ENDPOINTS(
    *("PUT", ONE, "setUpQueue", "Create the queue if there is none, and change what is named"),
    reads="body",
    answer=SettingsShape,
)
async def _set_up(
    asked: Asked,
    shards: int = 1,
    max_deliveries: int | None = None,
    max_length: int | None = None,
    retain_s: float | None = None,
) -> object:
    queue = _queue(asked)
    changed = {"max_deliveries": max_deliveries, "max_length": max_length}
    named = {name: value for name, value in changed.items() if value is not None}
    await queue.create(shards=shards, retain_s=retain_s or 0, **named)  # refused as a whole
    return messages.settings_shape(await queue.configure(**changed, retain_s=retain_s))


@ENDPOINTS(
    *("POST", ONE, "push", "Push the body: JSON, text or bytes, as its content type says"),
    reads="raw",
    answer={"id": str},
    has_key=True,
    max_bytes=None,
)
async def _push(
    asked: Asked, delay_s: Delay = 0, ttl_s: Life = 0, group_key: GroupKey = "", wait_s: Wait = 0
) -> object:
    body = message_value(asked.request.headers.get("Content-Type", ""), asked.body)
    options: Any = {"delay_s": delay_s, "ttl_s": ttl_s, "group_key": group_key, "wait_s": wait_s}
    return {"id": await _queue(asked).push(body, key=_key(asked), **options)}


@ENDPOINTS(
    *("POST", f"{ONE}/push_many", "pushMany", "Push JSON values, all or none"),
    reads="body",
    answer={"ids": list[str]},
    has_key=True,
    max_bytes=None,
)
async def _push_many(
    asked: Asked,
    messages: list[Any],
    delay_s: float = 0,
    ttl_s: float = 0,
    group_keys: list[str] | None = None,
    wait_s: float = 0,
) -> object:
    options: Any = {"delay_s": delay_s, "ttl_s": ttl_s, "wait_s": min(wait_s, MAX_WAIT_S)}
    ids = await _queue(asked).push_many(messages, key=_key(asked), group_keys=group_keys or (), **options)
    return {"ids": ids}


@ENDPOINTS(
    *("POST", f"{ONE}/pop", "pop"),
    "Take messages: for good, or for lease_s. Under a key the same ones again within an hour",
    answer=_MESSAGES,
    has_key=True,
    lasts=True,
    is_polled=True,
)
async def _pop(
    asked: Asked, count: Count = 1, lease_s: Lease | None = None, wait_s: Wait = 0, group: Group = ""
) -> object:
    queue, op = _queue(asked, group), _key(asked)
    check_count(count, "count", MAX_COUNT)
    if lease_s is None:
        found = await queue.pop_many(count, wait_s=wait_s, op=op)
    else:
        found = await queue.lease_many(count, lease_s, wait_s=wait_s, op=op)
    return {"messages": [messages.message_shape(one) for one in found]}


@ENDPOINTS(
    *("POST", f"{ONE}/settle", "settle"),
    "Ack, nack, extend, release or bury leased messages; 409 if a lease is lost",
    reads="body",
    max_bytes=None,
    lasts=True,
)
async def _settle(
    asked: Asked,
    verb: Literal["ack", "nack", "extend", "release", "bury"],
    receipts: list[str],
    group: str = "",
    delay_s: float = 0,
    lease_s: float = 30,
    reason: str = "",
) -> None:
    meant: dict[str, dict[str, Any]] = {
        "nack": {"delay_s": delay_s, "reason": reason},
        "extend": {"lease_s": lease_s},
        "bury": {"reason": reason},
    }
    await getattr(_queue(asked, group), verb)(*receipts, **meant.get(verb, {}))


@ENDPOINTS(*("GET", f"{ONE}/peek", "peek", "What comes next, without taking it"), answer=_MESSAGES, answer_bytes=_bytes)
async def _peek(asked: Asked, count: Count = 10, group: Group = "") -> object:
    check_count(count, "count", MAX_COUNT)
    return {"messages": [messages.message_shape(one) for one in await _queue(asked, group).peek(count)]}


@ENDPOINTS(
    *("GET", f"{ONE}/dead", "deadLetters", "Messages that failed too often, with the reasons"),
    answer={"dead": list[LetterShape]},
    answer_bytes=_bytes,
)
async def _dead(asked: Asked, limit: Limit = 100, group: Group = "") -> object:
    return {"dead": [messages.letter_shape(one) for one in await _queue(asked, group).dead_letters(limit)]}


@ENDPOINTS(
    *("POST", f"{ONE}/redrive", "redrive", "Deliver dead letters again; without handles all"),
    reads="body",
    answer={"count": int},
)
async def _redrive(asked: Asked, handles: Handles | None = None, group: str = "") -> object:
    return {"count": await _queue(asked, group).redrive(*handles or ())}


@ENDPOINTS(
    *("POST", f"{ONE}/purge", "purge", "Drop dead letters; without handles all"), reads="body", answer={"count": int}
)
async def _purge(asked: Asked, handles: Handles | None = None, group: str = "") -> object:
    return {"count": await _queue(asked, group).purge(*handles or ())}


@ENDPOINTS("POST", f"{ONE}/groups", "createGroup", "Create a consumer group", reads="body")
async def _create_group(
    asked: Asked, group: str = "", start: Start = "earliest", start_time_s: float | None = None
) -> None:
    await _queue(asked).create_group(group, start=start, start_time_s=start_time_s)


@ENDPOINTS("DELETE", f"{ONE}/groups/{{group}}", "dropGroup", "Delete a consumer group")
async def _drop_group(asked: Asked) -> None:
    await _queue(asked).drop_group(asked.parts[2])


@ENDPOINTS("POST", f"{ONE}/replay", "replay", "Let a group begin again, from any point that is kept", reads="body")
async def _replay(asked: Asked, group: str = "", start: Start = "earliest", start_time_s: float | None = None) -> None:
    await _queue(asked, group).replay(start=start, start_time_s=start_time_s)
