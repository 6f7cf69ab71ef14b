"""Drives one core: an inbox, the clock, and the effects carried out for real.

Messages that have arrived are taken in one go and settled together, so that a busy node works in batches by itself and
an idle one answers at once. There is no timer but the tick.
"""

from __future__ import annotations

import logging
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, assert_never

from boki.errors import StoreFailed
from boki.host.clock import beat_delay_s, now_us
from boki.host.disk import Disk
from boki.host.links import NodeLinks
from boki.log.ids import NodeId
from boki.protocol.beats import EARLY_US
from boki.protocol.effects import (
    REST_US,
    Announce,
    Answer,
    Core,
    DiskRoom,
    DiskUnreadable,
    Effect,
    Load,
    Note,
    ProposePlacement,
    ProposeView,
    ReleaseSlots,
    Resting,
    RoleEffect,
    Send,
    Store,
    Trace,
)
from boki.protocol.messages import IndexBatch
from boki.protocol.output_commit import IN_LOG, holds, split_early

_log = logging.getLogger("boki.host")

TICK_S = 0.05
_RESTS_S: Final = tuple(REST_US / parts / 1_000_000 for parts in (1, 2, 4))
"""Periods of cores that rest: the longest whose next beat is no later than what a core waits for."""
_PATIENT: Final = (Note, IndexBatch)
"""Classes of what may wait for the next message or tick."""


class Host:
    """One node of this process. The core has been made from what is on the disk."""

    def __init__(
        self,
        node: NodeId,
        core: Core[Any],
        links: NodeLinks,
        loop: AbstractEventLoop,
        *,
        disk: Disk | None = None,
        carry_out: Callable[[RoleEffect], None] | None = None,
    ) -> None:
        self.node = node
        self.core = core
        self.disk = disk
        self.stopped = False
        self.failure = ""
        """Why it stopped by itself; empty if it did not."""
        self._links = links
        self._loop = loop
        self._carry_out = carry_out
        self._inbox: list[tuple[NodeId, Any]] = []
        self._scheduled = False
        self._room = DiskRoom(True)
        """What the core was told of its disk, if it has a use for that. It begins as one that has room."""
        self._timer: TimerHandle | None = None
        self._resting = core if isinstance(core, Resting) else None
        self._rests = False
        """Whether the next tick is far, because nothing waits in the core."""
        self._tick_at_us = 0
        self._mates: Mapping[NodeId, Host] = {}
        """The hosts whose disks share its write-ahead log, itself among them; none: it has one of its own."""
        self._runs_ahead = False
        self._ahead_until = 0
        """How far that log must be durable before what this host knows may be told."""
        self._watches_room = disk is not None and DiskRoom in core.HEARS
        links.attach(node, self.deliver)
        self._tick()

    def deliver(self, sender: NodeId, message: Any) -> None:
        """Put a message into the inbox; it is handled in the loop's next turn, with all that arrive until then.

        One that the core does not hear is dropped.
        """
        if self.stopped or type(message) not in self.core.HEARS:
            return
        self._inbox.append((sender, message))
        if not self._scheduled and not (isinstance(message, _PATIENT) and message.may_wait):
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def settle_soon(self) -> None:
        """Let the core settle in the loop's next turn, after something was told to it directly."""
        if not self._scheduled and not self.stopped:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def share_log(self, mates: Mapping[NodeId, Host], *, runs_ahead: bool) -> None:
        """These hosts share a log, and may run ahead of its syncs: see `boki.protocol.output_commit`."""
        self._mates = mates
        self._runs_ahead = runs_ahead

    def perform(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order. A stopped node does nothing more, not even what waited for its disk."""
        for effect in effects:
            if self.stopped:
                return
            if self._ahead_until and self._is_ahead and holds(effect):
                assert self.disk is not None
                self.disk.store(Store((), then=(effect,)), self._release)
                continue
            self._perform(effect)

    def _release(self, effects: Iterable[Effect]) -> None:
        """Carry out effects that follow from writes which are durable now."""
        for effect in effects:
            if self.stopped:
                return
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(to, message):
                self._links.send(self.node, to, message, can_wait=effect.can_wait)
            case Store():
                assert self.disk is not None, f"{self.node} has no disk to store on"
                early: Sequence[Send] = ()
                if self._mates:
                    early, effect = split_early(effect, self._mates, runs_ahead=self._runs_ahead)
                self.disk.store(effect, self._release, can_wait=effect.can_wait and bool(early))
                for send in early:
                    self._mates[send.to].hear_early(self.node, send.message)
            case Load():
                assert self.disk is not None, f"{self.node} has no disk to load from"
                self.disk.load(effect, partial(self.deliver, self.node))
            case Trace(level, text):
                _log.log(level, "%s: %s", self.node, text)
            case Answer() | Announce() | ProposeView() | ProposePlacement() | ReleaseSlots():
                assert self._carry_out is not None, f"nobody carries {effect} of {self.node} out"
                self._carry_out(effect)
            case _:
                assert_never(effect)

    def hear_early(self, sender: NodeId, message: Any) -> None:
        """Take in a message that follows from the last write to the common log, before that is durable."""
        assert self.disk is not None
        if isinstance(message, IN_LOG):
            if not self.stopped:
                self._inbox.insert(0, (sender, message))  # what has come meanwhile may be cuts of these very records
                self.settle_soon()
            return
        self._ahead_until = self.disk.log.queued
        self.disk.log.settle_before(self)
        self.deliver(sender, message)

    @property
    def _is_ahead(self) -> bool:
        assert self.disk is not None
        if self.disk.log.durable >= self._ahead_until:
            self._ahead_until = 0
        return self._ahead_until > 0

    def take_in(self) -> bool:
        """Handle what has come now, and not in the loop's next turn. → whether there was anything"""
        if not self._scheduled or self.stopped:
            return False
        try:
            self._drain()
        except Exception as error:  # noqa: BLE001 - it has stopped, and others continue
            self._loop.call_exception_handler({"message": f"{self.node} has stopped", "exception": error})
        return True

    def _drain(self) -> None:
        if self.stopped or not self._scheduled:
            return
        self._scheduled = False
        inbox, self._inbox = self._inbox, []
        now = now_us()
        try:
            for sender, message in inbox:
                self.perform(self.core.receive(sender, message, now))
            self.perform(self.core.settle(now))
            if self._rests and now + self._rest_us(now) < self._tick_at_us - EARLY_US and self._timer is not None:
                self._timer.cancel()
                self._await_tick(now)
        except Exception as error:
            self._break(error)
            raise

    def _tick(self) -> None:
        self._rests = False
        if not self.stopped and self._inbox and not self._scheduled:  # notes that may wait
            self._scheduled = True
            self._drain()
        if self.stopped:
            return
        if self._watches_room and self.disk is not None:
            room = self.disk.find_room(had_room=self._room.has_room)
            if (room.has_room, room.may_store) != (self._room.has_room, self._room.may_store):
                self._room = room
                self.deliver(self.node, room)
        now = now_us()
        try:
            self.perform(self.core.tick(now))
            self._await_tick(now)
        except Exception as error:
            self._break(error)
            raise

    def _rest_us(self, now: int) -> int:
        """How long the core can do without a tick."""
        return self._resting.rests_until(now) - now if self._resting is not None else 0

    def _await_tick(self, now: int) -> None:
        """All hosts of a process tick together: one that waits for something is woken twenty times a second, and not
        once for each role; one in which nothing waits twice.
        """
        if self.stopped:
            return
        time_s, latest_s = self._loop.time(), (self._rest_us(now) + EARLY_US) / 1_000_000
        delays_s = (beat_delay_s(time_s, period_s) for period_s in _RESTS_S)
        rest_s = next((delay_s for delay_s in delays_s if delay_s <= latest_s), 0.0)
        self._rests = rest_s > 0
        delay_s = rest_s or beat_delay_s(time_s, TICK_S)
        self._tick_at_us = now + int(delay_s * 1_000_000)
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _break(self, error: Exception) -> None:
        """A bug of ours, or a disk that cannot be read: what the core knows may be half changed. It must not
        continue.
        """
        self.failure = str(error) if isinstance(error, DiskUnreadable) else repr(error)
        if isinstance(error, DiskUnreadable):
            _log.critical(
                "%s has stopped: its disk cannot be read (%s). Look at the disk. If other nodes have what it held, "
                "start this one with an empty directory, one node at a time, and they fill it",
                self.node,
                error,
            )
        else:
            _log.critical("%s has stopped: a bug in its core (%r); start again, and report it", self.node, error)
        self.stop()

    def fail(self, error: StoreFailed) -> None:
        """The disk is dead: stop at once, loudly."""
        self.failure = str(error)
        _log.critical("%s: %s", self.node, error)
        self.stop()

    def stop(self) -> None:
        """Take part in nothing any more. The disk stays open; `close` it when its writes may be lost or are done."""
        self.stopped = True
        self._inbox.clear()
        self._links.detach(self.node)
        if self._timer is not None:
            self._timer.cancel()
