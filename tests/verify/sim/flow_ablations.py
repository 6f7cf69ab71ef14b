"""Safeguards of workflows, each switched off: see `tests.verify.sim.ablations`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import msgspec

from boki import ConditionFailed
from boki.extending import WakeOn
from boki.gateway.server.listener import Gateway
from boki.libs.bokiflow import journal, resting
from boki.libs.bokiflow.body import Body
from boki.libs.bokiflow.carrying import Carrier
from boki.libs.bokiflow.execution import Execution
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.journal import JournalWriter
from boki.libs.bokiflow.locks import watching
from boki.libs.bokiflow.locks.held import Locks
from boki.libs.bokiflow.locks.state import LockQueue, Wanted
from boki.log.record import Expect
from boki.verify.sim import calls
from boki.verify.sim.stranded import SLEEPERS_WAKE
from boki.verify.sim.strangers import NOT_TOLD
from tests.verify.sim.without import without

NEED_FLOWS = (
    "age of locks",
    "end of locks",
    "order of locks",
    "once for keyed state",
    "effects wait for the journal",
    "end of overtaken executions",
    "timers of suspended workflows",
    "the token",
)
"""Ablations that only seeds with workflows can show."""


def no_count_of_the_journal() -> Any:
    """Records of a journal are appended wherever they come to stand, and all count."""

    def anywhere(tag: str, *, count: int) -> Expect:
        return Expect("!never used", 0)

    return without(journal, "Expect", anywhere)


def no_order_of_messages() -> Any:
    """Records of a journal do not say which message was delivered before them."""
    add = JournalWriter.add

    def forgetful(
        self: JournalWriter, fact: Any, _seen: int, at_us: int, began_us: int, *, lazily: bool = False
    ) -> None:
        add(self, fact, 0, at_us, began_us, lazily=lazily)

    return without(JournalWriter, "add", forgetful)


def no_wake_up_by_messages() -> Any:
    """What a suspended workflow waits for never comes (C2)."""
    return without(resting, "WakeOn", lambda book, tag, _min_seqnum: WakeOn(book, tag, 1 << 60))


def no_scope_of_numbers() -> Any:
    """Step keys and ids of children are the same in each continuation."""
    return without(History, "scope", lambda _self, run, _life: run)


def no_end_of_the_overtaken() -> Any:
    """An execution whose journal is another one's continues waiting for records of its own."""
    on_journal = Execution._on_journal

    def stubborn(self: Execution) -> None:
        if not self.journal.is_overtaken:
            on_journal(self)

    stack = ExitStack()
    stack.enter_context(without(Execution, "_on_journal", stubborn))
    stack.enter_context(without(calls, "_LATE", 0.5))  # else the one that nobody waits for loses each race
    return stack


def no_timer_of_a_suspension() -> Any:
    """A suspended workflow is woken by messages alone (C1: too few timers)."""
    return without(Carrier, "next_due_us", property(lambda _self: 0))


def no_wait_for_the_journal() -> Any:
    """A step with an effect begins before it is certain what came before it."""
    return without(JournalWriter, "is_firm", property(lambda self: True))


def no_order_of_locks() -> Any:
    """A lock is granted to whoever asks, though another one holds it."""
    decided = LockQueue.decided

    def generous(self: LockQueue, note: Any) -> Any:
        found, told = decided(self, note)
        if isinstance(note, Wanted):
            return msgspec.structs.replace(found, granted=note.request.id), [*told, note.request]
        return found, told

    stack = ExitStack()
    stack.enter_context(without(LockQueue, "decided", generous))
    stack.enter_context(without(Locks, "tokens", property(lambda self: [])))  # else the store refuses what follows
    return stack


def no_end_of_locks() -> Any:
    """What a workflow holds in its end it keeps, and nobody checks whether it has ended."""

    async def keep(self: Body) -> None:
        """It stays in the queue."""

    async def never(*_: object) -> bool:
        return False

    stack = ExitStack()
    stack.enter_context(without(Body, "_leave_locks", keep))
    stack.enter_context(without(watching, "_has_ended", never))
    return stack


def no_age_of_locks() -> Any:
    """Workflows that wait for each other wait forever."""
    return without(Locks, "_refuse", lambda self: None)


def no_once_for_keyed_state() -> Any:
    """A write to the store does not depend on the place in the journal: each execution makes it."""
    commit = JournalWriter.commit

    async def again(self: JournalWriter, fact: Any, *rest: Any) -> Any:
        *head, records, conditions = rest
        try:
            await self._logbook.append_many(records, when=tuple(conditions))
        except ConditionFailed:
            return None
        return await commit(self, fact, *head, [], [])

    return without(JournalWriter, "commit", again)


def no_token() -> Any:
    """Gateways let everybody in (C12)."""
    return without(Gateway, "_authorize", lambda _self, _request: None)


ABLATIONS: dict[str, Callable[[], Any]] = {
    "count of the journal": no_count_of_the_journal,
    "order of a workflow's messages": no_order_of_messages,
    "wake-ups of workflows": no_wake_up_by_messages,
    "scope of step keys": no_scope_of_numbers,
    "effects wait for the journal": no_wait_for_the_journal,
    "end of overtaken executions": no_end_of_the_overtaken,
    "timers of suspended workflows": no_timer_of_a_suspension,
    "order of locks": no_order_of_locks,
    "end of locks": no_end_of_locks,
    "age of locks": no_age_of_locks,
    "once for keyed state": no_once_for_keyed_state,
    "the token": no_token,
}
CAUGHT_BY: dict[str, str] = {
    "count of the journal": "executions agree on every step",
    "order of a workflow's messages": "workflows end",
    "wake-ups of workflows": SLEEPERS_WAKE,
    "scope of step keys": "each keyed effect is there once",
    "effects wait for the journal": "executions agree on every step",
    "end of overtaken executions": "workflows end",
    "timers of suspended workflows": "workflows end",
    "order of locks": "workflows end as they should",
    "end of locks": "workflows end",
    "age of locks": "workflows end",
    "once for keyed state": "workflows end as they should",
    "the token": NOT_TOLD,
}
"""The promise that breaks: its checker must notice, whatever others do."""
