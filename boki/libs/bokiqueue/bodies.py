"""Bodies of messages that are still to be taken, kept from the reading of the stream; others are read again.

All queues that a process follows over one way to the log share one budget (`BodyStore`). Of a record of messages

* what some group has not come to yet is kept for as long as there is room. When there is none, what is farthest from
  being taken goes, of the queue that has most: a queue is taken from its other end;
* what every group has passed is kept only if it comes back (delayed, parked behind its key, released), and goes before
  anything else when room is needed;
* all else is spent. It goes with the next page, because whoever was just given it has yet to look.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from boki import CorruptData, LogBook, NotFound, Trimmed
from boki.libs.bokiqueue import records
from boki.libs.bokiqueue.groups import BACK, PARKED, WAITING, Delivery
from boki.libs.bokiqueue.records import LOST, Carry, Push, sound
from boki.libs.bokiqueue.sessions import Given
from boki.libs.bokiqueue.state import ShardState

BODY_BUDGET_BYTES: Final = 64 * 1024 * 1024
READ_TOGETHER: Final = 16
"""Records that are read again at once: each may have a megabyte."""

Lost = NotFound | Trimmed | CorruptData
"""What is raised for a record that is gone for good."""


class _Kept:
    """A record of messages. `left`: how many of them, over all groups, come back after every group has passed it."""

    __slots__ = ("kind", "left", "positions", "size_bytes")

    def __init__(self, kind: Push | Carry, positions: Sequence[int]) -> None:
        self.kind = kind
        self.positions = positions
        self.size_bytes = sum(map(len, kind.bodies)) + 100
        self.left = 0


class BodyStore:
    """What the queues of one way to the log keep together."""

    def __init__(self, budget_bytes: int = BODY_BUDGET_BYTES) -> None:
        self.budget_bytes = budget_bytes
        self.kept_bytes = 0
        self.keepers: dict[Bodies, None] = {}
        """Queues that keep something."""

    def make_room(self, size_bytes: int, newcomer: Bodies) -> bool:
        """Whether there is room now. The newcomer lets nothing go for its own newest record but what is passed."""
        while self.kept_bytes + size_bytes > self.budget_bytes:
            most = max((newcomer, *self.keepers), key=lambda one: one.kept_bytes)
            if not most.drop_passed() and (most is newcomer or not most.drop_farthest()):
                return False
        return True


class Bodies:
    """The bodies that are kept of one queue, with as many shards."""

    def __init__(self, shards: int, store: BodyStore) -> None:
        self.kept_bytes = 0
        self._store = store
        self._kept: dict[int, _Kept] = {}
        self._ahead: list[deque[int]] = [deque() for _ in range(shards)]
        """Of each shard, the records that some group has not passed, in order."""
        self._back: dict[int, None] = {}
        """Records that all groups have passed and of which something comes back, oldest first."""
        self._spent: deque[int] = deque()

    def clear(self) -> None:
        """Keep nothing."""
        for seqnum in list(self._kept):
            self._drop(seqnum)
        self._back.clear()
        self._spent.clear()
        for ahead in self._ahead:
            ahead.clear()

    def let_go(self) -> None:
        """Who was given messages by what was folded before has looked by now."""
        while self._spent:
            self._drop(self._spent.popleft())

    def keep(self, seqnum: int, kind: Push | Carry, state: ShardState) -> None:
        """A record of messages was applied to the state."""
        if isinstance(kind, Carry):
            kept = _Kept(kind, kind.positions)
        else:
            stop = state.backlog.next_pos
            kept = _Kept(kind, range(stop - len(kind.bodies), stop))
        if seqnum in self._kept or not self._store.make_room(kept.size_bytes, self):
            return
        self._kept[seqnum] = kept
        self.kept_bytes += kept.size_bytes
        self._store.kept_bytes += kept.size_bytes
        self._store.keepers[self] = None
        if isinstance(kind, Carry):
            self._pass(seqnum, state)
        else:
            self._ahead[state.shard].append(seqnum)

    def pass_by(self, state: ShardState, given: Given | None) -> None:
        """The state went on: messages were given to whomever, or groups came or went."""
        for deliveries in given.takes if given is not None and self._back else ():
            for one in deliveries or ():
                seqnum = one.spot.place[0]
                if seqnum in self._back:
                    self._kept[seqnum].left -= 1
                    if self._kept[seqnum].left <= 0:
                        del self._back[seqnum]
                        self._spent.append(seqnum)
        first = state.backlog.find(state.backlog.first_pos)
        stop = state.at + 1 if first is None else first.seqnum
        ahead = self._ahead[state.shard]
        while ahead and ahead[0] < stop:
            self._pass(ahead.popleft(), state)

    def _pass(self, seqnum: int, state: ShardState) -> None:
        kept = self._kept[seqnum]
        kept.left = sum(
            (aside := group.aside.get(pos)) is not None and aside.status in (WAITING, BACK, PARKED)
            for group in state.groups.values()
            for pos in kept.positions
        )
        if kept.left:
            self._back[seqnum] = None
        else:
            self._spent.append(seqnum)

    # Room for others

    def drop_passed(self) -> bool:
        """Let go of a record that every group has passed; False if there is none."""
        if self._spent:
            self._drop(self._spent.popleft())
            return True
        for seqnum in self._back:
            del self._back[seqnum]
            self._drop(seqnum)
            return True
        return False

    def drop_farthest(self) -> bool:
        """Let go of the record that is taken last; False if there is none."""
        ahead = max(self._ahead, key=lambda one: one[-1] if one else 0)
        if not ahead:
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
        """(form, body) of each; read from the log where they are not here. What is gone for good comes as the error.

        With `most_bytes` of the first of them only, as many as have so many bytes together; of one at least.
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
