"""The ledger of logged calls as a fold: records in, unfinished calls out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.calls import Call, Outcome, Payload
from boki.engine.calls.ledger import (
    CODEC,
    MAX_BACKOFF_US,
    MAX_STARTS,
    NOBODY,
    Accepted,
    Checkpoint,
    Entry,
    Finished,
    Ledger,
    Owner,
    Progress,
    Started,
    TakenOver,
    Waiting,
    carry_forward,
    due_at,
    request_hash,
    run_again_after,
    state_of,
)
from boki.engine.calls.lost_owners import LostOwners
from boki.errors import BokiError, CallLost, CorruptData, FunctionFailed, Overloaded, VersionTooNew
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.log.operations import Failure
from tests.engine.call_world import a_call

A, B = Owner("a", 1), Owner("b", 2)
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
        Accepted(call, b"", owner=A, starts=2),
        Started(call.id, 7, 5, B, 1),
        TakenOver(A, B),
        Checkpoint(9, (Waiting(call.id, 8, 0, A, 1, 5),)),
    ]
    assert [CODEC.decode(CODEC.encode(entry)) for entry in entries] == entries


CALL = Call("c1", "f", Payload("json", b"1"), "b", 5)
CALL_HEX = "9aa26331a16692a46a736f6ec40131a162050080a0a0a0"
OLD_CALL_HEX = "99a26331a16692a46a736f6ec40131a162050080a0a0"
"""Of calls that did not know their caller's book."""


@pytest.mark.parametrize(
    ("entry", "layout"),
    [
        (Checkpoint(9, (Waiting("ab", 8, 0, A, 1, 5),)), "0293aa636865636b706f696e740991 96a2616208009 2a1610101 05"),
        (Accepted(CALL, b"h", owner=A), f"0297a86163636570746564{CALL_HEX}c40168 00 00 92a16101 00"),
        (Started("ab", 8, 7, A, 2), "0296a773746172746564 a26162 08 07 92a16101 02"),
        (TakenOver(A, B), "0293aa74616b656e2d6f766572 92a16101 92a16202"),
    ],
)
def test_the_layout_of_records_is_pinned(entry: Entry, layout: str) -> None:
    """Records of this version stay readable: these are bytes on disks."""
    assert CODEC.encode(entry).hex() == layout.replace(" ", "")


def test_records_of_version_1_are_read() -> None:
    """They name no owner: their calls are nobody's, for anybody to take over."""
    checkpoint = CODEC.decode(bytes.fromhex("0193aa636865636b706f696e7409919 3a261620800".replace(" ", "")))
    assert checkpoint == Checkpoint(9, (Waiting("ab", 8, 0, NOBODY),))
    accepted = CODEC.decode(bytes.fromhex(f"0195a86163636570746564{OLD_CALL_HEX}c401680000"))
    assert accepted == Accepted(CALL, b"h", owner=NOBODY)


def test_a_newer_version_is_refused_by_name() -> None:
    """A record that a newer Boki wrote is not guessed at."""
    with pytest.raises(VersionTooNew, match="version 3, newer than this Boki's 2"):
        CODEC.decode(b"\x03whatever")


@given(st.binary(max_size=40))
def test_damaged_records_are_refused(data: bytes) -> None:
    """Whatever bytes come, the answer is an entry or one of two errors."""
    try:
        CODEC.decode(data)
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
    waiting = Waiting("", 0, 0, B, 3)
    carried = carry_forward(carry_forward(entry, 100, waiting), 300, waiting)
    assert (carried.owner, carried.starts) == (B, 3)
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


# A history is a list of numbers: 5n accepts call n, 5n+1 finishes it, 5n+2 carries it forward, 5n+3 starts it as an
# heir, 5n+4 takes over what the engine owns.


def history(numbers: list[int]) -> list[tuple[int, Entry]]:
    """The records that a correct log holds: what its conditions and fences forbid is left out."""
    found: list[tuple[int, Entry]] = []
    open_calls: dict[int, tuple[Owner, int]] = {}
    seen: set[int] = set()
    engine = 0
    for seqnum, number in enumerate(numbers, start=1):
        call, kind = divmod(number, 5)
        owner, accepted = open_calls.get(call, (NOBODY, 0))
        here = Owner("e", engine)
        if kind == 0 and call not in seen:
            open_calls[call] = (here, seqnum)
            seen.add(call)
            found.append((seqnum, Accepted(a_call(call), b"", owner=here)))
        elif kind == 1 and call in open_calls:
            del open_calls[call]
            found.append((seqnum, finished(call)))
        elif kind == 2 and call in open_calls:
            open_calls[call] = (owner, seqnum)
            found.append((seqnum, Accepted(a_call(call), b"", accepted_us=1, owner=owner)))
        elif kind == 3 and call in open_calls:
            found.append((seqnum, Started(a_call(call).id, accepted, 0, owner, 1)))
        elif kind == 4:
            engine += 1
            heir = Owner("e", engine)
            found.append((seqnum, TakenOver(here, heir)))
            open_calls = {call: (heir if whose == here else whose, at) for call, (whose, at) in open_calls.items()}
    return found


def fold(ledger: Ledger, entries: list[tuple[int, Entry]]) -> dict[str, Waiting]:
    for seqnum, entry in entries:
        ledger.fold(entry, seqnum, seqnum)
    return ledger.waiting


@given(st.lists(st.integers(0, 24), max_size=40), st.integers(0, 40), st.integers(0, 40))
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


@given(st.lists(st.integers(0, 24), max_size=40), st.sets(st.integers(0, 40)))
def test_what_is_learnt_ahead_of_the_fold_changes_nothing_in_the_end(numbers: list[int], ahead: set[int]) -> None:
    """An engine knows its own records before it reads them; reading them brings nothing back."""
    entries = history(numbers)
    whole = fold(Ledger(), entries)
    ledger = Ledger()
    for at in sorted(ahead & set(range(len(entries)))):
        seqnum, entry = entries[at]
        if isinstance(entry, Accepted | Started | Finished):
            ledger.learn(entry, seqnum, seqnum)
    finished_ahead = {entries[at][1].id for at in ahead if at < len(entries) and isinstance(entries[at][1], Finished)}
    for seqnum, entry in entries:
        ledger.fold(entry, seqnum, seqnum)
        assert not finished_ahead & ledger.waiting.keys()
    assert {w.id: (w.seqnum, w.owner) for w in ledger.waiting.values()} == {
        w.id: (w.seqnum, w.owner) for w in whole.values()
    }
    assert not ledger._over
    assert set(ledger.owners()) == {waiting.owner for waiting in ledger.waiting.values()}


def test_trimming_stops_below_the_oldest_unfinished_call() -> None:
    """Nothing that is still to be run, or not yet known, is trimmed; what counts is where the payload is."""
    ledger = Ledger()
    for seqnum in (3, 5, 8):
        ledger.fold(Accepted(a_call(seqnum), b""), seqnum, 0)
    ledger.fold(Started(a_call(3).id, 3, 0, B, 1), 9, 0)
    assert ledger.trim_floor(7) == 3
    assert [waiting.id for waiting in ledger.waiting_below(8, limit=1)] == [a_call(3).id]
    ledger.fold(finished(3), 20, 0)
    ledger.learn(finished(5), 21, 0)
    assert ledger.trim_floor(7) == 7
    assert ledger.trim_floor(30) == 8
    ledger.learn(finished(8), 22, 0)
    assert ledger.trim_floor(30) == 21


def test_who_takes_over_owns_what_is_unfinished_and_nothing_later() -> None:
    """Calls of others are theirs still."""
    ledger = Ledger()
    for number, owner in ((1, A), (2, A), (3, B)):
        ledger.fold(Accepted(a_call(number), b"", owner=owner), number, 0)
    ledger.fold(finished(2), 4, 0)
    heir = Owner("c", 3)
    ledger.fold(TakenOver(A, heir), 5, 0)
    assert [waiting.id for waiting in ledger.owned_by(heir)] == [a_call(1).id]
    assert set(ledger.owners()) == {B, heir}


# Who is lost


def members(number: int, **incarnations: int) -> Membership:
    return Membership(
        number=number,
        members=tuple(
            Member(node=NodeId(name), role=Role.ENGINE, incarnation=incarnation)
            for name, incarnation in incarnations.items()
        ),
    )


def test_an_owner_is_lost_when_it_is_not_registered_for_a_grace() -> None:
    """One that is registered again meanwhile is not; a registration that is not known yet counts as none."""
    lost = LostOwners(Owner("me", 9), grace_us=100)
    lost.on_membership(members(1, a=1, me=9))
    assert lost.among([A, B, Owner("me", 9)], 0) == []
    assert lost.has_missing
    assert lost.among([A, B], 99) == []
    assert lost.among([A, B], 100) == [B]
    lost.on_membership(members(2, a=1, b=2))
    assert lost.among([A, B], 200) == []
    assert not lost.has_missing
    lost.on_membership(members(1))
    assert lost.among([A, B], 900) == []


def test_an_owner_whose_name_has_a_newer_incarnation_is_lost_at_once() -> None:
    """Also if that is this engine itself; and what nobody owns is anybody's."""
    lost = LostOwners(Owner("me", 9), grace_us=100)
    lost.on_membership(members(1, a=5))
    assert lost.among([A, NOBODY, Owner("me", 3)], 0) == [A, NOBODY, Owner("me", 3)]
