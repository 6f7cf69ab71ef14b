"""What LogBook methods mean: the parts that no LogBook over a real log shows (those are in `tests/contract`)."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boki.api.deadline import Caller, Deadline
from boki.api.log_calls import Cursor, append_operation, group_bytes, many_records, page_of, polls, records_of
from boki.errors import DeadlineExceeded, TooLarge, Trimmed
from boki.log.chunk import MIN_RECORD_BYTES, Group, encode_chunk
from boki.log.limits import Limits
from boki.log.operations import Append, Found, Read, Slab


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def slab(first_seqnum: int, *data: bytes, time_us: int = 5, aux: dict[int, bytes] | None = None) -> Slab:
    seqnums = range(first_seqnum, first_seqnum + len(data))
    chunk = encode_chunk("b", [Group([(each, ("t",))]) for each in data])
    return Slab(pack(f"<{len(data)}q", *seqnums), time_us, chunk, aux or {})


def nothing(next_start: int, first_seqnum: int = 0) -> Found:
    return Found((), next_start, first_seqnum)


def test_too_many_empty_records_are_refused_while_they_are_counted() -> None:
    """Not after millions of them have been looked at and encoded: each takes room in a request, even without data."""
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b""

    limits = Limits(record_bytes=100, request_bytes=2000)
    with pytest.raises(TooLarge, match="append_many may have at most 2,000 bytes"):
        many_records(endless(), (), None, limits)
    assert taken == 2000 // MIN_RECORD_BYTES + 1


def test_records_of_several_slabs_are_one_page() -> None:
    """Each with its own seqnum, time and auxiliary data."""
    found = Found((slab(7, b"a", b"b", aux={8: b"aux"}), slab(20, b"c", time_us=9)), 21)
    page = page_of(found)
    assert [(r.seqnum, r.data, r.auxdata, r.time, r.tags) for r in page.records] == [
        (7, b"a", None, 5, ("t",)),
        (8, b"b", b"aux", 5, ("t",)),
        (20, b"c", None, 9, ("t",)),
    ]
    assert page.next_start == 21
    assert records_of(nothing(3)) == []


@given(st.lists(st.tuples(st.binary(max_size=50), st.lists(st.text("aü", min_size=1), unique=True)), min_size=1))
def test_the_size_of_a_group_is_not_underestimated(records: list[tuple[bytes, list[str]]]) -> None:
    """But for long tags and keys: what is gathered by it fits in a request, with room to spare."""
    group = Group(records)
    operation = append_operation("b", [group], Limits())
    assert isinstance(operation, Append)
    tag_bytes = sum(len(tag.encode()) for _, tags in records for tag in tags)
    assert len(operation.chunk) <= group_bytes(group) + tag_bytes + 40


def test_a_wait_is_made_of_polls_that_no_peer_minds() -> None:
    """One hour is asked for 20 seconds at a time, until it is over by the caller's own clock."""
    time = Time()
    caller = Caller(deadline=Deadline(clock=time))
    waits_s = []
    for read in polls(Read("b"), 3600, caller):
        waits_s.append(read.wait_us / 1e6)
        time.now += read.wait_us / 1e6
    assert waits_s == [20.0] * 180


def test_a_poll_that_ends_early_is_repeated() -> None:
    """A peer that answers sooner than asked does not shorten the wait."""
    time = Time()
    caller = Caller(deadline=Deadline(clock=time))
    asked = 0
    for _ in polls(Read("b"), 10, caller):
        asked += 1
        time.now += 1
    assert asked == 10


def test_without_a_wait_there_is_one_read() -> None:
    """It does not wait."""
    assert [read.wait_us for read in polls(Read("b"), 0, Caller())] == [0]


def test_a_wait_ends_before_the_deadline() -> None:
    """With a tenth of a second for its answer, or half of what is left if that is less."""
    time = Time()
    for left_s, waits_s in ((5.0, 4.9), (0.1, 0.05), (0.01, 0.005)):
        read = next(polls(Read("b"), 3600, Caller(deadline=Deadline.after(left_s, time))))
        assert read.wait_us == pytest.approx(waits_s * 1e6, abs=2)


def test_an_operation_has_what_the_call_has_left() -> None:
    """Half a minute, what its caller wishes, or less; when nothing is left it is not begun."""
    time = Time()
    deadline = Deadline.after(40, time)
    assert deadline.timeout_s() == 30
    assert deadline.timeout_s(5) == 5
    assert deadline.timeout_s(50) == 40
    time.now += 39
    assert deadline.timeout_s() == 1
    assert deadline.left_s() == 1
    time.now += 1
    assert deadline.left_s() == 0
    with pytest.raises(DeadlineExceeded) as caught:
        deadline.timeout_s()
    assert caught.value.outcome == "not_applied"
    assert Deadline().timeout_s() == 30
    assert Deadline().timeout_s(1000) == 1000


def test_a_cursor_goes_on_where_the_answer_ended() -> None:
    """Also after an answer without records, so that it is never far behind the log's end."""
    cursor = Cursor("b", "t", 0, "raise", Caller())
    assert cursor.read() == Read("b", "t", 0, limit=1000, wait_us=20_000_000)
    page = cursor.take(Found((slab(7, b"a", b"b"),), 9, 3))
    assert page is not None
    assert [record.seqnum for record in page.records] == [7, 8]
    assert cursor.read().start == 9
    assert cursor.take(nothing(500)) is None
    assert cursor.read().start == 500


def test_a_cursor_at_the_beginning_minds_no_trim() -> None:
    """0 is the earliest record that there is."""
    cursor = Cursor("b", None, 0, "raise", Caller())
    assert cursor.take(Found((slab(70, b"a"),), 71, 60)) is not None


@pytest.mark.parametrize("start", [5, 69])
def test_a_cursor_that_is_overtaken_says_so_once(start: int) -> None:
    """Then it stands where the trim has ended."""
    cursor = Cursor("b", None, start, "raise", Caller())
    with pytest.raises(Trimmed) as caught:
        cursor.take(Found((slab(70, b"a"),), 71, 70))
    assert caught.value.next_seqnum == 70
    assert cursor.read().start == 70
    assert cursor.take(Found((slab(70, b"a"),), 71, 70)) is not None


def test_a_cursor_at_the_floor_is_not_overtaken() -> None:
    """A trim of what was read takes nothing away."""
    cursor = Cursor("b", None, 70, "raise", Caller())
    assert cursor.take(Found((slab(70, b"a"),), 71, 70)) is not None


def test_a_cursor_may_skip() -> None:
    """What is left comes without a word."""
    cursor = Cursor("b", None, 5, "skip", Caller())
    assert cursor.take(Found((slab(70, b"a"),), 71, 70)) is not None


def test_now_is_behind_the_last_record() -> None:
    """Found by a linearizable read, once; in an empty row everything is new."""
    cursor = Cursor("b", "t", "now", "raise", Caller())
    assert cursor.read() == Read("b", "t", limit=1, backward=True, fresh=True)
    assert cursor.take(Found((slab(41, b"last"),), 41)) is None
    assert (cursor.read().start, cursor.read().backward) == (42, False)
    empty = Cursor("b", "t", "now", "raise", Caller())
    assert empty.take(nothing(0)) is None
    assert (empty.read().start, empty.read().backward) == (0, False)
