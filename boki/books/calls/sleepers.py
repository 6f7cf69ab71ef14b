"""Suspended calls of one engine: each wakes once, when its time has come or a record that it waits for is there.

Nothing polls: for all times there is one timer (`boki.books.calls.alarms`), and records are watched inside the engine
(`boki.engine.watches`). A watch sees what was there before, too, so a record that came while the call was being
suspended wakes it at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from boki.api.port import LogPort
from boki.books.calls.alarms import Alarms
from boki.books.calls.waiting import PackedCall
from boki.log.metalog import Positions
from boki.log.operations import Answer

_LONGEST_TIMER_S: Final = 3600.0
_ARMED_AT_ONCE: Final = 200
"""An heir may inherit a hundred thousand: in between others get their turn."""
_SPARE_TIMES: Final = 1_000
"""Times of calls that are asleep no more are cleared away when they are more than the others and this."""

Finish = Callable[[Answer, Positions], None]


class WatchingPort(LogPort, Protocol):
    """A way to the log that can also watch a tag for long: `boki.engine.server.log_service.LogService`."""

    def watch(self, book: str, tag: str, min_seqnum: int, finish: Finish) -> None:
        """Call `finish` once, maybe before returning, when the tag has a record at or above `min_seqnum`."""

    def unwatch(self, book: str, tag: str, finish: Finish) -> None:
        """End the watch of that `finish`, if there still is one."""


class _Sleeper(msgspec.Struct, eq=False, gc=False):
    """One suspended call; called when a record that it waits for is there."""

    owner: Sleepers
    call: PackedCall

    def __call__(self, _answer: Answer, _positions: Positions) -> None:
        self.owner.rouse(self)


class Sleepers:
    """`wake` is told the id of each call that is to run again. `clock`: the log's time as well as it is known here."""

    def __init__(self, port: WatchingPort, clock: Callable[[], int], wake: Callable[[str], None]) -> None:
        self._port = port
        self._clock = clock
        self._wake = wake
        self._asleep: dict[str, _Sleeper] = {}
        self._alarms = Alarms()
        self._inherited: deque[_Sleeper] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0
        self._arming: asyncio.Handle | None = None
        self._is_open = True

    def __len__(self) -> int:
        return len(self._asleep)

    def __contains__(self, invocation_id: str) -> bool:
        return invocation_id in self._asleep

    def stop(self) -> None:
        """Wake nobody any more."""
        self._is_open = False
        for handle in (self._timer, self._arming):
            if handle is not None:
                handle.cancel()

    def inherit(self, call: PackedCall) -> None:
        """Arm this one with others, a few in each turn of the event loop."""
        self._inherited.append(self._lay(call))
        if self._arming is None and self._is_open:
            self._arming = asyncio.get_running_loop().call_soon(self._arm_some)

    def _arm_some(self) -> None:
        self._arming = None
        for _ in range(min(len(self._inherited), _ARMED_AT_ONCE)):
            self._watch(self._inherited.popleft())
        if self._inherited and self._is_open:
            self._arming = asyncio.get_running_loop().call_soon(self._arm_some)

    def arm(self, call: PackedCall) -> None:
        """Wake this call when what its suspension names has come: maybe before this returns."""
        self._watch(self._lay(call))

    def _lay(self, call: PackedCall) -> _Sleeper:
        self.disarm(call.id)
        sleeper = self._asleep[call.id] = _Sleeper(self, call)
        return sleeper

    def _watch(self, sleeper: _Sleeper) -> None:
        call = sleeper.call
        for wake in call.wakes:
            if not self._is_open or self._asleep.get(call.id) is not sleeper:
                return  # the record was there already, or the call is over
            self._port.watch(wake.book, wake.tag, wake.min_seqnum, sleeper)
        if call.due_us and self._is_open and self._asleep.get(call.id) is sleeper:
            self._alarms.add(call)
            if len(self._alarms) > 2 * len(self._asleep) + _SPARE_TIMES:
                self._alarms.keep(self._is_asleep)
            self._set_timer()

    def disarm(self, invocation_id: str) -> None:
        """The call is not to be woken any more: it is over, or another engine's."""
        sleeper = self._asleep.pop(invocation_id, None)
        if sleeper is not None:
            for wake in sleeper.call.wakes:
                self._port.unwatch(wake.book, wake.tag, sleeper)

    def rouse(self, sleeper: _Sleeper) -> None:
        """What it waits for has come. Once: it is asleep no more."""
        invocation_id = sleeper.call.id
        if self._asleep.get(invocation_id) is sleeper and self._is_open:
            self.disarm(invocation_id)
            self._wake(invocation_id)

    def _set_timer(self) -> None:
        """One timer, for what is due first; never so far ahead that a clock set again could make it very late."""
        due_us = self._alarms.next_us
        if due_us is None:
            return
        if self._timer is not None:
            if self._timer_us <= due_us:
                return
            self._timer.cancel()
        delay_s = min(max(0.0, (due_us - self._clock()) / 1e6), _LONGEST_TIMER_S)
        self._timer_us = due_us
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        for call in self._alarms.due(self._clock()):
            if self._is_asleep(call):
                self.rouse(self._asleep[call.id])
        if self._is_open:
            self._set_timer()

    def _is_asleep(self, call: PackedCall) -> bool:
        sleeper = self._asleep.get(call.id)
        return sleeper is not None and sleeper.call is call
