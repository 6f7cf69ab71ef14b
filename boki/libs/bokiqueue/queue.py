"""`Queue`: messages in a LogBook, pushed by anybody and taken in order, once permanently or under a lease.

A queue exists from its first push, or from `create`. Handles cost nothing: make one where it is needed.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar
from zlib import crc32

from boki import (
    BokiError,
    ConditionFailed,
    CorruptData,
    InvalidArgument,
    LogBook,
    NewRecord,
    TooLarge,
    WrongType,
)
from boki.libs.bokiqueue import operating, records
from boki.libs.bokiqueue.appending import GATHERED_BYTES, Targets, commit, listed, placed, push_all, push_soon
from boki.libs.bokiqueue.callers import Served, Want
from boki.libs.bokiqueue.following import Following, following
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.messages import (
    DeadLetter,
    LeaseLost,
    Message,
    NoSuchQueue,
    check_group,
    check_group_keys,
    check_reason,
    encode_body,
    handle_of,
    leases_lost,
    no_such_group,
    parse_handle,
)
from boki.libs.bokiqueue.operating import KnownSettings, QueueStats, append_to_all, settings_of
from boki.libs.bokiqueue.state import DEFAULT_GROUP, MAX_GROUPS
from boki.libs.fold import outbox
from boki.libs.fold.arguments import check_count, check_key, check_name, check_span, few_of

T = TypeVar("T")

_log = logging.getLogger("boki.queue")


class Queue(Generic[T]):
    """A queue of the LogBook's book. `group`: on whose behalf it takes; `type`: what JSON bodies are decoded as."""

    def __init__(self, logbook: LogBook, name: str, *, group: str = "", type: type[T] | None = None) -> None:  # noqa: A002
        """Nothing is read or written yet."""
        self.logbook = logbook
        self.name = check_name(name, "queue")
        self.group = check_group(group)
        self.kind = type
        self.known = KnownSettings(logbook, self.name)

    def __repr__(self) -> str:
        return f"<Queue {self.name!r} of {self.logbook.name!r}>"

    # Settings

    async def create(
        self, *, shards: int = 1, max_deliveries: int = 10, max_length: int = 0, retain_s: float = 0
    ) -> records.Settings:
        """Have a queue of that name, with these settings if there was none; the settings that it has.

        `shards`: how many parts it has, each in order, forever. `max_deliveries`: a message that was leased so often
        without an ack becomes a dead letter (0: never). `max_length`: pushes wait, or are refused, while this many
        messages are to be taken (0: no bound; what processes push at the same moment may go a little beyond it).
        `retain_s`: how long messages that all groups have done can still be replayed.
        """
        return await self.known.create(settings_of(shards, max_deliveries, max_length, retain_s))

    async def configure(
        self, *, max_deliveries: int | None = None, max_length: int | None = None, retain_s: float | None = None
    ) -> records.Settings:
        """Change what is given; see `create`. Processes that only push notice it within a second.

        If nothing is changed nothing is appended.
        """
        return await self.known.change(max_deliveries, max_length, retain_s)

    async def read_settings(self, *, fresh: bool = False) -> records.Settings | None:
        """The queue's settings; None if there is no such queue. They may be a second old, unless they are `fresh`."""
        return await self.known.read(fresh=fresh)

    @property
    def shards(self) -> int:
        """How many parts it has. The queue must have been opened."""
        return self.known.known().shards

    @property
    def max_deliveries(self) -> int:
        """What decides now about dead letters, as far as this process has read. The queue must have been opened."""
        return self._shared(self.known.known()).lines[0].state.settings.max_deliveries

    async def opened(self) -> Following:
        """The queue in this process. `NoSuchQueue`"""
        return self._shared(await self.known.opened())

    def _shared(self, settings: records.Settings) -> Following:
        shared = following(self.logbook, self.name, settings.shards)
        shared.folds.settings_at = max(shared.folds.settings_at, self.known.stands().number)
        return shared

    # Pushing

    async def push(
        self,
        body: Any,
        *,
        key: str | None = None,
        delay_s: float = 0,
        ttl_s: float = 0,
        group_key: str = "",
        wait_s: float = 0,
    ) -> str:
        """Push a message, durable when this returns its id.

        `body`: bytes, text, or what JSON can say. `key`: the same key within 24 hours pushes once, and returns the
        first id. `delay_s`: it can be taken only then; `ttl_s`: it is dropped if nobody has taken it by then (0:
        never), so it must be the longer one.
        `group_key`: messages of one key are taken in order and one at a time. `wait_s`: how long to wait for room
        in a queue with a maximum length, before `QueueFull`.
        """
        keys = [group_key] if group_key else []
        settings = self.known.recent
        if key is None and settings is not None and not (delay_s or ttl_s or settings.max_length):
            encoded = encode_body(body)
            if len(encoded[1]) <= GATHERED_BYTES:
                check_group_keys(keys, 1)
                check_span(wait_s, "wait_s")
                shared = self._shared(settings)
                shared.ride(self.logbook)
                shard = crc32(group_key.encode()) % settings.shards if group_key else shared.next_shard()
                with suppress(ConditionFailed):  # its settings were changed, or it was deleted and is gone
                    return await push_soon(self.known, settings, shard, encoded, group_key)
        ids = await self.push_many([body], key=key, delay_s=delay_s, ttl_s=ttl_s, group_keys=keys, wait_s=wait_s)
        return ids[0]

    async def push_many(
        self,
        bodies: Iterable[Any],
        *,
        key: str | None = None,
        delay_s: float = 0,
        ttl_s: float = 0,
        group_keys: Sequence[str] = (),
        wait_s: float = 0,
    ) -> list[str]:
        """Push messages, all or none, as neighbours (of one shard, unless group keys spread them); their ids.

        `key` is for all of them together; `group_keys` has one for each. `TooLarge`: what is appended at once has
        about 4 MB; push the rest in another call.
        """
        bodies = listed(bodies)
        own_key = None if key is None else check_key(key, "key")
        patience_s = check_span(wait_s, "wait_s") / 1e6 if wait_s else 0.0
        options = (own_key, delay_s, ttl_s, group_keys)
        return await push_all(self.known, bodies, *options, patience_s)

    def push_records(
        self, bodies: Sequence[Any], *, delay_s: float = 0, ttl_s: float = 0, group_key: str = ""
    ) -> list[NewRecord]:
        """The records of a push, for a caller that appends them with others. The queue must have been opened."""
        shards = self.shards
        shard = self._shared(self.known.known()).next_shard() if shards > 1 else 0
        new = placed(shards, shard, bodies, delay_s, ttl_s, [group_key] * len(bodies) if group_key else [])
        return [NewRecord(records.encode(push), records.record_tags(self.name, push.shard, shards)) for push, _ in new]

    # Taking

    async def pop(self, *, wait_s: float = 0, op: str | None = None) -> Message[T] | None:
        """Take the next message permanently, waiting up to `wait_s` for one; None if none came.

        `op` names this pop: whoever repeats it within an hour is given the very same message, also after a crash or
        from another process; but only the last 10,000 ops of a shard are remembered, or those of the last 100,000
        messages. Of a queue with several shards an op always asks the same one.
        """
        found = await self._take(1, 0, wait_s, op)
        return found[0] if found else None

    async def pop_many(self, count: int, *, wait_s: float = 0, op: str | None = None) -> list[Message[T]]:
        """Take up to `count` messages permanently; it waits for the first one only."""
        return await self._take(check_count(count, "count", records.MAX_BATCH), 0, wait_s, op)

    async def lease(self, lease_s: float = 30, *, wait_s: float = 0, op: str | None = None) -> Message[T] | None:
        """Take the next message for `lease_s`: if it is not acked by then, by the log's time, others are given it.

        Under an `op` whoever repeats it is given the same lease while that lasts, and then a new one.
        """
        found = await self._take(1, check_span(lease_s, "lease_s", least_s=0.001), wait_s, op)
        return found[0] if found else None

    async def lease_many(
        self, count: int, lease_s: float = 30, *, wait_s: float = 0, op: str | None = None
    ) -> list[Message[T]]:
        """Lease up to `count` messages; it waits for the first one only."""
        lease_us = check_span(lease_s, "lease_s", least_s=0.001)
        return await self._take(check_count(count, "count", records.MAX_BATCH), lease_us, wait_s, op)

    async def _take(self, count: int, lease_us: int, wait_s: float, op: str | None) -> list[Message[T]]:
        patience_s = check_span(wait_s, "wait_s") / 1e6 if wait_s else 0.0
        op = "" if op is None else check_key(op, "op")
        clock, begun = None, (0.0, 0.0)
        while True:
            settings = self.known.recent or await self.known.opened()
            if patience_s and self.known.version < records.VERSION:
                settings = await self.known.modernise(settings)
            shared = self._shared(settings)
            if clock is None:
                clock, begun = shared.clock, shared.clock.here()
            left_s = patience_s - clock.since(begun) if patience_s else 0.0
            try:
                if not patience_s:
                    await self.logbook.sync()
                if not patience_s or not shared.follower.is_loaded:
                    await shared.follower.catch_up(self.logbook)
                if not shared.has_group(self.group):
                    await self._enter_group(shared)
                found = await self._receive(shared, count, lease_us, left_s if patience_s else None, op)
            except NoSuchQueue:
                if not shared.follower.is_over:
                    raise
                await self.known.read(fresh=True)  # it is another queue by now
                continue
            if found is not None:
                return found

    async def _receive(
        self, shared: Following, count: int, lease_us: int, wait_s: float | None, op: str
    ) -> list[Message[T]] | None:
        """What the queue gives; None if none of it could be read, and there is time to ask again."""
        shard = crc32(op.encode()) % shared.shards if op else None
        want = Want(self.group, count, lease_us, op, wait_s, shared.clock.here(), shard)
        served = await shared.receive(self.logbook, want)
        shared.follower.share_seen(self.logbook.session)  # bodies may be newer than what this caller has seen
        if not op and all(one[2] is not None for one in served):
            for shard, delivery, _ in served:
                shared.lines[shard].received(delivery.token)
            return [self._message(shard, delivery, *body) for shard, delivery, body in served if body is not None]
        found = await self._with_bodies(shared, served, lease_us, op)
        is_over = wait_s is not None and want.left_s(shared.clock) <= 0
        return found if found or not served or is_over else None

    async def _with_bodies(self, shared: Following, served: list[Served], lease_us: int, op: str) -> list[Message[T]]:
        """Read the bodies of what was given. Messages whose bodies are gone permanently take no others along: of a
        lease they become dead letters; of a pop they are told of, and the others are given back, or to whoever named
        the op.
        """
        try:
            bodies = await shared.folds.fetch(self.logbook, [one[:2] for one in served])
            both = [(one, body, self._message(*one[:2])) for one, body in zip(served, bodies, strict=True)]
            lost = [(message, body) for _, body, message in both if not isinstance(body, tuple)]
            if lost:
                _log.warning("%d messages cannot be read, %r first: %s", len(lost), *lost[0])
            if lost and lease_us:
                with suppress(BokiError):  # else their leases run out
                    await self.bury(*(one for one, _ in lost), reason=f"its body cannot be read: {lost[0][1]}")
        except BaseException:
            if not op:
                shared.give_back(self.logbook, self.group, served)
            raise
        found = [self._message(*one[:2], *body) for one, body, _ in both if isinstance(body, tuple)]
        is_refused = bool(lost) and not lease_us and not (found and op)
        kept = [one for one, body, _ in both if is_refused and isinstance(body, tuple)]
        if not op:
            for shard, delivery, _ in [one for one in served if one not in kept]:
                shared.lines[shard].received(delivery.token)
            if kept:
                shared.give_back(self.logbook, self.group, kept)
        if is_refused:
            raise CorruptData(
                f"{len(lost)} messages that were popped from queue {self.name!r} cannot be read, and are gone: "
                f"{few_of([one.id for one, _ in lost])}: {lost[0][1]}; the {len(kept)} others can be taken again",
                queue=self.name,
            )
        return found

    def _message(self, shard: int, delivery: Delivery, form: int = records.BYTES, data: bytes = b"") -> Message[T]:
        return Message(self.name, shard, self.group, delivery, form, data, self.kind)

    async def _enter_group(self, shared: Following) -> None:
        """Have the group before anything is asked for on its behalf; the default one is made by its first take.

        In all shards at one place: what is pushed from then on is given to it, whichever group takes it first.
        """
        async with shared.entering:
            if shared.has_group(self.group):
                return  # another call of this process had the same to do
            await shared.follower.catch_up(self.logbook)
            if shared.has_group(self.group):
                return
            if self.group != DEFAULT_GROUP:
                raise no_such_group(self.name, self.group)
            await append_to_all(self.logbook, shared, lambda shard: records.OpenGroup(shard, DEFAULT_GROUP))

    # Settling

    async def ack(self, *messages: Message[Any] | str) -> None:
        """The messages are done. `LeaseLost` if some are not leased any more: its `receipts` name them, and all others
        are done. So do all that settle.
        """
        await self._settle(records.ACK, messages)

    async def nack(self, *messages: Message[Any] | str, delay_s: float = 0, reason: str = "") -> None:
        """The messages failed: they come back after `delay_s`, or become dead letters if that was too often."""
        await self._settle(records.NACK, messages, check_span(delay_s, "delay_s"), check_reason(reason))

    async def bury(self, *messages: Message[Any] | str, reason: str) -> None:
        """The messages become dead letters at once."""
        await self._settle(records.BURY, messages, 0, check_reason(reason))

    async def extend(self, *messages: Message[Any] | str, lease_s: float = 30) -> None:
        """The leases run out `lease_s` from now."""
        await self._settle(records.EXTEND, messages, check_span(lease_s, "lease_s", least_s=0.001))

    async def release(self, *messages: Message[Any] | str) -> None:
        """The messages can be taken again at once, as if they had not been."""
        await self._settle(records.RELEASE, messages)

    async def _settle(
        self, verb: int, messages: Sequence[Message[Any] | str], span_us: int = 0, reason: str = ""
    ) -> None:
        shared = await self.opened()
        handles = [handle_of(message, self.name, self.group) for message in messages]
        for message, (shard, _, _) in zip(messages, handles, strict=True):
            if shard >= shared.shards:
                raise InvalidArgument(f"receipt {message!r:.60} is not of queue {self.name!r}", field="receipt")
        settle = records.Settle(self.group, verb, [], span_us, reason)
        lost = [f"{shard}-{pos}-{token}" for shard, pos, token in await shared.settle(self.logbook, settle, handles)]
        for message in messages:
            if isinstance(message, Message):
                if verb != records.EXTEND:
                    message.is_settled = True
                elif (group := shared.lines[message.shard].state.groups.get(self.group)) is not None:
                    message.delivery = group.held(message.delivery) or message.delivery
        if lost and self.group != DEFAULT_GROUP and not any(self.group in line.state.groups for line in shared.lines):
            raise no_such_group(self.name, self.group)
        if lost:
            raise leases_lost(self.name, lost, len(messages))

    @asynccontextmanager
    async def process(self, message: Message[Any], *, retry_s: float = 0) -> AsyncIterator[Outbox]:
        """Ack the message at the end of the block, together with what the block puts into the outbox; see `outbox`.

        If the block raises, or the commit is refused, the message is nacked with the error as the reason, to come back
        after `retry_s`, and nothing of the outbox happens. If the outcome of the commit is unknown its lease decides.
        """
        if not isinstance(message, Message):  # not with a receipt either: it does not say what was settled before
            raise WrongType(f"give the Message that was leased, not {type(message).__name__}", field="message")
        handle_of(message, self.name, self.group)
        retry_us = check_span(retry_s, "retry_s")
        shared = await self.opened()
        out = Outbox(self.logbook)
        try:
            yield out
            await commit(self.known, shared, message, out, out.targets)
        except BaseException as error:
            may_have_happened = isinstance(error, BokiError) and error.outcome == "unknown"
            if not message.is_settled and not may_have_happened and not isinstance(error, LeaseLost):
                with suppress(BokiError):  # its lease brings it back
                    await self.nack(message, delay_s=retry_us / 1e6, reason=f"{type(error).__name__}: {error}"[:500])
            raise

    # Groups and looking

    async def _caught_up(self, group: str | None = None) -> Following:
        """The fold, after everything that is acknowledged by now. `NoSuchGroup` if it lacks the group. None: it is the
        default one, which its first take makes.
        """
        shared = await self.opened()
        await self.logbook.sync()
        await shared.follower.catch_up(self.logbook)
        if group is not None and group not in shared.lines[0].state.groups:
            raise no_such_group(self.name, group)
        return shared

    async def create_group(
        self, name: str, *, start: int | str = "earliest", start_time_s: float | None = None
    ) -> None:
        """Have a group that is given every message from `start` on: a seqnum, "earliest" or "now".

        `start_time_s`: from that time on instead, in seconds since the epoch. What was pushed before is given to it if
        it is still kept: because another group has not done it, or by `retain_s`. Nothing happens if there is such a
        group.
        """
        check_group(name)
        at = operating.start_of(start, start_time_s)
        shared = await self._caught_up()
        if name not in (groups := shared.lines[0].state.groups) and len(groups) >= MAX_GROUPS:
            raise TooLarge(
                f"queue {self.name!r} has {len(groups):,} groups, the maximum: drop one first, or use another queue",
                field="group",
                limit=MAX_GROUPS,
            )
        await append_to_all(self.logbook, shared, lambda shard: records.OpenGroup(shard, name, *at))

    async def replay(self, *, start: int | str = "earliest", start_time_s: float | None = None) -> None:
        """Let this handle's group begin again, from any point that is kept; what it has leased is forgotten.

        All of it at once, in the order of the log, whichever processes consume meanwhile. `NoSuchGroup`
        """
        at = operating.start_of(start, start_time_s)
        shared = await self._caught_up(self.group)
        await append_to_all(self.logbook, shared, lambda shard: records.OpenGroup(shard, self.group, *at, is_anew=True))

    async def drop_group(self, name: str) -> None:
        """Have no such group: nothing is kept for it any more. `NoSuchGroup`"""
        shared = await self._caught_up(check_group(name))
        await append_to_all(self.logbook, shared, lambda shard: records.DropGroup(shard, name))

    async def stats(self) -> QueueStats:
        """The queue in figures."""
        return operating.stats(await self._caught_up(), self.logbook.session.likely_time_us())

    async def peek(self, count: int = 10) -> list[Message[T]]:
        """The messages that the group would be given now, without taking them; of large ones fewer, of 16 MiB in all.

        Not those that are delayed, or that stand behind a message of their key.
        """
        check_count(count, "count", 1_000)
        return await operating.peek(
            self.logbook, await self._caught_up(self.group or None), self.group, count, self.kind
        )

    async def dead_letters(self, limit: int = 100) -> list[DeadLetter]:
        """Dead letters of the group, the oldest message first; of large ones fewer, of 16 MiB in all."""
        check_count(limit, "limit", 10_000)
        return await operating.dead_letters(self.logbook, await self._caught_up(self.group or None), self.group, limit)

    async def redrive(self, *handles: str) -> int:
        """Let dead letters be taken again, as if they had never been: those named, or all; how many there were.

        `NotFound` if one that is named is none: then nothing is changed.
        """
        return await self._change_dead(records.REDRIVE, handles)

    async def purge(self, *handles: str) -> int:
        """Drop dead letters permanently: those named, or all; how many there were. `NotFound` as for `redrive`."""
        return await self._change_dead(records.PURGE, handles)

    async def _change_dead(self, verb: int, handles: tuple[str, ...]) -> int:
        wanted = {parse_handle(handle): handle for handle in handles}
        shared = await self._caught_up(self.group or None)
        return await operating.change_dead(self.logbook, shared, self.group, verb, wanted)


class Outbox(outbox.Outbox):
    """What is to happen together with the ack."""

    def __init__(self, logbook: LogBook) -> None:
        super().__init__(logbook)
        self.targets: Targets = {}

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
        self.targets[queue.known.stands().tag] = queue.known, queue.shards
