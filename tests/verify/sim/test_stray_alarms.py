"""Which alarms of an engine stand for nothing, by what its ledger holds of their calls."""

from __future__ import annotations

import msgspec
import pytest

from boki.books.calls.ledger import Accepted, Entry, Finished, Ledger, Started, Suspended, TakenOver
from boki.books.calls.runs import Runs
from boki.books.calls.waiting import Owner, PackedCall
from boki.protocol.calls import Call, Outcome, Payload, Suspension
from boki.verify.sim.stray_alarms import wrongly_armed

ME, OTHER = Owner("engine-1", 1), Owner("engine-2", 2)
ACCEPTED = Accepted(Call("c", "body", Payload("json", b"null"), "effects", 10**6), b"", owner=ME)
ASLEEP = Suspended("c", 1, ME, Runs(), Suspension(5))
TIMELESS = msgspec.structs.replace(ASLEEP, suspension=Suspension(0))
BEGUN = Started("c", 1, 0, ME, 1)
END = Finished("c", "body", "effects", Outcome(None, None), 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("asleep", "since", "wrong"),
    [
        (ASLEEP, [], ""),
        (TIMELESS, [], "waits for no time"),
        (ASLEEP, [END], "has ended"),
        (ASLEEP, [BEGUN], "has gone on since"),
        (ASLEEP, [BEGUN, ASLEEP], "has gone on since"),
        (ASLEEP, [END, ACCEPTED], "has gone on since"),
        (ASLEEP, [TakenOver(ME, OTHER)], "belongs to engine-2, incarnation 2"),
    ],
)
def test_an_alarm_stands_only_for_a_call_that_sleeps(asleep: Suspended, since: list[Entry], wrong: str) -> None:
    """With a time, here, and by the suspension that it was set for; not for one that has ended, run or gone."""
    ledger = Ledger()
    ledger.apply(1, 1, ACCEPTED)
    ledger.apply(2, 2, asleep)
    call = PackedCall.of(ledger.waiting["c"])
    for seqnum, entry in enumerate(since, 3):
        ledger.apply(seqnum, seqnum, entry)
    assert wrongly_armed(call, ledger, ME) == wrong


@pytest.mark.parametrize("ahead", [END, BEGUN])
def test_what_the_fold_has_not_come_to_does_not_count(ahead: Finished | Started) -> None:
    """An engine learns what it appended before it folds it, and drops the alarm then."""
    ledger = Ledger()
    ledger.apply(1, 1, ACCEPTED)
    ledger.apply(2, 2, ASLEEP)
    call = PackedCall.of(ledger.waiting["c"])
    ledger.learn(3, 3, ahead)
    assert wrongly_armed(call, ledger, ME) == ""
    ledger.apply(3, 3, ahead)
    assert wrongly_armed(call, ledger, ME)
