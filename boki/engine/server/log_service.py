"""What an engine offers to workers and to the gateway: the log operations of its core, and those made of several.

Retention rules and the listing of books go through records and the index both, so they are carried out here; all else
goes straight to the core. In a process without the index everything goes through its relay, to where this runs over an
index. Operations must have been checked (`boki.log.checks`) by whoever took them in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from boki.books.retention import Retention, list_books
from boki.engine.core import EngineCore
from boki.engine.relay import RelayCore
from boki.engine.server.port import EnginePort, Finish
from boki.errors import BokiError, InvalidArgument, uncertain
from boki.log.metalog import Positions, merge_positions, split_position
from boki.log.operations import Answer, Append, Compare, Done, Failure, ListBooks, Operation, SetRetention, TrimBook


class LogService:
    """A `LogPort`, and the callback form of it, over one engine or relay of this process."""

    def __init__(self, port: EnginePort, core: EngineCore | RelayCore) -> None:
        self._port = port
        self._engine = core if isinstance(core, EngineCore) else None
        self._tasks: set[asyncio.Task[None]] = set()
        self.retention = Retention(port, core.index) if isinstance(core, EngineCore) else None

    async def start(self) -> None:
        """Read the retention rules and begin to apply them, where the index is."""
        if self.retention is not None:
            await self.retention.start()

    async def stop(self) -> None:
        """Apply retention no more."""
        if self.retention is not None:
            await self.retention.stop()

    def submit(self, operation: Operation, positions: Positions, timeout_us: int, finish: Finish) -> None:
        """Carry out an operation; `finish(answer, positions)` is called once, in this loop, maybe before returning."""
        is_composed = isinstance(operation, SetRetention | ListBooks) or (
            isinstance(operation, TrimBook) and operation.everything
        )
        if is_composed and self.retention is not None:
            self._spawn(self._answer(operation, positions, timeout_us, finish))
        else:
            self._port.submit(operation, positions, timeout_us, finish)

    def abandon(self, finish: Finish) -> None:
        """See `EnginePort.abandon`."""
        self._port.abandon(finish)

    async def request(self, operation: Operation, positions: Positions, timeout_s: float) -> Answer:
        """See `boki.api.port.LogPort`."""
        retention = self.retention
        if retention is None:
            return await self._port.request(operation, positions, timeout_s)
        match operation:
            case SetRetention():
                await retention.set(operation)
                merge_positions(positions, retention.positions)
                return Done()
            case ListBooks():
                await retention.catch_up(positions)
                return retention.describe(await list_books(self._port, operation, positions, timeout_s))
            case TrimBook(book, everything=True):
                # First the rule: it would trim the records of a book of the same name, if this engine died in between.
                has_lifted = await retention.lift(book, positions)
                merge_positions(positions, retention.positions)
                try:
                    return await self._port.request(operation, positions, timeout_s)
                except BokiError as error:
                    raise uncertain(error) if has_lifted else error from None
        return await self._port.request(operation, positions, timeout_s)

    def begin_request(self, operation: Operation, positions: Positions, timeout_s: float, told: Finish) -> bool:
        """See `boki.api.port.BeginningPort`: for what is not composed."""
        is_composed = not isinstance(operation, Append | Compare)
        return not is_composed and self._port.begin_request(operation, positions, timeout_s, told)

    def watch(self, book: str, tag: str, min_seqnum: int, finish: Finish) -> None:
        """See `EnginePort.watch`."""
        self._port.watch(book, tag, min_seqnum, finish)

    def unwatch(self, book: str, tag: str, finish: Finish) -> None:
        """See `EnginePort.unwatch`."""
        self._port.unwatch(book, tag, finish)

    async def _answer(self, operation: Operation, positions: Positions, timeout_us: int, finish: Finish) -> None:
        seen = dict(positions)
        try:
            answer = await self.request(operation, seen, timeout_us / 1_000_000)
        except BokiError as error:
            answer = Failure.of(error)
        merge_positions(positions, seen)
        finish(answer, seen)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def check_positions(self, positions: Positions) -> None:
        """`InvalidArgument` if a position lies where no log has come to: nobody has seen it, so nobody waits for it.

        Where there may be other engines, one of them may have handed out what this one has not applied yet: then
        whoever reads waits for it, until its deadline.
        """
        if self._engine is None or self._engine.replicas.membership is not None:
            return
        view = self._engine.follower.chain.current
        for log, position in positions.items():
            term, _ = split_position(position)
            if term > view.term or (term == view.term and log >= view.log_count):
                raise InvalidArgument(
                    f"Boki-Position names log {log} of term {term}; this system is in term {view.term} with "
                    f"{view.log_count} logs: it is not of this system",
                    field="Boki-Position",
                )
            if position > self._engine.index.applied.get(log, 0):
                raise InvalidArgument(
                    f"Boki-Position is ahead of log {log}: no answer of this system ever carried it",
                    field="Boki-Position",
                )
