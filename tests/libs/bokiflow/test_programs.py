"""Random programs end as predicted, whatever is lost on the way: 300 seeds here; `PROGRAM_SEEDS` asks for more."""

import os
from collections import Counter

import pytest

import boki.testing
from boki.libs.bokiflow.hooks import installed
from tests.libs.bokiflow.programs import EFFECTS, Generator, Mishaps, Program, atoms, outcome, run_program

SEEDS = int(os.environ.get("PROGRAM_SEEDS", "300"))
GROUP = 50


async def check(seed: int) -> Program:
    """Run one program, with its signals at random times, and compare."""
    EFFECTS.clear()
    generator = Generator(seed)
    program, rng = generator.program(), generator.rng
    signals = atoms(program, "receive")
    rng.shuffle(signals)
    early = signals[: rng.randint(0, len(signals))]
    async with boki.testing.context(functions=[run_program]) as ctx:
        with installed(Mishaps(rng)):
            handle = run_program.handle(ctx, "p")
            for name in early:
                await handle.signal(name, f"said {name}")
            await run_program.start(ctx, program, id="p")
            for name in signals[len(early) :]:
                await ctx.clock.advance(rng.choice([0.0, 0.01, 1.0, 100_000.0]))
                await handle.signal(name, f"said {name}")
            assert await handle.result() == outcome(program), f"seed {seed}: {program}"
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
