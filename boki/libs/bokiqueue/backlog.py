"""The messages of a shard that some group has not passed: pushes in order, and how fast they come. Pure."""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from boki.libs.bokiqueue.records import MAX_BATCH, Key, Later, Number, Push, Size, Time

RATE_US: Final = 10_000_000

_Index = Annotated[int, Meta(ge=0, lt=MAX_BATCH)]


class Spot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message: its position, the record and place in it where it was pushed, and where it stands now if not there."""

    pos: Number
    seqnum: Number
    index: _Index
    time_us: Time
    expires_us: Later = 0
    key: Key = ""
    carried_to: Number = 0
    carried_index: _Index = 0
    size_bytes: Size = 0
    """No body of its push has more."""

    @property
    def place(self) -> tuple[int, int]:
        """The record that holds its body, and where in it."""
        return (self.carried_to, self.carried_index) if self.carried_to else (self.seqnum, self.index)

    def carried(self, place: tuple[int, int]) -> Spot:
        """The message, whose body stands there now."""
        return msgspec.structs.replace(self, carried_to=place[0], carried_index=place[1])


class Segment(msgspec.Struct, frozen=True, gc=False):
    """The messages of one push."""

    seqnum: int
    first: int
    count: int
    time_us: int
    due_us: int
    expires_us: int
    keys: list[str]
    size_bytes: int = 0
    """The largest body."""

    @staticmethod
    def of(seqnum: int, first: int, time_us: int, push: Push) -> Segment:
        """That of a push at this time, with positions from `first` on."""
        bodies = push.bodies
        due_us = time_us + push.delay_us if push.delay_us else 0
        expires_us = time_us + push.ttl_us if push.ttl_us else 0
        size_bytes = len(bodies[0]) if len(bodies) == 1 else max(map(len, bodies), default=0)
        return Segment(seqnum, first, len(bodies), time_us, due_us, expires_us, push.keys, size_bytes)

    def has_expired(self, now_us: int) -> bool:
        """Whether no take gives any of it any more, of what was not taken before."""
        return 0 < self.expires_us <= now_us

    def spot(self, index: int) -> Spot:
        """One of its messages."""
        key = self.keys[index] if self.keys else ""
        return Spot(
            self.first + index, self.seqnum, index, self.time_us, self.expires_us, key, size_bytes=self.size_bytes
        )


class Backlog:
    """Pushes that some group has not passed, in order."""

    def __init__(self, next_pos: int = 0) -> None:
        self._segments: list[Segment] = []
        self._firsts: list[int] = []
        self._head = 0
        """What lies before it in the lists is forgotten, and deleted from time to time."""
        self.next_pos = next_pos
        self.may_expire = False
        """Whether anything that came here is dropped after a time."""

    def add(self, seqnum: int, time_us: int, push: Push) -> None:
        """A push."""
        self._segments.append(Segment.of(seqnum, self.next_pos, time_us, push))
        self._firsts.append(self.next_pos)
        self.next_pos += len(push.bodies)
        self.may_expire |= push.ttl_us > 0

    def put_before(self, older: list[Segment]) -> None:
        """Pushes that lie right before the first one here."""
        first = self.first_pos
        placed = []
        for segment in reversed(older):
            first -= segment.count
            placed.append(msgspec.structs.replace(segment, first=first))
        self._segments[: self._head] = placed[::-1]
        self._firsts[: self._head] = [segment.first for segment in reversed(placed)]
        self._head = 0
        self.may_expire |= any(segment.expires_us for segment in older)

    @property
    def first_pos(self) -> int:
        """The position of the first message here."""
        return self._firsts[self._head] if self._head < len(self._firsts) else self.next_pos

    def segments(self) -> list[Segment]:
        """All of them; a copy."""
        return self._segments[self._head :]

    def find(self, pos: int) -> Segment | None:
        """The push that holds the position."""
        if not self.first_pos <= pos < self.next_pos:
            return None
        return self._segments[bisect_right(self._firsts, pos, self._head) - 1]

    def drop_below(self, pos: int) -> None:
        """Forget pushes of which every message lies below the position."""
        while self._head < len(self._segments) and pos >= self._firsts[self._head] + self._segments[self._head].count:
            self._head += 1
        self._tidy()

    def drop_expired(self, now_us: int) -> None:
        """Forget the first pushes, as far as their time is over."""
        while self._head < len(self._segments) and self._segments[self._head].has_expired(now_us):
            self._head += 1
        self._tidy()

    def _tidy(self) -> None:
        if self._head > 64 and self._head * 2 > len(self._segments):
            del self._segments[: self._head]
            del self._firsts[: self._head]
            self._head = 0


class Rate(msgspec.Struct, array_like=True):
    """How many a second: counted in windows of ten seconds of the log's time."""

    window: Number = 0
    count: Number = 0
    previous: Number = 0

    def add(self, count: int, now_us: int) -> None:
        """Count these."""
        window = now_us // RATE_US
        if window != self.window:
            self.previous = self.count if window == self.window + 1 else 0
            self.window, self.count = window, 0
        self.count += count

    def per_s(self, now_us: int) -> float:
        """About how many a second."""
        passed = now_us // RATE_US - self.window
        count = self.count if passed <= 0 else 0
        previous = self.previous if passed <= 0 else self.count if passed == 1 else 0
        share = 1 - now_us % RATE_US / RATE_US if passed <= 0 else 1
        return (previous * share + count) * 1e6 / RATE_US
