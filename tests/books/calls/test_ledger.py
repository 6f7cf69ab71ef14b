"""The ledger of logged calls as a fold: records in, unfinished calls out."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from boki.books.calls.ledger import (
    CODEC,
    Accepted,
    Checkpoint,
    CheckpointPart,
    Entry,
    Finished,
    Ledger,
    Retrying,
    Started,
    Suspended,
    TakenOver,
    due_at,
    id_of,
    part_of,
    request_hash,
    runs_of,
)
from boki.books.calls.lives import carry_forward, run_again
from boki.books.calls.lost_owners import LostOwners
from boki.books.calls.runs import MAX_NAMES, Runs, cancelled, is_refusal, refused_again_us
from boki.books.calls.views import ended_state, state_of
from boki.books.calls.waiting import NOBODY, Owner, Waiting
from boki.errors import BokiError, CorruptData, FunctionFailed, Overloaded, VersionTooNew
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.log.operations import Failure
from boki.protocol.calls import Call, Outcome, Payload, Suspension, WakeOn
from tests.books.calls.call_world import a_call

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
        Started(call.id, 7, 5, B, 1, Runs(2, 3, 4, {"call_lost": 1}, Failure.of(FunctionFailed("no")))),
        Retrying(call.id, 7, 99, B, 1, Runs(1, 3, 3)),
        TakenOver(A, B),
        Checkpoint(9, (Waiting(call.id, 8, 0, A, 1, 5),)),
    ]
    assert [CODEC.decode(CODEC.encode(entry)) for entry in entries] == entries


CALL = Call("c1", "f", Payload("json", b"1"), "b", 5)
CALL_HEX = "dc0011a26331a16692a46a736f6ec40131a162050080a0a0a0c0c000c000c200"
CALL_5_HEX = "dc0010a26331a16692a46a736f6ec40131a162050080a0a0a0c0c000c000c2"
CALL_4_HEX = "9fa26331a16692a46a736f6ec40131a162050080a0a0a0c0c000c000"
CALL_3_HEX = "9ca26331a16692a46a736f6ec40131a162050080a0a0a0c0c0"
OLD_CALL_HEX = "99a26331a16692a46a736f6ec40131a162050080a0a0"
"""Of calls that did not know their caller's book, nor a retry policy."""
NO_RUNS = "96 00 00 00 80 c0 00"
RUNNING = "a772756e6e696e67"


@pytest.mark.parametrize(
    ("entry", "layout"),
    [
        (
            Checkpoint(9, (Waiting("ab", 8, 0, A, 1, 5, "running", "f", "b", 1, 2, 3, 4, 6),)),
            f"0494aa636865636b706f696e740991 dc0011 a2616208009 2a1610101 05{RUNNING}a166a162 01 02 03 04 06 c0a0c0 90",
        ),
        (
            Accepted(CALL, b"h", 0, 0, A, 1, "running", 0, Runs(1)),
            f"049ba86163636570746564{CALL_HEX}c40168 00 00 92a16101 01 {RUNNING} 00 96 01 00 00 80 c0 00 c0",
        ),
        (Started("ab", 8, 7, A, 2), f"0497a773746172746564 a26162 08 07 92a16101 02 {NO_RUNS}"),
        (Retrying("ab", 8, 7, A, 2, Runs()), f"0497a87265747279696e67 a26162 08 07 92a16101 02 {NO_RUNS}"),
        (CheckpointPart(()), "0492af636865636b706f696e742d70617274 90"),
        (
            Suspended("ab", 8, A, Runs(), Suspension(9, (WakeOn("b", "t", 7),), "n")),
            f"0496a973757370656e646564 a26162 08 92a16101 {NO_RUNS} 93 09 91 93 a162 a174 07 a16e",
        ),
        (TakenOver(A, B), "0493aa74616b656e2d6f766572 92a16101 92a16202"),
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


def test_records_of_version_2_are_read() -> None:
    """They count the starts of heirs, and know nothing else of runs."""
    accepted = CODEC.decode(bytes.fromhex(f"0297a86163636570746564{OLD_CALL_HEX}c40168000092a1610103"))
    assert accepted == Accepted(CALL, b"h", owner=A, starts=3)
    started = CODEC.decode(bytes.fromhex("0296a773746172746564a26162080792a1610102"))
    assert started == Started("ab", 8, 7, A, 2)
    assert runs_of(started, 50) == Runs(2, 50, 50)
    checkpoint = CODEC.decode(bytes.fromhex("0293aa636865636b706f696e74099196a26162080092a161010105"))
    assert checkpoint == Checkpoint(9, (Waiting("ab", 8, 0, A, 1, 5),))


def test_records_of_version_3_are_read() -> None:
    """They know of no suspension, nor of ids that callers choose."""
    accepted = CODEC.decode(
        bytes.fromhex(
            f"039aa86163636570746564{CALL_3_HEX}c4016800 0092a1610101{RUNNING}009501000080c0".replace(" ", "")
        )
    )
    assert accepted == Accepted(CALL, b"h", 0, 0, A, 1, "running", 0, Runs(1))
    retrying = CODEC.decode(bytes.fromhex("0397a87265747279696e67a26162080792a16101029500000080c0"))
    assert retrying == Retrying("ab", 8, 7, A, 2, Runs())
    checkpoint = CODEC.decode(
        bytes.fromhex(f"0393aa636865636b706f696e7409919ea26162080092a161010105{RUNNING}a166a1620102030406")
    )
    assert checkpoint == Checkpoint(9, (Waiting("ab", 8, 0, A, 1, 5, "running", "f", "b", 1, 2, 3, 4, 6),))


def test_calls_that_knew_no_tries_are_read() -> None:
    """Version 4 before its last two fields, and before the last."""
    for call in (CALL_4_HEX, CALL_5_HEX):
        accepted = CODEC.decode(
            bytes.fromhex(
                f"049ba86163636570746564{call}c40168 0000 92a1610101{RUNNING}00960100008 0c000c0".replace(" ", "")
            )
        )
        assert accepted == Accepted(CALL, b"h", 0, 0, A, 1, "running", 0, Runs(1))


def test_a_newer_version_is_refused_by_name() -> None:
    """A record that a newer Boki wrote is not guessed at."""
    with pytest.raises(VersionTooNew, match="version 5, newer than this Boki's 4"):
        CODEC.decode(b"\x05whatever")


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
    waiting, runs = Waiting("", 0, 700, B, 3, state="retrying"), Runs(3, 1, 2, {"call_lost": 3})
    carried = carry_forward(carry_forward(entry, 100, waiting, runs), 300, waiting, runs)
    assert (carried.owner, carried.starts, carried.state, carried.next_us) == (B, 3, "retrying", 700)
    assert due_at(entry, 100) == due_at(carried, 900) == 600
    state = state_of(carried, 900, carried, 900)
    assert (state.accepted_us, state.state, state.next_us, state.errors) == (100, "retrying", 700, {"call_lost": 3})


def test_a_body_that_was_never_started_runs_later_however_often() -> None:
    """Overload does not use up the runs of a call that was accepted; the pauses are bounded."""
    assert is_refusal(failed(Overloaded("full")))
    assert not any(map(is_refusal, (DONE, failed(FunctionFailed("no")), failed(BokiError("x", outcome="unknown")))))
    pauses = [refused_again_us(times) for times in (1, 2, 3, 50)]
    assert pauses == sorted(set(pauses))
    assert pauses[-1] == 10_000_000


def test_what_runs_ended_with_is_counted_in_bounds() -> None:
    """By the class that the function raised or the code, at most this many of them, with a short last error."""
    runs = Runs()
    for number in range(MAX_NAMES + 5):
        runs = runs.begun(10 * (number + 1))
        error = FunctionFailed("f: " + 2_000 * "x", error_type=f"Error{number}", traceback="long")
        runs = runs.failed(Failure.of(error))
    assert (runs.total, runs.first_us, runs.last_us) == (MAX_NAMES + 5, 10, 10 * (MAX_NAMES + 5))
    assert len(runs.errors) == MAX_NAMES + 1
    assert runs.errors["others"] == 5
    assert runs.last_error is not None
    assert (len(runs.last_error.message), runs.last_error.details) == (500, {})


def test_the_state_of_a_call_is_told_by_its_last_record() -> None:
    """Whatever it is, one record says it, with the acceptance for what never changes."""
    entry = Accepted(a_call(1), b"", delay_us=5)
    assert state_of(entry, 10, entry, 10).state == "accepted"
    at_once = Accepted(a_call(1), b"", starts=1, state="running", runs=Runs(1))
    known = state_of(at_once, 10, at_once, 10)
    assert (known.state, known.attempts, known.started_us) == ("running", 1, 10)
    known = state_of(entry, 10, Started(a_call(1).id, 1, 15, A, 2, Runs(2, 12, 14)), 15)
    assert (known.state, known.due_us, known.started_us, known.last_started_us) == ("running", 15, 12, 14)
    known = state_of(entry, 10, Retrying(a_call(1).id, 1, 99, A, 2, Runs(2, 12, 14, {"ValueError": 2})), 15)
    assert (known.state, known.next_us, known.errors) == ("retrying", 99, {"ValueError": 2})
    done = ended_state(finished(1), 20)
    assert (done.state, done.finished_us, done.attempts, done.result) == ("done", 20, 1, DONE.result)
    assert ended_state(finished(1, failed(FunctionFailed("no"))), 20).state == "failed"
    assert ended_state(finished(1, cancelled(0)), 20).state == "cancelled"


def test_a_call_that_is_run_again_keeps_its_id_and_what_its_runs_have_shown() -> None:
    """Its policy begins again, its count continues."""
    entry = Accepted(a_call(1), b"h", delay_us=5, owner=A, starts=4)
    ended = finished(1, failed(FunctionFailed("no")))
    again = run_again(entry, B, ended, ended.accepted_us + 500)
    assert (again.call, again.request_hash, again.owner) == (entry.call, b"h", B)
    assert (again.accepted_us, again.delay_us) == (ended.accepted_us, 500)
    assert (again.starts, again.state, again.runs.total) == (0, "accepted", 1)


# A history is a list of numbers: 6n accepts call n (also again, if it has ended), 6n+1 finishes it, 6n+2 carries it
# forward, 6n+3 starts a run of it, 6n+4 takes over what the engine owns, 6n+5 has it retried later.


def history(numbers: list[int]) -> list[tuple[int, Entry]]:
    """The records that a correct log holds: what its conditions and fences forbid is left out."""
    found: list[tuple[int, Entry]] = []
    open_calls: dict[int, tuple[Owner, int]] = {}
    engine = 0
    for seqnum, number in enumerate(numbers, start=1):
        call, kind = divmod(number, 6)
        owner, accepted = open_calls.get(call, (NOBODY, 0))
        here = Owner("e", engine)
        if kind == 0 and call not in open_calls:
            open_calls[call] = (here, seqnum)
            found.append((seqnum, Accepted(a_call(call), b"", owner=here)))
        elif kind == 1 and call in open_calls:
            del open_calls[call]
            found.append((seqnum, finished(call)))
        elif kind == 2 and call in open_calls:
            open_calls[call] = (owner, seqnum)
            found.append((seqnum, Accepted(a_call(call), b"", accepted_us=1, owner=owner)))
        elif kind == 3 and call in open_calls:
            found.append((seqnum, Started(a_call(call).id, accepted, 0, owner, 1)))
        elif kind == 5 and call in open_calls:
            found.append((seqnum, Retrying(a_call(call).id, accepted, 9, owner, 1, Runs(1, 2, 2))))
        elif kind == 4:
            engine += 1
            heir = Owner("e", engine)
            found.append((seqnum, TakenOver(here, heir)))
            open_calls = {call: (heir if whose == here else whose, at) for call, (whose, at) in open_calls.items()}
    return found


def fold(ledger: Ledger, entries: list[tuple[int, Entry]]) -> dict[str, Waiting]:
    for seqnum, entry in entries:
        ledger.apply(seqnum, seqnum, entry)
    return ledger.waiting


@given(st.lists(st.integers(0, 29), max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_a_checkpoint_and_what_follows_it_say_the_same_as_all_records(
    numbers: list[int], at: int, earlier: int
) -> None:
    """However far the records reach back that are applied again to a checkpoint, the result is the same."""
    entries = history(numbers)
    whole = fold(Ledger(), entries)
    at = min(at, len(entries))
    before = Ledger()
    fold(before, entries[:at])
    checkpoint = Checkpoint(before.fold_from, part_of(before.waiting.all_kept()).waiting)
    resumed = Ledger(checkpoint)
    assert fold(resumed, entries[max(0, at - earlier) :]) == whole


@given(st.lists(st.integers(0, 29), max_size=40), st.sets(st.integers(0, 40)))
@example([0, 1, 0, 1], {3})
def test_what_is_learnt_ahead_of_the_fold_changes_nothing_in_the_end(numbers: list[int], ahead: set[int]) -> None:
    """An engine knows its own records before it reads them; reading them brings nothing back."""
    entries = history(numbers)
    whole = fold(Ledger(), entries)
    ledger = Ledger()
    for at in sorted(ahead & set(range(len(entries)))):
        seqnum, entry = entries[at]
        if not isinstance(entry, TakenOver | Checkpoint):
            ledger.learn(seqnum, seqnum, entry)
    last = {id_of(entry): at for at, (_, entry) in enumerate(entries) if not isinstance(entry, TakenOver | Checkpoint)}
    over = {call for call, at in last.items() if at in ahead and isinstance(entries[at][1], Finished)}
    for seqnum, entry in entries:
        ledger.apply(seqnum, seqnum, entry)
        assert not over & ledger.waiting.keys()
    assert {w.id: (w.seqnum, w.owner) for w in ledger.waiting.values()} == {
        w.id: (w.seqnum, w.owner) for w in whole.values()
    }
    assert not ledger._over
    assert set(ledger.owners()) == {waiting.owner for waiting in ledger.waiting.values()}


def test_trimming_stops_below_the_oldest_unfinished_call() -> None:
    """Nothing that is still to be run, or not yet known, is trimmed; what counts is where the payload is."""
    ledger = Ledger()
    for seqnum in (3, 5, 8):
        ledger.apply(seqnum, 0, Accepted(a_call(seqnum), b""))
    ledger.apply(9, 0, Started(a_call(3).id, 3, 0, B, 1))
    assert ledger.trim_floor(7) == 3
    assert [waiting.id for waiting in ledger.waiting_below(8, limit=1)] == [a_call(3).id]
    ledger.apply(20, 0, finished(3))
    ledger.learn(21, 0, finished(5))
    assert ledger.trim_floor(7) == 7
    assert ledger.trim_floor(30) == 8
    ledger.learn(22, 0, finished(8))
    assert ledger.trim_floor(30) == 21


def test_who_takes_over_owns_what_is_unfinished_and_nothing_later() -> None:
    """Calls of others are theirs still."""
    ledger = Ledger()
    for number, owner in ((1, A), (2, A), (3, B)):
        ledger.apply(number, 0, Accepted(a_call(number), b"", owner=owner))
    ledger.apply(4, 0, finished(2))
    heir = Owner("c", 3)
    ledger.apply(5, 0, TakenOver(A, heir))
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


@pytest.mark.parametrize(
    ("is_leaving", "stays", "grace_us"), [(False, False, 1_000_000), (True, False, 3_000_000), (False, True, 3_000_000)]
)
def test_an_owner_whose_node_vanishes_is_lost_soon(is_leaving: bool, stays: bool, grace_us: int) -> None:
    """Its session has run out, so it has been silent for that long. One that stops, or begins again alone, has not."""
    host = NodeId("node-a")
    engine = Member(node=NodeId("a"), role=Role.ENGINE, incarnation=1, host=host, is_leaving=is_leaving)
    other = Member(node=NodeId("storage-a"), role=Role.STORAGE, incarnation=2, host=host)
    lost = LostOwners(Owner("me", 9), grace_us=3_000_000)
    lost.on_membership(Membership(number=1, members=(engine, other)))
    assert lost.among([A], 0) == []
    lost.on_membership(Membership(number=2, members=(other,) if stays else ()))
    assert lost.among([A], 50) == []
    assert lost.among([A], 49 + grace_us) == []
    assert lost.among([A], 50 + grace_us) == [A]


def test_an_owner_whose_name_has_a_newer_incarnation_is_lost_at_once() -> None:
    """Also if that is this engine itself; and what nobody owns is anybody's."""
    lost = LostOwners(Owner("me", 9), grace_us=100)
    lost.on_membership(members(1, a=5))
    assert lost.among([A, NOBODY, Owner("me", 3)], 0) == [A, NOBODY, Owner("me", 3)]
