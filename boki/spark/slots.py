"""Slots: the tags under which batches without a name are written.

A write needs tags of its own while it continues, and what fences its late tasks must outlive them (`boki.spark.lane`).
If each write had its own, they would pile up in the index forever. So writes are batches of **slots**, as micro-batches
are of a query: a write takes the first slot that is free, by a conditional record in the ledger, and its commit gives
it back. There are as many slots as writes at a time.

A write that fails gives its slot back as well, after a while in which its last tasks end; one whose driver died is
taken for failed when nothing was noted of it for very long. Both by the log's time, as far as the slots' notes tell
it. The next write begins where the lanes stand, and a task of the old one reads that its batch is over.
"""

from __future__ import annotations

from typing import Final

from boki.errors import Overloaded
from boki.log.operations import TrimBook
from boki.spark.columns import LEDGER
from boki.spark.commit import tidy
from boki.spark.ledger import SILENT_US, Ledger, Opened
from boki.spark.steps import Steps, again

SLOT_PREFIX: Final = "!batch:"
"""Ids of writes that have no name start so, and those that have one do not."""
MOST_SLOTS: Final = 1024
"""This many writes may be under way, or have failed a moment ago."""
_MINUTE_US: Final = 60_000_000
_FAILED_US: Final = 5 * _MINUTE_US
"""After this a slot whose write has failed is given to the next."""


def take_slot(owner: str) -> Steps[tuple[str, int]]:
    """The id of a write and the number of its batch, which no other has. `boki.spark.commit` gives it back.

    `owner`: a unique id, by which an answer that was lost is found again.
    """
    busy: list[tuple[str, Ledger]] = []
    now_us = 0
    for number in range(MOST_SLOTS):
        slot = f"{SLOT_PREFIX}{number}"
        ledger = Ledger(slot)
        yield from ledger.catch_up()
        now_us = max(now_us, ledger.last_time_us)
        if ledger.under_way > ledger.complete:
            busy.append((slot, ledger))
            continue
        if not ledger.last_seqnum:  # it was never used: rather one that was given up
            taken = yield from _take_given_up(busy, now_us, owner)
            if taken is not None:
                return taken
        if (yield from _take(ledger, slot, owner)):
            return slot, ledger.under_way
        busy.append((slot, ledger))
    taken = yield from _take_given_up(busy, now_us, owner)
    if taken is not None:
        return taken
    raise Overloaded(
        f"{MOST_SLOTS:,} writes without a writeId are under way, or have failed within the last minutes: give this one "
        "a writeId, or wait",
        limit=MOST_SLOTS,
    )


def _take_given_up(busy: list[tuple[str, Ledger]], now_us: int, owner: str) -> Steps[tuple[str, int] | None]:
    for slot, ledger in busy:
        timeout_us = _FAILED_US if ledger.is_failed else SILENT_US
        if now_us - ledger.last_time_us >= timeout_us and (yield from _take(ledger, slot, owner)):
            return slot, ledger.under_way
    return None


def _take(ledger: Ledger, slot: str, owner: str) -> Steps[bool]:
    """Open the slot, if it is still as it was."""
    was, tries = ledger.last_seqnum, 0
    batch = ledger.newest + 1
    while True:
        if ledger.is_untidy:
            yield from tidy(ledger, slot)
        seqnum = yield from ledger.note(Opened(batch=batch, owner=owner), if_unchanged=True)
        yield from ledger.catch_up()
        if (ledger.under_way, ledger.owner) == (batch, owner):
            if seqnum is not None:
                yield TrimBook(LEDGER, seqnum, ledger.tag)
            return True
        if seqnum is None and ledger.last_seqnum == was:  # nobody has, so the answer was lost before it was appended
            yield from again(tries, f"slot {slot} could not be opened")
            tries += 1
            continue
        return False
