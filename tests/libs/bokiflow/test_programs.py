"""Random programs end as predicted, whatever is lost on the way: a sample of the seeds here, with `--whole` 3,000.

Some run in one process that dies at random moments, and whose log stays: 50 seeds, or with `--whole` 3,000. Some run
on a simulated cluster of the production cores, under the simulator's faults: 3 seeds, or with `--whole` 150.
`PROGRAM_SEEDS` asks for another number in one process, `PROGRAM_MORTAL_SEEDS` in one that dies, `PROGRAM_CLUSTER_SEEDS`
on clusters.
"""

import asyncio
import os
from random import Random
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

import boki.testing
from boki import BokiError
from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.sleepers import Sleepers
from boki.books.calls.takeover import Takeover
from boki.libs.bokiflow.execution import WRITER_NAMES
from boki.verify.sim.options import Options, draw_options
from tests.books.calls.call_world import time_passes
from tests.libs.bokiflow.clustered import CLUSTER, run_clustered
from tests.libs.bokiflow.crashes import timer
from tests.libs.bokiflow.modes import wants_all
from tests.libs.bokiflow.program_bugs import BUGS
from tests.libs.bokiflow.program_generator import Generator
from tests.libs.bokiflow.program_machine import MortalProcess
from tests.libs.bokiflow.program_runs import ProgramRun
from tests.libs.bokiflow.programs import run_program

GROUP = 25
_MOST_SEEDS = 200
"""Within these a planted bug must be found."""
_CHAOS_US = 4_000_000
_ZOMBIES = 0.15
_MOST_DEATHS = 5
_LONGEST_MORTAL_S = 50_000.0
"""No timer is longer than a minute there: what waits for longer is stuck."""
_MOST_BETWEEN = 25
"""Moments between two deaths of a process: a program passes from ten to some hundreds."""


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


def check_mortal(seed: int) -> int:
    """Run one program in one process that dies at random moments, and whose log stays; how often it died."""
    rng, dies_at = Random(seed), list[int]()
    for _ in range(rng.randint(1, _MOST_DEATHS)):
        dies_at.append((dies_at or [0])[-1] + rng.randint(1, _MOST_BETWEEN))
    process = MortalProcess(run_program, dies_at=dies_at)
    generator = Generator(seed, longest_s=60.0, threads=False)

    async def work(ctx: Any) -> None:
        run = ProgramRun(ctx, generator, (0.0, 0.01, 1.0, 60.0), lambda: time_passes(0.1), _LONGEST_MORTAL_S)
        try:
            await run.run()
            assert process.wrong_promises() == []
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, dies at {dies_at}: {error}: {run.program}") from error

    WRITER_NAMES.seed(seed)
    process.serve(work)
    return process.losses


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A sample of the seeds, or all of them."""
    is_whole = wants_all(metafunc.config)
    if "first_seed" in metafunc.fixturenames:
        count = int(os.environ.get("PROGRAM_SEEDS", "3000" if is_whole else "50"))
        metafunc.parametrize("first_seed", range(0, count, GROUP))
    if "first_mortal_seed" in metafunc.fixturenames:
        count = int(os.environ.get("PROGRAM_MORTAL_SEEDS", "3000" if is_whole else "50"))
        metafunc.parametrize("first_mortal_seed", range(0, count, GROUP))
    if "cluster_seed" in metafunc.fixturenames:
        count = int(os.environ.get("PROGRAM_CLUSTER_SEEDS", "150" if is_whole else "3"))
        metafunc.parametrize("cluster_seed", range(count))


async def test_programs_end_as_predicted(first_seed: int) -> None:
    """Results are right, each keyed effect has happened, and no key stands for two effects."""
    for seed in range(first_seed, first_seed + GROUP):
        await check(seed)


def test_programs_in_a_process_that_dies(first_mortal_seed: int) -> None:
    """At appends and around steps, up to five times: the same outcomes, by what its log has kept."""
    losses = sum(check_mortal(seed) for seed in range(first_mortal_seed, first_mortal_seed + GROUP))
    assert losses > GROUP


def _sleep_on() -> Any:
    """A process that begins leaves those asleep that the one before had suspended."""
    return patch.object(Sleepers, "inherit", lambda *_: None)


def _wait_for_the_time() -> Any:
    """What ran when the process died is due at the time that it was once suspended for."""
    queue = LoggedCalls._queue

    def late(self: LoggedCalls, invocation_id: str, due_us: int) -> None:
        known = self._book.ledger.waiting.get(invocation_id)
        is_claimed = self._mine.get(invocation_id) == "claimed" and known is not None
        queue(self, invocation_id, known.due_us if is_claimed and known is not None else due_us)

    return patch.object(LoggedCalls, "_queue", late)


def _not_taken_over() -> Any:
    """A process that begins leaves what the one before it ran."""
    return patch.object(Takeover, "watch", lambda _self: None)


@pytest.mark.parametrize("bug", [_sleep_on, _wait_for_the_time, _not_taken_over])
def test_bugs_that_only_deaths_show_are_found(bug: Any) -> None:
    """In a process that does not die there is nothing to be taken over."""
    with bug():
        for seed in range(_MOST_SEEDS):
            try:
                check_mortal(seed)
            except (AssertionError, RuntimeError):  # it hangs, or nothing is going to happen any more
                return
    pytest.fail(f"{_MOST_SEEDS} programs ended as predicted, though {bug.__doc__}")


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
