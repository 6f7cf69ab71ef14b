"""Safeguards of workflows, each switched off: see `tests.sim.ablations`."""

from __future__ import annotations

from typing import Any

from boki.extending import WakeOn
from boki.libs.bokiflow import execution, journal
from boki.libs.bokiflow.history import History
from boki.libs.bokiflow.journal import JournalWriter
from boki.log.record import Expect
from tests.sim.without import without


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


def no_wait_for_the_journal() -> Any:
    """A step with an effect begins before it is certain what came before it."""
    return without(JournalWriter, "is_firm", property(lambda self: True))
