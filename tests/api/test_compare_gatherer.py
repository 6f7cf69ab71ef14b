"""Comparisons of one turn of the loop travel together, and each caller is told of its own rows."""

from __future__ import annotations

import asyncio

from boki.api.compare_gatherer import MAX_ROWS, CompareGatherer
from boki.errors import Unavailable
from boki.log.metalog import Positions
from boki.log.operations import Answer, Compare, Compared, Operation


class Port:
    """Says that the rows in `changed` have changed; remembers what it was asked."""

    def __init__(self, *changed: str) -> None:
        self.asked: list[Compare] = []
        self.seen: list[Positions] = []
        self.timeouts_s: list[float] = []
        self.changed = changed
        self.fails = False

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        assert isinstance(operation, Compare)
        self.asked.append(operation)
        self.seen.append(dict(positions))
        self.timeouts_s.append(timeout_s)
        await asyncio.sleep(0)
        if self.fails:
            raise Unavailable("not now")
        positions[0] = 9
        return Compared(tuple(number for number, tag in enumerate(operation.tags) if tag in self.changed), 100)


def test_one_turn_is_one_request_a_book() -> None:
    """Each row is in it once, each caller is told of its own rows by their own numbers."""

    async def scenario() -> None:
        port = Port("b")
        gatherer = CompareGatherer(port)
        asks = [("x", [("a", 1), ("b", 2)]), ("x", [("b", 2)]), ("x", [("a", 1)]), ("y", [("a", 1)])]
        futures = [gatherer.add(book, rows, {}, 30) for book, rows in asks]
        answers = await asyncio.gather(*futures)
        assert [answer and answer.changed for answer in answers] == [(1,), (0,), (), ()]
        assert [answer and answer.next_start for answer in answers] == [100] * 4
        assert [(asked.book, asked.tags, asked.lasts) for asked in port.asked] == [
            ("x", ("a", "b"), (1, 2)),
            ("y", ("a",), (1,)),
        ]

    asyncio.run(scenario())


def test_it_is_no_older_than_what_any_of_its_callers_has_seen() -> None:
    """The request has seen what all have, and all have seen the answer; it is in time for the most urgent one."""

    async def scenario() -> None:
        port = Port()
        gatherer = CompareGatherer(port)
        one: Positions = {0: 3}
        other: Positions = {0: 2, 1: 7}
        await asyncio.gather(gatherer.add("x", [("a", 1)], one, 30), gatherer.add("x", [("b", 1)], other, 2))
        assert port.seen == [{0: 3, 1: 7}]
        assert port.timeouts_s == [2]
        assert (one, other) == ({0: 9, 1: 7}, {0: 9, 1: 7})

    asyncio.run(scenario())


def test_a_failure_is_no_news_and_no_error() -> None:
    """Each caller is told that it cannot be told, and reads: an error is that of the read."""

    async def scenario() -> None:
        port = Port()
        port.fails = True
        gatherer = CompareGatherer(port)
        assert await asyncio.gather(*(gatherer.add("x", [("a", 1)], {}, 30) for _ in range(3))) == [None] * 3

    asyncio.run(scenario())


def test_a_caller_that_is_cancelled_takes_nothing_from_the_others() -> None:
    """They are answered."""

    async def scenario() -> None:
        gatherer = CompareGatherer(Port())
        one, other = (gatherer.add("x", [("a", 1)], {}, 30) for _ in range(2))
        one.cancel()
        assert await other == Compared((), 100)

    asyncio.run(scenario())


def test_many_rows_are_several_requests() -> None:
    """None has more rows than an operation may have, unless one caller asks for more."""

    async def scenario() -> None:
        port = Port()
        gatherer = CompareGatherer(port)
        half = MAX_ROWS // 2 + 1
        rows = [[(f"{caller}-{number}", 1) for number in range(half)] for caller in range(3)]
        answers = await asyncio.gather(*(gatherer.add("x", some, {}, 30) for some in rows))
        assert answers == [Compared((), 100)] * 3
        assert [len(asked.tags) for asked in port.asked] == [half] * 3

    asyncio.run(scenario())
