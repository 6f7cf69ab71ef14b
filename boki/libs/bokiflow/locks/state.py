"""Records of a lock, the fold of them, and what each of them decides. Pure.

A lock is a queue of requests under one tag. The first request holds it, and the others wait in the order of the log.
Each record is appended on the condition that nothing came in between, so its writer knows what it decides and says so:
`granted` names the request that holds the lock from here on. The seqnum of that record is the **token** of the grant.
The record also stands in the inbox of that workflow, so it waits as for any message, without a process.

**Deadlocks.** Every request has the age of its workflow. The request that holds the lock is **wounded** while an older
one waits for it. A wounded workflow may continue, and nothing is taken from it. But if it has to wait for another lock,
that wait is refused, so it leaves its locks and begins again. In every circle of workflows that wait for locks one
waits for a younger one. That one is wounded and waits, so it is refused: no such circle stays. A circle through a call
does: a holder that waits for its child is not refused, and the child that waits for a lock is not the one that is
wounded. Whoever calls inside of a lock limits the child's wait.
"""

from __future__ import annotations

import itertools
from typing import Final

import msgspec

KEPT_EVERY: Final = 64
"""After this many records the whole queue is written down, and what stands below is trimmed."""


class LockRequest(msgspec.Struct, frozen=True, array_like=True):
    """A workflow wants the lock. `id` names the request, `call` its logged call, and `name` the workflow for people."""

    id: str
    call: str
    age_us: int
    """When the workflow began."""
    name: str
    life: int = 0
    """Tells the starts of one id apart, as in `Entry.life`; 0: not known."""

    @property
    def age(self) -> tuple[int, str]:
        """The lower, the older; no two workflows have the same."""
        return self.age_us, self.call


class Wanted(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A request joins the end of the queue. One of an earlier life of the same workflow leaves it."""

    key: str
    request: LockRequest
    granted: str = ""
    """The request that holds the lock from here on; "": the holder is the one before."""
    wounded: str = ""
    """The request that holds the lock while an older one waits, if that is news."""


class Freed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A request leaves the queue: its workflow has left the lock, waits no more, or was found to have ended."""

    key: str
    id: str
    granted: str = ""
    wounded: str = ""
    has_ended: bool = False
    """Whether another workflow wrote this, because the one of the request had ended."""


class Queued(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The whole queue: what stands below this record is trimmed."""

    requests: tuple[LockRequest, ...]


LockNote = Wanted | Freed | Queued


class LockRecord(msgspec.Struct, frozen=True, array_like=True, tag="l"):
    """A record of a lock. A copy of one in another workflow's inbox says when and at which seqnum that stood there."""

    note: LockNote
    at_us: int = 0
    stood_at: int = 0


def lock_tag(key: str) -> str:
    """The tag of a lock's queue, in the LogBook of the workflows."""
    return f"!fl:{key}"


def grants_tag(key: str) -> str:
    """The tag of the records that granted a lock. Its last record is the token of the holder."""
    return f"!fg:{key}"


def is_wounded(requests: list[LockRequest]) -> bool:
    """Whether an older request waits for the holder."""
    return any(waiting.age < requests[0].age for waiting in requests[1:])


class LockQueue:
    """The fold of one lock."""

    def __init__(self) -> None:
        self.requests: list[LockRequest] = []
        """The holder, and those that wait, in their order."""
        self.last_seqnum = 0
        self.unsaved = 0
        """Records since the last `Queued`."""
        self.saved_seqnum = 0
        """The last `Queued`, if records stand below it."""

    def apply(self, seqnum: int, note: LockNote | None) -> None:
        """Take in the next record of the tag; None: it is a stranger's."""
        if isinstance(note, Queued):
            self.saved_seqnum = seqnum if self.last_seqnum else 0
            self.requests, self.unsaved = list(note.requests), 0
        elif note is not None:
            self.requests = self.after(note)
            self.unsaved += 1
        self.last_seqnum = seqnum

    def after(self, note: Wanted | Freed) -> list[LockRequest]:
        """The queue behind such a record."""
        if isinstance(note, Freed):
            return [one for one in self.requests if one.id != note.id]
        return [*(one for one in self.requests if one.call != note.request.call), note.request]

    def place_of(self, request_id: str) -> int | None:
        """Number of requests in front of it; None: it is not in the queue."""
        return next((place for place, one in enumerate(self.requests) if one.id == request_id), None)

    def decided(self, note: Wanted | Freed) -> tuple[Wanted | Freed, list[LockRequest]]:
        """The record with what it decides, and the requests to whose workflows it is sent.

        Those are the new holder, a holder that is wounded, and whoever has another request in front of it than before:
        it watches that one, see `boki.libs.bokiflow.locks.watching`.
        """
        before, after = self.requests, self.after(note)
        if not after:
            return note, []
        head = after[0]
        is_granted = not before or before[0].id != head.id
        is_news = is_wounded(after) and (is_granted or not is_wounded(before))
        fronts = {one.id: front for front, one in itertools.pairwise(before)}
        told = [head] if is_granted or is_news else []
        told += [one for front, one in itertools.pairwise(after) if one.id in fronts and fronts[one.id].id != front.id]
        granted, wounded = head.id if is_granted else "", head.id if is_news else ""
        return msgspec.structs.replace(note, granted=granted, wounded=wounded), told
