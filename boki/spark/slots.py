"""Slots: under which tags batches are written that nobody names.

A write needs tags of its own while it goes on, and what fences its late tasks must outlive them (`boki.spark.lane`). If
each write had its own, they would pile up in the index for ever. So writes are batches of **slots**, as micro-batches
are of a query: a write takes the first slot that is free, by a conditional record in the book of the sinks, and its
commit gives it back. There are as many slots as writes at a time.

A write that fails gives nothing back: its rows are in its lanes, and its tasks may still run. Where so many have failed
that no slot is found, a write goes under tags of its own.
"""

from __future__ import annotations

from typing import Final

import msgspec

from boki.errors import ConnectionLost, DeadlineExceeded
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Append
from boki.log.record import Expect
from boki.spark.columns import LEDGER
from boki.spark.gateway import Gateway
from boki.spark.lane import SLOT_PREFIX, Commit, tagged

_MOST_SLOTS: Final = 64
"""So many are looked at."""
_MOST_LANES: Final = 2_000
"""A slot that has written to so many partitions and books is left alone: its record grows with them."""


def take_slot(gateway: Gateway, fresh_id: str) -> tuple[str, int]:
    """The id of a write and the number of its batch, which nobody else has; `boki.spark.lane.commit` gives it back.

    `fresh_id` is taken where no slot is free.
    """
    for number in range(_MOST_SLOTS):
        slot = f"{SLOT_PREFIX}{number}"
        records = tagged(gateway, LEDGER, slot)
        before = msgspec.json.decode(records[-1].data, type=Commit) if records else Commit(batch=-1, lanes=())
        last_seqnum = records[-1].seqnum if records else 0
        if not before.is_open and len(before.lanes) <= _MOST_LANES and _take(gateway, slot, before, last_seqnum):
            return slot, before.batch + 1
    return fresh_id, 0


def _take(gateway: Gateway, slot: str, before: Commit, last_seqnum: int) -> bool:
    """Open the slot, if it is still as it was. Where no answer comes it may have been opened, for nobody."""
    note = msgspec.json.encode(msgspec.structs.replace(before, is_open=True))
    group = Group([(note, (slot,))], (Expect(slot, last_seqnum),))
    try:
        answer = gateway.append(Append(LEDGER, encode_chunk(LEDGER, [group])))
    except (ConnectionLost, DeadlineExceeded):
        return False
    if answer.rejected:
        return False
    gateway.trim_tag(LEDGER, slot, answer.first_seqnum)
    return True
