"""`boki bench flow --apps`: the paper's two applications under its load, requests that come at a steady rate.

Each request is a workflow that is started over HTTP, and its latency counts from the moment at which it was due: a
system that falls behind shows it. Travel searches (60 %), recommends (39 %) and reserves (1 %); movie composes reviews.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from boki.bench.rows import Round, Row, measured
from boki.bench.system import Options, Target, target
from boki.bench.turns import Step, row_of
from boki.client import Client
from boki.demo.examples import functions_folder
from boki.demo.tables import load_movies, load_travel, movie_rows, travel_rows
from boki.errors import BokiError

RATE: Final = 100
"""Requests a second."""
_FILES: Final = ("travel.py", "movies.py")
_TIMEOUT_S: Final = 30.0

Request = tuple[str, Any]


def apps(options: Options, step: Step) -> Iterator[Row]:
    """A row for each application."""
    hotels, flights = travel_rows()
    movies = movie_rows()
    with tempfile.TemporaryDirectory(prefix="boki-bench-", dir=options.folder) as folder:
        for name in _FILES:
            shutil.copyfile(functions_folder() / name, Path(folder) / name)
        with target(options, functions=Path(folder)) as system:
            step("hotels, flights and movies")
            asyncio.run(_load(system, hotels, flights, movies))
            draws = {
                "travel": lambda random: _travel(random, hotels, flights),
                "movie": lambda random: _movie(random, movies),
            }
            for name, draw in draws.items():
                rounds = []
                for number in range(options.rounds + 1):
                    step(f"{name}, {RATE} requests/s, {f'round {number}' if number else 'warming up'}")
                    rounds.append(asyncio.run(_steady(system, draw, number, options.duration_s)))
                yield row_of(options, f"flow-{name}", RATE, rounds[1:], {"offered_per_s": RATE})


async def _load(
    system: Target, hotels: list[dict[str, Any]], flights: list[dict[str, Any]], movies: list[dict[str, Any]]
) -> None:
    async with Client(system.url, token=system.token) as client:
        await load_travel(client, hotels, flights)  # to search
        await load_travel(client, hotels, flights, "travel")  # to reserve: one transaction reaches both
        await load_movies(client, movies)


def _travel(random: Random, hotels: list[dict[str, Any]], flights: list[dict[str, Any]]) -> Request:
    kind = random.random()
    place = {"lat": random.uniform(25, 48), "lon": random.uniform(-122, -71)}
    if kind < 0.6:
        return "search", place
    if kind < 0.99:
        return "recommend", {"by": random.choice(("distance", "price", "stars")), **place}
    hotel = max(random.sample(hotels, 8), key=lambda row: row["rooms"])
    flight = random.choice(flights)
    return "reserve_together", {"traveller": f"{random.getrandbits(64)}", "hotel": hotel["id"], "flight": flight["id"]}


def _movie(random: Random, movies: list[dict[str, Any]]) -> Request:
    title = random.choice(movies)["title"]
    user = f"user {random.randrange(1_000)}"
    return "compose", {"user": user, "title": title, "text": "worth seeing " * 20, "stars": random.randint(1, 10)}


async def _steady(system: Target, draw: Callable[[Random], Request], seed: int, duration_s: float) -> Round:
    """Requests at a steady rate, each when it is due, whether those before have ended or not."""
    random = Random(seed)
    found_s: list[float] = []
    error_count = 0
    async with Client(system.url, token=system.token) as client:
        started = time.perf_counter()

        async def ask(number: int, due: float) -> None:
            nonlocal error_count
            name, payload = draw(random)
            try:
                await client.invoke(name, payload, key=f"{started}:{number}", timeout_s=_TIMEOUT_S)
            except BokiError as error:
                error_count += error.details.get("error_type") != "SoldOut"
            else:
                found_s.append(time.perf_counter() - due)

        async with asyncio.TaskGroup() as group:
            for number in range(round(RATE * duration_s)):
                due = started + number / RATE
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                group.create_task(ask(number, due))
        return measured(found_s, error_count, time.perf_counter() - started)
