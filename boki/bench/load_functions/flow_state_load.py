"""The workflows of `boki bench flow-state`: Halfmoon's grid, on keyed state."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec

from boki import Context, function
from boki.bench.rounds import closed_loop
from boki.bench.rows import Round
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.hooks import Hooks, installed
from boki.libs.bokistore import Store
from boki.libs.bokistore.memory import Memory

BOOK = "bench-flow-state"
KEYS = 10_000
_VALUE = "v" * 254
"""256 bytes as JSON."""
_FILLED_AT_ONCE = 250


class StateLoad(msgspec.Struct, frozen=True):
    """`callers` at once, each of which starts a workflow of this many reads and writes and waits for its end."""

    reads: int
    writes: int
    callers: int = 1
    duration_s: float = 3.0
    failure_rate: float = 0.0
    """The share of workflows whose run is lost once, in front of one of its writes."""
    is_cold: bool = True
    """Whether the worker of a workflow does not know its objects; else it knows all that there are."""
    round: int = 0
    """Each round draws other keys."""


class Operations(msgspec.Struct, frozen=True):
    """What one workflow does: to these keys, in order; whether each is read or written."""

    keys: list[int]
    are_reads: list[bool]
    lost_at: int = -1
    """Its run is lost in front of that operation, a write; -1: it is not."""
    is_cold: bool = True


class Losses(Hooks):
    """Loses runs: they begin again, with a replay, as soon as their engine has recorded that."""

    def __init__(self) -> None:
        self.due: set[str] = set()
        """Writes in front of which a run is to be lost."""
        self.lost: set[str] = set()
        """Workflows that were."""

    def dies(self, moment: str, step: str) -> bool:
        """See `Hooks`."""
        is_now = moment == "before" and step in self.due
        self.due.discard(step)
        return is_now

    def plan(self, flow_id: str, write: str) -> None:
        """Lose the run of a workflow in front of that write, once."""
        if flow_id not in self.lost:
            self.lost.add(flow_id)
            self.due.add(write)


LOSSES = Losses()
_INSTALLED = installed(LOSSES)
_INSTALLED.__enter__()  # for as long as this worker lives


_MEETING = asyncio.Lock()
"""Held while a worker reads all objects: many workflows begin at once, and one of them does it."""


@step(pure=True)
async def prepare(keys: list[int], is_cold: bool) -> None:
    """Have this worker not know these objects, or know all of them. It takes no record of its own."""
    rows = step.ctx.logbook.session.shared(Memory).reader(BOOK).rows
    if is_cold:
        for key in keys:
            rows.drop(f"k{key}")
        return
    async with _MEETING:
        start = KEYS if len(rows) >= KEYS else 0
        for first in range(start, KEYS, _FILLED_AT_ONCE):
            async with Store(step.ctx).transaction() as txn:
                await txn.prefetch(*(f"k{key}" for key in range(first, min(first + _FILLED_AT_ONCE, KEYS))))


@workflow(book=BOOK)
async def operate(todo: Operations) -> int:
    """How many of the objects that were read are there."""
    found = 0
    await prepare(todo.keys, todo.is_cold)
    for number, (key, is_read) in enumerate(zip(todo.keys, todo.are_reads, strict=True)):
        if number == todo.lost_at:
            LOSSES.plan(flow.id, f"set k{key}")
        if is_read:
            found += await flow.store.read(f"k{key}") is not None
        else:
            await flow.store.write(f"k{key}", _VALUE)
    return found


@function(book=BOOK, timeout_s=600)
async def fill_state(ctx: Context, _: None) -> int:
    """Give every object of the grid a value, so that each read finds one: how many there are."""
    store = Store(ctx)
    for start in range(0, KEYS, _FILLED_AT_ONCE):
        async with store.transaction() as txn:
            for key in range(start, min(start + _FILLED_AT_ONCE, KEYS)):
                await txn.object(f"k{key}").set("", _VALUE)
    return KEYS


@function(book=BOOK, timeout_s=600)
async def flow_state_load(ctx: Context, load: StateLoad) -> Round:
    """Start workflows of the grid and wait for their ends."""
    rng = Random(f"{load.reads} {load.writes} {load.round}")

    async def run(_caller: int) -> None:
        are_reads = [True] * load.reads + [False] * load.writes
        rng.shuffle(are_reads)
        keys = [rng.randrange(KEYS) for _ in are_reads]
        is_lost = rng.random() < load.failure_rate
        lost_at = rng.choice([at for at, is_read in enumerate(are_reads) if not is_read]) if is_lost else -1
        await (await operate.start(ctx, Operations(keys, are_reads, lost_at, load.is_cold))).result()

    return await closed_loop(run, load.callers, load.duration_s)
