"""Updates of an object that a process alone has changed lately: one append each, and the same results as always."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from itertools import count
from random import Random
from typing import Any

import pytest

import boki.testing
from boki import BokiError, LogBook
from boki.libs.bokistore import WrongShape
from boki.libs.bokistore.accesses import Direct
from boki.libs.bokistore.reading import Reader
from boki.libs.bokistore.records import UNKNOWN_AUTHOR
from boki.libs.bokistore.requests import Requests
from boki.libs.bokistore.views import OWN_STREAK, Rows
from boki.libs.fold import steps
from boki.libs.fold.steps import Step, Steps
from tests.libs.bokiqueue.running import asynchronous


class Process:
    """A process with a memory of its own, and the operations that it has carried out."""

    _numbers = count()

    def __init__(self, logbook: LogBook) -> None:
        self.logbook = logbook
        self.reader = Reader(Rows(), logbook.name)
        self.operations: list[Step] = []
        access = Direct(self.reader, UNKNOWN_AUTHOR, lambda: b"%d" % next(self._numbers))
        self.object: Requests[Any] = Requests(access, "x", None)

    async def does(self, work: Steps[Any]) -> Any:
        """Carry the work out."""
        return await steps.run(self._noting(work), self.logbook)

    def _noting(self, work: Steps[Any]) -> Generator[Step, Any, Any]:
        answer: Any = None
        error: BokiError | None = None
        while True:
            try:
                step = work.send(answer) if error is None else work.throw(error)
            except StopIteration as end:
                return end.value
            self.operations.append(step)
            answer = error = None
            try:
                answer = yield step
            except BokiError as failure:
                error = failure

    async def count_up(self) -> tuple[int, list[type[Step]]]:
        """The new number, and the kinds of operations that it took."""
        self.operations.clear()
        number: int = await self.does(self.object.increment("n", 1, None))
        return number, [type(operation) for operation in self.operations]


@asynchronous
async def test_the_result_is_known_without_a_read() -> None:
    """After a few updates by one process alone each is one append; what does not fit is refused as always."""
    async with boki.testing.context() as ctx:
        process = Process(ctx.logbook)
        for number in range(1, OWN_STREAK + 1):
            assert (await process.count_up())[0] == number
        assert await process.count_up() == (OWN_STREAK + 1, [steps.Append])
        assert await process.count_up() == (OWN_STREAK + 2, [steps.Append])
        with pytest.raises(WrongShape):
            await process.does(process.object.append("n", [1], 0, None))
        assert (await process.count_up())[0] == OWN_STREAK + 3
        assert (await Process(ctx.logbook).count_up())[0] == OWN_STREAK + 4


@asynchronous
async def test_an_update_that_another_process_precedes_counts_after_it() -> None:
    """The guess is refused by the log, the update is made all the same, and the next ones do not guess."""
    async with boki.testing.context() as ctx:
        one, other = Process(ctx.logbook), Process(ctx.logbook)
        for _ in range(OWN_STREAK + 1):
            await one.count_up()
        assert (await other.count_up())[0] == OWN_STREAK + 2
        assert await one.count_up() == (OWN_STREAK + 3, [steps.Append, steps.Append, steps.ReadPage])
        assert await one.count_up() == (OWN_STREAK + 4, [steps.Append, steps.ReadPage])


@pytest.mark.parametrize("seed", range(20))
@asynchronous
async def test_every_update_counts_once_whoever_guesses(seed: int) -> None:
    """Processes, tasks and readers at random: each number is given once, in the order of the log, and none is left."""
    async with boki.testing.context() as ctx:
        rng = Random(seed)
        processes = [Process(ctx.logbook) for _ in range(2)]
        numbers: list[int] = []
        for _ in range(60):
            process = rng.choices(processes, (12, 1))[0]
            if rng.random() < 0.2:
                await process.does(process.object.get("n", 0))
            tasks = 1 if rng.random() < 0.8 else 3
            done = await asyncio.gather(*(process.does(process.object.increment("n", 1, None)) for _ in range(tasks)))
            assert min(done) > max(numbers, default=0)
            numbers += done
        assert sorted(numbers) == list(range(1, len(numbers) + 1))
        assert (await Process(ctx.logbook).count_up())[0] == len(numbers) + 1
