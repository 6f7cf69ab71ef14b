"""A cluster that tests hurt, in an event loop of its own, and what asks it until it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from boki.api.logbook import LogBook
from boki.client import Client
from boki.errors import BokiError
from boki.log.record import Record
from boki.verify.chaos import target as targets
from boki.verify.chaos.faults import FAULTS, becomes_so, inflict
from boki.verify.chaos.target import TargetCluster

T = TypeVar("T")
FUNCTIONS = Path(__file__).parent / "functions"
SEED = 11
WITHIN_S = 60.0


class Ward:
    """The cluster, in an event loop that runs while a test does."""

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        self.folder = folder
        self.said: list[str] = []
        functions = (*targets.FUNCTIONS, *FUNCTIONS.glob("*.py"))
        # a story is about the loss of one role
        self.target = TargetCluster(folder, storage=4, tell=self.said.append, functions=functions, is_separate=True)
        self._runner = runner

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(story)

    def client(self) -> Client:
        return Client(self.target.url)

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the cluster's status shows it."""
        assert await becomes_so(condition, WITHIN_S), self.said

    async def all_at_work(self) -> None:
        async def nobody_is_missing() -> bool:
            return not await self.target.missing()

        await self.until(nobody_is_missing)

    async def insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` returns as soon as it does not fail. It may be called several times: an append needs a key.

        On a loaded machine a node may lose its session at any time, without a fault of ours.
        """
        answers: list[T] = []

        async def is_answered() -> bool:
            with suppress(BokiError, OSError, HTTPException):
                answers.append(await ask())
            return bool(answers)

        await self.until(is_answered)
        return answers[0]

    async def append(self, book: LogBook, data: bytes) -> int:
        """The seqnum of a record that is appended once."""
        return await self.insist(lambda: book.append(data, key=data.decode(), timeout_s=10))

    async def read_all(self, book: LogBook, tag: str | None = None) -> list[Record]:
        """All records of a book, or of a tag in it."""
        return await self.insist(lambda: read_all(book, tag))

    async def inflict(self, name: str) -> None:
        """One fault, which is felt."""
        fault = next(fault for fault in FAULTS if fault.name == name)
        assert await inflict(fault, self.target, Random(SEED), 0.1, self.said.append), self.said


async def read_all(book: LogBook, tag: str | None = None) -> list[Record]:
    """All records: a page may end early, where a term does."""
    found: list[Record] = []
    start = 0
    while (page := await book.read(tag, start=start)).records:
        found += page.records
        start = page.next_start
    return found
