"""Bodies of messages that are still to be taken, kept from the reading of the stream; others are read again.

All queues that a process follows over one connection share one budget (`BodyStore`). A record of messages is kept

* while some group has not come to it, and there is room. When there is none, what is farthest from being taken goes, of
  the queue that has most: a queue is taken from its other end;
* after every group has passed it, while a message of it comes back (delayed, parked behind its key, released). Those go
  before anything else when room is needed.

All else goes with the next page, because a caller that was just given a message has yet to look.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from boki import CorruptData, LogBook, NotFound, Trimmed
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.groups import BACK, PARKED, WAITING, Delivery
from boki.libs.bokiqueue.records import LOST, Carry, Push, sound
from boki.libs.bokiqueue.state import ShardState

BODY_BUDGET_BYTES: Final = 64 * 1024 * 1024
READ_TOGETHER: Final = 16
"""Records that are read again at once: each may have a megabyte."""
LOOKED_AT: Final = 100
"""Records with messages that come back, looked at with each page: whether they still do."""

Lost = NotFound | Trimmed | CorruptData
"""What is raised for a record that is gone permanently."""


class _Kept(NamedTuple):
    """A record of messages."""

    kind: Push | Carry
    positions: Sequence[int]
    size_bytes: int

    def comes_back(self, state: ShardState) -> bool:
        """Whether a group gives out one of its messages later, after the cursor has passed it."""
        return any(
            (aside := group.aside.get(pos)) is not None and aside.status in (WAITING, BACK, PARKED)
            for group in state.groups.values()
            for pos in self.positions
        )


class BodyStore:
    """What the queues of one connection keep together."""

    def __init__(self, budget_bytes: int = BODY_BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.kept_bytes = 0
        self.keepers: dict[Bodies, None] = {}
        """Queues that keep something."""

    def make_room(self, size_bytes: int, newcomer: Bodies) -> bool:
        """Whether there is room now. The newcomer lets nothing go for its own newest record but what is passed."""
        while self.kept_bytes + size_bytes > self.budget_bytes:
            most = max((newcomer, *self.keepers), key=lambda one: one.kept_bytes)
            if not most.drop_one(is_newcomer=most is newcomer):
                return False
        return True


class Bodies:
    """The bodies that are kept of one queue, with that number of shards."""

    def __init__(self, shards: int, store: BodyStore) -> None:
        self.kept_bytes = 0
        self._store = store
        self._kept: dict[int, _Kept] = {}
        self._ahead: list[deque[int]] = [deque() for _ in range(shards)]
        """Of each shard, the records that some group had not passed when the last page came, in order."""
        self._passed: deque[int] = deque()
        """The other ones."""

    def clear(self) -> None:
        """Keep nothing."""
        for seqnum in list(self._kept):
            self._drop(seqnum)
        for some in (*self._ahead, self._passed):
            some.clear()

    def keep(self, seqnum: int, kind: Push | Carry, state: ShardState) -> None:
        """A record of messages was applied to the state."""
        stop = state.backlog.next_pos
        positions = kind.positions if isinstance(kind, Carry) else range(stop - len(kind.bodies), stop)
        kept = _Kept(kind, positions, sum(map(len, kind.bodies)) + 100)
        if seqnum in self._kept or not self._store.make_room(kept.size_bytes, self):
            return
        self._kept[seqnum] = kept
        self.kept_bytes += kept.size_bytes
        self._store.kept_bytes += kept.size_bytes
        self._store.keepers[self] = None
        (self._passed if isinstance(kind, Carry) else self._ahead[state.shard]).append(seqnum)

    def let_go(self, states: Sequence[ShardState]) -> None:
        """Drop what was passed before this page: callers that were given it have looked by now."""
        looked_at = min(LOOKED_AT, len(self._passed))
        for state in states:
            first = state.backlog.find(state.backlog.first_pos)
            stop = state.at + 1 if first is None else first.seqnum
            ahead = self._ahead[state.shard]
            while ahead and ahead[0] < stop:
                self._passed.appendleft(ahead.popleft())
                looked_at += 1
        for _ in range(looked_at):
            seqnum = self._passed.popleft()
            if self._kept[seqnum].comes_back(states[self._kept[seqnum].kind.shard]):
                self._passed.append(seqnum)
            else:
                self._drop(seqnum)

    def drop_one(self, *, is_newcomer: bool) -> bool:
        """Drop a record that every group has passed, else of the one that is taken last. False: there is none, or
        only what is taken before the newcomer's.
        """
        if self._passed:
            self._drop(self._passed.popleft())
            return True
        ahead = max(self._ahead, key=lambda one: one[-1] if one else 0)
        if is_newcomer or not ahead:
            return False
        self._drop(ahead.pop())
        return True

    def _drop(self, seqnum: int) -> None:
        kept = self._kept.pop(seqnum)
        self.kept_bytes -= kept.size_bytes
        self._store.kept_bytes -= kept.size_bytes
        if not self._kept:
            self._store.keepers.pop(self, None)

    # Reading

    async def fetch(
        self, logbook: LogBook, deliveries: Iterable[Delivery], most_bytes: int | None = None
    ) -> list[tuple[int, bytes] | Lost]:
        """(form, body) of each; read from the log where they are not here. What is gone permanently comes as the error.

        With `most_bytes` of the first of them only, as many as have this many bytes together; of one at least.
        """
        places = [one.spot.place for one in deliveries]
        here = {seqnum: self._kept[seqnum].kind for seqnum, _ in places if seqnum in self._kept}
        read: dict[int, Push | Carry | Lost] = {}
        found: list[tuple[int, bytes] | Lost] = []
        size = 0
        for at, (seqnum, index) in enumerate(places):
            kind = here.get(seqnum) or read.get(seqnum)
            if kind is None:
                read = await _read_some(logbook, (one for one, _ in places[at:] if one not in here))
                kind = read[seqnum]
            if isinstance(kind, Lost):
                found.append(kind)
                continue
            if index >= len(kind.bodies):  # a forged checkpoint may say so
                found.append(CorruptData(f"record {seqnum} has no message {index}"))
                continue
            body, form = kind.bodies[index], records.form_of(kind.forms, index)
            size += len(body)
            if most_bytes is not None and found and size > most_bytes:
                break
            found.append((form, body) if form != LOST else CorruptData("it was lost before it was carried"))
        return found


async def _read_some(logbook: LogBook, seqnums: Iterable[int]) -> dict[int, Push | Carry | Lost]:
    """The first few of those records."""
    some: dict[int, None] = {}
    for seqnum in seqnums:
        some[seqnum] = None
        if len(some) == READ_TOGETHER:
            break
    return dict(zip(some, await asyncio.gather(*(_read(logbook, seqnum) for seqnum in some)), strict=True))


async def _read(logbook: LogBook, seqnum: int) -> Push | Carry | Lost:
    try:
        kind = sound(await logbook.get(seqnum))
    except (NotFound, Trimmed, CorruptData) as error:
        return error
    if not isinstance(kind, Push | Carry):
        return CorruptData(f"record {seqnum} of book {logbook.name!r} should hold messages of a queue, and does not")
    return kind
