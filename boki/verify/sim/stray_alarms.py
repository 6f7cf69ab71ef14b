"""C1 of a promise machine, the half that "workflows end" does not show: no call has an alarm that it should not have.

A missing alarm is noticed, because its call sleeps forever. One too many wakes a call that has ended, runs, or belongs
to another engine: a run for nothing. So each engine's alarms are compared with its ledger at quiet moments, between two
events. Looking draws nothing and adds no event, so a run is the same with it and without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from boki.books.calls.ledger import Ledger
from boki.books.calls.waiting import Owner, PackedCall
from boki.verify.sim.calls import LoggedEngine, open_engines
from boki.verify.sim.nodes import World

ONLY_SLEEPERS: Final = "an alarm stands only for a call that sleeps"


class StrayAlarms:
    """The alarms that stood at engines for nothing: `problems`, each once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.problems: dict[str, None] = {}

    def look(self) -> None:
        """Compare the alarms of all engines that are up with what their ledgers hold."""
        if self._world.options.logs_calls:
            for engine in open_engines(self._world):
                self.problems |= dict.fromkeys(self._find(engine))

    def _find(self, engine: LoggedEngine) -> Iterator[str]:
        calls = engine.calls
        sleepers, ledger, me = calls._sleepers, calls._book.ledger, calls._me  # noqa: SLF001 - nothing else needs them
        kept = list(sleepers._alarms)  # noqa: SLF001
        standing = list(filter(sleepers._is_asleep, kept))  # noqa: SLF001
        if len(standing) < len(kept):
            self._world.clock.sometimes("a call was awake before its alarm rang")
        for call, count in Counter(standing).items():
            is_awake = call.id in calls._mine  # noqa: SLF001
            wrong = "is awake" if is_awake else "has another one" if count > 1 else wrongly_armed(call, ledger, me)
            if wrong:
                yield f"{engine.name}, incarnation {me.incarnation}, has an alarm for call {call.id}, which {wrong}"


def wrongly_armed(call: PackedCall, ledger: Ledger, me: Owner) -> str:
    """Why this engine should have no alarm for the call; "": it should. Records that its fold has not come to do not
    count: what an engine learns ahead of the fold takes effect with the fold.
    """
    kept = ledger.waiting.kept(call.id)
    if kept is None:
        return "" if ledger.has_later(call.id) else "has ended"
    if kept.seqnum != call.seqnum:
        return "has gone on since" if kept.seqnum < ledger.fold_from else ""
    if kept.owner != me:
        return f"belongs to {kept.owner.node}, incarnation {kept.owner.incarnation}"
    return "" if kept.state == "suspended" and kept.due_us else "waits for no time"
