"""Queues in the simulator: processes that use the log from beside the nodes, and whole runs of the library in them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from boki.errors import BokiError, ConnectionLost
from boki.verify.sim.engines import EngineNode
from boki.verify.sim.options import Options, draw_options
from boki.verify.sim.processes import Process
from boki.verify.sim.simulation import Simulation, simulate

CALM = Options(seed=3, clients=1, chaos_us=2_000_000, queues=2)


def in_a_run(act: Callable[[Simulation], None]) -> Simulation:
    """A run in which `act` is called when the chaos begins."""
    simulation = Simulation(Options(seed=3, clients=1, chaos_us=1_500_000), script=act)
    assert simulation.run().violations == []
    return simulation


def test_a_process_on_an_engine_dies_with_it() -> None:
    """A function has no life of its own: what it was doing ends, and it asks for nothing any more."""
    told: list[str] = []

    async def work(process: Process) -> None:
        try:
            await process.logbook("own").read("tag", wait_s=60)
        finally:
            told.append("ended")
            try:
                await process.logbook("own").append(b"too late")
            except ConnectionLost:
                told.append("refused")

    def act(simulation: Simulation) -> None:
        engine = simulation.nodes[next(name for name in simulation.nodes if name.startswith("engine"))]
        assert isinstance(engine, EngineNode)
        process = Process(simulation, "function", simulation.clock.queue_rng, engine)
        process.loop.create_task(work(process))
        simulation.clock.after(300_000, engine.crash)
        simulation.clock.after(600_000, lambda: told.append(f"dead: {process.is_dead}"))
        simulation.clock.after(700_000, engine.start)

    in_a_run(act)
    assert told == ["ended", "refused", "dead: True"]


def test_a_process_that_stands_still_goes_on_where_it_was() -> None:
    """What comes meanwhile it is told afterwards; its timeout is that of the run's other clients."""
    told: list[object] = []

    async def work(process: Process) -> None:
        book = process.logbook("own")
        told.append(await book.append(b"one", ["tag"]) > 0)
        told.append((await book.read("tag")).records[0].data)
        told.append(process.loop.time())

    def act(simulation: Simulation) -> None:
        process = Process(simulation, "program", simulation.clock.queue_rng, None)
        process.loop.create_task(work(process))
        process.is_paused = True
        begun_s = process.loop.time()
        simulation.clock.after(800_000, lambda: told.append(process.loop.time() - begun_s))
        simulation.clock.after(800_000, lambda: setattr(process, "is_paused", False))

    in_a_run(act)
    assert told[0] == pytest.approx(0.8)
    assert told[1:3] == [True, b"one"]


def test_the_queues_of_a_run_without_faults_hold_what_they_promise() -> None:
    """Everything is pushed, taken, done or buried, and the same run happens again."""
    outcome = simulate(CALM)
    assert outcome.violations == []
    assert outcome.trace == simulate(CALM).trace
    assert outcome.trace != simulate(msgspec.structs.replace(CALM, queues=0)).trace


@pytest.mark.parametrize("seed", [11, 13])
def test_queues_outlive_their_processes_and_their_engines(seed: int) -> None:
    """Whatever dies in the middle of whatever: nothing is lost, doubled, stuck or out of order."""
    faults = {"crash": 1.0, "pause": 0.5, "crash_primary": 0.5}
    outcome = simulate(Options(seed=seed, clients=1, queues=3, queue_shards=2, queue_crashes=1.5, faults=faults))
    assert outcome.violations == []
    assert outcome.seen["a lease ran out, and another consumer was given the message"]


def test_about_a_third_of_the_seeds_have_queues_and_the_rest_is_drawn_as_before() -> None:
    """They have a stream of their own: no other choice of a seed depends on them."""
    drawn = [draw_options(seed) for seed in range(500)]
    assert 100 < sum(options.queues > 0 for options in drawn) < 200
    assert sum(options.queues > 0 and options.queue_shards > 1 for options in drawn) > 20
    assert len({options.queue_crashes > 0 for options in drawn}) == 2


def test_queues_that_are_stuck_break_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who never gets anything is noticed: a minute after everything was healed the queues must be empty."""

    async def refuse(*_: object, **__: object) -> None:
        raise BokiError("not today", outcome="not_applied")

    monkeypatch.setattr("boki.libs.bokiqueue.Queue.pop", refuse)
    promises = {violation.promise: violation.text for violation in simulate(CALM).violations}
    assert "queues hold {'tickets': " in promises["liveness"]
