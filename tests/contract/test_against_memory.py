"""The real log and MemoryLog answer any sequence of operations alike.

Scenarios say what somebody thought of; this says the rest. The same operations go to both through the same LogBook, one
after the other. Seqnums differ, so both sides speak of "the k-th record of this book"; times are not compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import boki.testing
from boki import MAX_SEQNUM, BokiError, ConditionFailed, Expect, LogBook, Record
from boki.api.port import LogPort
from boki.extending import forget_tags
from tests.contract.engines import two_engines
from tests.contract.live import EngineLogs, LoopThread, local_log
from tests.contract.scenarios.logs import Logs

BOOKS = ("x", "y")
TAGS = ("a", "b", "!s")

book = st.sampled_from("xxxy")
tag = st.none() | st.sampled_from(TAGS)
place = st.tuples(st.integers(0, 7), st.sampled_from((0, 1)))
"""The seqnum of a book's k-th record, or one more."""
record = st.tuples(st.binary(max_size=3), st.lists(st.sampled_from(TAGS), max_size=2, unique=True))
condition = st.tuples(st.sampled_from(TAGS), st.none() | place) | st.tuples(st.just("!s"), st.integers(0, 5))
"""The last record of a tag, or how many there have been of the one that has counts."""
some_tags = st.lists(st.sampled_from(TAGS), min_size=1, unique=True)
append = st.tuples(
    st.just("append"),
    book,
    st.lists(record, min_size=1, max_size=3),
    st.lists(condition, max_size=2),
    st.none() | st.sampled_from("kl"),
)
operations = st.lists(
    append
    | append
    | append
    | st.tuples(st.just("trim"), book, place | st.just("max"), tag)
    | st.tuples(st.just("forget"), book, place | st.just("max"), some_tags)
    | st.tuples(st.just("delete"), book)
    | st.tuples(st.just("get"), book, place)
    | st.tuples(st.just("next"), book, tag, place)
    | st.tuples(st.just("prev"), book, tag, place)
    | st.tuples(st.just("page"), book, tag, place, st.none() | place, st.integers(1, 4))
    | st.tuples(st.just("books")),
    min_size=3,
    max_size=25,
)
_run_numbers = count()


class Player:
    """Plays operations on one log, and tells the outcome of them without naming a seqnum."""

    def __init__(self, logs: Logs, prefix: str) -> None:
        self._logs = logs
        self._prefix = prefix
        self._seqnums: dict[str, list[int]] = {name: [] for name in BOOKS}

    def book(self, name: str) -> LogBook:
        return self._logs.logbook_named(f"{self._prefix}.{name}")

    def seqnum(self, name: str, place: Any) -> int:
        """The seqnum that a place stands for; before the first record: 0."""
        if place == "max":
            return MAX_SEQNUM
        known = self._seqnums[name]
        return known[place[0] % len(known)] + place[1] if place is not None and known else 0

    def place(self, name: str, seqnum: int) -> int | None:
        """Which record of the book it is; None for 0."""
        return self._seqnums[name].index(seqnum) if seqnum else None

    def told(self, name: str, records: list[Record | None]) -> list[Any]:
        return [r and (self.place(name, r.seqnum), r.data, r.tags) for r in records]

    async def play(self, operation: tuple[Any, ...]) -> Any:
        """What the operation answers or raises."""
        kind, *arguments = operation
        try:
            return await getattr(self, f"play_{kind}")(*arguments)
        except ConditionFailed as error:
            count = error.details.get("actual_count")
            return error.code, error.tag, self.place(arguments[0], error.actual_seqnum), count
        except BokiError as error:
            return error.code, error.outcome

    async def play_append(self, name: str, records: Any, conditions: Any, key: str | None) -> Any:
        when = [
            Expect(tag, count=place) if isinstance(place, int) else Expect(tag, self.seqnum(name, place))
            for tag, place in conditions
        ]
        seqnums = await self.book(name).append_many(records, when=when, key=key)
        known = self._seqnums[name]
        known += [seqnum for seqnum in seqnums if seqnum not in known]
        assert known == sorted(known)
        return [self.place(name, seqnum) for seqnum in seqnums]

    async def play_trim(self, name: str, before: Any, tag: str | None) -> Any:
        await self.book(name).trim(self.seqnum(name, before), tag=tag)

    async def play_forget(self, name: str, before: Any, tags: list[str]) -> Any:
        await forget_tags(self.book(name), self.seqnum(name, before), tags)

    async def play_delete(self, name: str) -> Any:
        await self.book(name).delete()

    async def play_get(self, name: str, place: Any) -> Any:
        if place[1]:
            return None  # the seqnum between two records may be another book's, or not yet given out
        return self.told(name, [await self.book(name).get(self.seqnum(name, place))])

    async def play_next(self, name: str, tag: str | None, start: Any) -> Any:
        return self.told(name, [await self.book(name).read_next(tag, min_seqnum=self.seqnum(name, start))])

    async def play_prev(self, name: str, tag: str | None, end: Any) -> Any:
        return self.told(name, [await self.book(name).read_prev(tag, max_seqnum=self.seqnum(name, end))])

    async def play_page(self, name: str, tag: str | None, start: Any, stop: Any, limit: int) -> Any:
        bounds = {"start": self.seqnum(name, start), "stop": None if stop is None else self.seqnum(name, stop)}
        page = await self.book(name).read(tag, limit=limit, **bounds)
        return self.told(name, list(page.records))

    async def play_books(self) -> Any:
        infos = await self._logs.books(f"{self._prefix}.")
        return [
            (name, info.record_count, self.place(name, info.first_seqnum), self.place(name, info.last_seqnum))
            for info in infos
            for name in [info.name.rpartition(".")[2]]
        ]

    async def play_everything(self) -> Any:
        """All rows, as they stand at the end."""
        return [await self.play(("page", name, tag, None, None, 1000)) for name in BOOKS for tag in (None, *TAGS)]


OPENERS = {
    "engine": local_log,
    "engine-3-replicas-2-logs": partial(local_log, replicas=3, logs=2),
    "2-engines-2-logs": partial(two_engines, has_index=True, logs=2),
    "2-engines-1-index": partial(two_engines, has_index=False, logs=2),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"against-memory-{name}")) for name in OPENERS],
)
def engine(request: pytest.FixtureRequest) -> Iterator[tuple[LoopThread, LogPort]]:
    """The whole system in this process."""
    with OPENERS[request.param]() as opened:
        yield opened


async def _play(logs: Logs, prefix: str, played: list[tuple[Any, ...]]) -> list[Any]:
    player = Player(logs, prefix)
    return [*[await player.play(operation) for operation in played], await player.play_everything()]


async def _play_on_memory(prefix: str, played: list[tuple[Any, ...]]) -> list[Any]:
    async with boki.testing.context() as ctx:
        return await _play(ctx, prefix, played)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(played=operations)
def test_both_answer_alike(engine: tuple[LoopThread, LogPort], played: list[tuple[Any, ...]]) -> None:
    """Results, errors and, at the end, every row."""
    loop, service = engine
    prefix = f"run{next(_run_numbers)}"
    expected = asyncio.run(_play_on_memory(prefix, played))
    found = loop.run(_play(EngineLogs(service, prefix), prefix, played))
    for operation, one, other in zip([*played, "everything"], expected, found, strict=True):
        assert one == other, operation


async def _append_eight_at_once(logbook: LogBook) -> list[int]:
    tasks = []
    for i in range(8):
        when = Expect("!steps", count=i)
        tasks.append(asyncio.create_task(logbook.append(b"%d" % i, tags=["!steps"], when=when)))
        if i % 3 == 0:
            await asyncio.sleep(0)  # so that some share a chunk, and some do not
    return list(await asyncio.gather(*tasks))


@pytest.mark.xdist_group("against-memory-engine")
def test_appends_of_one_caller_that_are_in_flight_are_ordered_in_turn() -> None:
    """By one engine each names the count that it will find: none waits for the one before it, and all hold."""
    with local_log() as (loop, service):
        seqnums = loop.run(_append_eight_at_once(EngineLogs(service, "in-flight").logbook))
        assert seqnums == sorted(seqnums)
