"""Random programs end as predicted, whatever is lost on the way: a sample of the seeds here, with `--whole` 3,000.

Some run on a simulated cluster of the production cores, too, under the simulator's faults: 3 seeds, or with `--whole`
150. `PROGRAM_SEEDS` asks for another number in one process, `PROGRAM_CLUSTER_SEEDS` on clusters.
"""

import asyncio
import os
from random import Random
from typing import Any

import msgspec
import pytest

import boki.testing
from boki import BokiError
from boki.verify.sim.options import Options, draw_options
from tests.libs.bokiflow.clustered import CLUSTER, run_clustered
from tests.libs.bokiflow.crashes import timer
from tests.libs.bokiflow.modes import wants_all
from tests.libs.bokiflow.program_bugs import BUGS
from tests.libs.bokiflow.program_generator import Generator
from tests.libs.bokiflow.program_runs import ProgramRun
from tests.libs.bokiflow.programs import run_program

GROUP = 25
_MOST_SEEDS = 200
"""Within these a planted bug must be found."""
_CHAOS_US = 4_000_000
_ZOMBIES = 0.15


async def check(seed: int) -> None:
    """Run one program in one process."""
    async with boki.testing.context(functions=[run_program]) as ctx:
        run = ProgramRun(ctx, Generator(seed), (0.0, 0.01, 1.0, 100_000.0), lambda: asyncio.sleep(0))
        try:
            await run.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}: {run.program}") from error


def faulty(seed: int) -> Options:
    """A cluster with the faults of that seed: nodes that die or stall, primaries among them, cut links, slow disks."""
    faults = draw_options(seed, with_layout=False).faults
    return msgspec.structs.replace(CLUSTER, seed=seed, spare_sequencers=1, chaos_us=_CHAOS_US, faults=faults)


def check_clustered(seed: int) -> None:
    """Run one program on a cluster under faults; what was not predicted is named with its seed."""

    async def work(ctx: Any) -> None:
        generator = Generator(seed, longest_s=2.0, threads=False)
        run = ProgramRun(ctx, generator, (0.0, 0.01, 0.5), lambda: timer(0.1))
        try:
            await run.run()
        except AssertionError as error:
            raise AssertionError(f"cluster seed {seed}: {error}: {run.program}") from error

    run_clustered(work, faulty(seed), crash_us=Random(seed).randint(1, 1_500_000), zombies=_ZOMBIES)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A sample of the seeds, or all of them."""
    is_whole = wants_all(metafunc.config)
    if "first_seed" in metafunc.fixturenames:
        count = int(os.environ.get("PROGRAM_SEEDS", "3000" if is_whole else "50"))
        metafunc.parametrize("first_seed", range(0, count, GROUP))
    if "cluster_seed" in metafunc.fixturenames:
        count = int(os.environ.get("PROGRAM_CLUSTER_SEEDS", "150" if is_whole else "3"))
        metafunc.parametrize("cluster_seed", range(count))


async def test_programs_end_as_predicted(first_seed: int) -> None:
    """Results are right, each keyed effect has happened, and no key stands for two effects."""
    for seed in range(first_seed, first_seed + GROUP):
        await check(seed)


def test_programs_on_a_cluster(cluster_seed: int) -> None:
    """Two engines, three storage nodes: the same outcomes, while workers, nodes and links are lost."""
    check_clustered(cluster_seed)


@pytest.mark.parametrize("bug", BUGS)
async def test_planted_bugs_are_found(bug: str) -> None:
    """Programs that end as predicted with one of these would show nothing."""
    with BUGS[bug]():
        for seed in range(_MOST_SEEDS):
            try:
                await check(seed)
            except (AssertionError, BokiError):
                return
    pytest.fail(f"{_MOST_SEEDS} programs ended as predicted, though {bug}")
