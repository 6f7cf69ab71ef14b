"""The applications on a machine that loses its power, and cancelled: at every moment there is, enumerated.

Every moment: before and after each append, those of the ledger of calls included, and each step. The outcome is either
what the workflow is for or nothing at all, and the workflow's result says which.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

import boki.testing
from boki.books.calls.ledger import BOOK as CALLS_BOOK
from boki.libs.bokiflow import Workflow
from functions import movies, travel
from functions.travel import PURSE_CENTS
from tests.books.calls.call_world import run
from tests.functions.test_movies import ALIEN, DRAFT, page_of
from tests.functions.test_travel import TAKEN, TRIPS, UNTOUCHED, left, left_together, offer, offer_together
from tests.libs.bokiflow.machines import Machine
from tests.libs.bokiflow.modes import MODES, Mode, wants_all

CANCELLED = "WorkflowCancelled"
LEDGER = [f"{when} append to {CALLS_BOOK}" for when in ("before", "after")]


@dataclass(frozen=True)
class Application:
    """A workflow with its payload, and the state before it and after it."""

    name: str
    workflows: tuple[Workflow[Any, Any], ...]
    payload: object
    prepare: Callable[[boki.testing.Context], Awaitable[None]]
    look: Callable[[boki.testing.Context], Awaitable[Any]]
    nothing: Any
    done: Any
    error: str = ""
    """What it ends with if it is not cancelled."""
    is_quick: bool = False
    """It has written everything before it first reads its inbox."""

    def try_out(self, *dies_at: int, cancels_at: int = 0) -> tuple[Machine, str]:
        """Run it: the machine, and how the workflow has ended. What it left must go with that end."""
        return run(self._try_out(dies_at, cancels_at))

    async def _try_out(self, dies_at: tuple[int, ...], cancels_at: int) -> tuple[Machine, str]:
        machine = Machine(*self.workflows, dies_at=dies_at, cancels_at=cancels_at)
        async with boki.testing.context(log=machine.log) as ctx:
            await self.prepare(ctx)
        result = await machine.run(self.payload)
        end = result if isinstance(result, str) else "done"
        where = f"dies at {dies_at}, cancelled at {cancels_at}, of {machine.moments}"
        assert end in {"done" if not self.error else self.error, *([CANCELLED] if cancels_at else [])}, where
        assert machine.losses == len(dies_at), where
        assert machine.wrong_promises() == [], where
        async with boki.testing.context(log=machine.log) as ctx:
            assert await self.look(ctx) == (self.done if end == "done" else self.nothing), (end, where)
        return machine, end


async def add_alien(ctx: boki.testing.Context) -> None:
    """The movie that is reviewed."""
    await ctx.invoke(movies.add_movies, [ALIEN])


async def counts(ctx: boki.testing.Context) -> list[int]:
    """How many reviews the movie has, and the user."""
    page, user = await page_of(ctx)
    return [page.review_count, len(page.reviews), user.get("count", 0), len(user.get("reviews", []))]


async def left_and_paid(ctx: boki.testing.Context) -> Any:
    """What is left, and whether anything was paid twice."""
    payments = await ctx.invoke(travel.payments, "Ada")
    assert payments in ([], [PURSE_CENTS - 16_000], [PURSE_CENTS - 16_000, PURSE_CENTS])
    return await left(ctx)


TOGETHER = (travel.reserve_together, travel.take_room, travel.take_seat)
APPLICATIONS = [
    *(
        Application(f"a saga{why}", (travel.reserve,), trip, offer, left_and_paid, UNTOUCHED, TAKEN, error)
        for (trip, _, _), why, error in zip(
            TRIPS, ("", ", sold out", ", too expensive"), ("", "SoldOut", "TooExpensive"), strict=True
        )
    ),
    *(
        Application(f"a transaction{why}", TOGETHER, trip, offer_together, left_together, UNTOUCHED, TAKEN, error)
        for (trip, _, _), why, error in zip(
            TRIPS, ("", ", sold out", ", too expensive"), ("", "FunctionFailed", "TooExpensive"), strict=True
        )
    ),
    Application("a review", (movies.compose,), DRAFT, add_alien, counts, [0] * 4, [1] * 4, is_quick=True),
]
EACH = pytest.mark.parametrize("application", APPLICATIONS, ids=lambda application: application.name)
OF_ONE_PROCESS = [mode for mode in MODES if mode.cluster is None and not mode.crashes]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each application as it is, and each mode with one; all with all by `--flow-modes all`."""
    if "mode" not in metafunc.fixturenames:
        return
    plain, *others = OF_ONE_PROCESS
    pairs = [(application, plain) for application in APPLICATIONS]
    if wants_all(metafunc.config):
        pairs += [(application, mode) for application in APPLICATIONS for mode in others]
    else:
        pairs += zip(reversed(APPLICATIONS), reversed(others), strict=False)
    metafunc.parametrize(("application", "mode"), pairs, ids=[f"{one.name}-{mode.name}" for one, mode in pairs])


@pytest.mark.timeout(900)
def test_power_is_lost_at_every_moment(application: Application, mode: Mode) -> None:
    """The outcome is that of a machine that is never lost, also if the acceptance or the end is interrupted."""
    with mode.switched(linger_us=10_000):  # a start takes time here: to look for its end at once would never end
        machine, end = application.try_out()
        assert machine.moments[:2] == LEDGER
        assert set(machine.moments[2:]) >= set(LEDGER)
        for moment in range(1, len(machine.moments) + 1):
            assert application.try_out(moment)[1] == end


@EACH
@pytest.mark.timeout(900)
def test_power_is_lost_again_at_every_moment(application: Application, pytestconfig: pytest.Config) -> None:
    """While the next machine takes over what the first one has left. A sample of the moments without `--whole`."""
    is_whole = pytestconfig.getoption("whole")
    machine, end = application.try_out()
    count = len(machine.moments)
    is_long = application.error or len(application.workflows) > 1
    for first in range(1, count + 1) if is_whole else {2, count // 2}:
        lost, _ = application.try_out(first)
        for second in range(first + 1, len(lost.moments) + 1, 9 if is_long and not is_whole else 1):
            assert application.try_out(first, second)[1] == end


@EACH
def test_it_is_cancelled_at_every_moment(application: Application, pytestconfig: pytest.Config) -> None:
    """Early enough it leaves nothing, and too late it has done everything. If it fails anyway: at five of them."""
    machine, end = application.try_out()
    count = len(machine.moments)
    is_sample = application.error and not pytestconfig.getoption("whole")
    moments = sorted({1, count, *range(1, count, count // 3)}) if is_sample else range(1, count + 1)
    ends = [application.try_out(cancels_at=moment)[1] for moment in moments]
    assert ends[-1] == end
    assert (ends[0] == CANCELLED) != application.is_quick


@EACH
@pytest.mark.timeout(900)
def test_it_is_cancelled_and_power_is_lost(application: Application, pytestconfig: pytest.Config) -> None:
    """Also while it undoes what it has done: at every moment from the cancellation on. It is cancelled at a sample of
    the moments; at all of them with `--whole`.
    """
    machine, _ = application.try_out()
    count = len(machine.moments)
    few = {count // 2} if application.error else {count // 2, count - 6}
    for cancels_at in range(1, count + 1) if pytestconfig.getoption("whole") else few:
        cancelled, _ = application.try_out(cancels_at=cancels_at)
        for dies_at in range(cancels_at, len(cancelled.moments) + 1):
            application.try_out(dies_at, cancels_at=cancels_at)
