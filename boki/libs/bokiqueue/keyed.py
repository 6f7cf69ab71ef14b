"""Pushes under a key: the first one counts, and whoever repeats it is told the ids of the first.

The answer to a repeated append is the records of the first use, so one message is one record, and several are several:
then a key that was used for one message and comes back with many, or the other way round, is told without a read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from boki import KeyReused, NotFound, Trimmed
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.administration import Administration
from boki.libs.bokiqueue.records import Push, Settings
from boki.libs.bokiqueue.validity import sound


def told_apart(new: list[tuple[Push, list[int]]]) -> list[tuple[Push, list[int]]]:
    """The records of a push under a key, with the places of their bodies: of several messages at least two."""
    if len(new) > 1 or len(new[0][1]) == 1:
        return new
    push, places = new[0]
    return [(_part(push, 0, len(places) - 1), places[:-1]), (_part(push, len(places) - 1, len(places)), places[-1:])]


def _part(push: Push, start: int, stop: int) -> Push:
    forms = records.joined([records.form_of(push.forms, index) for index in range(start, stop)])
    return msgspec.structs.replace(push, forms=forms, bodies=push.bodies[start:stop], keys=push.keys[start:stop])


def group_of(queue: str, settings: Settings, new: list[tuple[Push, list[int]]]) -> list[tuple[bytes, tuple[str, ...]]]:
    """What is appended for them: data and tags of each record."""
    return [(records.encode(push), records.record_tags(queue, push.shard, settings.shards)) for push, _ in new]


async def append_once(
    queue: Administration[Any], settings: Settings, new: list[tuple[Push, list[int]]], key: str
) -> Sequence[int]:
    """Append them under the key: their seqnums, or those of its first use. `KeyReused`"""
    group = group_of(queue.name, settings, new)
    seqnums = await queue.logbook.append_many(group, key=records.push_key(queue.name, key), when=queue.stands())
    if len(seqnums) != len(new) or (len(new) > 1 and not await _are_as_many(queue, seqnums[0], new[0][0])):
        raise KeyReused(
            f"key {key!r} was used for another number of messages of queue {queue.name!r}: nothing was pushed; "
            "give each push a key of its own",
            key=key,
        )
    return seqnums


async def _are_as_many(queue: Administration[Any], seqnum: int, push: Push) -> bool:
    """Whether that record holds so many messages; what was trimmed nobody can tell."""
    with suppress(NotFound, Trimmed):
        first = sound(await queue.logbook.get(seqnum))
        return isinstance(first, Push) and len(first.bodies) == len(push.bodies)
    return True
