"""Taking over what a peer knows from the metalogs, where their entries are not kept any more.

A storage node that was away for long, or whose disk is new, asks sequencers for entries that everybody was allowed to
drop. It takes the state of another storage node instead, which has applied them, and continues from there. What it
holds itself it keeps, as far as that was ordered; what it lacks, repair brings.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from struct import error as StructError
from typing import Final

import msgspec

from boki.errors import CorruptData
from boki.log.ids import NodeId
from boki.log.membership import Membership, Role
from boki.log.metalog import Positions, term_of
from boki.protocol.effects import Send, Trace
from boki.protocol.follower import MetalogFollower
from boki.protocol.messages import FetchState, StateFetched
from boki.storage.holdings import Holdings
from boki.storage.shards import Shard
from boki.storage.state import Checkpoint, set_order

_REPEAT_US: Final = 1_000_000
_LONGEST_REPEAT_US: Final = 16_000_000
_STANDSTILL_US: Final = 3_000_000
_PART_BYTES: Final = 1 << 20
_FRESH_US: Final = 5_000_000
_KEEP_US: Final = 60_000_000


class Snapshots:
    """What peers are given: this node's state of one moment, in parts. `take` encodes the state of now."""

    def __init__(self, take: Callable[[], bytes]) -> None:
        self._take = take
        self._number = 0
        self._data = b""
        self._taken_at = 0
        self._used_at = 0

    def give(self, message: FetchState, now_us: int) -> StateFetched:
        """The part that is asked for; the beginning of the newest, if that is gone. Any state that is not old will do:
        its reader continues from there.
        """
        is_gone = not self._data or message.snapshot != self._number
        if is_gone and (not self._data or now_us - self._taken_at > _FRESH_US):
            self._number, self._data, self._taken_at = max(self._number + 1, now_us), self._take(), now_us
        self._used_at = now_us
        offset = 0 if is_gone else message.offset
        part = self._data[offset : offset + _PART_BYTES]
        return StateFetched(message.request, part, self._number, offset, len(self._data))

    def forget(self, now_us: int) -> None:
        """Nobody has asked for long."""
        if now_us - self._used_at > _KEEP_US:
            self._data = b""


class Takeover:
    """Whether this node has fallen behind what is kept, whom it asks, and what has come so far."""

    def __init__(self) -> None:
        self.is_needed = False
        self._asked_at = -_REPEAT_US
        self._asked_count = 0
        self._repeat_us = _REPEAT_US
        """How long a part may take before another peer is asked, from the beginning. An answer that is late for its
        question doubles it: else a state whose every part takes longer would never come.
        """
        self._moved_at = 0
        self._positions: Positions = {}
        self._snapshot = 0
        self._parts = bytearray()

    def need(self) -> None:
        """A sequencer has said that what comes next is not kept."""
        self.is_needed = True

    def ask(self, me: NodeId, members: Membership, follower: MetalogFollower, now_us: int) -> Iterable[Send]:
        """The question that is due. Nobody may be left to answer for a term that is over: standstill says so."""
        positions = {log: follower.position(log) for log in follower.logs}
        if positions != self._positions or follower.term == follower.chain.current.term:
            self._positions, self._moved_at = positions, now_us
        is_stuck = now_us - self._moved_at > _STANDSTILL_US
        if not (self.is_needed or is_stuck) or now_us - self._asked_at < self._repeat_us:
            return
        registered = [member.node for member in members.of(Role.STORAGE)]
        names = dict.fromkeys((*registered, *follower.chain.current.storage))
        if peers := [name for name in names if name != me]:
            self._asked_at = now_us
            self._asked_count += 1
            yield Send(peers[self._asked_count % len(peers)], FetchState(self._asked_count))

    def take(self, sender: NodeId, message: StateFetched, now_us: int) -> Checkpoint | Send | Trace | None:
        """A part has come. → the state, if it was the last; else the next question, if this answers the last one"""
        if message.request != self._asked_count:
            self._repeat_us = min(2 * self._repeat_us, _LONGEST_REPEAT_US)
            return None
        if message.offset == 0:
            self._snapshot, self._parts = message.snapshot, bytearray()
        if message.snapshot != self._snapshot or message.offset != len(self._parts):
            return None
        self._parts += message.state
        self._asked_at = now_us
        if len(self._parts) < message.size_bytes:
            return Send(sender, FetchState(message.request, message.snapshot, len(self._parts)))
        state, self._parts = bytes(self._parts), bytearray()
        try:
            return _decode(state)
        except CorruptData as error:
            return Trace(logging.WARNING, f"refused the state of {sender}: {error}")

    def done(self) -> None:
        """The node continues by itself again."""
        self.is_needed = False
        self._repeat_us = _REPEAT_US


def _decode(data: bytes) -> Checkpoint:
    """A peer's state, all orders in it checked; `CorruptData` if it is none."""
    try:
        state = msgspec.msgpack.decode(data, type=Checkpoint)
        for row in state.shards:
            set_order(Shard(), row)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, StructError) as error:
        raise CorruptData(f"what it knows cannot be read: {error}") from None
    return state


def is_ahead(state: Checkpoint, applied: Positions) -> bool:
    """Whether a peer has come farther in some log, and nowhere less far."""
    theirs, mine = term_of(state.applied), term_of(applied)
    if theirs != mine:
        return theirs > mine
    return state.applied != applied and all(state.applied.get(log, 0) >= at for log, at in applied.items())


def adopt_orders(holdings: Holdings, state: Checkpoint) -> None:
    """Let every shard be what the peer says that the metalogs make it; what was never ordered is dropped."""
    for row in state.shards:
        set_order(holdings.shard(row.key), row)
        holdings.touched.add(row.key)
        if row.is_closed:
            holdings.close(row.key)
    named = {row.key for row in state.shards}
    for key in list(holdings.shards):
        if key not in named and key[0] < term_of(state.applied):
            holdings.close(key)
