"""Suspended calls in little memory: nothing of them is lost, and their alarms ring in order."""

from __future__ import annotations

import gc
import tracemalloc

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from boki.books.calls.alarms import Alarms
from boki.books.calls.ledger import Accepted, Ledger, Suspended
from boki.books.calls.runs import Runs
from boki.books.calls.waiting import Owner, PackedCall, Waiting, WaitingCalls, as_waiting
from boki.log.ids import MAX_SEQNUM
from boki.protocol.calls import PINNED, Call, ChosenId, Payload, Suspension, WakeOn

ME = Owner("engine-1", 3)
ID = "0123456789abcdef0123456789abcdef"
numbers = st.integers(0, MAX_SEQNUM)
names = st.text(max_size=12)
values = st.one_of(names, st.integers(-10, 10), st.booleans(), st.floats(allow_nan=False))
attributes = st.one_of(
    st.none(),
    st.builds(lambda version: {PINNED: version}, st.integers(0, 5)),
    st.dictionaries(st.one_of(names, st.just(PINNED)), values, max_size=3),
)
tags = st.one_of(st.sampled_from([f"!fi:{ID}", ID, f"{ID}:{ID}", "shared"]), st.text(min_size=1).filter(str.isalpha))
wakes = st.lists(st.builds(WakeOn, st.sampled_from(["book", "boki:calls"]), tags, numbers), max_size=4)


@st.composite
def waiting_calls(draw: st.DrawFn, invocation_id: str = ID) -> Waiting:
    """A call in any state."""
    due_us = draw(numbers)
    state = draw(st.sampled_from(["accepted", "running", "retrying", "suspended"]))
    suspension = Suspension(due_us, tuple(draw(wakes)), draw(names)) if state == "suspended" else None
    return Waiting(
        invocation_id,
        draw(numbers),
        due_us,
        draw(st.sampled_from([ME, Owner("", 0), Owner("engine-2", 1 << 40)])),
        draw(st.integers(0, 3)),
        draw(numbers),
        state,
        draw(names),
        draw(names),
        *(draw(numbers) for _ in range(5)),
        suspension,
        draw(names),
        draw(attributes),
    )


@given(waiting_calls())
def test_a_call_is_given_back_as_it_was_put(waiting: Waiting) -> None:
    """And what lists look at is the same without unpacking it."""
    calls = WaitingCalls()
    calls.put(waiting)
    assert calls[ID] == waiting == calls.get(ID)
    kept = calls.kept(ID)
    assert kept is not None
    assert isinstance(kept, PackedCall) == (waiting.state == "suspended")
    for field in ("id", "seqnum", "due_us", "owner", "state", "function", "changed_us", "name", "attributes"):
        assert getattr(kept, field) == getattr(waiting, field)
    assert kept.accepted_seqnum == waiting.accepted_seqnum
    if isinstance(kept, PackedCall) and waiting.suspension is not None:
        assert kept.wakes == waiting.suspension.wakes


@given(st.lists(waiting_calls(), min_size=1, max_size=6))
def test_what_is_put_again_replaces_what_was_known(puts: list[Waiting]) -> None:
    """A suspension of which more is known stays the same object, so that what sleeps knows it, too."""
    calls = WaitingCalls()
    for waiting in puts:
        before = calls.kept(ID)
        before_seqnum = before.seqnum if isinstance(before, PackedCall) else None
        calls.put(waiting)
        assert calls[ID] == waiting
        assert len(calls) == 1
        if before_seqnum is not None and waiting.state == "suspended":
            assert (calls.kept(ID) is before) == (before_seqnum == waiting.seqnum)
    calls.pop(ID)
    assert ID not in calls


@given(st.lists(st.tuples(st.integers(1, 5_000_000), st.booleans()), max_size=30), st.integers(0, 5_000_000))
def test_alarms_ring_in_order_and_no_later_than_they_say(times: list[tuple[int, bool]], now_us: int) -> None:
    """Those that are due, and no others; `next_us` is never later than the first of them."""
    alarms = Alarms()
    calls = [
        PackedCall.of(Waiting(f"{n}", n, due_us, state="suspended", suspension=Suspension(due_us)))
        for n, (due_us, _) in enumerate(times)
    ]
    for call in calls:
        alarms.add(call)
    kept = {call.id for call, (_, is_kept) in zip(calls, times, strict=True) if is_kept}
    alarms.keep(lambda call: call.id in kept)
    left = sorted(((call.due_us, call.id) for call in calls if call.id in kept), key=lambda time: time[0])
    assert len(alarms) == len(left)
    for moment in (now_us // 2, now_us):
        due = [(call.due_us, call.id) for call in alarms.due(moment)]
        assert [us for us, _ in due] == sorted(us for us, _ in due)
        assert sorted(due) == sorted(time for time in left if time[0] <= moment)
        left = [time for time in left if time[0] > moment]
        assert alarms.next_us is None if not left else (alarms.next_us or 0) <= left[0][0]
        assert len(alarms) == len(left)


def test_a_sleeping_workflow_takes_little_memory_in_the_ledger() -> None:
    """With its id and its place in the table; of a carried one the same (issue 14: 100,000 in one engine)."""
    ledger = Ledger()
    count = 5_000
    gc.collect()
    tracemalloc.start()
    for number in range(count):
        invocation_id = f"{number:032x}"
        chosen = ChosenId(f"{number:x}", name=f"sleeper:{number}", attributes={PINNED: 3})
        call = Call(invocation_id, "sleeper", Payload("bytes", b""), "flows", 1, chosen=chosen)
        seqnum = (1 << 43) + 2 * number
        ledger.apply(seqnum, 10**15 + number, Accepted(call, b"", owner=ME, starts=1, state="running", runs=Runs(1)))
        wake = WakeOn("flows", f"!fi:{invocation_id}", 0)
        suspended = Suspended(invocation_id, seqnum, ME, Runs(1, 10**15, 10**15), Suspension(10**15 + number, (wake,)))
        ledger.apply(seqnum + 1, 10**15 + number, suspended)
    del call, chosen, wake, suspended
    gc.collect()
    held_bytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert held_bytes / count < 350
    assert ledger.suspended_count == count


@given(waiting_calls())
def test_who_takes_over_finds_it_as_it_was(waiting: Waiting) -> None:
    """The owner is another, and all else is the same."""
    calls = WaitingCalls()
    calls.put(waiting)
    kept = calls.kept(ID)
    assert kept is not None
    heir = Owner("engine-9", 9)
    calls.put(msgspec.structs.replace(as_waiting(kept), owner=heir))
    assert calls[ID] == msgspec.structs.replace(waiting, owner=heir)


def test_two_alarms_of_one_call_at_one_time_are_not_compared() -> None:
    """A call that was suspended again until the same time has two, of which one is out of date."""
    alarms = Alarms()
    for seqnum in (1, 2):
        alarms.add(PackedCall.of(Waiting("c", seqnum, 7, state="suspended", suspension=Suspension(7))))
    assert [call.seqnum for call in alarms.due(7)] == [1, 2]
