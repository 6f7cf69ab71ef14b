"""Objects under chaos: processes of transactions, killed and halted on the way, and its outcome all.

Transactions over lists are judged by the checker for list-append histories, with a last transaction that reads all
lists; money by its sum, in every audit and in the end; counts by their numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from boki.client import Client
from boki.errors import BokiError
from boki.libs.bokistore import Store
from boki.verify.chaos.object_work import (
    ACCOUNTS,
    BOOK,
    COUNTER,
    OPENING,
    TICKS_A_US,
    Entry,
    ObjectOrders,
    read_entries,
)
from boki.verify.chaos.users import Users
from boki.verify.histories.lists import find_anomalies
from boki.verify.histories.objects import Counted, find_wrong_counts
from boki.verify.histories.txns import Op, Read, Txn, Wrote

_PROCESSES: Final = 2
_STOP_WITHIN_S: Final = 60.0
_SHOWN: Final = 5
_LISTS_AT_ONCE: Final = 200
KILL, STOP = "kill-transactions", "stop-transactions"


class ObjectWatch:
    """The processes of one run. `violations`: what must not have come of it."""

    def __init__(self, url: str, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self.violations: list[str] = []
        self.committed_count = 0
        """Transactions that were committed and judged."""
        self._url = url
        self._files = {f"o{number + 1}": folder / f"objects-o{number + 1}.jsonl" for number in range(_PROCESSES)}
        orders = {
            name: ObjectOrders(url=url, name=name, file=str(file), seed=seed) for name, file in self._files.items()
        }
        random = Random(f"{seed}/objects")
        self.users: Final = Users("boki.verify.chaos.object_work", "transactions", orders, random, tell)

    async def finish(self) -> None:
        """Let the processes end, read all objects, and judge. The cluster is well again."""
        try:
            async with asyncio.timeout(_STOP_WITHIN_S):
                await self.users.order("stop")
            entries = [entry for file in self._files.values() for entry in read_entries(file)]
            lists, final = await self._read(entries)
        except TimeoutError:
            self.violations.append(f"transactions still run {_STOP_WITHIN_S:g} s after the last fault")
        except (BokiError, OSError) as error:
            self.violations.append(f"objects could not be read when every fault was over: {error!r}")
        else:
            self.committed_count = sum(entry.told == "ok" and entry.kind != "count" for entry in entries)
            found = await asyncio.to_thread(lambda: list(violations_of(entries, lists, final)))
            self.violations += found[:_SHOWN]

    async def _read(self, entries: Sequence[Entry]) -> tuple[dict[str, list[int]], dict[str, int]]:
        """All lists, and the balances and the counter."""
        names = sorted({step.list.partition(".")[0] for entry in entries for step in entry.steps})
        lists: dict[str, list[int]] = {}
        async with Client(self._url) as client:
            store = Store(client.logbook(BOOK))
            for first in range(0, len(names), _LISTS_AT_ONCE):
                some = names[first : first + _LISTS_AT_ONCE]
                async with store.transaction(fresh=True) as txn:
                    await txn.prefetch(*some)
                    for name in some:
                        found: dict[str, Any] = await txn.object(name).get() or {}
                        lists |= {f"{name}.{part}": found.get(part, []) for part in "ab"}
            async with store.transaction(fresh=True) as txn:
                final = {name: await txn.object(name).get("balance", 0) for name in ACCOUNTS}
                final[COUNTER] = await txn.counter(COUNTER).value()
        return lists, final

    async def close(self) -> None:
        """Leave no process behind."""
        await self.users.close()


def violations_of(
    entries: Sequence[Entry], lists: Mapping[str, Sequence[int]], final: Mapping[str, int]
) -> Iterator[str]:
    """What the entries of all processes and the state in the end show."""
    last = {(entry.kind, entry.number): entry for entry in entries}  # the end of what has one, else its beginning
    tasks: dict[str, int] = {}
    txns = []
    for entry in last.values():
        if entry.kind == "lists":
            number = tasks.setdefault(entry.task, len(tasks))
            asked = _ticks(entry.asked) if entry.asked >= 0 else None
            txns.append(Txn(entry.number, _ops(entry), entry.told, number, asked, _ticks(entry.told_at) or None))
    end = _ticks(max((entry.told_at for entry in entries), default=0.0) + 1)
    reads: list[Op] = [Read(name, tuple(values)) for name, values in lists.items()]
    for anomaly in find_anomalies([*txns, Txn(-1, tuple(reads), "ok", None, end, end)]):
        yield f"transactions over objects: {anomaly.name}: {anomaly.text}"
    if not any(txn.told == "ok" for txn in txns):
        yield "transactions over objects: not one was committed"
    for entry in entries:
        if entry.kind == "torn":
            yield f"a transaction has seen {entry.value} in all accounts, which hold {OPENING * len(ACCOUNTS)} together"
    balances = {name: final[name] for name in ACCOUNTS}
    if sum(balances.values()) != OPENING * len(ACCOUNTS):
        yield f"the accounts hold {balances} in the end"
    counted = [
        Counted(COUNTER, entry.asked, entry.told, entry.value, entry.told_at)
        for entry in last.values()
        if entry.kind == "count"
    ]
    yield from find_wrong_counts(counted, {COUNTER: final[COUNTER]})


def _ticks(time_s: float) -> float:
    """A time on the clock of the numbers: they order the transactions of a task that have no time."""
    return time_s * 1e6 * TICKS_A_US


def _ops(entry: Entry) -> tuple[Op, ...]:
    return tuple(Wrote(step.list, step.element) if step.element else Read(step.list, step.read) for step in entry.steps)
