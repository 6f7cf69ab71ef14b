"""Pushing: which records hold the messages, pushes under a key, and room in a queue with a maximum length.

**Keys.** The first push under a key counts, and a repetition is told the ids of the first. The answer to a repeated
append is the records of the first use, so one message is one record, and several are several: then a key that was used
for one message and comes back with many, or the other way round, is told without a read.

**Room.** What is pushed is appended after the process has looked, so it goes by this machine's clock whether messages
have expired: nothing depends on it but how soon there is room for others.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from zlib import crc32

import msgspec

from boki import Expect, KeyReused, LogBook, NotFound, TooLarge, Trimmed, WrongType
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.figures import NEVER_US, length, next_expiry_us
from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.messages import encode_body
from boki.libs.bokiqueue.records import Push, Settings, sound
from boki.libs.bokiqueue.refusals import QueueFull, check_count, check_group_keys, check_life

RECORD_BYTES: Final = 900_000
"""Messages of a push are put into records of about this size."""
_MARGIN_S: Final = 0.001

Placed = list[tuple[Push, list[int]]]
"""Records, and the places of their bodies in the push."""


def listed(bodies: Iterable[Any]) -> list[Any]:
    """The bodies of a push, as a list."""
    if isinstance(bodies, (str, bytes, bytearray, memoryview, dict)) or not isinstance(bodies, Iterable):
        raise WrongType(f"bodies must be a list, not {type(bodies).__name__}: write push(body) for one", field="bodies")
    found = list(bodies)
    check_count(len(found), "bodies")
    return found


def placed(
    shards: int, shard: int, bodies: Sequence[Any], delay_s: float, ttl_s: float, group_keys: Sequence[str]
) -> Placed:
    """Records that hold the bodies: those with a group key in its shard, the others in `shard`."""
    delay_us, ttl_us = check_life(delay_s, ttl_s) if delay_s or ttl_s else (0, 0)
    check_group_keys(group_keys, len(bodies))
    if len(bodies) == 1:
        form, body = encode_body(bodies[0])
        keys = list(group_keys)
        own = crc32(keys[0].encode()) % shards if keys and keys[0] else shard
        return [(Push(own, bytes((form,)), [body], delay_us, ttl_us, keys), [0])]
    by_shard: dict[int, list[int]] = {}
    for place in range(len(bodies)):
        own = crc32(group_keys[place].encode()) % shards if group_keys and group_keys[place] else shard
        by_shard.setdefault(own, []).append(place)
    encoded = [encode_body(body) for body in bodies]
    found = []
    for own, places in by_shard.items():
        for some in records.runs(places, lambda place: len(encoded[place][1]) + 8, RECORD_BYTES):
            forms = records.joined([encoded[place][0] for place in some])
            keys = [group_keys[place] for place in some] if group_keys else []
            found.append((Push(own, forms, [encoded[place][1] for place in some], delay_us, ttl_us, keys), some))
    return found


async def append_pushes(
    logbook: LogBook, queue: str, settings: Settings, new: Placed, stands: Expect, key: str | None
) -> Sequence[int]:
    """Append the records: their seqnums, or those of the first use of the key. `KeyReused`"""
    group = [(records.encode(push), records.record_tags(queue, push.shard, settings.shards)) for push, _ in new]
    if key is None:
        if len(group) == 1:
            return [await logbook.append(*group[0], when=stands)]
        return await logbook.append_many(group, when=stands)
    seqnums = await logbook.append_many(group, key=records.push_key(queue, key), when=stands)
    if len(seqnums) != len(new) or (len(new) > 1 and not await _are_as_many(logbook, seqnums[0], new[0][0])):
        raise KeyReused(
            f"key {key!r} was used for another number of messages of queue {queue!r}: nothing was pushed; "
            "give each push a key of its own",
            key=key,
        )
    return seqnums


async def _are_as_many(logbook: LogBook, seqnum: int, push: Push) -> bool:
    """Whether that record holds this many messages; what was trimmed nobody can tell."""
    with suppress(NotFound, Trimmed):
        first = sound(await logbook.get(seqnum))
        return isinstance(first, Push) and len(first.bodies) == len(push.bodies)
    return True


def told_apart(new: Placed) -> Placed:
    """The records of a push under a key: of several messages at least two."""
    if len(new) > 1 or len(new[0][1]) == 1:
        return new
    push, places = new[0]
    return [(_part(push, 0, len(places) - 1), places[:-1]), (_part(push, len(places) - 1, len(places)), places[-1:])]


def _part(push: Push, start: int, stop: int) -> Push:
    forms = records.joined([records.form_of(push.forms, index) for index in range(start, stop)])
    return msgspec.structs.replace(push, forms=forms, bodies=push.bodies[start:stop], keys=push.keys[start:stop])


@asynccontextmanager
async def room(
    logbook: LogBook, shared: Following, settings: Settings, count: int, patience_s: float
) -> AsyncIterator[None]:
    """Room for this many messages, for which this process does not let others push meanwhile. `QueueFull`"""
    if not settings.max_length:
        yield
        return
    if count > settings.max_length:
        raise TooLarge(
            f"{count:,} messages never fit in queue {shared.queue!r}, whose maximum length is "
            f"{settings.max_length:,}: push them in parts",
            field="bodies",
            limit=settings.max_length,
        )
    await _wait_for_room(logbook, shared, settings, count, patience_s)
    shared.pushing += count
    try:
        yield
    finally:
        shared.pushing -= count


async def _wait_for_room(
    logbook: LogBook, shared: Following, settings: Settings, count: int, patience_s: float
) -> None:
    begun = shared.clock.here()
    while True:
        await shared.catch_up(logbook)
        now_us = shared.clock.looking_us(logbook.session.likely_time_us())
        there = shared.pushing + sum(length(line.state) for line in shared.lines)
        until_us = NEVER_US
        if there + count > settings.max_length:
            living, until_us = _living(shared, now_us)
            there = shared.pushing + living
        if there + count <= settings.max_length:
            return
        left_s = patience_s - shared.clock.since(begun)
        if left_s < _MARGIN_S:
            raise QueueFull(
                f"queue {shared.queue!r} has {there:,} messages, and its maximum length is {settings.max_length:,}: "
                "push again when some were taken, or wait with wait_s",
                queue=shared.queue,
                limit=settings.max_length,
            )
        await shared.wait_for_record(logbook, min(left_s, (until_us - now_us) / 1e6 + _MARGIN_S))


def _living(shared: Following, now_us: int) -> tuple[int, int]:
    """How many messages live, and until when that is so if no record comes. All of them are looked at, which takes long
    in a long queue: once for all that wait for room here.
    """
    at = tuple(line.state.at for line in shared.lines)
    known = shared.occupied
    if known is None or known[0] != at or not known[1] <= now_us < known[2]:
        states = [line.state for line in shared.lines]
        until_us = min(next_expiry_us(state, now_us) for state in states)
        known = shared.occupied = at, now_us, until_us, sum(length(state, now_us) for state in states)
    return known[3], known[2]
