"""Comparisons that are asked for in one turn of the event loop travel as one operation.

A process that knows many rows asks before each use whether there is news of one, and mostly there is none. As a read of
its own each of these questions is a frame, an answer and a search in the index; together they are one of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from boki.api.port import Begin, LogPort
from boki.errors import BokiError
from boki.log.limits import DEFAULT_LIMITS, Limits
from boki.log.metalog import Positions, merge_positions
from boki.log.operations import Answer, Compare, Compared

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

    def __init__(self, port: LogPort, limits: Limits = DEFAULT_LIMITS) -> None:
        self._port = port
        self._most_rows = min(MAX_ROWS, limits.page_records)
        self._open: dict[str, list[_Waiting]] = {}
        self._begin: Begin | None = getattr(port, "begin_request", None)
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
        for book, members in gathered.items():
            for some in _parts(members, self._most_rows):
                self._send(book, _Sent(some))

    def _send(self, book: str, sent: _Sent) -> None:
        tags, lasts = zip(*sent.numbers, strict=True)
        operation = Compare(book, tags, lasts)
        timeout_s = min(member.timeout_s for member in sent.members)
        if self._begin is None or not self._begin(operation, sent.positions, timeout_s, sent.told):
            task = asyncio.get_running_loop().create_task(self._request(operation, sent, timeout_s))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: sent.leave())

    async def _request(self, operation: Compare, sent: _Sent, timeout_s: float) -> None:
        with suppress(BokiError):  # each reads, and is told by that what is wrong
            sent.told(await self._port.request(operation, sent.positions, timeout_s), sent.positions)


def _parts(members: Sequence[_Waiting], most_rows: int) -> list[list[_Waiting]]:
    """The members in groups of at most that number of rows, or of one member."""
    parts: list[list[_Waiting]] = [[]]
    count = 0
    for member in members:
        count += len(member.rows)
        if count > most_rows and parts[-1]:
            parts.append([])
            count = len(member.rows)
        parts[-1].append(member)
    return parts


class _Sent:
    """Comparisons that travel as one operation: all rows once, and what any of the callers has seen."""

    __slots__ = ("members", "numbers", "positions")

    def __init__(self, members: Sequence[_Waiting]) -> None:
        self.members = members
        self.numbers: dict[tuple[str, int], int] = {}
        self.positions: Positions = {}
        informed: Positions | None = None
        for _, rows, positions, _ in members:
            for row in rows:
                self.numbers.setdefault(row, len(self.numbers))
            if positions is not informed:  # neighbours are mostly of one call
                merge_positions(self.positions, positions)
                informed = positions

    def told(self, answer: Answer, seen: Positions) -> None:
        """The answer to all of them."""
        if not isinstance(answer, Compared):
            self.leave()
            return
        changed = set(answer.changed)
        nothing = Compared((), answer.next_start)
        informed: Positions | None = None
        for future, rows, positions, _ in self.members:
            if positions is not informed:
                merge_positions(positions, seen)
                informed = positions
            if not future.done():
                own = tuple([i for i, row in enumerate(rows) if self.numbers[row] in changed]) if changed else ()
                future.set_result(Compared(own, answer.next_start) if own else nothing)

    def leave(self) -> None:
        """Those that have no answer get none any more."""
        for member in self.members:
            if not member.future.done():
                member.future.set_result(None)
