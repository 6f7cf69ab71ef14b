"""What the OpenAPI document says of queues."""

from __future__ import annotations

from typing import Final

from boki.gateway.http.openapi_parts import (
    _BOOK,
    _BYTES,
    _KEY,
    _NOTHING,
    _POSITION,
    _SECONDS,
    _TEXT,
    _TIMEOUT,
    _WAIT,
    Json,
    _array,
    _json,
    _object,
    _operation,
    _path,
    _query,
)

_QUEUE: Final = _path("queue", "The queue's name")
_GROUP: Final = _query("group", "The consumer group; without it, the default one")
_COUNT: Final = _query("count", "At most so many messages", {"type": "integer", "minimum": 1})
_INTEGER: Final[Json] = {"type": "integer", "minimum": 0}
_MESSAGE: Final = _object(
    {
        "id": _TEXT,
        "receipt": _TEXT | {"description": "Names this delivery, for settle; empty if it was popped"},
        "deliveries": _INTEGER,
        "time_us": _INTEGER,
        "until_us": _INTEGER | {"description": "When the lease runs out; 0 if it was popped"},
        "group_key": _TEXT,
    },
    {"text": _TEXT, "json": {}, "base64": _TEXT | {"contentEncoding": "base64"}},
    "A message. Its data stands in `text`, `json` or `base64`, as it was pushed.",
)
_MESSAGES: Final = _object({"messages": _array(_MESSAGE)})
_LETTER: Final = _object(
    {"handle": _TEXT, "id": _TEXT, "reason": _TEXT, "deliveries": _INTEGER, "pushed_us": _INTEGER, "died_us": _INTEGER},
    {"text": _TEXT, "json": {}, "base64": _TEXT | {"contentEncoding": "base64"}},
)
_COUNTED: Final = _object({"count": _INTEGER})
_NAMED: Final = _object({}, {"handles": _array(_TEXT), "group": _TEXT})
_BEGUN: Final = _object({}, {"group": _TEXT, "start": _TEXT, "start_time_s": {"type": ["number", "null"]}})
_SETTINGS: Final = {"max_deliveries": _INTEGER, "max_length": _INTEGER, "retain_s": _SECONDS}
_VERBS: Final = ["ack", "nack", "extend", "release", "bury"]


def _of(name: str, summary: str, answer: Json, *more: Json, body: Json | None = None) -> Json:
    return _operation(
        name, summary, [_BOOK, _QUEUE, *more, _POSITION, _TIMEOUT], _json(answer), body=body, tag="Queues"
    )


_ONE: Final = "/queue/{book}/{queue}"

QUEUE_PATHS: Final[dict[str, Json]] = {
    "/queue/{book}": {
        "get": _operation(
            "listQueues",
            "The queues of a book",
            [_BOOK, _POSITION, _TIMEOUT],
            _json(_object({"queues": _array(_TEXT)})),
            tag="Queues",
        )
    },
    _ONE: {
        "get": _of("queueStats", "The queue in figures: depth, ages, rates, what is in flight, by group", _NOTHING),
        "put": _of(
            "setUpQueue",
            "Create the queue if there is none, and change what is named",
            _object({"shards": _INTEGER, **_SETTINGS}),
            body=_json(_object({}, {"shards": _INTEGER, **_SETTINGS})),
        ),
        "post": _of(
            "push",
            "Push the body: JSON, text or bytes, as its content type says",
            _object({"id": _TEXT}),
            _query("delay_s", "It can be taken only so much later; at most a year", _SECONDS),
            _query("ttl_s", "It is dropped if nobody has taken it by then", _SECONDS),
            _query("group_key", "Messages of one key are taken in order and one at a time"),
            _WAIT,
            _KEY,
            body=_json({}) | _BYTES,
        ),
    },
    f"{_ONE}/push_many": {
        "post": _of(
            "pushMany",
            "Push JSON values, all or none",
            _object({"ids": _array(_TEXT)}),
            _KEY,
            body=_json(
                _object(
                    {"messages": _array({})},
                    {"delay_s": _SECONDS, "ttl_s": _SECONDS, "group_keys": _array(_TEXT), "wait_s": _SECONDS},
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
            _query("lease_s", "Others are given them if they are not acked by then", _SECONDS),
            _WAIT,
            _KEY,
        )
    },
    f"{_ONE}/settle": {
        "post": _of(
            "settle",
            "Ack, nack, extend, release or bury leased messages; 409 if a lease is lost",
            _NOTHING,
            body=_json(
                _object(
                    {"verb": {"enum": _VERBS}, "receipts": _array(_TEXT)},
                    {"group": _TEXT, "delay_s": _SECONDS, "lease_s": _SECONDS, "reason": _TEXT},
                )
            ),
        )
    },
    f"{_ONE}/peek": {"get": _of("peek", "What comes next, without taking it", _MESSAGES, _GROUP, _COUNT)},
    f"{_ONE}/dead": {
        "get": _of(
            "deadLetters",
            "Messages that failed too often, with the reasons",
            _object({"dead": _array(_LETTER)}),
            _GROUP,
            _query("limit", "At most so many", {"type": "integer", "minimum": 1}),
        )
    },
    f"{_ONE}/redrive": {
        "post": _of("redrive", "Let dead letters be taken again; without handles all", _COUNTED, body=_json(_NAMED))
    },
    f"{_ONE}/purge": {"post": _of("purge", "Drop dead letters; without handles all", _COUNTED, body=_json(_NAMED))},
    f"{_ONE}/groups": {"post": _of("createGroup", "Have a consumer group", _NOTHING, body=_json(_BEGUN))},
    f"{_ONE}/groups/{{group}}": {
        "delete": _of("dropGroup", "Have no such group", _NOTHING, _path("group", "The consumer group"))
    },
    f"{_ONE}/replay": {
        "post": _of("replay", "Let a group begin anew, from any point that is kept", _NOTHING, body=_json(_BEGUN))
    },
}
