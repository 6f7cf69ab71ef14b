"""Settling messages: by acts, or by an ack that commits together with effects, all of them or none.

::

    async with queue.process(message) as out:
        out.push(alerts, {"flight": 17})                    # to another queue of the book
        out.append(b"seen", tags=["audit"])                 # an application's record

When the block ends, the ack, the pushes and the records are appended as one group under one condition: no lease of the
shard was taken away since the fold last looked. If one was, but not this one, it is tried again; if this one was,
nothing happens and `LeaseLost` is raised. A key that names the lease makes a repeated append harmless, so from queue to
queue a message takes effect exactly once. If the block raises, or what it wants is refused, nothing is appended and the
message is nacked with the error. Of several blocks for one lease one commits: the others find its name in the ack.

Other libraries join the group by `add` (see `boki.libs.fold.outbox`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from boki import BokiError, ConditionFailed, Expect, LogBook, NewRecord, Record, WrongType
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.lines import MAX_SETTLED, Line
from boki.libs.bokiqueue.messages import Message
from boki.libs.bokiqueue.records import Done, Settle, belongs, sound
from boki.libs.bokiqueue.refusals import LeaseLost
from boki.libs.fold import outbox
from boki.libs.fold.retrying import uncertain

if TYPE_CHECKING:
    from boki.libs.bokiqueue.queue import Queue

_TRIES = 20


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


async def settle_all(
    shared: Following,
    logbook: LogBook,
    group: str,
    verb: int,
    handles: Sequence[tuple[int, int, int]],
    span_us: int,
    reason: str,
) -> list[str]:
    """Do it to all of them, by an act for each shard; the receipts of those that are not leased so. An error that
    comes when others of them are settled says that its outcome is unknown.
    """
    by_shard: dict[int, list[tuple[int, int]]] = {}
    for shard, pos, token in handles:
        by_shard.setdefault(shard, []).append((pos, token))
    lost: list[str] = []
    is_begun = False
    for shard, messages in by_shard.items():
        for start in range(0, len(messages), MAX_SETTLED):
            some = messages[start : start + MAX_SETTLED]
            try:
                settle = Settle(group, verb, some, span_us, reason)
                verdicts = await shared.settle(logbook, shard, settle)
            except BokiError as error:
                if is_begun:
                    raise uncertain(error) from error
                raise
            is_begun = True
            lost += [
                f"{shard}-{pos}-{token}" for (pos, token), is_held in zip(some, verdicts, strict=True) if not is_held
            ]
    return lost
