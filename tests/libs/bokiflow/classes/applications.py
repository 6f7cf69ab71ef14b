"""The paper's applications: travel reservation and movie review, for all who run workflows (Boki, 7.1)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from boki.libs.bokiflow import Workflow
from boki.libs.bokistore import Store
from functions import movies, travel
from tests.functions.test_movies import ALIEN, DRAFT
from tests.functions.test_travel import ALBANY, BOSTON, DENVER, FULL, LUXURY, SHUTTLE, TRIPS, left, left_together
from tests.libs.bokiflow.classes import case, ended_as


async def offer(ctx: Any, hotels: str, flights: str) -> None:
    """What is available: the functions that offer it need a store of their book, and no more."""
    await travel.offer_hotels(ctx.logbook_named(hotels), [BOSTON, DENVER, ALBANY])
    await travel.offer_flights(ctx.logbook_named(flights), [SHUTTLE, FULL, LUXURY])


async def _take_trips(
    ctx: Any, workflow: Workflow[Any, Any], look: Callable[[Any], Awaitable[Any]], *errors: str
) -> None:
    """The trips that fail, with these errors, and one that does not: each takes all that it is for, or nothing."""
    (good, _, taken), *bad = TRIPS
    before = await look(ctx)
    for number, ((trip, _, _), error) in enumerate(zip(bad, errors, strict=True)):
        assert await ended_as(await workflow.start(ctx, trip, id=f"trip {number}")) == error
        assert await look(ctx) == before
    assert (await ended_as(await workflow.start(ctx, good, id="trip"))).trip == good
    assert await look(ctx) == taken


@case("Boki, 7.1: travel reservation; both or neither")
async def trips_take_a_room_and_a_seat_or_nothing(ctx: Any) -> None:
    """By a saga, whose compensations undo what a trip that fails has taken."""
    await offer(ctx, travel.HOTELS, travel.FLIGHTS)
    await _take_trips(ctx, travel.reserve, left, "SoldOut", "TooExpensive")


@case("Boki, 7.1: travel reservation; both or neither")
async def trips_across_workflows_take_a_room_and_a_seat_or_nothing(ctx: Any) -> None:
    """By one transaction over what called workflows do."""
    await offer(ctx, travel.BOOK, travel.BOOK)
    await _take_trips(ctx, travel.reserve_together, left_together, "FunctionFailed", "TooExpensive")


@case("Boki, 7.1: movie review")
async def a_review_is_kept_and_counted_once(ctx: Any) -> None:
    """For its movie and for its user."""
    store = ctx.logbook_named(movies.BOOK)
    await movies.add_movies(store, [ALIEN])
    handles = [await movies.compose.start(ctx, DRAFT, id=f"review {number}") for number in range(3)]
    ids = {(await handle.result()).id for handle in handles}
    page = await (await movies.show.start(ctx, ALIEN.title)).result()
    assert page.review_count == len(page.reviews) == len(ids) == 3
    assert {review.id for review in page.reviews} == ids
    assert (await Store(store).object(movies.user_name("Ada")).get())["count"] == 3
