"""The load of `boki bench store` on Boki: one call is one round, on objects of its own."""

from __future__ import annotations

from itertools import count
from random import Random

import msgspec

from boki import Context, function
from boki.bench.rounds import closed_loop
from boki.bench.rows import Round
from boki.libs.bokistore import ConflictError, Store
from boki.libs.bokistore.memory import Memory
from boki.libs.bokistore.records import UNKNOWN_AUTHOR, write_records
from boki.libs.bokistore.updates import Increment, Update

BOOK = "bench-store"
BUCKETS = 1_000
READ_TOGETHER = 8
_BATCH = 1_000
_PADDING = "x" * 64


class StoreLoad(msgspec.Struct, frozen=True):
    """`callers` at once, each on the objects named after `prefix` and its number."""

    prefix: str
    callers: int = 1
    duration_s: float = 3.0


class Conflicts(msgspec.Struct, frozen=True):
    """Transactions as they ended: `committed` counts and times those that did, `aborted` is the number of others."""

    committed: Round
    aborted: int


class Growth(msgspec.Struct, frozen=True):
    """An object, and the number of its updates."""

    name: str
    updates: int
    duration_s: float = 1.0


@function(book=BOOK, timeout_s=600)
async def increment_load(ctx: Context, load: StoreLoad) -> Round:
    """Increments; each caller has a counter of its own."""
    store = Store(ctx)
    counters = [store.object(f"{load.prefix}:{caller}") for caller in range(load.callers)]

    async def increment(caller: int) -> None:
        await counters[caller].increment("hits")

    return await closed_loop(increment, load.callers, load.duration_s)


@function(book=BOOK)
async def increment(ctx: Context, name: str) -> int:
    """One increment, for callers over HTTP; the new number."""
    number: int = await Store(ctx).object(name).increment("hits")
    return number


@function(book=BOOK, timeout_s=600)
async def object_read_load(ctx: Context, load: StoreLoad) -> Round:
    """Reads of one field of an object that the process knows."""
    user = Store(ctx).object(f"{load.prefix}:user")
    await user.set("", {"name": _PADDING, "age": 36})

    async def read(_caller: int) -> None:
        assert await user.get("age") == 36

    return await closed_loop(read, load.callers, load.duration_s)


@function(book=BOOK, timeout_s=600)
async def read_together_load(ctx: Context, load: StoreLoad) -> Round:
    """Transactions that read one field of each of 8 objects, and write nothing."""
    store = Store(ctx)
    names = [f"{load.prefix}:{number}" for number in range(READ_TOGETHER)]
    for name in names:
        await store.object(name).set("", {"name": _PADDING, "age": 36})

    async def read(_caller: int) -> None:
        async with store.transaction() as txn:
            assert sum([await txn.object(name).get("age") for name in names]) == 36 * READ_TOGETHER

    return await closed_loop(read, load.callers, load.duration_s)


@function(book=BOOK, timeout_s=600)
async def transfer_load(ctx: Context, load: StoreLoad) -> Round:
    """Transactions that move 1 from one account to another; each caller has two accounts of its own."""
    store = Store(ctx)

    async def transfer(caller: int) -> None:
        async with store.transaction() as txn:
            await txn.object(f"{load.prefix}:{caller}:a").increment("balance", -1)
            await txn.object(f"{load.prefix}:{caller}:b").increment("balance", 1)

    return await closed_loop(transfer, load.callers, load.duration_s)


@function(book=BOOK, timeout_s=600)
async def conflict_load(ctx: Context, load: StoreLoad) -> Conflicts:
    """Transactions that read two of the 1,000 items of a map, drawn at random, and write one of them."""
    store = Store(ctx)
    await store.map(load.prefix).set_many({str(number): 0 for number in range(BUCKETS)})
    aborted = 0
    rngs = [Random(caller) for caller in range(load.callers)]

    async def work(caller: int) -> None:
        nonlocal aborted
        one, other = map(str, rngs[caller].sample(range(BUCKETS), 2))
        while True:
            try:
                async with store.transaction() as txn:
                    items = txn.map(load.prefix)
                    mine, its = await items.get(one), await items.get(other)
                    await items.set(one, max(mine, its) + 1)
            except ConflictError:
                aborted += 1
            else:
                return

    committed = await closed_loop(work, load.callers, load.duration_s)
    return Conflicts(committed, aborted)


@function(book=BOOK, timeout_s=600)
async def grow(ctx: Context, wanted: Growth) -> int:
    """Update an object many times, as records of other processes would, and save it as its reader does; its number."""
    updates: list[Update] = [Increment(("hits",), 1)]
    [record] = write_records([(wanted.name, updates)], b"grown", UNKNOWN_AUTHOR, is_transaction=False)
    for first in range(0, wanted.updates, _BATCH):
        await ctx.logbook.append_many([record] * min(_BATCH, wanted.updates - first))
    number: int = await Store(ctx).object(wanted.name).get("hits")
    await _memory(ctx).come_to_rest()
    return number


@function(book=BOOK, timeout_s=600)
async def open_load(ctx: Context, wanted: Growth) -> Round:
    """Reads of that object by a process that knows nothing of any object."""
    grown = Store(ctx).object(wanted.name)

    async def read(_caller: int) -> None:
        _memory(ctx).forget()
        assert await grown.get("hits") == wanted.updates

    return await closed_loop(read, 1, wanted.duration_s)


@function(book=BOOK, timeout_s=600)
async def fork_load(ctx: Context, load: StoreLoad) -> Round:
    """Forks of the whole book, each into a book of its own."""
    store = Store(ctx)
    names = count()

    async def fork(_caller: int) -> None:
        await store.fork(f"{BOOK}-{ctx.invocation_id}-{next(names)}")

    return await closed_loop(fork, load.callers, load.duration_s)


def _memory(ctx: Context) -> Memory:
    memory: Memory = ctx.logbook.session.shared(Memory)
    return memory
