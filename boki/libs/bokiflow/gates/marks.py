"""What a start says of flow control: attributes of the logged call, which are recorded with it."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from boki import InvalidArgument
from boki.extending import PINNED, Attribute, invocation_id_of
from boki.libs.bokiflow.gates.spec import Limit, check_limit
from boki.libs.fold.arguments import MAX_KEY_CHARS, check_key

MAX_PRIORITY: Final = 1_000
KEY: Final = "boki:key"
PRIORITY: Final = "boki:priority"
LIMIT: Final = "boki:limit"
"""Attributes of workflows: what their limit counts them by, who goes first, and a limit that the start names."""


FOR_ITS_TURN: Final = "waits for its turn"
"""How the note of a workflow begins that a limit does not let begin yet."""


def gate_id_of(workflow: str, book: str) -> str:
    """The invocation id of the attendant that lets the workflows of this name begin."""
    return invocation_id_of(workflow, book, "boki:gate", "")


def marks_of(limit: Limit | None, key: str | None, priority: int) -> dict[str, Attribute]:
    """The attributes of a start with these, which also pins the workflow to the version that runs. `InvalidArgument`"""
    found: dict[str, Attribute] = {PINNED: 0}
    if limit is not None:
        found[LIMIT] = msgspec.json.encode(check_limit(limit)).decode()
    if key is not None:
        found[KEY] = check_key(key, "limit_key")
    if priority:
        if type(priority) is not int or abs(priority) > MAX_PRIORITY:
            raise InvalidArgument(
                f"priority must be a whole number from -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}, not {priority!r:.40}",
                field="priority",
            )
        found[PRIORITY] = priority
    return found


def limit_of(attributes: Mapping[str, Attribute], declared: Limit | None) -> Limit | None:
    """The limit of a workflow: that of its start, else that of its code."""
    given = attributes.get(LIMIT)
    return declared if given is None else msgspec.json.decode(str(given), type=Limit)


def key_of(limit: Limit, attributes: Mapping[str, Attribute], payload: Any) -> str:
    """What the limit counts a workflow by. `InvalidArgument` if the payload has no such field."""
    given = attributes.get(KEY)
    if given is not None:
        return str(given)
    if not limit.key:
        return ""
    missing = object()
    found = payload.get(limit.key, missing) if isinstance(payload, Mapping) else getattr(payload, limit.key, missing)
    if found is missing or not isinstance(found, str | int | bool):
        raise InvalidArgument(
            f"the limit counts by the field {limit.key!r} of the payload, which has none that is text or a whole "
            "number: name another field, or give limit_key= to the start",
            field="key",
        )
    text = str(found)
    if len(text) <= MAX_KEY_CHARS:
        return text
    digest = blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()  # two may differ at their ends
    return f"{text[: MAX_KEY_CHARS - len(digest) - 1]}…{digest}"
