"""Failure classes of other systems' suites and threads, as cases: each names where it comes from.

A case is given a fresh context, runs workflows and looks at the outcome of them. It is run in every mode of
`tests.libs.bokiflow.test_classes`, so it may expect a step's body to have run once more than its record says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import boki.testing
from boki import FunctionFailed
from boki.libs.bokiflow import step

Run = Callable[[boki.testing.Context], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """One case. `crashes`: whether it makes sense with a process that dies at each of its steps.

    `clusters`: whether it takes so little virtual time that a cluster can be simulated meanwhile. `races`: whether it
    makes sense with two executions of each run, so that bodies of steps run twice as often.
    """

    source: str
    run: Run
    crashes: bool
    clusters: bool
    races: bool

    @property
    def name(self) -> str:
        """As pytest shows it."""
        return getattr(self.run, "__name__", "")


CASES: list[Case] = []


def all_cases() -> list[Case]:
    """Those of all modules of this package."""
    for module in iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
    return CASES


def case(source: str, *, crashes: bool = True, clusters: bool = True, races: bool = True) -> Callable[[Run], Run]:
    """Add a case that comes from `source`."""

    def add(run: Run) -> Run:
        CASES.append(Case(source, run, crashes, clusters, races))
        return run

    return add


DONE: dict[str, str] = {}
"""What was done under which step key: an effect that takes a key."""
BODIES: Counter[str] = Counter()
"""How often which body of a step ran."""
BROKEN: set[str] = set()
"""What fails, as long as it is in here."""


def forget() -> None:
    """Before each run of a case."""
    DONE.clear()
    BODIES.clear()
    BROKEN.clear()


def done() -> Counter[str]:
    """What was done, each effect as often as under different keys."""
    return Counter(DONE.values())


@step
async def do(what: str) -> str:
    """An effect that takes a key."""
    BODIES[what] += 1
    DONE.setdefault(step.key, what)
    return what


@step
async def add(a: int, b: int) -> int:
    """Something to compute."""
    BODIES["add"] += 1
    return a + b


async def until(ctx: boki.testing.Context, is_there: Callable[[], bool]) -> None:
    """Let time pass until something is there, second by second and for five minutes at most."""
    for _ in range(300):
        if is_there():
            return
        await ctx.clock.advance(1)
    raise AssertionError("it is not there after 300 s")


async def downtime(ctx: Any, seconds: float) -> None:
    """Nothing that runs workflows is up for that long: the engines of a cluster, or the machine of one process."""
    if isinstance(ctx, boki.testing.Context):
        ctx.clock.now_us += round(seconds * 1e6)
    else:
        await ctx.stop_engines(seconds)


async def ended_as(handle: Any) -> Any:
    """What a workflow returned, or the name of the error that it ended with."""
    try:
        return await handle.result()
    except FunctionFailed as error:
        return error.error_type


async def result_of(ctx: boki.testing.Context, workflow: Any, *payload: Any, **options: Any) -> Any:
    """Start a workflow and wait for what it returns."""
    return await (await workflow.start(ctx, *payload, **options)).result()
