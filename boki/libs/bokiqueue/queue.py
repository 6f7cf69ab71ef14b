"""`Queue`: messages in a LogBook, pushed by anybody and taken in order, once for good or under a lease.

::

    orders = Queue(ctx.logbook, "orders")
    await orders.push({"item": "tea"})
    message = await orders.pop(wait_s=10)            # for good: at most once
    message = await orders.lease(lease_s=30)         # at least once: until it is acked
    await orders.ack(message)

A queue exists from its first push, or from `create`. Handles cost nothing: make one where it is needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from typing import Any, Final, Generic, TypeVar
from zlib import crc32

from boki import (
    BokiError,
    ConditionFailed,
    CorruptData,
    Expect,
    InvalidArgument,
    NewRecord,
    Record,
    TooLarge,
    WrongType,
)
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.administration import Administration
from boki.libs.bokiqueue.demand import Line, Want
from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.groups import Delivery
from boki.libs.bokiqueue.keyed import append_once, group_of, told_apart
from boki.libs.bokiqueue.lists import fitting, listed
from boki.libs.bokiqueue.messages import BYTES, Message, encode_body, parse_receipt
from boki.libs.bokiqueue.outbox import Outbox
from boki.libs.bokiqueue.records import ACK, BURY, EXTEND, NACK, RELEASE, Done, OpenGroup, Push, Settings
from boki.libs.bokiqueue.refusals import (
    LeaseLost,
    Reshaped,
    check_count,
    check_key,
    check_life,
    check_span,
    no_such_group,
    no_such_queue,
    too_large_a_push,
    uncertain,
)
from boki.libs.bokiqueue.room import room
from boki.libs.bokiqueue.settling import leases_lost, settle_all
from boki.libs.bokiqueue.state import DEFAULT_GROUP
from boki.libs.bokiqueue.validity import belongs, sound

T = TypeVar("T")

_log = logging.getLogger("boki.queue")

_TRIES: Final = 20


class Queue(Administration[T], Generic[T]):
    """A queue of the LogBook's book. `group`: on whose behalf it takes; `type`: what JSON bodies are decoded as."""

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
        patience_s = check_span(wait_s, "wait_s") / 1e6
        for tries in range(_TRIES):
            settings = await self._settings_to_push(fresh=tries > 0)
            shard = None if own_key is None else crc32(own_key.encode()) % settings.shards
            new = self._pushes(settings, bodies, delay_s, ttl_s, group_keys, shard)
            new = new if own_key is None else told_apart(new)
            try:
                async with self._room(settings, len(bodies), patience_s):
                    if own_key is None:
                        seqnums = await self._append_pushes(settings, new)
                    else:
                        seqnums = await append_once(self, settings, new, own_key)
                break
            except ConditionFailed:
                continue  # its settings were changed, or it was deleted and is no more
            except TooLarge as error:
                raise too_large_a_push(error) from None
        else:
            raise BokiError(f"settings of queue {self.name!r} change too quickly: nothing was pushed", retryable=True)
        if ttl_s:
            self._shared(settings).upkeep.pushed(self.logbook, [push for push, _ in new])
        ids = [""] * len(bodies)
        for seqnum, (_, places) in zip(seqnums, new, strict=True):
            for index, place in enumerate(places):
                ids[place] = f"{seqnum}-{index}"
        return ids

    def _room(self, settings: Settings, count: int, patience_s: float) -> AbstractAsyncContextManager[None]:
        if not settings.max_length:
            return nullcontext()
        return room(self.logbook, self._shared(settings), settings, count, patience_s)

    def push_records(
        self, bodies: Sequence[Any], *, delay_s: float = 0, ttl_s: float = 0, group_key: str = ""
    ) -> list[NewRecord]:
        """The records of a push, for whoever appends them together with others. The queue must have been opened."""
        shards = self.shards
        keys = [group_key] * len(bodies) if group_key else []
        new = self._pushes(Settings(shards), bodies, delay_s, ttl_s, keys, None)
        return [NewRecord(records.encode(push), records.record_tags(self.name, push.shard, shards)) for push, _ in new]

    def _pushes(
        self,
        settings: Settings,
        bodies: Sequence[Any],
        delay_s: float,
        ttl_s: float,
        group_keys: Sequence[str],
        shard: int | None,
    ) -> list[tuple[Push, list[int]]]:
        """Records that hold the bodies, and which body stands where in them."""
        delay_us, ttl_us = check_life(delay_s, ttl_s)
        if group_keys:
            if not isinstance(group_keys, (list, tuple)) or len(group_keys) != len(bodies):
                raise InvalidArgument("group_keys must be a list of one key for each message", field="group_keys")
            for group_key in group_keys:
                if group_key != "":
                    check_key(group_key, "group_key")
        if shard is None:
            shard = self._shared(settings).next_shard() if settings.shards > 1 else 0
        by_shard: dict[int, list[int]] = {}
        for place in range(len(bodies)):
            own = crc32(group_keys[place].encode()) % settings.shards if group_keys and group_keys[place] else shard
            by_shard.setdefault(own, []).append(place)
        encoded = [encode_body(body) for body in bodies]
        found = []
        for own, places in by_shard.items():
            for some in fitting(places, encoded):
                forms = records.joined([encoded[place][0] for place in some])
                keys = [group_keys[place] for place in some] if group_keys else []
                push = Push(own, forms, [encoded[place][1] for place in some], delay_us, ttl_us, keys)
                found.append((push, some))
        return found

    async def _append_pushes(self, settings: Settings, new: list[tuple[Push, list[int]]]) -> Sequence[int]:
        group = group_of(self.name, settings, new)
        if len(group) == 1:
            return [await self.logbook.append(*group[0], when=self.stands())]
        return await self.logbook.append_many(group, when=self.stands())

    # Taking

    async def pop(self, *, wait_s: float = 0, op: str | None = None) -> Message[T] | None:
        """Take the next message for good, waiting up to `wait_s` for one; None if none came.

        `op` names this pop: whoever repeats it within an hour is given the very same message, also after a crash or
        from another process; but only the last 10,000 ops of a shard are remembered, or those of the last 100,000
        messages. Of a queue with several shards an op always asks the same one.
        """
        found = await self._take(1, 0, wait_s, op)
        return found[0] if found else None

    async def pop_many(self, count: int, *, wait_s: float = 0, op: str | None = None) -> list[Message[T]]:
        """Take up to `count` messages for good; it waits for the first one only."""
        return await self._take(check_count(count, "count"), 0, wait_s, op)

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
        return await self._take(check_count(count, "count"), lease_us, wait_s, op)

    async def _take(self, count: int, lease_us: int, wait_s: float, op: str | None) -> list[Message[T]]:
        patience_s = check_span(wait_s, "wait_s") / 1e6
        op = "" if op is None else check_key(op, "op")
        begun_s = asyncio.get_running_loop().time()
        while True:
            left_s = max(0.0, begun_s + patience_s - asyncio.get_running_loop().time()) if patience_s else 0.0
            try:
                return await self._take_from(await self._open(), count, lease_us, left_s, op)
            except Reshaped:
                await self.read_settings(fresh=True)

    async def _take_from(
        self, settings: Settings, count: int, lease_us: int, patience_s: float, op: str
    ) -> list[Message[T]]:
        if patience_s:
            settings = await self._modernised(settings)
        shared = self._shared(settings)
        if not patience_s:
            await self.logbook.sync()
            await shared.catch_up(self.logbook)
        elif not shared.is_loaded:
            await shared.catch_up(self.logbook)
        if not self._is_entered(shared):
            await self._enter_group(shared)
        left_s = patience_s
        begun = shared.clock.here()
        while True:
            want = Want(self.group, count, lease_us, op, left_s or None, shared.clock.here())
            if op and settings.shards > 1:
                want.lines = frozenset([crc32(op.encode()) % settings.shards])
            found = await self._receive(shared, want)
            if found or not want.result:
                return found
            # none of what it was given could be read
            left_s = patience_s - shared.clock.since(begun) if patience_s else 0.0
            if patience_s and left_s <= 0:
                return found

    async def _receive(self, shared: Following, want: Want) -> list[Message[T]]:
        """What is given to the want. Messages whose bodies are gone for good take no others along: of a lease they
        become dead letters; of a pop they are told of, and the others are given back, or to whoever named the op.
        """
        try:
            served: list[tuple[Line, Delivery]] = await shared.wait(self.logbook, want)
            bodies = await shared.bodies.fetch(self.logbook, [delivery for _, delivery in served])
            both = list(zip(served, bodies, strict=True))
            found = [self._message(*one, *body) for one, body in both if isinstance(body, tuple)]
            lost = [(self._message(*one), body) for one, body in both if not isinstance(body, tuple)]
            if lost:
                _log.warning("%d messages cannot be read, %r first: %s", len(lost), *lost[0])
            if lost and want.lease_us:
                with suppress(BokiError):  # else their leases run out
                    await self.bury(*(one for one, _ in lost), reason=f"its body cannot be read: {lost[0][1]}")
        except BaseException:
            if want.result and not want.op:
                shared.give_back(self.logbook, self.group, want.result)
            raise
        is_refused = lost and not want.lease_us and not (found and want.op)
        kept = [one for one, body in both if is_refused and isinstance(body, tuple)]
        if not want.op:
            for line, delivery in served:
                if (line, delivery) not in kept:
                    line.received(delivery)
            if kept:
                shared.give_back(self.logbook, self.group, kept)
        if is_refused:
            raise CorruptData(
                f"{len(lost)} messages that were popped from queue {self.name!r} cannot be read, and are gone: "
                f"{', '.join(one.id for one, _ in lost[:10])}: {lost[0][1]}; the {len(kept)} others can be taken again",
                queue=self.name,
            )
        return found

    def _message(self, line: Line, delivery: Delivery, form: int = BYTES, data: bytes = b"") -> Message[T]:
        return Message(self.name, line.shard, self.group, delivery, form, data, self.kind)

    async def _enter_group(self, shared: Following) -> None:
        """Have the group before anything is asked for on its behalf; the default one is made by its first take.

        In all shards at one place: what is pushed from then on is given to it, whichever group takes it first.
        """
        async with shared.entering:
            if self._is_entered(shared):
                return  # somebody else of this process had the same to do
            await shared.catch_up(self.logbook)
            if self._is_entered(shared):
                return
            if self.group != DEFAULT_GROUP:
                raise no_such_group(self.name, self.group)
            await self._append_to_all(shared, lambda shard: OpenGroup(shard, DEFAULT_GROUP))

    def _is_entered(self, shared: Following) -> bool:
        return all(self.group in line.state.groups for line in shared.lines)

    # Settling

    async def ack(self, *messages: Message[Any] | str) -> None:
        """The messages are done. `LeaseLost` if some are not leased any more: its `receipts` name them, and all others
        are done. So do all that settle.
        """
        await self._settle(ACK, messages)

    async def nack(self, *messages: Message[Any] | str, delay_s: float = 0, reason: str = "") -> None:
        """The messages failed: they come back after `delay_s`, or become dead letters if that was too often."""
        await self._settle(NACK, messages, check_span(delay_s, "delay_s"), _reason(reason))

    async def bury(self, *messages: Message[Any] | str, reason: str) -> None:
        """The messages become dead letters at once."""
        await self._settle(BURY, messages, 0, _reason(reason))

    async def extend(self, *messages: Message[Any] | str, lease_s: float = 30) -> None:
        """The leases run out `lease_s` from now."""
        await self._settle(EXTEND, messages, check_span(lease_s, "lease_s", least_s=0.001))

    async def release(self, *messages: Message[Any] | str) -> None:
        """The messages can be taken again at once, as if they had not been."""
        await self._settle(RELEASE, messages)

    async def _settle(
        self, verb: int, messages: Sequence[Message[Any] | str], span_us: int = 0, reason: str = ""
    ) -> None:
        settings = await self._open()
        shared = self._shared(settings)
        handles = [self._handle(message) for message in messages]
        for message, (shard, _, _) in zip(messages, handles, strict=True):
            if shard >= settings.shards:
                raise InvalidArgument(f"receipt {message!r:.60} is not of queue {self.name!r}", field="receipt")
        lost = await settle_all(shared, self.logbook, self.group, verb, handles, span_us, reason)
        for message in messages:
            if isinstance(message, Message):
                if verb != EXTEND:
                    message.is_settled = True
                elif (group := shared.lines[message.shard].state.groups.get(self.group)) is not None:
                    message.extended(group.held(message.delivery))
        if lost and self.group != DEFAULT_GROUP and not any(self.group in line.state.groups for line in shared.lines):
            raise no_such_group(self.name, self.group)
        if lost:
            raise leases_lost(self.name, lost, len(messages))

    def _handle(self, message: Message[Any] | str) -> tuple[int, int, int]:
        if isinstance(message, str):
            return parse_receipt(message)
        if not isinstance(message, Message):
            raise WrongType(f"give a Message or its receipt, not {type(message).__name__}", field="message")
        if message.queue != self.name or message.group != self.group:
            raise InvalidArgument(
                f"message {message.id} was taken from queue {message.queue!r} by group {message.group!r}: settle it "
                "there",
                field="message",
            )
        if not message.delivery.until_us:
            raise InvalidArgument(
                f"message {message.id} was popped, for good: only a lease is settled", field="message"
            )
        return message.shard, message.delivery.spot.pos, message.delivery.token

    # Effects

    @asynccontextmanager
    async def process(self, message: Message[Any], *, retry_s: float = 0) -> AsyncIterator[Outbox]:
        """Ack the message at the end of the block, together with what the block puts into the outbox; see `outbox`.

        If the block raises, or the commit is refused, the message is nacked with the error as the reason, to come back
        after `retry_s`, and nothing of the outbox happens. If the outcome of the commit is unknown its lease decides.
        """
        if not isinstance(message, Message):  # not with a receipt either: it does not say what was settled before
            raise WrongType(f"give the Message that was leased, not {type(message).__name__}", field="message")
        shard, pos, token = self._handle(message)
        retry_us = check_span(retry_s, "retry_s")
        await self._open()
        out = Outbox(self.logbook)
        try:
            yield out
            await self._commit(message, shard, pos, token, out)
        except BaseException as error:
            may_have_happened = isinstance(error, BokiError) and error.outcome == "unknown"
            if not message.is_settled and not may_have_happened and not isinstance(error, LeaseLost):
                with suppress(BokiError):  # its lease brings it back
                    await self.nack(message, delay_s=retry_us / 1e6, reason=f"{type(error).__name__}: {error}"[:500])
            raise

    async def _commit(self, message: Message[Any], shard: int, pos: int, token: int, out: Outbox) -> None:
        settings = await self._open()
        shared = self._shared(settings)
        line = shared.lines[shard]
        lease = (self.group, pos, token)
        if lease in line.committing:
            raise self._lost(message)
        line.committing.add(lease)
        try:
            await self._commit_alone(message, shared, line, lease, out)
        finally:
            line.committing.discard(lease)

    def _lost(self, message: Message[Any]) -> LeaseLost:
        return LeaseLost(
            f"message {message.id} of queue {self.name!r} is not leased by this consumer any more: nothing was done",
            queue=self.name,
        )

    async def _commit_alone(
        self, message: Message[Any], shared: Following, line: Line, lease: tuple[str, int, int], out: Outbox
    ) -> None:
        shard, (_, pos, token) = line.shard, lease
        tags = records.record_tags(self.name, shard, shared.shards)
        line.commits += 1
        by = shared.taker + line.commits.to_bytes(4, "little")
        done = NewRecord(records.encode(Done(shard, self.group, [(pos, token)], by)), tags)
        key = f"!qd:{self.name}:{self.group}:{shard}:{pos}:{token}"
        stranger = 0
        for _ in range(_TRIES):
            await shared.catch_up(self.logbook)
            group = line.state.groups.get(self.group)
            aside = group.leased(pos, token) if group is not None else None
            if message.is_settled or aside is None or aside.due_us <= shared.clock.now_us():
                raise self._lost(message)
            fence = Expect(records.fence_tag(self.name, shard), max(line.state.last_fence, stranger))
            when = [fence, *dict.fromkeys([self.stands(), *out.standing()]), *out.conditions]
            try:
                seqnums = await self.logbook.append_many([done, *out.records], when=when, key=key)
            except ConditionFailed as error:
                if error.tag == self.stands().tag:
                    await self.check_stands(shared.shards)
                if error.tag in out.targets:
                    target, shards = out.targets[error.tag]
                    await target.check_stands(shards)
                if error.tag == self.stands().tag or error.tag in out.targets:
                    continue
                if error.tag != fence.tag:
                    raise
                # A lease was taken away, maybe another one: look again. Or it is no fence, but a stranger's record.
                tail = await self.logbook.check_tail(fence.tag)
                stranger = tail.seqnum if tail is not None and not self._is_fence(tail, shared.shards) else 0
                continue
            if await self._whose(seqnums[0]) != by:
                raise self._lost(message)  # another block has committed under this lease, and so under this key
            message.is_settled = True
            return
        raise BokiError("leases of this shard run out too quickly to commit: nothing was done", retryable=True)

    def _is_fence(self, record: Record, shards: int) -> bool:
        """Whether the fold comes to that record of a fence tag, and takes it for a fence."""
        kind = sound(record)
        return kind is not None and records.ends_leases(kind) and belongs(kind, record.tags, self.name, shards)

    async def _whose(self, seqnum: int) -> bytes:
        """The block whose effects were appended there."""
        try:
            done = sound(await self.logbook.get(seqnum))
        except BokiError as error:
            raise uncertain(error) from error
        return done.by if isinstance(done, Done) else b""

    # Opening

    async def _open(self) -> Settings:
        settings = await self.read_settings()
        if settings is None:
            raise no_such_queue(self.name, self.logbook.name)
        return settings

    async def _settings_to_push(self, *, fresh: bool) -> Settings:
        settings = await self.read_settings(fresh=fresh)
        return settings if settings is not None else await self.create()


def _reason(reason: object) -> str:
    if not isinstance(reason, str):
        raise WrongType(f"reason must be a str, not {type(reason).__name__}", field="reason")
    return reason[:500].encode(errors="backslashreplace").decode()  # an error's text may hold what is no character
