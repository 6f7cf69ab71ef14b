"""C2 and C3 of a promise machine: nothing waits where what it waits for would not be told.

C2 is about callbacks. Here these are what wakes a suspended call: a subscription for each record that it names, and an
alarm if it names a time, at the engine that owns it. A call without one of them sleeps for too long, or forever. C3 is
about listeners: callers that wait at an engine for the end of a call. One that still waits when the engine has come to
that end is told nothing.

Both are looked at in quiet moments, between two events, as in `boki.verify.sim.stray_alarms`: what was stranded shows
also where something else ends the wait later, as a time, another record or the caller's next question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.waiting import PackedCall
from boki.verify.sim.calls import LoggedEngine, open_engines
from boki.verify.sim.nodes import World

SLEEPERS_WAKE: Final = "a call that sleeps has all that wakes it"
CALLERS_ARE_TOLD: Final = "a caller waits for no call that has ended"


class Stranded:
    """What waited for nothing: `problems`, each once, as the promise that it breaks and a text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.problems: dict[tuple[str, str], None] = {}

    def look(self) -> None:
        """Compare what waits at all engines that are up with what their ledgers hold."""
        if self._world.options.logs_calls:
            for engine in open_engines(self._world):
                if not engine.loop.has_turn:  # else what has come is on its way to those that wait for it
                    self._look_at(engine)

    def _look_at(self, engine: LoggedEngine) -> None:
        where = f"{engine.name}, incarnation {engine.calls._me.incarnation},"  # noqa: SLF001 - nothing else needs it
        for call, lacks in find_sleepers(engine):
            self.problems[SLEEPERS_WAKE, f"{where} lets call {call} sleep, which {lacks}"] = None
        for call in find_listeners(engine.calls):
            self.problems[CALLERS_ARE_TOLD, f"{where} has a caller wait for call {call}, which has ended"] = None


def find_sleepers(engine: LoggedEngine) -> Iterator[tuple[str, str]]:
    """The suspended calls of the engine that lack something that wakes them, and what."""
    calls = engine.calls
    sleepers = calls._sleepers  # noqa: SLF001 - nothing else needs them
    laying = {sleeper.call.id for sleeper in sleepers._inherited}  # noqa: SLF001
    alarms = {id(call) for call in sleepers._alarms}  # noqa: SLF001
    for call in calls._book.ledger.owned_by(calls._me):  # noqa: SLF001
        is_moving = call.id in calls._mine or call.id in calls._running or call.id in laying  # noqa: SLF001
        if is_moving or not isinstance(call, PackedCall):
            continue
        sleeper = sleepers._asleep.get(call.id)  # noqa: SLF001
        if sleeper is None:
            yield call.id, "nothing is going to wake"
            continue
        if not (call.wakes or call.due_us):
            yield call.id, "waits for nothing"
        for wake in call.wakes:
            if not engine.subscriptions.has(wake.book, wake.tag, sleeper):
                yield call.id, f"waits for {wake.tag} of {wake.book}, to which it has no subscription"
        if call.due_us and not (id(sleeper.call) in alarms and sleepers._timer is not None):  # noqa: SLF001
            yield call.id, "waits for a time, and has no alarm"


def find_listeners(calls: LoggedCalls) -> Iterator[str]:
    """The calls that have ended, as far as the engine's fold has come, and whose ends are still waited for there."""
    ledger = calls._book.ledger  # noqa: SLF001 - nothing else needs them
    waiting: tuple[Mapping[str, asyncio.Future[Any]], ...] = calls._book._ends, calls._ends  # noqa: SLF001
    for call, end in chain(*(ends.items() for ends in waiting)):
        is_running = call in calls._running  # noqa: SLF001 - its end is told when its body is over
        if not (end.done() or is_running or ledger.has_later(call)):
            yield call
