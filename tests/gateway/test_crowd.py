"""Which connections stay when there are too many: strangers make room, members do not, probes find a place."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from boki.gateway.server.http.crowd import MAX_GUESTS, STRANGER_S, Crowd

HERE, THERE = "10.0.0.1", "10.0.0.2"


def test_one_address_has_a_quarter_of_the_places_before_it_is_let_in() -> None:
    """The others are guests; another address still has its places."""
    crowd: Crowd[int] = Crowd(40)
    for n in range(20):
        assert crowd.arrive(n, HERE, 0.0) is None
    assert [crowd.is_guest(n) for n in range(20)] == [False] * 10 + [True] * 10
    crowd.arrive(100, THERE, 0.0)
    assert not crowd.is_guest(100)
    crowd.know(0)
    crowd.arrive(101, HERE, 0.0)
    assert not crowd.is_guest(101)


def test_the_oldest_stranger_makes_room_once_it_had_its_time() -> None:
    """Of the address that is crowded, and of all when the gateway is full. Members are never put out."""
    crowd: Crowd[int] = Crowd(8)
    for n in range(6):
        crowd.arrive(n, HERE, n / 10)
        crowd.know(n)
    assert crowd.arrive(6, HERE, 1.0) is None
    assert crowd.arrive(7, THERE, 1.1) is None
    assert crowd.arrive(8, THERE, 1.2) is None
    assert [crowd.is_guest(n) for n in (6, 7, 8)] == [False, False, True]
    assert crowd.arrive(9, THERE, 1.0 + STRANGER_S) == 6
    assert crowd.arrive(10, THERE, 1.1 + STRANGER_S) == 7
    crowd.know(9)
    crowd.know(10)
    assert crowd.arrive(11, THERE, 100.0) is None
    assert [crowd.is_guest(n) for n in (9, 10, 11)] == [False, False, True]


def test_a_guest_that_is_let_in_takes_the_place_of_a_stranger() -> None:
    """Of the oldest, however young: a flood that is quicker than `STRANGER_S` kept everybody else out. Only when all
    places are members' it stays a guest."""
    crowd: Crowd[int] = Crowd(3)
    assert [crowd.arrive(n, address, 0.0) for n, address in enumerate((HERE, HERE, HERE))] == [None] * 3
    assert [crowd.is_guest(n) for n in range(3)] == [False, False, True]
    assert crowd.know(2) is None  # a place is free, which no stranger of this address may have
    assert not crowd.is_guest(2)
    for n, out in ((3, 0), (4, 1)):
        assert crowd.arrive(n, THERE, 0.0) is None
        assert crowd.is_guest(n)
        assert crowd.know(n) == out
        assert not crowd.is_guest(n)
        assert crowd.know(n) is None
    assert crowd.arrive(5, THERE, 100.0) is None
    assert crowd.know(5) is None
    assert crowd.is_guest(5)


def test_guests_make_room_for_guests() -> None:
    """The oldest of an address that has half of the places, else the oldest of all."""
    crowd: Crowd[int] = Crowd(1)
    crowd.arrive(0, HERE, 0.0)
    crowd.know(0)
    half = MAX_GUESTS // 2
    assert [crowd.arrive(n, HERE, 0.0) for n in range(1, half + 3)] == [None] * half + [1, 2]
    assert [crowd.arrive(n, THERE, 0.0) for n in range(100, 100 + half + 1)] == [None] * half + [100]
    assert crowd.arrive(200, "10.0.0.3", 0.0) == 3
    assert crowd.is_guest(200)
    assert not crowd.is_guest(3)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([HERE, THERE]), st.integers(0, 60)), max_size=200))
def test_no_more_are_open_than_there_are_places(events: list[tuple[int, str, int]]) -> None:
    """Whatever comes, is let in, and leaves."""
    crowd: Crowd[int] = Crowd(8)
    open_ones: set[int] = set()
    known: set[int] = set()
    for number, (kind, address, pick) in enumerate(events):
        if kind < 2:
            out = crowd.arrive(number, address, number / 4)
            if out is not None:
                assert out in open_ones - known
                open_ones.discard(out)
            open_ones.add(number)
        elif pick in open_ones:
            if kind == 2:
                out = crowd.know(pick)
                assert out is None or out in open_ones - known - {pick}
                if out is not None:
                    open_ones.discard(out)
                if crowd.is_guest(pick):
                    assert len(known) == 8
                else:
                    known.add(pick)
            elif kind == 3:
                crowd.leave(pick)
                open_ones.discard(pick)
                known.discard(pick)
        assert len(open_ones) <= 8 + MAX_GUESTS
        assert len([one for one in open_ones if not crowd.is_guest(one)]) <= 8
