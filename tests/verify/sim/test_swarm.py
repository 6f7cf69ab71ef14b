"""The swarm: seeds of the ordinary kind, each a whole cluster through faults, and runs that can be repeated exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median

import msgspec
import pytest

from boki.verify.sim.batches import ENOUGH_SEEDS, Result, Summary, run_seed, run_seeds
from boki.verify.sim.coverage import SITUATIONS
from boki.verify.sim.options import BESIDE, FAULTS, Options, draw_options
from boki.verify.sim.simulation import simulate

SEEDS = 160
"""In the ordinary run. `--whole` runs as many as must meet every rare situation."""
CHUNK = 10


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Chunks of seeds."""
    if "first" in metafunc.fixturenames:
        metafunc.parametrize("first", range(0, _seeds(metafunc.config), CHUNK))


def _seeds(config: pytest.Config) -> int:
    return ENOUGH_SEEDS if config.getoption("whole") else SEEDS


def _counted(_type: type, value: object) -> Counter[str]:
    assert isinstance(value, dict)
    return Counter(value)


@pytest.fixture(name="shared")
def fixture_shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all processes of this test run share."""
    own = tmp_path_factory.getbasetemp()
    path = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "swarm"
    path.mkdir(exist_ok=True)
    return path


def test_no_seed_breaks_a_promise(first: int, shared: Path, pytestconfig: pytest.Config) -> None:
    """Whatever a seed does to the cluster, every promise is kept, and it works again within a virtual minute.

    The last chunk to end checks all seeds together: enough has happened, and 300 seeds have met every rare situation.
    """
    results = list(run_seeds(range(first, first + CHUNK), processes=1))
    assert [(result.seed, result.violations[:3]) for result in results if result.violations] == []
    unfinished = shared / f"unfinished-{first}"
    unfinished.write_bytes(msgspec.json.encode(results))
    unfinished.rename(shared / f"{first}.json")
    chunks = sorted(shared.glob("*.json"))
    if len(chunks) == _seeds(pytestconfig) // CHUNK:
        summary = Summary()
        for chunk in chunks:
            for result in msgspec.json.decode(chunk.read_bytes(), type=list[Result], dec_hook=_counted):
                summary.add(result)
        assert summary.seeds == _seeds(pytestconfig)
        assert summary.unseen == []
        assert median(summary.terms) >= 2
        assert median(summary.operations) >= 200


DIGESTS = """
from hashlib import blake2b
from boki.verify.sim.options import draw_options
from boki.verify.sim.simulation import simulate

for seed in (2, 7, 25):
    story = blake2b(digest_size=16)
    print(simulate(draw_options(seed), lambda line: story.update(line.encode())).trace, story.hexdigest())
"""


def test_a_run_is_the_same_in_any_interpreter() -> None:
    """Nothing depends on the order of sets, the addresses of objects or chance: one seed, one history, byte by byte.

    The story is compared, too: it has what the messages hold and what is written to disks.
    """
    traces = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "4711")
    ]
    assert traces[0] == traces[1]
    assert len(set(traces[0].split())) == 6


def test_a_seed_gives_the_same_result_wherever_it_runs() -> None:
    """In a process of its own as here, and in the order of the seeds."""
    here = [run_seed(seed) for seed in (3, 4)]
    assert list(run_seeds((3, 4), processes=2)) == here


def test_every_fault_is_drawn_and_some_seeds_have_none_or_one() -> None:
    """The swarm leaves features out (5 % of the seeds all, 5 % all but one), and each class is in about half.

    Those that came later are in a tenth: in seeds that have more than one other.
    """
    drawn = [draw_options(seed).faults for seed in range(1000)]
    assert all(350 < sum(fault in faults for faults in drawn) < 550 for fault in FAULTS)
    assert all(50 < sum(fault in faults for faults in drawn) < 150 for fault in BESIDE)
    assert 20 < sum(len(faults) == 0 for faults in drawn) < 80
    assert 20 < sum(len(faults) == 1 for faults in drawn) < 80


def test_a_third_of_the_seeds_ask_for_everything_there_is() -> None:
    """Bounded pages, times, pairs of conditions, cursors and auxiliary data; without faults waits are long."""
    drawn = [draw_options(seed) for seed in range(1000)]
    assert 250 < sum(options.wide > 0 for options in drawn) < 420
    assert all((options.poll_us > 1_000_000) == (not options.faults) for options in drawn)


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_nothing_strikes_after_everything_is_healed(seed: int) -> None:
    """What was drawn before and would come later does not come: liveness is demanded of a world without faults."""
    faults = {"power_cut": 0.8, "wipe": 0.6, "crash": 1.5, "swap": 2.0, "handover": 2.0, "stop": 1.0, "false_seal": 1.0}
    lines: list[str] = []
    outcome = simulate(Options(seed=seed, chaos_us=2_000_000, faults=faults), lines.append)
    healed = next(at for at, line in enumerate(lines) if "everything is healed" in line)
    blows = ("crashes", "lost its disk", "power fails", "shall stop", "somebody seals", "to go on after", "alone")
    assert [line for line in lines[healed:] if any(blow in line for blow in blows)] == []
    assert outcome.violations == []


def test_a_batch_that_never_met_a_rare_situation_is_not_good() -> None:
    """Runs that meet nothing prove nothing; a batch is also spoilt by one broken promise."""
    summary = Summary()
    for seed in range(ENOUGH_SEEDS):
        seen = dict.fromkeys(SITUATIONS[1:], 1)
        summary.add(Result(seed, (), "", 1, 1, 1, 1, summary.seen.__class__(seen)))
    assert summary.unseen == [SITUATIONS[0]]
    assert not summary.is_good
    summary.add(Result(ENOUGH_SEEDS, (), "", 1, 1, 1, 1, summary.seen.__class__({SITUATIONS[0]: 1})))
    assert summary.is_good
    summary.add(Result(ENOUGH_SEEDS + 1, ("broken",), "", 1, 1, 1, 1, summary.seen.__class__()))
    assert not summary.is_good
