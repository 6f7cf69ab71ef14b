"""Transactions over the real log in one process: RocksDB, fsync, storage nodes, sequencers, an engine."""

from __future__ import annotations

import asyncio
from contextvars import Context
from itertools import count
from random import Random
from time import monotonic
from typing import Any

from boki.api.port import LogPort
from boki.libs.bokistore import ConflictError, Store
from boki.libs.bokistore.memory import Memory
from boki.verify.histories.lists import find_anomalies
from boki.verify.histories.txns import Op, Read, Txn, Wrote
from tests.contract.live import local_log
from tests.libs.bokiqueue.test_real_log import logbook
from tests.libs.bokistore.histories import LISTS

EACH = 60


def test_transactions_of_several_processes_are_strictly_serializable() -> None:
    """By the checker of lists, over the clock on the wall; one process forgets everything now and then."""
    with local_log(replicas=3) as (loop, port):
        txns = loop.run(_transact(port))
    assert find_anomalies(txns) == []
    outcomes = [txn.told for txn in txns]
    assert outcomes.count("ok") > len(txns) / 4
    assert outcomes.count("fail") > 0


async def _transact(port: LogPort) -> list[Txn]:
    txns: list[Txn] = []
    values, numbers = count(1), count(1)

    async def process(seed: int) -> None:
        rng = Random(seed)
        book = logbook(port)
        store = Store(book)

        async def transact(txn: Any, ops: list[Op]) -> None:
            for _ in range(rng.randint(1, 4)):
                key = rng.choice(list(LISTS))
                name, path = LISTS[key]
                if rng.random() < 0.5:
                    value = next(values)
                    ops.append(Wrote(key, value))
                    await txn.object(name).append(path, value)
                else:
                    ops.append(Read(key, tuple(await txn.object(name).get(path, []))))

        async def one_after_the_other() -> None:
            for _ in range(EACH):
                ops: list[Op] = []
                number, asked = next(numbers), monotonic()
                if rng.random() < 0.05:
                    book.session.shared(Memory).forget()
                try:
                    async with store.transaction(fresh=True) as txn:
                        await transact(txn, ops)
                except ConflictError:
                    txns.append(Txn(number, tuple(ops), "fail", None, asked, monotonic()))
                else:
                    txns.append(Txn(number, tuple(ops), "ok", None, asked, monotonic()))

        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.create_task(one_after_the_other(), context=Context()) for _ in range(3)))

    await asyncio.gather(*(process(seed) for seed in range(3)))
    return txns


def test_a_snapshot_that_this_caller_has_not_come_to() -> None:
    """Another process reads as of a seqnum that it has only been told."""
    with local_log(replicas=1) as (loop, port):

        async def run() -> None:
            one = Store(logbook(port))
            for number in range(5):
                await one.object("x").set("n", number)
                then = await one.object("x").version()
                assert await Store(logbook(port)).at(then).object("x").get("n") == number
            fork = await one.fork("copy")
            await one.object("x").set("n", 99)
            other = Store(logbook(port).session.logbook("copy"))
            assert await other.object("x").get("n") == await fork.object("x").get("n") == 4

        loop.run(run())
