"""Messages and dead letters as JSON objects: the same over HTTP and on the command line."""

from __future__ import annotations

import base64
from typing import Any

import msgspec

from boki.libs.bokiqueue.administration import DeadLetter
from boki.libs.bokiqueue.messages import JSON, TEXT, Message
from boki.libs.bokiqueue.records import Settings


def message_shape(message: Message[Any]) -> dict[str, Any]:
    """A message; without a receipt if it was popped or only looked at."""
    return {
        "id": message.id,
        "receipt": message.receipt if message.until else "",
        "deliveries": message.deliveries,
        "time_us": message.time,
        "until_us": message.until,
        "group_key": message.group_key,
        **_body(message.form, message.data),
    }


def settings_shape(settings: Settings) -> dict[str, Any]:
    """The settings of a queue."""
    return {
        "shards": settings.shards,
        "max_deliveries": settings.max_deliveries,
        "max_length": settings.max_length,
        "retain_s": settings.retain_us / 1e6,
    }


def letter_shape(letter: DeadLetter) -> dict[str, Any]:
    """A dead letter."""
    return {
        "handle": letter.handle,
        "id": letter.id,
        "reason": letter.reason,
        "deliveries": letter.deliveries,
        "pushed_us": letter.pushed_us,
        "died_us": letter.died_us,
        **_body(letter.form, letter.data),
    }


def _body(form: int, data: bytes) -> dict[str, Any]:
    """What was pushed: as text or JSON if it was pushed so and is that, else as base64."""
    try:
        if form == JSON:
            msgspec.json.decode(data)
            return {"json": msgspec.Raw(data)}
        if form == TEXT:
            return {"text": data.decode()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # a stranger's, since the library pushes what it can read: it must not spoil the whole answer
    return {"base64": base64.b64encode(data).decode()}
