"""What the OpenAPI document says of queues."""

from __future__ import annotations

from typing import Final

from boki.gateway.http.openapi_parts import (
    BOOK,
    BYTES,
    KEY,
    NOTHING,
    POSITION,
    SECONDS,
    TEXT,
    TIMEOUT,
    WAIT,
    Json,
    array_of,
    json_of,
    object_of,
    operation_of,
    path_parameter,
    query_parameter,
)

_QUEUE: Final = path_parameter("queue", "The queue's name")
_GROUP: Final = query_parameter("group", "The consumer group; without it, the default one")
_COUNT: Final = query_parameter("count", "At most so many messages", {"type": "integer", "minimum": 1})
_INTEGER: Final[Json] = {"type": "integer", "minimum": 0}
_MESSAGE: Final = object_of(
    {
        "id": TEXT,
        "receipt": TEXT | {"description": "Names this delivery, for settle; empty if it was popped"},
        "deliveries": _INTEGER,
        "time_us": _INTEGER,
        "until_us": _INTEGER | {"description": "When the lease runs out; 0 if it was popped"},
        "group_key": TEXT,
    },
    {"text": TEXT, "json": {}, "base64": TEXT | {"contentEncoding": "base64"}},
    "A message. Its data stands in `text`, `json` or `base64`, as it was pushed.",
)
_MESSAGES: Final = object_of({"messages": array_of(_MESSAGE)})
_LETTER: Final = object_of(
    {"handle": TEXT, "id": TEXT, "reason": TEXT, "deliveries": _INTEGER, "pushed_us": _INTEGER, "died_us": _INTEGER},
    {"text": TEXT, "json": {}, "base64": TEXT | {"contentEncoding": "base64"}},
)
_COUNTED: Final = object_of({"count": _INTEGER})
_NAMED: Final = object_of({}, {"handles": array_of(TEXT), "group": TEXT})
_BEGUN: Final = object_of({}, {"group": TEXT, "start": TEXT, "start_time_s": {"type": ["number", "null"]}})
_SETTINGS: Final = {"max_deliveries": _INTEGER, "max_length": _INTEGER, "retain_s": SECONDS}
_VERBS: Final = ["ack", "nack", "extend", "release", "bury"]


def _of(name: str, summary: str, answer: Json, *more: Json, body: Json | None = None) -> Json:
    return operation_of(
        name, summary, [BOOK, _QUEUE, *more, POSITION, TIMEOUT], json_of(answer), body=body, tag="Queues"
    )


_ONE: Final = "/queue/{book}/{queue}"

QUEUE_PATHS: Final[dict[str, Json]] = {
    "/queue/{book}": {
        "get": operation_of(
            "listQueues",
            "The queues of a book",
            [BOOK, POSITION, TIMEOUT],
            json_of(object_of({"queues": array_of(TEXT)})),
            tag="Queues",
        )
    },
    _ONE: {
        "get": _of("queueStats", "The queue in figures: depth, ages, rates, what is in flight, by group", NOTHING),
        "put": _of(
            "setUpQueue",
            "Create the queue if there is none, and change what is named",
            object_of({"shards": _INTEGER, **_SETTINGS}),
            body=json_of(object_of({}, {"shards": _INTEGER, **_SETTINGS})),
        ),
        "post": _of(
            "push",
            "Push the body: JSON, text or bytes, as its content type says",
            object_of({"id": TEXT}),
            query_parameter("delay_s", "It can be taken only so much later; at most a year", SECONDS),
            query_parameter("ttl_s", "It is dropped if nobody has taken it by then", SECONDS),
            query_parameter("group_key", "Messages of one key are taken in order and one at a time"),
            WAIT,
            KEY,
            body=json_of({}) | BYTES,
        ),
    },
    f"{_ONE}/push_many": {
        "post": _of(
            "pushMany",
            "Push JSON values, all or none",
            object_of({"ids": array_of(TEXT)}),
            KEY,
            body=json_of(
                object_of(
                    {"messages": array_of({})},
                    {"delay_s": SECONDS, "ttl_s": SECONDS, "group_keys": array_of(TEXT), "wait_s": SECONDS},
                )
            ),
        )
    },
    f"{_ONE}/pop": {
        "post": _of(
            "pop",
            "Take messages: for good, or for lease_s. Under a key the same ones again within an hour",
            _MESSAGES,
            _GROUP,
            _COUNT,
            query_parameter("lease_s", "Others are given them if they are not acked by then", SECONDS),
            WAIT,
            KEY,
        )
    },
    f"{_ONE}/settle": {
        "post": _of(
            "settle",
            "Ack, nack, extend, release or bury leased messages; 409 if a lease is lost",
            NOTHING,
            body=json_of(
                object_of(
                    {"verb": {"enum": _VERBS}, "receipts": array_of(TEXT)},
                    {"group": TEXT, "delay_s": SECONDS, "lease_s": SECONDS, "reason": TEXT},
                )
            ),
        )
    },
    f"{_ONE}/peek": {"get": _of("peek", "What comes next, without taking it", _MESSAGES, _GROUP, _COUNT)},
    f"{_ONE}/dead": {
        "get": _of(
            "deadLetters",
            "Messages that failed too often, with the reasons",
            object_of({"dead": array_of(_LETTER)}),
            _GROUP,
            query_parameter("limit", "At most so many", {"type": "integer", "minimum": 1}),
        )
    },
    f"{_ONE}/redrive": {
        "post": _of("redrive", "Let dead letters be taken again; without handles all", _COUNTED, body=json_of(_NAMED))
    },
    f"{_ONE}/purge": {"post": _of("purge", "Drop dead letters; without handles all", _COUNTED, body=json_of(_NAMED))},
    f"{_ONE}/groups": {"post": _of("createGroup", "Have a consumer group", NOTHING, body=json_of(_BEGUN))},
    f"{_ONE}/groups/{{group}}": {
        "delete": _of("dropGroup", "Have no such group", NOTHING, path_parameter("group", "The consumer group"))
    },
    f"{_ONE}/replay": {
        "post": _of("replay", "Let a group begin anew, from any point that is kept", NOTHING, body=json_of(_BEGUN))
    },
}
