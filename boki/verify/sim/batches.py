"""Many seeds: spread over processes, summed up, judged."""

from __future__ import annotations

import gc
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Final

from boki.verify.sim.coverage import SITUATIONS
from boki.verify.sim.options import Options, draw_options
from boki.verify.sim.simulation import simulate

ENOUGH_SEEDS: Final = 300
"""This many seeds must have met every rare situation."""
_CHUNK: Final = 4


@dataclass(frozen=True, slots=True)
class Result:
    """What is left of a run: small enough to be handed from one process to another."""

    seed: int
    violations: tuple[str, ...]
    trace: str
    events: int
    operations: int
    terms: int
    transactions: int
    seen: Counter[str]


@dataclass(slots=True)
class Summary:
    """What a batch of seeds has shown. `wanted`: the rare situations that enough seeds must have met."""

    wanted: Sequence[str] = tuple(SITUATIONS)
    seeds: int = 0
    events: int = 0
    broken: list[Result] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    operations: list[int] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)
    transactions: int = 0

    def add(self, result: Result) -> None:
        """One seed more."""
        self.seeds += 1
        self.events += result.events
        self.seen.update(result.seen)
        self.operations.append(result.operations)
        self.terms.append(result.terms)
        self.transactions += result.transactions
        if result.violations:
            self.broken.append(result)

    @property
    def unseen(self) -> list[str]:
        """Rare situations that no seed has met, if there were enough seeds to expect them."""
        return [name for name in self.wanted if not self.seen[name]] if self.seeds >= ENOUGH_SEEDS else []

    @property
    def is_good(self) -> bool:
        """Whether no promise broke, and the batch was worth something."""
        return not self.broken and not self.unseen


Draw = Callable[[int], Options]


def run_seed(seed: int, draw: Draw = draw_options) -> Result:
    """One seed. What a run raises beside broken promises is a bug of ours, and stands among them."""
    try:
        outcome = simulate(draw(seed))
    except Exception as error:  # noqa: BLE001 - one bad seed must not hide the others
        return Result(seed, (f"the simulator raised: {error!r}",), "", 0, 0, 0, 0, Counter())
    return Result(
        seed,
        tuple(map(str, outcome.violations)),
        outcome.trace,
        outcome.events,
        outcome.operations,
        outcome.terms,
        outcome.transactions,
        outcome.seen,
    )


def run_seeds(seeds: Iterable[int], processes: int, draw: Draw = draw_options) -> Iterator[Result]:
    """Every seed's result, in their order. With one process all runs in this one."""
    run = partial(run_seed, draw=draw)
    if processes == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_prepare) as pool:
        try:
            # Ctrl-C is this process's to handle: the workers, which begin now, inherit that they ignore it
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
            results = pool.map(run, seeds, chunksize=_CHUNK)
            signal.signal(signal.SIGINT, handler)
            yield from results
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare() -> None:
    """A worker process has imported everything: what exists now is no garbage, and is not to be looked through."""
    gc.collect()
    gc.freeze()
