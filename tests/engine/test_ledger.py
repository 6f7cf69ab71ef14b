"""The ledger of logged calls as a fold: records in, unfinished calls out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.calls import Call, Outcome, Payload
from boki.engine.ledger import (
    MAX_BACKOFF_US,
    MAX_STARTS,
    Accepted,
    Checkpoint,
    Entry,
    Finished,
    Ledger,
    Progress,
    Waiting,
    carry_forward,
    decode_entry,
    due_at,
    encode_entry,
    request_hash,
    run_again_after,
    state_of,
)
from boki.errors import BokiError, CallLost, CorruptData, FunctionFailed, Overloaded, VersionTooNew
from boki.log.operations import Failure
from tests.engine.call_world import a_call

DONE = Outcome(Payload("json", b"1"), None)


def failed(error: BokiError) -> Outcome:
    return Outcome(None, Failure.of(error))


def finished(number: int, outcome: Outcome = DONE) -> Finished:
    return Finished(a_call(number).id, "echo", "book", outcome, 10, 10, 11, 1)


def test_entries_come_back_as_they_were_written() -> None:
    """What is encoded decodes to the same, for every kind of entry."""
    call = a_call(1)
    entries: list[Entry] = [
        Accepted(call, request_hash(call, 5), 5, 7),
        finished(1, failed(FunctionFailed("no", error_type="ValueError"))),
        Checkpoint(9, (Waiting(call.id, 8, 0),)),
    ]
    assert [decode_entry(encode_entry(entry)) for entry in entries] == entries


def test_the_layout_of_records_is_pinned() -> None:
    """Records of this version stay readable: these are bytes on disks."""
    entry = Checkpoint(9, (Waiting("ab", 8, 0),))
    assert encode_entry(entry).hex() == "0193aa636865636b706f696e740991 93a26162 0800".replace(" ", "")
    call = Call("c1", "f", Payload("json", b"1"), "b", 5)
    accepted = "0195a86163636570746564 99a26331a166 92a46a736f6ec40131 a162 05 00 80 a0 a0 c40168 00 00".replace(
        " ", ""
    )
    assert encode_entry(Accepted(call, b"h")).hex() == accepted


def test_a_newer_version_is_refused_by_name() -> None:
    """A record that a newer Boki wrote is not guessed at."""
    with pytest.raises(VersionTooNew, match="version 2, newer than this Boki's 1"):
        decode_entry(b"\x02whatever")


@given(st.binary(max_size=40))
def test_damaged_records_are_refused(data: bytes) -> None:
    """Whatever bytes come, the answer is an entry or one of two errors."""
    try:
        decode_entry(data)
    except (CorruptData, VersionTooNew) as error:
        assert "boki:calls" in error.message


def test_a_key_stands_for_function_book_payload_and_delay() -> None:
    """Deadline, id and trace may differ between two requests under one key; what they ask for may not."""
    call = a_call(1)
    same = Call("other", call.function, call.payload, call.book, 1, 0, {0: 5}, "trace")
    assert request_hash(call, 0) == request_hash(same, 0)
    others = [
        (Call(call.id, "g", call.payload, call.book, 1), 0),
        (Call(call.id, call.function, Payload("text", call.payload.data), call.book, 1), 0),
        (Call(call.id, call.function, Payload("json", b"2"), call.book, 1), 0),
        (Call(call.id, call.function, call.payload, "other", 1), 0),
        (call, 1),
    ]
    hashes = {request_hash(*other) for other in others} | {request_hash(call, 0)}
    assert len(hashes) == len(others) + 1


def test_a_call_that_is_carried_forward_keeps_its_times() -> None:
    """However often a delayed call is rewritten, it was accepted when it was and is due when it was."""
    entry = Accepted(a_call(1), b"", delay_us=500)
    carried = carry_forward(carry_forward(entry, 100), 300)
    assert due_at(entry, 100) == due_at(carried, 900) == 600
    assert state_of(carried, 900, None).accepted_us == 100


def test_a_lost_body_runs_again_a_bounded_number_of_times() -> None:
    """A call that kills its worker every time ends; the pauses between its starts grow."""
    progress = Progress()
    pauses = []
    while True:
        progress.starts += 1
        pause = run_again_after(failed(CallLost("gone")), progress)
        if pause is None:
            break
        pauses.append(pause)
    assert progress.starts == MAX_STARTS == len(pauses) + 1
    assert pauses == sorted(set(pauses))


def test_a_body_that_was_never_started_runs_later_however_often() -> None:
    """Overload does not use up the starts of a call that was accepted, and does not make it look as if it ran."""
    progress = Progress()
    for _ in range(50):
        progress.starts += 1
        progress.started_us = 1
        pause = run_again_after(failed(Overloaded("full")), progress)
        assert pause is not None
        assert pause <= MAX_BACKOFF_US
    assert (progress.starts, progress.started_us) == (0, 0)


@pytest.mark.parametrize("outcome", [DONE, failed(FunctionFailed("no")), failed(BokiError("odd", outcome="unknown"))])
def test_other_outcomes_are_final(outcome: Outcome) -> None:
    """A body that returned, raised or overran has had its run."""
    assert run_again_after(outcome, Progress(starts=1)) is None


def test_the_state_of_a_call_is_told_by_its_last_record() -> None:
    """Accepted, running, done and failed, from one record and what the runner knows."""
    entry = Accepted(a_call(1), b"", delay_us=5)
    assert state_of(entry, 10, None).state == "accepted"
    assert state_of(entry, 10, Progress(starts=1, started_us=12)).state == "running"
    done = state_of(finished(1), 20, None)
    assert (done.state, done.finished_us, done.attempts, done.result) == ("done", 20, 1, DONE.result)
    assert state_of(finished(1, failed(FunctionFailed("no"))), 20, None).state == "failed"


# A history is a list of numbers: 3n accepts call n, 3n+1 finishes it, 3n+2 carries it forward.


def history(numbers: list[int]) -> list[tuple[int, Entry]]:
    """The records that a correct log holds: what its conditions forbid is left out."""
    found: list[tuple[int, Entry]] = []
    open_calls: set[int] = set()
    seen: set[int] = set()
    for seqnum, number in enumerate(numbers, start=1):
        call, kind = divmod(number, 3)
        if kind == 0 and call not in seen:
            open_calls.add(call)
            seen.add(call)
            found.append((seqnum, Accepted(a_call(call), b"")))
        elif kind == 1 and call in open_calls:
            open_calls.discard(call)
            found.append((seqnum, finished(call)))
        elif kind == 2 and call in open_calls:
            found.append((seqnum, Accepted(a_call(call), b"", accepted_us=1)))
    return found


def fold(ledger: Ledger, entries: list[tuple[int, Entry]]) -> dict[str, Waiting]:
    for seqnum, entry in entries:
        ledger.apply(entry, seqnum, seqnum)
    return ledger.waiting


@given(st.lists(st.integers(0, 14), max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_a_checkpoint_and_what_follows_it_say_the_same_as_all_records(
    numbers: list[int], at: int, earlier: int
) -> None:
    """However far the records reach back that are applied again to a checkpoint, the result is the same."""
    entries = history(numbers)
    whole = fold(Ledger(), entries)
    at = min(at, len(entries))
    before = Ledger()
    fold(before, entries[:at])
    checkpoint = Checkpoint(before.fold_from, before.checkpoint().waiting)
    resumed = Ledger(checkpoint)
    assert fold(resumed, entries[max(0, at - earlier) :]) == whole


def test_an_append_in_flight_holds_the_checkpoint_back() -> None:
    """Its record lies above all that was acknowledged when it was issued, and must be read again until it is known."""
    ledger = Ledger()
    ledger.accept(Waiting("a", 5, 0))
    first = ledger.issue_append()
    ledger.accept(Waiting("b", 9, 0))
    second = ledger.issue_append()
    ledger.finish("b", 12)
    assert ledger.fold_from == 6
    ledger.accept(Waiting("c", 7, 0))
    ledger.settle_append(first)
    assert ledger.fold_from == 10
    ledger.settle_append(second)
    assert ledger.fold_from == 13


def test_trimming_stops_below_the_oldest_unfinished_call() -> None:
    """Nothing that is still to be run, or not yet known, is trimmed."""
    ledger = Ledger()
    for seqnum in (3, 5, 8):
        ledger.accept(Waiting(str(seqnum), seqnum, 0))
    assert ledger.trim_floor(7) == 3
    assert [waiting.seqnum for waiting in ledger.waiting_below(8, limit=1)] == [3]
    ledger.finish("3", 20)
    ledger.finish("5", 21)
    assert ledger.trim_floor(7) == 7
    assert ledger.trim_floor(30) == 8
    ledger.finish("8", 22)
    assert ledger.trim_floor(30) == 23
