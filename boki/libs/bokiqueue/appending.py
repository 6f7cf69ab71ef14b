"""What a queue appends under conditions: pushes, and acks that commit with effects, all of them or none.

**Pushes** of one turn of the event loop, and of the time in which a record before them is on its way, share a record
(`Gathering`). Under a key the first push counts, and a repetition is told the ids of the first. The log answers with
the records of the first use: a key that comes back with another number of records is told apart without a read.

**Room.** What is pushed is appended after the process has looked, so it goes by this machine's clock whether messages
have expired: nothing depends on it but how soon there is room for others. Where there is none, a push under a key asks
the log whether it was made before: its first answer may be lost, and its message fill the queue.

**Effects.** At its end a `process` block appends the ack and the outbox as one group, on condition that no lease of the
shard was taken away since the fold last looked. If another one was, it tries again. A key that names the lease makes a
repeated append harmless. Of several blocks for one lease one commits: the others find its name in the ack.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, NamedTuple
from zlib import crc32

from boki import (
    MAX_SEQNUM,
    BokiError,
    ConditionFailed,
    DeadlineExceeded,
    Expect,
    KeyReused,
    LogBook,
    LogSession,
    NewRecord,
    NotFound,
    Record,
    TooLarge,
    Trimmed,
    WrongType,
)
from boki.extending import uncertain
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.callers import finish
from boki.libs.bokiqueue.following import Following, following
from boki.libs.bokiqueue.messages import (
    Message,
    QueueFull,
    check_group_keys,
    check_life,
    encode_body,
    leases_lost,
)
from boki.libs.bokiqueue.operating import KnownSettings, length, next_expiry_us
from boki.libs.bokiqueue.records import Done, Push, Settings, belongs, sound
from boki.libs.bokiqueue.sessions import NEVER_US
from boki.libs.bokiqueue.stored import record_at
from boki.libs.fold import outbox
from boki.libs.fold.arguments import check_count, of_append
from boki.libs.fold.registry import Tasks
from boki.libs.fold.retrying import as_told

_TRIES: Final = 20
GATHERED_BYTES: Final = 16 * 1024
"""Larger messages are pushed by records of their own: each message of a record counts as its largest."""
RECORD_BYTES: Final = 900_000  # messages of a push are put into records of about this size
HOLD_S: Final = 0.002
"""A push waits this long at most for the one before it, so that both share a record with what comes meanwhile."""
_MARGIN_S: Final = 0.001
_TASKS: Final = Tasks()
_APPEND_S: Final = 30.0  # an append takes no longer: only an earlier deadline needs a timer

Placed = list[tuple[Push, list[int]]]  # records, and the places of their bodies in the push


def listed(bodies: Iterable[Any]) -> list[Any]:
    """The bodies of a push."""
    if isinstance(bodies, (str, bytes, bytearray, memoryview, dict)) or not isinstance(bodies, Iterable):
        raise WrongType(f"bodies must be a list, not {type(bodies).__name__}: write push(body) for one", field="bodies")
    check_count(len(found := list(bodies)), "bodies", records.MAX_BATCH)
    return found


def placed(
    shards: int,
    shard: int,
    bodies: Sequence[Any],
    delay_s: float,
    ttl_s: float,
    group_keys: Sequence[str],
    *,
    is_keyed: bool = False,
) -> Placed:
    """Records that hold the bodies: those with a group key in its shard, the others in `shard`. Under a key several
    messages are at least two records, which tells them apart from one.
    """
    delay_us, ttl_us = check_life(delay_s, ttl_s) if delay_s or ttl_s else (0, 0)
    keys = check_group_keys(group_keys, len(bodies)) or [""] * len(bodies)
    encoded = [encode_body(body) for body in bodies]
    by_shard: dict[int, list[int]] = {}
    for place, key in enumerate(keys):
        by_shard.setdefault(crc32(key.encode()) % shards if key else shard, []).append(place)
    parts = [
        (own, some)
        for own, places in by_shard.items()
        for some in records.runs(places, lambda place: len(encoded[place][1]) + 8, RECORD_BYTES)
    ]
    if is_keyed and len(parts) == 1 < len(bodies):
        ((own, places),) = parts
        parts = [(own, places[:-1]), (own, places[-1:])]
    return [
        (_push_of(own, [(*encoded[one], keys[one]) for one in some], delay_us, ttl_us), some) for own, some in parts
    ]


def _push_of(shard: int, messages: Sequence[tuple[int, bytes, str]], delay_us: int = 0, ttl_us: int = 0) -> Push:
    """The record of messages: their forms, bodies and group keys."""
    forms, bodies, keys = map(list, zip(*messages, strict=True))
    return Push(shard, records.joined(forms), bodies, delay_us, ttl_us, keys if any(keys) else [])


class _Gathered(NamedTuple):
    future: Future[str]
    session: LogSession
    form: int
    body: bytes
    key: str


class Gathering:
    """Single pushes to a shard of one turn of the event loop, as one record: it is written, read and folded once.

    While a record is on its way the next one gathers, for `HOLD_S` at most. A record costs the log the same with one
    message as with many, so a busy cluster answers sooner if it is asked less often. Each caller waits for a future of
    its own, and hears of errors and of its deadline alone.
    """

    def __init__(self, tags: tuple[str, ...], shard: int, stands: Expect) -> None:
        self._tags, self._shard, self._stands = tags, shard, stands
        self._pushes: list[_Gathered] = []
        self._under_way: asyncio.Task[Any] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing gathers, and nothing is on its way."""
        return not self._pushes and self._under_way is None

    def add(self, logbook: LogBook, body: tuple[int, bytes], key: str) -> Future[str]:
        """The id of the message, once it is durable. `key`: its group key."""
        timeout_s = logbook.session.caller.deadline.timeout_s()
        loop = asyncio.get_running_loop()
        future: Future[str] = loop.create_future()
        if not self._pushes:
            _TASKS.spawn(self._append_all(logbook.session.logbook(logbook.name, detached=True)))
        self._pushes.append(_Gathered(future, logbook.session, *body, key))
        if timeout_s < _APPEND_S:
            late = DeadlineExceeded("the push was not acknowledged in time: it may be durable", outcome="unknown")
            timer = loop.call_later(timeout_s, finish, future, None, late)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    async def _append_all(self, logbook: LogBook) -> None:
        """Append what has gathered, of callers that still wait. As a task, this runs when all that is ready in this
        turn has run.
        """
        if self._under_way is not None:
            await asyncio.wait([self._under_way], timeout=HOLD_S)
        this = self._under_way = asyncio.current_task()
        left = [one for one in self._pushes if not one.future.done()]
        self._pushes = []
        runs = list(records.runs(left, lambda one: len(one.body) + 8, RECORD_BYTES))
        for some in runs[1:]:
            _TASKS.spawn(self._append(logbook, some))
        if runs:
            await self._append(logbook, runs[0])
        if self._under_way is this:
            self._under_way = None

    async def _append(self, logbook: LogBook, some: list[_Gathered]) -> None:
        push = _push_of(self._shard, [(one.form, one.body, one.key) for one in some])
        try:
            seqnum = await logbook.append(records.encode(push), self._tags, when=self._stands)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who push must hear of it
            for one in some:
                finish(one.future, None, as_told(error, "a push"))
            return
        for session in {one.session for one in some}:
            session.saw(logbook.session)
        for index, one in enumerate(some):
            finish(one.future, f"{seqnum}-{index}")


class Gatherings(dict[tuple[str, str, int, Expect], Gathering]):
    """What gathers over one connection to the log: by book, queue, shard and settings."""


def push_soon(known: KnownSettings, settings: Settings, shard: int, body: tuple[int, bytes], key: str) -> Future[str]:
    """Push a message with all that is pushed in this turn of the loop: its id. `key`: its group key."""
    logbook, stands = known.logbook, known.stands()
    gatherings, place = logbook.session.shared(Gatherings), (logbook.name, known.name, shard, stands)
    if place not in gatherings:
        for idle in [other for other, one in gatherings.items() if one.is_idle]:
            del gatherings[idle]
        gatherings[place] = Gathering(records.record_tags(known.name, shard, settings.shards), shard, stands)
    return gatherings[place].add(logbook, body, key)


async def push_all(
    known: KnownSettings,
    bodies: Sequence[Any],
    key: str | None,
    delay_s: float,
    ttl_s: float,
    group_keys: Sequence[str],
    patience_s: float,
) -> list[str]:
    """Push these, all or none: their ids. See `Queue.push_many`."""
    for tries in range(_TRIES):
        settings = await known.read(fresh=tries > 0) or await known.create(Settings())
        shared = following(known.logbook, known.name, settings.shards)
        shard = 0
        if settings.shards > 1:
            shard = shared.next_shard() if key is None else crc32(key.encode()) % settings.shards
        new = placed(settings.shards, shard, bodies, delay_s, ttl_s, group_keys, is_keyed=key is not None)
        shared.ride(known.logbook)
        try:
            seqnums = await _push_in_room(known, shared, settings, new, key, patience_s)
            break
        except ConditionFailed:
            continue  # its settings were changed, or it was deleted and is gone
        except TooLarge as error:
            told = "one push_many may have at most {limit} in all: push in several calls"
            raise of_append(error, "bodies", told) from None
    else:
        raise BokiError(f"settings of queue {known.name!r} change too quickly: nothing was pushed", retryable=True)
    if ttl_s:
        shared.folds.pushed(known.logbook, [push for push, _ in new])
    ids = [""] * len(bodies)
    for seqnum, (_, places) in zip(seqnums, new, strict=True):
        for index, place in enumerate(places):
            ids[place] = f"{seqnum}-{index}"
    return ids


async def _push_in_room(
    known: KnownSettings, shared: Following, settings: Settings, new: Placed, key: str | None, patience_s: float
) -> Sequence[int]:
    """Append the records when there is room. What was pushed under the key before needs none: its seqnums."""
    count = sum(len(places) for _, places in new)
    if key is not None and settings.max_length:
        try:
            async with room(known.logbook, shared, settings, count, 0.0):
                return await _append_pushes(known, settings, new, key)
        except QueueFull:
            # The log looks at the key first. What it refuses takes room until a trim passes it, so nothing is in it.
            never = Expect(records.stream_tag(known.name, new[0][0].shard), MAX_SEQNUM)
            try:
                return await _append_pushes(known, settings, new, key, never)
            except ConditionFailed as error:
                if error.tag != never.tag:
                    raise
    async with room(known.logbook, shared, settings, count, patience_s):
        return await _append_pushes(known, settings, new, key)


async def _append_pushes(
    known: KnownSettings, settings: Settings, new: Placed, key: str | None, *when: Expect
) -> Sequence[int]:
    """Append the records: their seqnums, or those of the first use of the key. `KeyReused`. With a condition only the
    key is asked for.
    """
    group = [
        (b"" if when else records.encode(push), records.record_tags(known.name, push.shard, settings.shards))
        for push, _ in new
    ]
    named = None if key is None else records.push_key(known.name, key)
    seqnums = await known.logbook.append_many(group, key=named, when=[known.stands(), *when])
    is_same = len(seqnums) == len(new) and (
        key is None or len(new) == 1 or await _are_as_many(known.logbook, seqnums[0], new[0][0])
    )
    if not is_same:
        raise KeyReused(
            f"key {key!r} was used for another number of messages of queue {known.name!r}: nothing was pushed; "
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


@asynccontextmanager
async def room(
    logbook: LogBook, shared: Following, settings: Settings, count: int, patience_s: float
) -> AsyncIterator[None]:
    """Room for this many messages, for which this process does not let others push meanwhile. `QueueFull`"""
    most = settings.max_length
    if 0 < most < count:
        raise TooLarge(
            f"{count:,} messages never fit in queue {shared.queue!r}, whose maximum length is {most:,}: push them in "
            "parts",
            field="bodies",
            limit=most,
        )
    if most:
        await _wait_for_room(logbook, shared, most, count, patience_s)
    shared.pushing += count
    try:
        yield
    finally:
        shared.pushing -= count


async def _wait_for_room(logbook: LogBook, shared: Following, most: int, count: int, patience_s: float) -> None:
    begun = shared.clock.here()
    patience_s = logbook.session.caller.deadline.wait_s(patience_s)
    while True:
        await shared.follower.catch_up(logbook)
        now_us = shared.clock.looking_us(logbook.session.likely_time_us())
        there, until_us = sum(length(line.state) for line in shared.lines), NEVER_US
        if shared.pushing + there + count > most:
            there, until_us = _living(shared, now_us)
        there += shared.pushing
        if there + count <= most:
            return
        left_s = patience_s - shared.clock.since(begun)
        if left_s < _MARGIN_S:
            raise QueueFull(
                f"queue {shared.queue!r} has {there:,} messages, and its maximum length is {most:,}: push again when "
                "some were taken, or wait with wait_s",
                queue=shared.queue,
                limit=most,
            )
        await shared.follower.wait_for_more(logbook, min(left_s, (until_us - now_us) / 1e6 + _MARGIN_S))


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


Targets = dict[str, tuple[KnownSettings, int]]
"""Queues that a group pushes to, by the tag of their settings: they must be there, with this many shards."""


async def commit(
    known: KnownSettings, shared: Following, message: Message[Any], out: outbox.Outbox, targets: Targets
) -> None:
    """Append the ack with what is in the outbox. `LeaseLost`"""
    line = shared.lines[message.shard]
    lease = message.group, message.delivery.spot.pos, message.delivery.token
    if lease in line.committing:
        raise leases_lost(message.queue, [message.receipt], 1)
    line.committing.add(lease)
    try:
        targets = {known.stands().tag: (known, shared.shards), **targets}
        out.committed((await _commit(out.logbook, shared, message, out, targets))[1:])
    finally:
        line.committing.discard(lease)


async def _commit(
    logbook: LogBook, shared: Following, message: Message[Any], out: outbox.Outbox, targets: Targets
) -> list[int]:
    queue, shard, line = message.queue, message.shard, shared.lines[message.shard]
    pos, token = message.delivery.spot.pos, message.delivery.token
    line.commits += 1
    by = shared.taker + line.commits.to_bytes(4, "little")
    done = Done(shard, message.group, [(pos, token)], by)
    ack = NewRecord(records.encode(done), records.record_tags(queue, shard, shared.shards))
    key = f"!qd:{queue}:{message.group}:{shard}:{pos}:{token}"
    stranger = 0
    for _ in range(_TRIES):
        await shared.follower.catch_up(logbook)
        group = line.state.groups.get(message.group)
        aside = group.leased(pos, token) if group is not None else None
        if message.is_settled or aside is None or aside.due_us <= shared.clock.now_us():
            raise leases_lost(message.queue, [message.receipt], 1)
        fence = Expect(records.fence_tag(queue, shard), max(line.state.last_fence, stranger))
        there = [target.stands() for target, _ in targets.values()]
        try:
            seqnums = await logbook.append_many([ack, *out.records], when=[fence, *there, *out.conditions], key=key)
        except ConditionFailed as error:
            if error.tag in targets:
                target, shards = targets[error.tag]
                await target.check_stands(shards)
            elif error.tag != fence.tag:
                raise
            else:
                # A lease was taken away, maybe another one: look again. Or it is no fence, but a stranger's record.
                tail = await logbook.check_tail(fence.tag)
                is_strange = tail is not None and not _is_fence(tail, queue, shared.shards)
                stranger = tail.seqnum if tail is not None and is_strange else 0
            continue
        if await _whose(logbook, records.stream_tag(queue, shard), seqnums[0]) != by:
            # another block has committed under this lease, and so under this key
            raise leases_lost(message.queue, [message.receipt], 1)
        message.is_settled = True
        return list(seqnums)
    raise BokiError("leases of this shard run out too quickly to commit: nothing was done", retryable=True)


def _is_fence(record: Record, queue: str, shards: int) -> bool:
    """Whether the fold comes to that record of a fence tag, and takes it for a fence."""
    kind = sound(record)
    return kind is not None and records.ends_leases(kind) and belongs(kind, record.tags, queue, shards)


async def _whose(logbook: LogBook, tag: str, seqnum: int) -> bytes:
    """The block whose effects were appended there."""
    try:
        done = sound(await record_at(logbook, tag, seqnum))
    except BokiError as error:
        raise uncertain(error) from error
    return done.by if isinstance(done, Done) else b""
