"""A watch over what the folds of a queue hand out: nothing goes to a session that is gone.

The records alone say which sessions a fold must take for gone: those that were handed messages, and let the time pass
within which a process acts. So each process here keeps its own account of acts and hand-outs beside its fold. It knows
less than the fold, for it begins when its process does, and an act counts whatever it has heard of. What it accuses is
wrong all the same.
"""

from __future__ import annotations

from typing import Final

from boki.libs.bokiqueue.following import Following
from boki.libs.bokiqueue.lines import Line
from boki.libs.bokiqueue.records import Act, Kind
from boki.libs.bokiqueue.sessions import Given
from boki.libs.bokiqueue.state import ShardState

LEASE_SILENCE_US: Final = 5_000_000
POP_SILENCE_US: Final = 30_000_000
"""What `docs/queues.md` promises. The library's own limits are not asked: they may be what is wrong."""


class Silences:
    """When each session was handed something on which it has not acted: by process, group, and whether it is leased."""

    def __init__(self) -> None:
        self._since_us: dict[tuple[bytes, str, bool], int] = {}

    def act(self, taker: bytes) -> None:
        """The process has acted."""
        for key in [key for key in self._since_us if key[0] == taker]:
            del self._since_us[key]

    def hand(self, taker: bytes, group: str, *, is_leased: bool, now_us: int) -> bool:
        """The process was handed messages. Whether it was there still."""
        since_us = self._since_us.setdefault((taker, group, is_leased), now_us)
        return now_us < since_us + (LEASE_SILENCE_US if is_leased else POP_SILENCE_US)


class _WatchedState(ShardState):
    """The fold of a shard, with the account beside it."""

    def __init__(self, state: ShardState, silences: Silences, found: set[str], where: str) -> None:
        super().__init__(state.shard)
        self.__dict__.update(state.__dict__)
        self._silences, self._found, self._where = silences, found, where

    def apply(self, seqnum: int, time_us: int, record: Kind) -> Given | None:
        given = super().apply(seqnum, time_us, record)
        if isinstance(record, Act):
            self._silences.act(record.taker)
        for one in self.handed:
            if not self._silences.hand(one.taker, one.group, is_leased=one.lease_us > 0, now_us=time_us):
                positions = [delivery.spot.pos for delivery in one.deliveries]
                self._found.add(f"{self._where} gave {positions} to a session that was gone, at {seqnum}")
        return given


class _WatchedLine(Line):
    """A shard whose fold is watched."""

    def __init__(self, shard: int, taker: bytes, found: set[str], queue: str) -> None:
        super().__init__(shard, taker)
        self._found, self._where = found, f"{queue}, shard {shard}"

    def begin(self, state: ShardState, resume: int) -> None:
        super().begin(_WatchedState(state, Silences(), self._found, self._where), resume)


def watched(followed: Following, found: set[str]) -> Following:
    """The queue as a process sees it, which says in `found` what goes to sessions that are gone."""
    followed.lines[:] = [_WatchedLine(line.shard, followed.taker, found, followed.queue) for line in followed.lines]
    return followed
