"""Comparisons that are asked for in one turn of the event loop travel as one operation.

A process that knows many rows asks before each use whether there is news of one, and mostly there is none. As a read of
its own each of these questions is a frame, an answer and a search in the index; together they are one of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from boki.api.port import LogPort
from boki.errors import BokiError
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Compare, Compared

MAX_ROWS: Final = 1_000
"""Maximum number of rows of one operation: more are asked for by another one."""

Rows = Sequence[tuple[str, int]]
"""Tags, and of each the seqnum of the last record that is known."""


class _Waiting(NamedTuple):
    future: asyncio.Future[Compared | None]
    rows: Rows
    positions: Positions
    timeout_s: float


class CompareGatherer:
    """Gathers the comparisons of all callers over one port. One per port and event loop."""

    def __init__(self, port: LogPort) -> None:
        self._port = port
        self._open: dict[str, list[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, book: str, rows: Rows, positions: Positions, timeout_s: float) -> asyncio.Future[Compared | None]:
        """What has changed in these rows, by their numbers; `positions` are raised to have seen it.

        None if that cannot be told in the time of those who ask together: then read.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Compared | None] = loop.create_future()
        if not self._open:
            loop.call_soon(self._flush)
        self._open.setdefault(book, []).append(_Waiting(future, rows, positions, timeout_s))
        return future

    def _flush(self) -> None:
        """Runs when all that was ready in this turn has run."""
        gathered, self._open = self._open, {}
        loop = asyncio.get_running_loop()
        for book, members in gathered.items():
            for some in _parts(members):
                task = loop.create_task(self._ask(book, some))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _ask(self, book: str, members: Sequence[_Waiting]) -> None:
        numbers: dict[tuple[str, int], int] = {}
        seen: Positions = {}
        informed: Positions | None = None
        for _, rows, positions, _ in members:
            for row in rows:
                numbers.setdefault(row, len(numbers))
            if positions is not informed:  # neighbours are mostly of one call
                merge_positions(seen, positions)
                informed = positions
        tags, lasts = zip(*numbers, strict=True)
        timeout_s = min(member.timeout_s for member in members)
        try:
            answer = await self._port.request(Compare(book, tags, lasts), seen, timeout_s)
            assert isinstance(answer, Compared), "a comparison is answered by nothing else"
            _tell(members, answer, numbers, seen)
        except BokiError:
            pass  # each reads, and is told by that what is wrong
        finally:
            for member in members:
                if not member.future.done():
                    member.future.set_result(None)


def _parts(members: Sequence[_Waiting]) -> list[list[_Waiting]]:
    """The members in groups of `MAX_ROWS` rows at most, or of one member."""
    parts: list[list[_Waiting]] = [[]]
    count = 0
    for member in members:
        count += len(member.rows)
        if count > MAX_ROWS and parts[-1]:
            parts.append([])
            count = len(member.rows)
        parts[-1].append(member)
    return parts


def _tell(members: Sequence[_Waiting], answer: Compared, numbers: dict[tuple[str, int], int], seen: Positions) -> None:
    changed = set(answer.changed)
    nothing = Compared((), answer.next_start)
    informed: Positions | None = None
    for future, rows, positions, _ in members:
        if positions is not informed:
            merge_positions(positions, seen)
            informed = positions
        if not future.done():
            own = tuple([i for i, row in enumerate(rows) if numbers[row] in changed]) if changed else ()
            future.set_result(Compared(own, answer.next_start) if own else nothing)
