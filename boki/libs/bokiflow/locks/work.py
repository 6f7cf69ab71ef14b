"""The commands that take a lock and leave it. Their records and the journal's are one group: they happen once."""

from __future__ import annotations

from typing import Any, Final

from boki import BokiError, Expect, LogBook, NewRecord
from boki.libs.bokiflow.asking import StoreWork
from boki.libs.bokiflow.digests import digest_of
from boki.libs.bokiflow.locks.state import (
    KEPT_EVERY,
    Freed,
    LockQueue,
    LockRecord,
    LockRequest,
    Queued,
    Wanted,
    grants_tag,
    lock_tag,
)
from boki.libs.bokiflow.records import CODEC, inbox_tag
from boki.libs.bokistore.records import Author
from boki.libs.bokistore.way import Way
from boki.libs.fold import steps
from boki.libs.fold.outbox import Outbox
from boki.libs.fold.steps import ReadPage, Steps, Trim

_MAX_NAME_CHARS: Final = 120


def read_queue(key: str) -> Steps[LockQueue]:
    """The queue of a lock, as it is now. What is of no use any more is trimmed."""
    queue, start = LockQueue(), 0
    while True:
        page = yield from steps.page(ReadPage(lock_tag(key), start))
        if not page.records:
            break
        for record in page.records:
            found = CODEC.own(record.data)
            queue.apply(record.seqnum, found.note if isinstance(found, LockRecord) else None)
        start = page.next_start
    if queue.saved_seqnum:
        try:
            yield Trim(queue.saved_seqnum, lock_tag(key))
            last = yield from steps.tail(grants_tag(key))
            if last is not None:
                yield Trim(last.seqnum, grants_tag(key))
        except BokiError:
            pass  # whoever reads it next does it
    return queue


class QueueChange:
    """What one record does to a queue."""

    def __init__(self, queue: LockQueue, note: Wanted | Freed) -> None:
        decided, told = queue.decided(note)
        tags = [lock_tag(note.key)]
        if decided.granted:
            tags.append(grants_tag(note.key))
        tags += dict.fromkeys(inbox_tag(one.call) for one in told)
        self.is_granted = isinstance(note, Wanted) and decided.granted == note.request.id
        self._record = NewRecord(CODEC.encode(LockRecord(decided)), tuple(tags))
        self._saved = LockRecord(Queued(tuple(queue.requests))) if queue.unsaved >= KEPT_EVERY else None
        self._tag = lock_tag(note.key)
        self.conditions = [Expect(lock_tag(note.key), last_seqnum=queue.last_seqnum)]

    def records(self, logbook: LogBook) -> list[NewRecord]:
        """What is appended: the whole queue first, if that is due, and fits. Thousands of requests do not: the queue is
        read from where it was written down last, then, and the lock can be taken and left all the same.
        """
        if self._saved is not None:
            data, limits = CODEC.encode(self._saved), logbook.session.caller.limits
            if len(data) <= min(limits.record_bytes, limits.request_bytes // 2):
                return [NewRecord(data, (self._tag,)), self._record]
        return [self._record]

    def hand_over(self, outbox: Outbox) -> None:
        """See `boki.libs.bokiflow.asking.Committing`."""
        outbox.add(self.records(outbox.logbook), self.conditions)


class TakeWork(StoreWork):
    """Joins the queue of a lock; it comes to whether that is granted at once."""

    is_fenced = False

    def __init__(self, key: str, request: LockRequest) -> None:
        self.name = f"lock {key}"
        self.digest = digest_of((key,), {}, self.name)
        self._key = key
        self._request = request

    def prepare(self, way: Way, author: Author) -> Steps[tuple[QueueChange | None, Any]]:  # noqa: ARG002
        """See `StoreWork`."""
        queue = yield from read_queue(self._key)
        change = QueueChange(queue, Wanted(self._key, self._request))
        return change, change.is_granted

    def again(self) -> Steps[None]:
        """See `StoreWork`: the queue is read again."""
        yield from ()


class LeaveWork(StoreWork):
    """Leaves the queue of a lock, from whatever place."""

    is_fenced = False

    def __init__(self, key: str, request_id: str) -> None:
        self.name = f"unlock {key}"
        self.digest = digest_of((key,), {}, self.name)
        self._key = key
        self._id = request_id

    def prepare(self, way: Way, author: Author) -> Steps[tuple[QueueChange | None, Any]]:  # noqa: ARG002
        """See `StoreWork`."""
        queue = yield from read_queue(self._key)
        if queue.place_of(self._id) is None:
            return None, None
        return QueueChange(queue, Freed(self._key, self._id)), None

    def again(self) -> Steps[None]:
        """See `StoreWork`: the queue is read again."""
        yield from ()


def request_of(request_id: str, call: str, age_us: int, workflow: str, flow_id: str, life: int) -> LockRequest:
    """The request of a workflow."""
    return LockRequest(request_id, call, age_us, f"{workflow} {flow_id}"[:_MAX_NAME_CHARS], life)
