"""What a queue appends under conditions: its settings, pushes, and acks that commit with effects, all of them or none.

**Pushes** of one turn of the event loop, and of the time in which a record before them is on its way, share a record
(`Gathering`). Under a key the first push counts, and a repetition is told the ids of the first. The log answers with
the records of the first use: a key that comes back with another number of records is told apart without a read.

**Room.** What is pushed is appended after the process has looked, so it goes by this machine's clock whether messages
have expired: nothing depends on it but how soon there is room for others.

**Effects.** At its end a `process` block appends the ack and the outbox as one group, on condition that no lease of the
shard was taken away since the fold last looked. If another one was, it tries again. A key that names the lease makes a
repeated append harmless. Of several blocks for one lease one commits: the others find its name in the ack.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

import msgspec

from boki import (
    BokiError,
    ConditionFailed,
    DeadlineExceeded,
    Expect,
    InvalidArgument,
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
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.lines import Line
from boki.libs.bokiqueue.messages import (
    LeaseLost,
    Message,
    QueueFull,
    check_count,
    check_group_keys,
    check_life,
    check_span,
    encode_body,
    no_such_queue,
)
from boki.libs.bokiqueue.operating import length, next_expiry_us
from boki.libs.bokiqueue.reading import newest_settings
from boki.libs.bokiqueue.records import MAX_SHARDS, Done, Push, Settings, Setup, belongs, sound
from boki.libs.bokiqueue.sessions import NEVER_US
from boki.libs.bokiqueue.wants import finish
from boki.libs.fold import outbox
from boki.libs.fold.registry import Tasks
from boki.libs.fold.retrying import uncertain

if TYPE_CHECKING:
    from boki.libs.bokiqueue.queue import Queue

SETTINGS_S: Final = 1.0  # for this long a handle trusts the settings that it has read
MAX_MESSAGES, _TRIES = 1_000_000_000, 20


class KnownSettings:
    """The settings of one queue, as one handle has read them."""

    def __init__(self, logbook: LogBook, name: str) -> None:
        self._logbook, self._name = logbook, name
        self._settings: Settings | None = None
        self._seqnum = self.version = 0
        self._read_at = 0.0

    async def read(self, *, fresh: bool = False) -> Settings | None:
        """The settings; None if there is no such queue. They may be a second old, unless they are `fresh`."""
        if fresh or self.recent is None:
            last, found, version = await newest_settings(self._logbook, self._name, fresh=fresh)
            if found is None and not fresh:
                last, found, version = await newest_settings(self._logbook, self._name, fresh=True)
            self._know(found, last, version)
        return self._settings

    @property
    def recent(self) -> Settings | None:
        """The settings, if they were read lately."""
        return self._settings if asyncio.get_running_loop().time() - self._read_at <= SETTINGS_S else None

    async def opened(self) -> Settings:
        """The settings of a queue that is there. `NoSuchQueue`"""
        settings = await self.read()
        if settings is None:
            raise no_such_queue(self._name, self._logbook.name)
        return settings

    def known(self) -> Settings:
        """The settings that were read last."""
        if self._settings is None:
            raise InvalidArgument(f"queue {self._name!r} was not opened yet: await queue.create() first", field="queue")
        return self._settings

    def _know(self, settings: Settings | None, seqnum: int, version: int) -> None:
        self._settings, self._seqnum, self.version = settings, seqnum, version
        self._read_at = asyncio.get_running_loop().time()

    def stands(self) -> Expect:
        """The condition that the queue is there, as this handle knows it: its book may have been deleted meanwhile."""
        return Expect(records.settings_tag(self._name), self._seqnum)

    async def check_stands(self, shards: int) -> None:
        """`NoSuchQueue` if it is gone, or another one by now; else `stands` is a condition that holds."""
        settings = await self.read(fresh=True)
        if settings is None or settings.shards != shards:
            raise no_such_queue(self._name, self._logbook.name)

    async def create(self, settings: Settings) -> Settings:
        """Have these settings if there are none; those that the queue has."""
        known = await self.read()
        while known is None:
            last, known, version = await newest_settings(self._logbook, self._name, fresh=True)
            if known is None:
                with suppress(ConditionFailed):  # another process has just created it
                    return await self._append(settings, last, is_first=True)
            self._know(known, last, version)
        if settings.shards not in (1, known.shards):
            raise InvalidArgument(
                f"queue {self._name!r} was created with {known.shards} shard{'' if known.shards == 1 else 's'} and the "
                "number cannot change: create another queue",
                field="shards",
            )
        return known

    async def change(self, max_deliveries: int | None, max_length: int | None, retain_s: float | None) -> Settings:
        """Change what is given. If that is nothing, nothing is appended."""
        while True:
            last, old, version = await newest_settings(self._logbook, self._name, fresh=True)
            if old is None:
                raise no_such_queue(self._name, self._logbook.name)
            settings = settings_of(
                old.shards,
                old.max_deliveries if max_deliveries is None else max_deliveries,
                old.max_length if max_length is None else max_length,
                old.retain_us / 1e6 if retain_s is None else retain_s,
            )
            if settings == old:
                self._know(old, last, version)
                return old
            with suppress(ConditionFailed):
                return await self._append(settings, last)

    async def modernise(self, settings: Settings) -> Settings:
        """The settings, in a record that readers refuse that do not know what stands under standing takes."""
        if self.version < records.VERSION:
            with suppress(ConditionFailed):  # another process was quicker
                return await self._append(settings, self._seqnum)
            return await self.read(fresh=True) or settings
        return settings

    async def _append(self, settings: Settings, last_seqnum: int, *, is_first: bool = False) -> Settings:
        name, tag = self._name, records.settings_tag(self._name)
        group: list[tuple[bytes, tuple[str, ...]]] = [
            (records.encode(Setup(shard, settings, is_first)), records.record_tags(name, shard, settings.shards))
            for shard in range(settings.shards)
        ]
        if is_first and settings.shards == 1:  # a process that still follows several shards must come to this
            group[0] = (group[0][0], (*group[0][1], records.feed_tag(name)))
        queues = records.QUEUES_TAG
        group.append((records.encode(Setup(0, settings)), (tag, f"{queues}:{name}", queues)))
        seqnums = await self._logbook.append_many(group, when=Expect(tag, last_seqnum))
        self._know(settings, seqnums[-1], records.VERSION)
        return settings


def settings_of(shards: int, max_deliveries: int, max_length: int, retain_s: float) -> Settings:
    """Settings that were asked for."""
    return Settings(
        check_count(shards, "shards", MAX_SHARDS),
        check_count(max_deliveries, "max_deliveries", 1_000, least=0),
        check_count(max_length, "max_length", MAX_MESSAGES, least=0),
        check_span(retain_s, "retain_s"),
    )


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
    check_count(len(found := list(bodies)), "bodies")
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


class Gathering:
    """Single pushes of one turn of the event loop, as one record: it is written, read and folded once.

    Each caller waits for a future of its own, and hears of errors and of its deadline alone.
    """

    def __init__(self, logbook: LogBook, tags: tuple[str, ...], shard: int, stands: Expect) -> None:
        self._logbook = logbook.session.logbook(logbook.name, detached=True)
        self._tags, self._shard, self._stands = tags, shard, stands
        self._pushes: list[_Gathered] = []

    def add(self, session: LogSession, body: tuple[int, bytes], key: str) -> Future[str]:
        """The id of the message, once it is durable. `key`: its group key."""
        timeout_s = session.caller.deadline.timeout_s()
        future: Future[str] = asyncio.get_running_loop().create_future()
        self._pushes.append(_Gathered(future, session, *body, key))
        if timeout_s < _APPEND_S:
            late = DeadlineExceeded("the push was not acknowledged in time: it may be durable", outcome="unknown")
            timer = asyncio.get_running_loop().call_later(timeout_s, finish, future, None, late)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    async def append(self) -> None:
        """Append what has gathered, of callers that still wait."""
        left = [one for one in self._pushes if not one.future.done()]
        runs = list(records.runs(left, lambda one: len(one.body) + 8, RECORD_BYTES))
        for some in runs[1:]:
            _TASKS.spawn(self._append(some))
        if runs:
            await self._append(runs[0])

    async def _append(self, some: list[_Gathered]) -> None:
        keys, forms = [one.key for one in some], records.joined([one.form for one in some])
        push = Push(self._shard, forms, [one.body for one in some], keys=keys if any(keys) else [])
        try:
            seqnum = await self._logbook.append(records.encode(push), self._tags, when=self._stands)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who push must hear of it
            told = error if isinstance(error, BokiError) else BokiError(f"a push failed: {error!r}", outcome="unknown")
            for one in some:
                finish(one.future, None, BokiError.from_body(told.body()))
            return
        for session in {one.session for one in some}:
            session.saw(self._logbook.session)
        for index, one in enumerate(some):
            finish(one.future, f"{seqnum}-{index}")


class _Gathered(NamedTuple):
    future: Future[str]
    session: LogSession
    form: int
    body: bytes
    key: str


class Gatherings(dict[tuple[str, str, int, Expect], Gathering]):
    """The next record of pushes over one connection to the log: by book, queue, shard and settings.

    While a record is on its way the next one gathers, for `HOLD_S` at most. A record costs the log the same with one
    message as with many, so a busy cluster answers sooner if it is asked less often.
    """

    def __init__(self) -> None:
        super().__init__()
        self._under_way: dict[tuple[str, str, int, Expect], asyncio.Task[Any] | None] = {}

    async def append(self, key: tuple[str, str, int, Expect]) -> None:
        """As a task, this runs when all that is ready in this turn has run: then the next ones gather."""
        if (before := self._under_way.get(key)) is not None:
            await asyncio.wait([before], timeout=HOLD_S)
        this = self._under_way[key] = asyncio.current_task()
        try:
            await self.pop(key).append()
        finally:
            if self._under_way.get(key) is this:
                del self._under_way[key]


def push_soon(
    logbook: LogBook, queue: str, settings: Settings, shard: int, stands: Expect, body: tuple[int, bytes], key: str
) -> Future[str]:
    """Push a message with all that is pushed in this turn of the loop: its id. `key`: its group key."""
    gatherings, place = logbook.session.shared(Gatherings), (logbook.name, queue, shard, stands)
    found = gatherings.get(place)
    if found is None:
        tags = records.record_tags(queue, shard, settings.shards)
        found = gatherings[place] = Gathering(logbook, tags, shard, stands)
        _TASKS.spawn(gatherings.append(place))
    return found.add(logbook.session, body, key)


async def append_pushes(
    logbook: LogBook, queue: str, settings: Settings, new: Placed, stands: Expect, key: str | None
) -> Sequence[int]:
    """Append the records: their seqnums, or those of the first use of the key. `KeyReused`"""
    group = [(records.encode(push), records.record_tags(queue, push.shard, settings.shards)) for push, _ in new]
    if key is None:
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
        there, until_us = shared.pushing + sum(length(line.state) for line in shared.lines), NEVER_US
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
        wait_s = min(left_s, (until_us - now_us) / 1e6 + _MARGIN_S)
        await shared.arrive(logbook, shared.follower.next_start, wait_s)


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


class Outbox(outbox.Outbox):
    """What is to happen together with the ack."""

    def __init__(self, logbook: LogBook) -> None:
        super().__init__(logbook)
        self.targets: dict[str, tuple[Queue[Any], int]] = {}
        """Queues that something is pushed to, by the tag of their settings, and how many shards they have."""

    def push(self, queue: Queue[Any], body: Any, *, delay_s: float = 0, ttl_s: float = 0, group_key: str = "") -> None:
        """A message for a queue of the same book; options as for `Queue.push`. It needs no `key`, since it is pushed
        once, with the ack; and it does not wait for room in a queue with a maximum length.
        """
        book = self.logbook.name
        if queue.logbook.name != book:
            raise WrongType(
                f"queue {queue.name!r} is in book {queue.logbook.name!r}: only what is in {book!r} commits with it",
                field="queue",
            )
        self.add(queue.push_records([body], delay_s=delay_s, ttl_s=ttl_s, group_key=group_key))
        self.targets[queue.stands().tag] = queue, queue.shards


async def commit(queue: Queue[Any], shared: Following, message: Message[Any], out: Outbox) -> None:
    """Append the ack with what is in the outbox. `LeaseLost`"""
    line = shared.lines[message.shard]
    lease = queue.group, message.delivery.spot.pos, message.delivery.token
    if lease in line.committing:
        raise _lost(queue, message)
    line.committing.add(lease)
    try:
        out.committed((await _commit(queue, shared, line, message, out))[1:])
    finally:
        line.committing.discard(lease)


def _lost(queue: Queue[Any], message: Message[Any]) -> LeaseLost:
    return LeaseLost(
        f"message {message.id} of queue {queue.name!r} is not leased by this consumer any more: nothing was done",
        queue=queue.name,
    )


async def _commit(queue: Queue[Any], shared: Following, line: Line, message: Message[Any], out: Outbox) -> list[int]:
    shard, pos, token = line.shard, message.delivery.spot.pos, message.delivery.token
    logbook, stands = queue.logbook, queue.stands().tag
    line.commits += 1
    by = shared.taker + line.commits.to_bytes(4, "little")
    done = Done(shard, queue.group, [(pos, token)], by)
    ack = NewRecord(records.encode(done), records.record_tags(queue.name, shard, shared.shards))
    key = f"!qd:{queue.name}:{queue.group}:{shard}:{pos}:{token}"
    stranger = 0
    for _ in range(_TRIES):
        await shared.catch_up(logbook)
        group = line.state.groups.get(queue.group)
        aside = group.leased(pos, token) if group is not None else None
        if message.is_settled or aside is None or aside.due_us <= shared.clock.now_us():
            raise _lost(queue, message)
        fence = Expect(records.fence_tag(queue.name, shard), max(line.state.last_fence, stranger))
        there = dict.fromkeys([queue.stands(), *(target.stands() for target, _ in out.targets.values())])
        try:
            seqnums = await logbook.append_many([ack, *out.records], when=[fence, *there, *out.conditions], key=key)
        except ConditionFailed as error:
            if error.tag == stands:
                await queue.check_stands(shared.shards)
            elif error.tag in out.targets:
                target, shards = out.targets[error.tag]
                await target.check_stands(shards)
            elif error.tag != fence.tag:
                raise
            else:
                # A lease was taken away, maybe another one: look again. Or it is no fence, but a stranger's record.
                tail = await logbook.check_tail(fence.tag)
                is_strange = tail is not None and not _is_fence(tail, queue.name, shared.shards)
                stranger = tail.seqnum if tail is not None and is_strange else 0
            continue
        if await _whose(logbook, seqnums[0]) != by:
            raise _lost(queue, message)  # another block has committed under this lease, and so under this key
        message.is_settled = True
        return list(seqnums)
    raise BokiError("leases of this shard run out too quickly to commit: nothing was done", retryable=True)


def _is_fence(record: Record, queue: str, shards: int) -> bool:
    """Whether the fold comes to that record of a fence tag, and takes it for a fence."""
    kind = sound(record)
    return kind is not None and records.ends_leases(kind) and belongs(kind, record.tags, queue, shards)


async def _whose(logbook: LogBook, seqnum: int) -> bytes:
    """The block whose effects were appended there."""
    try:
        done = sound(await logbook.get(seqnum))
    except BokiError as error:
        raise uncertain(error) from error
    return done.by if isinstance(done, Done) else b""
