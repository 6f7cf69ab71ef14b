"""Transactions over objects on a cluster under fault, as a process that may be killed at any moment.

Each task appends to lists and reads them, or moves money between accounts, or counts. What it asks and is told it
writes to a file at once, line by line, with times of a clock that all processes of the machine share; so what a process
had begun when it was killed is known to have no known outcome. The word `stop` on its standard input ends it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from io import FileIO
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

import msgspec
import uvloop

from boki.client import Client
from boki.errors import BokiError
from boki.libs.bokistore import ConflictError, Store
from boki.verify.chaos.users import word_on_stdin
from boki.verify.histories.txns import Told

BOOK: Final = "chaos-objects"
ACCOUNTS: Final = tuple(f"account-{number}" for number in range(6))
OPENING: Final = 1_000
COUNTER: Final = "hits"
TASKS: Final = 6
"""Of each process, over lists; one more moves money, and one counts."""
TICKS_A_US: Final = 16
_LISTS: Final = 4
_EPOCH_S: Final = 2.0
"""This long lists grow, before there are new ones: each read carries a whole list."""
_PAUSE_S: Final = 0.03
_RETRY_S: Final = 0.2


class ObjectOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is to do, and where it writes down what it was told."""

    url: str
    name: str
    file: str
    seed: int


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation of a transaction: an element that is appended to a list, or what was read of it."""

    list: str
    element: int = 0
    read: tuple[int, ...] = ()


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the file. A transaction has two: what it is about to append, and its outcome."""

    number: int
    kind: str = "lists"
    """Or "money", "count"; "torn" says that a transaction has seen what was never true together."""
    steps: tuple[Step, ...] = ()
    told: Told = "info"
    task: str = ""
    asked: float = 0.0
    told_at: float = 0.0
    value: int = 0
    """What a count was told."""


def read_entries(file: Path) -> list[Entry]:
    """What a process, and those before it under its name, have written. A line may have been cut off by an end."""
    entries = []
    for row in file.read_bytes().split(b"\n") if file.exists() else ():
        try:
            entries.append(msgspec.json.decode(row, type=Entry))
        except msgspec.DecodeError:
            continue
    return entries


class ObjectWork:
    """One process."""

    def __init__(self, orders: ObjectOrders) -> None:
        self._orders = orders
        self._client = Client(orders.url)
        self._store = Store(self._client.logbook(BOOK))
        self._file = FileIO(orders.file, "ab")
        self._file.write(b"\n")  # ends a line that was cut off
        began_us = int(monotonic() * 1e6)
        self._life = f"{orders.name}@{began_us}"
        self._rng = Random(f"{orders.seed}:{self._life}")
        self._number = 0
        self._is_over = False

    def _draw(self) -> int:
        """A number for a transaction or an element, which no other process draws: about now, in 1/16 microseconds."""
        now = int(monotonic() * 1e6) * TICKS_A_US + int(self._orders.name[1:]) % TICKS_A_US
        self._number = max(self._number + TICKS_A_US, now)
        return self._number

    async def run(self) -> None:
        """Work until the standard input says otherwise, or ends."""
        await self._again(self._open_accounts)
        works = [self._transact] * TASKS + [self._transfer, self._count]
        tasks = [asyncio.create_task(self._go_on(work, number)) for number, work in enumerate(works)]
        await word_on_stdin("stop")
        self._is_over = True
        await asyncio.gather(*tasks)
        await self._client.close()
        print("stopped", flush=True)

    async def _go_on(self, work: Callable[[str], Awaitable[None]], number: int) -> None:
        while not self._is_over:
            await asyncio.sleep(2 * _PAUSE_S * self._rng.random())
            try:
                await work(f"{self._life}/{number}")
            except BokiError:  # it is written down by then
                await asyncio.sleep(_RETRY_S * self._rng.random())

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                return await work()
            except BokiError:
                await asyncio.sleep(_RETRY_S)

    async def _open_accounts(self) -> None:
        async with self._store.transaction(key="opening") as txn:
            for name in ACCOUNTS:
                await txn.object(name).set("balance", OPENING)

    def _note(self, entry: Entry) -> None:
        self._file.write(msgspec.json.encode(entry) + b"\n")

    async def _transact(self, task: str) -> None:
        """Read and append to up to four lists."""
        rng, epoch = self._rng, int(monotonic() / _EPOCH_S)
        names = [f"list-{epoch}-{rng.randrange(_LISTS)}.{rng.choice('ab')}" for _ in range(rng.choice((1, 2, 2, 3, 4)))]
        planned = [Step(name, self._draw() if rng.random() < 0.5 else 0) for name in names]
        is_fresh = rng.random() < 0.5 or any(step.element for step in planned)
        begun = Entry(self._draw(), steps=tuple(planned), task=task, asked=monotonic())
        writes = tuple(step for step in planned if step.element)
        self._note(msgspec.structs.replace(begun, steps=writes))
        done: list[Step] = []
        try:
            async with self._store.transaction(fresh=is_fresh) as txn:
                for step in planned:
                    name, _, part = step.list.partition(".")
                    if step.element:
                        await txn.object(name).append(part, step.element)
                        done.append(step)
                    else:
                        done.append(Step(step.list, 0, tuple(await txn.object(name).get(part, []))))
        except BokiError as error:
            told: Told = "fail" if error.outcome == "not_applied" else "info"
            self._end(begun, tuple(done) if told == "fail" else writes, told)
            if isinstance(error, ConflictError):
                return
            raise
        self._end(begun, tuple(done), "ok", is_ordered=is_fresh)

    def _end(self, begun: Entry, steps: tuple[Step, ...], told: Told, *, is_ordered: bool = True) -> None:
        asked = begun.asked if is_ordered else -1.0
        self._note(msgspec.structs.replace(begun, steps=steps, told=told, asked=asked, told_at=monotonic()))

    async def _transfer(self, task: str) -> None:
        """Look at all accounts, whose sum never changes, and move money between two of them."""
        payer, payee = self._rng.sample(ACCOUNTS, 2)
        amount = self._rng.randint(1, 50)
        begun = Entry(self._draw(), "money", task=task, asked=monotonic())
        try:
            async with self._store.transaction() as txn:
                await txn.prefetch(*ACCOUNTS)
                balances = {name: await txn.object(name).get("balance") for name in ACCOUNTS}
                if sum(balances.values()) != OPENING * len(ACCOUNTS):
                    self._note(Entry(begun.number, "torn", value=sum(balances.values())))
                if balances[payer] >= amount:
                    await txn.object(payer).increment("balance", -amount)
                    await txn.object(payee).increment("balance", amount)
        except ConflictError:
            return
        self._end(begun, (), "ok")

    async def _count(self, task: str) -> None:
        """An increment without a key: it may count, or not, if its answer is lost."""
        begun = Entry(self._draw(), "count", task=task, asked=monotonic())
        self._note(begun)
        try:
            number = await self._store.counter(COUNTER).increment()
        except BokiError as error:
            self._end(begun, (), "fail" if error.outcome == "not_applied" else "info")
            raise
        self._end(msgspec.structs.replace(begun, value=number), (), "ok")


if __name__ == "__main__":
    uvloop.run(ObjectWork(msgspec.json.decode(sys.argv[1], type=ObjectOrders)).run())
