"""The workflows of `boki bench flow-state`: Halfmoon's grid, on keyed state."""

from __future__ import annotations

from random import Random

import msgspec

from boki import Context, function
from boki.bench.rounds import closed_loop
from boki.bench.rows import Round
from boki.libs.bokiflow import flow, workflow

BOOK = "bench-flow-state"
KEYS = 10_000
_VALUE = "v" * 254
"""256 bytes as JSON."""


class StateLoad(msgspec.Struct, frozen=True):
    """`callers` at once, each of which starts a workflow of this many reads and writes and waits for its end."""

    reads: int
    writes: int
    callers: int = 1
    duration_s: float = 3.0


class Operations(msgspec.Struct, frozen=True):
    """What one workflow does: to these keys, in order; whether each is read or written."""

    keys: list[int]
    are_reads: list[bool]


@workflow(book=BOOK)
async def operate(todo: Operations) -> int:
    """How many of the objects that were read are there."""
    found = 0
    for key, is_read in zip(todo.keys, todo.are_reads, strict=True):
        if is_read:
            found += await flow.store.read(f"k{key}") is not None
        else:
            await flow.store.write(f"k{key}", _VALUE)
    return found


@function(book=BOOK, timeout_s=600)
async def flow_state_load(ctx: Context, load: StateLoad) -> Round:
    """Start workflows of the grid and wait for their ends."""
    rng = Random(f"{load.reads} {load.writes}")

    async def run(_caller: int) -> None:
        are_reads = [True] * load.reads + [False] * load.writes
        rng.shuffle(are_reads)
        keys = [rng.randrange(KEYS) for _ in are_reads]
        await (await operate.start(ctx, Operations(keys, are_reads))).result()

    return await closed_loop(run, load.callers, load.duration_s)
