"""Effects that commit together with the ack of a message: all of them or none.

::

    async with queue.process(message) as out:
        out.push(alerts, {"flight": 17})                    # to another queue of the book
        out.append(b"seen", tags=["audit"])                 # an application's record

When the block ends, the ack, the pushes and the records are appended as one group under one condition: no lease of the
shard was taken away since the fold last looked. If one was, but not this one, it is tried again; if this one was,
nothing happens and `LeaseLost` is raised. A key that names the lease makes a repeated append harmless, so from queue to
queue a message takes effect exactly once. If the block raises, or what it wants is refused, nothing is appended and the
message is nacked with the error. Of several blocks for one lease one commits: the others find its name in the ack.

`Outbox.records` and `Outbox.conditions` are the seam for other libraries: whatever a workflow or a transaction would
append to the same book joins the group there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from boki import Expect, LogBook, NewRecord, TooLarge, WrongType

if TYPE_CHECKING:
    from boki.libs.bokiqueue.queue import Queue

MAX_EFFECTS = 1_000
MAX_EFFECT_BYTES = 3_500_000


class Outbox:
    """What is to happen together with the ack."""

    def __init__(self, logbook: LogBook) -> None:
        self.records: list[NewRecord] = []
        """What is appended, in this order, after the ack."""
        self.conditions: list[Expect] = []
        """What must hold besides the lease; `ConditionFailed` if it does not, and nothing happens."""
        self._logbook = logbook
        self._size_bytes = 0
        self.targets: dict[str, tuple[Queue[Any], int]] = {}
        """Queues that something is pushed to, by the tag of their settings, and how many shards they have."""

    def append(self, data: bytes, tags: list[str] | tuple[str, ...] = ()) -> None:
        """A record of the application, in the same book."""
        self._add(NewRecord(data, tags))

    def push(self, queue: Queue[Any], body: Any, *, delay_s: float = 0, ttl_s: float = 0, group_key: str = "") -> None:
        """A message for a queue of the same book; options as for `Queue.push`. It needs no `key`, since it is pushed
        once, with the ack; and it does not wait for room in a queue with a maximum length.
        """
        book = self._logbook.name
        if queue.logbook.name != book:
            raise WrongType(
                f"queue {queue.name!r} is in book {queue.logbook.name!r}: only what is in {book!r} commits with it",
                field="queue",
            )
        for record in queue.push_records([body], delay_s=delay_s, ttl_s=ttl_s, group_key=group_key):
            self._add(record)
        self.targets[queue.stands().tag] = queue, queue.shards

    def standing(self) -> list[Expect]:
        """The conditions that those queues are there."""
        return [queue.stands() for queue, _ in self.targets.values()]

    def _add(self, record: NewRecord) -> None:
        self._logbook.check(record.data, record.tags)
        self._size_bytes += len(record.data) + 100
        if len(self.records) >= MAX_EFFECTS or self._size_bytes > MAX_EFFECT_BYTES:
            raise TooLarge(
                f"what commits with an ack may have at most {MAX_EFFECTS:,} records and {MAX_EFFECT_BYTES:,} bytes in "
                "all: push a reference to what is larger",
                field="effects",
                limit=MAX_EFFECT_BYTES,
            )
        self.records.append(record)
