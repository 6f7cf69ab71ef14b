"""The applications on a simulated cluster whose engine crashes: at every moment there is, enumerated.

The moments: an engine takes in an append of the application's, and answers one; a step's body begins and ends at these
times, too. The engine crashes right before or right after, and is back a second later; meanwhile another one takes the
workflow over, if there is one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest

from boki.libs.bokiflow import Workflow
from boki.libs.bokistore import Store
from boki.log.metalog import Positions
from boki.log.operations import Append, Operation
from boki.verify.sim.engines import EngineNode
from functions import movies, travel
from tests.functions.test_movies import ALIEN, DRAFT
from tests.functions.test_travel import TAKEN, TRIPS, UNTOUCHED, left, left_together
from tests.libs.bokiflow.classes import ended_as, forget
from tests.libs.bokiflow.classes.applications import offer
from tests.libs.bokiflow.clustered import run_clustered, until_known
from tests.libs.bokiflow.modes import MODES, Mode, wants_all

_SAMPLE = 5
"""One of this many moments without `--flow-modes all`."""


@dataclass(frozen=True)
class Moment:
    """When something happens at an engine, in microseconds after the cluster is ready."""

    engine: str
    at_us: int


@dataclass(frozen=True)
class Application:
    """A workflow with its payload, and what is so after it, unless it fails with `error`: then nothing has changed."""

    name: str
    workflow: Workflow[Any, Any]
    payload: object
    prepare: Callable[[Any], Awaitable[None]]
    look: Callable[[Any], Awaitable[Any]]
    after: Any
    error: str = ""

    def run(self, mode: Mode, crash: Moment | None = None) -> list[Moment]:
        """Run it once, and see that it ended as it should; the moments from its start to its end."""
        noted: list[Moment] = []
        began_us = 0

        async def work(ctx: Any) -> None:
            nonlocal began_us

            async def pause() -> None:
                await ctx.clock.advance(0.1)

            began_us = ctx.clock.began_us
            await self.prepare(ctx)
            noted.clear()
            handle = await until_known(partial(self.workflow.start, ctx, self.payload, id="it"), pause)
            end = await until_known(partial(ended_as, handle), pause)
            count = len(noted)
            assert end == self.error if self.error else not isinstance(end, str), end
            assert await until_known(partial(self.look, ctx), pause) == self.after
            del noted[count:]

        with mode.switched(), _noted(noted):
            forget()
            assert mode.cluster is not None
            if crash is None:
                run_clustered(work, mode.cluster, zombies=float(mode.races))
            else:
                run_clustered(
                    work, mode.cluster, crash_us=crash.at_us, crashing=crash.engine, zombies=float(mode.races)
                )
        return [Moment(each.engine, each.at_us - began_us) for each in noted]


def _noted(moments: list[Moment]) -> Any:
    """Note when engines take in an append, and when they answer it."""
    submit = EngineNode.submit

    def noting(
        engine: EngineNode,
        operation: Operation,
        positions: Positions,
        timeout_us: int,
        done: Callable[[Any, Positions], None],
    ) -> None:
        def note() -> None:
            moments.append(Moment(engine.name, engine.clock.now_us))

        def told(answer: Any, seen: Positions) -> None:
            note()
            done(answer, seen)

        if isinstance(operation, Append):
            note()
            submit(engine, operation, positions, timeout_us, told)
        else:
            submit(engine, operation, positions, timeout_us, done)

    return patch.object(EngineNode, "submit", noting)


async def _reviewed(ctx: Any) -> list[int]:
    """How many reviews the movie and the user have."""
    store = ctx.logbook_named(movies.BOOK)
    page = await (await movies.show.start(ctx, ALIEN.title)).result()
    user = await Store(store).object(movies.user_name("Ada")).get()
    return [page.review_count, len(page.reviews), user["count"], len(user["reviews"])]


async def _add_alien(ctx: Any) -> None:
    await movies.add_movies(ctx.logbook_named(movies.BOOK), [ALIEN])


_OFFER = partial(offer, hotels=travel.HOTELS, flights=travel.FLIGHTS)
_OFFER_TOGETHER = partial(offer, hotels=travel.BOOK, flights=travel.BOOK)
(_GOOD, _, _), (_SOLD_OUT, _, _), (_DEAR, _, _) = TRIPS
APPLICATIONS = [
    Application("a saga", travel.reserve, _GOOD, _OFFER, left, TAKEN),
    Application("a saga, sold out", travel.reserve, _SOLD_OUT, _OFFER, left, UNTOUCHED, "SoldOut"),
    Application("a saga, too expensive", travel.reserve, _DEAR, _OFFER, left, UNTOUCHED, "TooExpensive"),
    Application("a transaction", travel.reserve_together, _GOOD, _OFFER_TOGETHER, left_together, TAKEN),
    Application(
        "a transaction, sold out",
        travel.reserve_together,
        _SOLD_OUT,
        _OFFER_TOGETHER,
        left_together,
        UNTOUCHED,
        "FunctionFailed",
    ),
    Application("a review", movies.compose, DRAFT, _add_alien, _reviewed, [1] * 4),
]
CLUSTERS = [mode for mode in MODES if mode.cluster is not None]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each application on one kind of cluster; all on all by `--flow-modes all`."""
    if wants_all(metafunc.config):
        pairs = [(application, mode) for application in APPLICATIONS for mode in CLUSTERS]
    else:
        pairs = [(each, CLUSTERS[number % len(CLUSTERS)]) for number, each in enumerate(APPLICATIONS)]
    metafunc.parametrize(("application", "mode"), pairs, ids=[f"{one.name}-{mode.name}" for one, mode in pairs])


@pytest.mark.timeout(1800)
def test_the_engine_crashes_at_every_moment(application: Application, mode: Mode, pytestconfig: pytest.Config) -> None:
    """Whatever the moment, the workflow ends as it does without a crash, and what it did is there once."""
    moments = application.run(mode)
    assert len({moment.at_us for moment in moments}) >= 4
    crashes = dict.fromkeys(
        Moment(moment.engine, at_us) for moment in moments for at_us in (moment.at_us, moment.at_us + 1)
    )
    for crash in list(crashes)[:: 1 if wants_all(pytestconfig) else _SAMPLE]:
        try:
            application.run(mode, crash)
        except Exception as error:
            raise AssertionError(f"{crash}: {error!r}") from error
