"""What every implementation of the LogBook API must do, written once.

A scenario is a plain coroutine function that is given a `Logs` and asserts. It imports nothing of pytest and holds no
state, so it can run anywhere: in the test's own process, through a client, or inside a function in a forked worker,
which is told its name. Each runs with a LogBook that nobody else uses; where it needs a second book, it asks for
`other(logs)`. None depends on real time, but for waits that are meant to run out, which are short.

`SCENARIOS` run everywhere; `TIMED` need a clock that can be moved (`Logs.clock`), so only where time is virtual.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import ModuleType

from tests.contract.scenarios import (
    appends,
    books,
    conditions,
    keys,
    reads,
    refusals,
    subscriptions,
    timed,
    trims,
)
from tests.contract.scenarios.logs import Logs

Scenario = Callable[[Logs], Awaitable[None]]


def _collect(*modules: ModuleType) -> dict[str, Scenario]:
    """The public coroutine functions of the modules, by the module's and their own name."""
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": scenario
        for module in modules
        for name, scenario in vars(module).items()
        if inspect.iscoroutinefunction(scenario) and scenario.__module__ == module.__name__ and name[0] != "_"
    }


SCENARIOS = _collect(appends, books, conditions, keys, reads, refusals, subscriptions, trims)
TIMED = _collect(timed)
