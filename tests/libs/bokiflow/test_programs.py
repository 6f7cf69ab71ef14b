"""Random programs end as predicted, whatever is lost on the way: 300 seeds here; `PROGRAM_SEEDS` asks for more.

Some run on a simulated cluster of the production cores, too: 3 seeds, or with `--whole` 100.
"""

import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest

import boki.testing
from boki import BokiError, FunctionFailed
from boki.libs.bokiflow.hooks import installed
from tests.libs.bokiflow.clustered import run_clustered
from tests.libs.bokiflow.modes import wants_all
from tests.libs.bokiflow.programs import EFFECTS, Generator, Mishaps, Program, atoms, outcome, run_program

SEEDS = int(os.environ.get("PROGRAM_SEEDS", "300"))
GROUP = 50


async def check(seed: int) -> Program:
    """Run one program in one process."""
    generator = Generator(seed)
    async with boki.testing.context(functions=[run_program]) as ctx:
        return await run(ctx, seed, generator, (0.0, 0.01, 1.0, 100_000.0))


async def until_done(ctx: Any, act: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat it while a cluster that has lost an engine refuses it."""
    while True:
        try:
            return await act()
        except BokiError as error:
            if not (error.retryable or error.outcome == "unknown") or isinstance(error, FunctionFailed):
                raise
            await ctx.clock.advance(0.1)


async def run(ctx: Any, seed: int, generator: Generator, pauses_s: Sequence[float]) -> Program:
    """Run one program, with its signals at random times, and compare."""
    EFFECTS.clear()
    program, rng = generator.program(), generator.rng
    signals = atoms(program, "receive")
    rng.shuffle(signals)
    early = signals[: rng.randint(0, len(signals))]
    with installed(Mishaps(rng)):
        handle = run_program.handle(ctx, "p")
        for name in early:
            await until_done(ctx, partial(handle.signal, name, f"said {name}", key=name))
        await until_done(ctx, partial(run_program.start, ctx, program, id="p"))
        for name in signals[len(early) :]:
            await ctx.clock.advance(rng.choice(pauses_s))
            await until_done(ctx, partial(handle.signal, name, f"said {name}", key=name))
        assert await until_done(ctx, handle.result) == outcome(program), f"seed {seed}: {program}"
    done = Counter(labels[0] for labels in EFFECTS.values() if labels[0] not in atoms(program, "put"))
    assert done == Counter(atoms(program, "act")), f"seed {seed}: {program}"
    assert {labels[0] for labels in EFFECTS.values()} == {*atoms(program, "act", "put")}, f"seed {seed}: {program}"
    return program


@pytest.mark.parametrize("first", range(0, SEEDS, GROUP))
async def test_programs_end_as_predicted(first: int) -> None:
    """Results are right, each keyed effect has happened, and no key stands for two effects."""
    kinds: Counter[str] = Counter()
    for seed in range(first, first + GROUP):
        kinds.update([str(await check(seed))[2:5]])
    assert len(kinds) > 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A sample of the seeds on a cluster, or all of them."""
    if "cluster_seed" in metafunc.fixturenames:
        metafunc.parametrize("cluster_seed", range(100 if wants_all(metafunc.config) else 3))


def test_programs_on_a_cluster(cluster_seed: int) -> None:
    """Two engines, three storage nodes: the same outcomes, while runs are lost around steps, and an engine is."""

    async def work(ctx: Any) -> None:
        await run(ctx, cluster_seed, Generator(cluster_seed, longest_s=2.0, threads=False), (0.0, 0.01, 0.5))

    run_clustered(work, crash_us=Random(cluster_seed).randint(1, 1_500_000))
