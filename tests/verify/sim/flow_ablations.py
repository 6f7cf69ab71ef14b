"""Safeguards of workflows, each switched off: see `tests.verify.sim.ablations`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from boki.books.calls.call_book import CallBook
from boki.books.calls.ledger import CODEC, Finished, id_tag
from boki.extending import WakeOn
from boki.libs.bokiflow import execution, journal
from boki.libs.bokiflow.execution import Execution
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.journal import JournalWriter
from boki.log.record import Expect
from boki.verify.sim import calls
from tests.verify.sim.without import without

NEED_FLOWS = (
    "conditions on the runs of workflows",
    "effects wait for the journal",
    "end of overtaken executions",
    "timers of suspended workflows",
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
    """What a suspended workflow waits for never comes."""
    return without(execution, "WakeOn", lambda book, tag, _min_seqnum: WakeOn(book, tag, 1 << 60))


def no_scope_of_numbers() -> Any:
    """Step keys and ids of children are the same in each continuation."""
    return without(History, "scope", lambda _self, run: run)


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


def no_condition_on_runs() -> Any:
    """A run begins whatever has become of its call: it has ended, or is another engine's."""
    append_after = CallBook.append_after

    async def blind(self: CallBook, entry: Any, expected_seqnum: int, tags: Any = ()) -> bool:
        if isinstance(entry, Finished):
            return await append_after(self, entry, expected_seqnum, tags)
        seqnum = await self._book.append(CODEC.encode(entry), [id_tag(entry.id), *tags])
        self.ledger.learn(seqnum, 0, entry)
        return True

    return without(CallBook, "append_after", blind)


def no_timer_of_a_suspension() -> Any:
    """A suspended workflow is woken by messages alone (C1: too few timers)."""
    return without(Execution, "_next_due_us", lambda _self: 0)


def no_wait_for_the_journal() -> Any:
    """A step with an effect begins before it is certain what came before it."""
    return without(JournalWriter, "is_firm", property(lambda self: True))
