"""Rows of the public tables, as the example applications take them."""

from __future__ import annotations

import msgspec
import pytest

from boki.demo import tables
from boki.errors import ConfigError
from functions.movies import Movie
from functions.travel import Flight, Hotel


def test_hotels_stand_where_flights_go() -> None:
    """A day of flights, each once, with the seats of its plane; a room for each of them, and stars from 0 to 5."""
    rows, flight_rows = tables.travel_rows()
    hotels, flights = msgspec.convert(rows, list[Hotel]), msgspec.convert(flight_rows, list[Flight])
    assert len({flight.id for flight in flights}) == len(flights) > 800
    assert {flight.dest for flight in flights} == {hotel.id for hotel in hotels}
    assert sum(hotel.rooms for hotel in hotels) >= len(flights)
    assert all(0 <= hotel.stars <= 5 and hotel.price_cents > 0 and hotel.rooms > 0 for hotel in hotels)
    first = flights[0]
    expected = ("UA-1545-2013-01-01", "United Air Lines Inc.", "EWR", "IAH", "BOEING 737-824", 149)
    assert (first.id, first.airline, first.origin, first.dest, first.aircraft, first.seats) == expected


def test_movies_with_the_most_votes() -> None:
    """Each title once, the year belonging to it, in the order of the votes."""
    movies = msgspec.convert(tables.movie_rows(200), list[Movie])
    assert len({movie.title for movie in movies}) == 200
    assert [movie.votes for movie in movies] == sorted((movie.votes for movie in movies), reverse=True)
    assert movies[1] == Movie("Shawshank Redemption, The (1994)", 142, ["Drama"], 149_494, 9.1)


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that a module is missing."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"pip install 'boki\[apps\]'"):
        tables.movie_rows()
