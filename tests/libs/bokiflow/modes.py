"""The modes in which the suite of failure classes is run (Restate's lever): one set of cases, many systems."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import pytest

import boki.testing
from boki.api import logbook
from boki.libs.bokiflow import execution
from boki.libs.bokiflow.sweeping import Sweeps
from boki.testing import flows
from boki.verify.sim.options import Options
from tests.libs.bokiflow.classes import Case, forget
from tests.libs.bokiflow.clustered import ALONE, CLUSTER, run_clustered


@dataclass(frozen=True)
class Mode:
    """What is switched on."""

    name: str
    cluster: Options | None = None
    """Of what a simulated cluster consists; None: one process, with the log in its memory."""
    replays: bool = False
    """Every workflow begins again after each record."""
    is_cold: bool = False
    """Libraries find nothing that they have kept before, neither in their process nor as auxiliary data."""
    suspends: bool = False
    """What waits is suspended at once: its timers and messages come from the log alone."""
    crashes: bool = False
    """Its process dies before and after each step, one after the other."""
    races: bool = False
    """Every run of a workflow or an attendant is executed twice at once, as where an engine was presumed lost."""

    def takes(self, case: Case) -> bool:
        """Whether the case makes sense in it."""
        is_possible = (case.crashes or not self.crashes) and (case.races or not self.races)
        return is_possible and (case.clusters or self.cluster is None)

    def run(self, case: Case) -> None:
        """Run the case."""
        with self.switched():
            if self.cluster is not None:
                forget()
                run_clustered(case.run, self.cluster, zombies=float(self.races))
            else:
                asyncio.run(self._run_here(case))

    async def _run_here(self, case: Case) -> None:
        if not self.crashes:
            forget()
            async with boki.testing.context() as ctx:
                await case.run(ctx)
            return
        async for ctx in flows.every_crash():
            forget()
            await case.run(ctx)

    @contextmanager
    def switched(self, linger_us: int = 0) -> Iterator[None]:
        """What is to be in this process; a cluster, crashes and races are up to the one who asks. `linger_us`: how long
        that which is suspended "at once" waits before.
        """
        with ExitStack() as stack:
            if self.replays:
                stack.enter_context(flows.forced_replay())
            if self.suspends:
                stack.enter_context(patch.object(execution, "_LINGER_US", linger_us))
            if self.is_cold:
                stack.enter_context(patch.object(logbook, "shared", _cold))
                stack.enter_context(patch.object(logbook.LogBook, "set_auxdata", _forget_auxdata))
            yield


def _cold(kept: dict[Any, Any], make: Callable[[], Any]) -> Any:
    """When the next sweep is due is no cache: a process that forgot it would never come to it."""
    return _shared(kept, make) if make is Sweeps else make()


async def _forget_auxdata(*_arguments: Any) -> None:
    """Auxiliary data may be lost at any time."""


_shared: Final = logbook.shared
EIGHT: Final = (
    Mode("one process"),
    Mode("cluster", CLUSTER),
    Mode("forced replay", replays=True),
    Mode("cluster with forced replay", CLUSTER, replays=True),
    Mode("one worker and one log", ALONE),
    Mode("cold caches", is_cold=True),
    Mode("cold caches with replay", is_cold=True, replays=True),
    Mode("timers from the log only", suspends=True),
)
CRASHES: Final = (
    Mode("a crash at every step", crashes=True),
    Mode("a crash at every step with replay", crashes=True, replays=True),
    Mode("a crash at every step, timers from the log only", crashes=True, suspends=True),
    Mode("a crash at every step with replay, timers from the log only", crashes=True, replays=True, suspends=True),
)
RACES: Final = (
    Mode("cluster with two executions of each run", CLUSTER, races=True),
    Mode("cluster with two executions of each run and replay", CLUSTER, races=True, replays=True),
)
MODES: Final = EIGHT + CRASHES + RACES
_CHEAP: Final = tuple(mode for mode in MODES if mode.cluster is None and mode.name != "one process")
_CLUSTERED: Final = tuple(mode for mode in MODES if mode.cluster is not None)
_EACH: Final = 12
"""Of this many cases one is run on a cluster in the sample."""


def wants_all(config: pytest.Config) -> bool:
    """Whether all is to be run, and not a sample."""
    return config.getoption("--flow-modes") == "all" or bool(config.getoption("--whole"))


def sample_of(cases: list[Case]) -> list[tuple[Case, Mode]]:
    """Each case in one process and in one other cheap mode, and some on a cluster; the modes take turns."""
    found = []
    for number, case in enumerate(cases):
        cheap = [mode for mode in _CHEAP if mode.takes(case)]
        found += [(case, MODES[0]), (case, cheap[number % len(cheap)])]
        if number % _EACH == 0 and case.clusters:
            found.append((case, _CLUSTERED[number // _EACH % len(_CLUSTERED)]))
    return found


def all_of(cases: list[Case]) -> list[tuple[Case, Mode]]:
    """Each case in every mode."""
    return [(case, mode) for case in cases for mode in MODES if mode.takes(case)]
