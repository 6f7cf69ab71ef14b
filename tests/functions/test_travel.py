"""The travel example: what it finds, and trips that take a room and a seat and are paid once, or leave nothing."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki import FunctionFailed
from boki.libs.bokiflow.hooks import installed
from boki.libs.bokistore import Store
from boki.testing import flows
from functions import travel
from functions.travel import FLIGHTS, HOTELS, PURSE_CENTS, Flight, Hotel, Place, SoldOut, TooExpensive, Trip, Wish
from tests.libs.bokiflow.crashes import NO_DEATH, AroundSteps, Death, World, after_each_loss, all_deaths

BOSTON = Hotel("BOS", "Hotel Logan", 42.36, -71.0, 3.5, 9_000, 2)
DENVER = Hotel("DEN", "Hotel Denver", 39.86, -104.67, 4.5, 14_000, 1)
ALBANY = Hotel("ALB", "Hotel Albany", 42.75, -73.8, 1.0, 9_500, 1)
SHUTTLE = Flight("B6-1018", "JetBlue", "JFK", "BOS", "AIRBUS", 7_000, 2)
FULL = Flight("UA-1", "United", "EWR", "BOS", "BOEING", 7_000, 0)
LUXURY = Flight("XX-1", "Luxury", "JFK", "BOS", "BOEING", PURSE_CENTS, 1)


async def offer(ctx: boki.testing.Context) -> None:
    """What is available."""
    await ctx.invoke(travel.offer_hotels, [BOSTON, DENVER, ALBANY])
    await ctx.invoke(travel.offer_flights, [SHUTTLE, FULL, LUXURY])


async def left(ctx: boki.testing.Context) -> dict[str, Any]:
    """What is left of everything that trips take."""
    found: dict[str, Any] = {}
    for book, names in ((HOTELS, ["hotel:BOS", "hotel:DEN"]), (FLIGHTS, ["flight:B6-1018", "flight:UA-1"])):
        for name in names:
            found[name] = await Store(ctx.logbook_named(book)).object(name).get("left")
    purse = Store(ctx.logbook_named(travel.BOOK)).object(f"purse:{travel.key_of('Ada')}")
    return {**found, "purse": await purse.get("left", PURSE_CENTS)}


UNTOUCHED = {"hotel:BOS": 2, "hotel:DEN": 1, "flight:B6-1018": 2, "flight:UA-1": 0, "purse": PURSE_CENTS}
TAKEN = {**UNTOUCHED, "hotel:BOS": 1, "flight:B6-1018": 1, "purse": PURSE_CENTS - 16_000}


async def test_hotels_are_found_and_recommended() -> None:
    """The nearest, the cheapest and the best; a search passes those by that have no room."""
    async with boki.testing.context() as ctx:
        await offer(ctx)
        found = await (await travel.search.start(ctx, Place(42.7, -73.8))).result()
        assert [hotel.id for hotel in found] == ["ALB", "BOS", "DEN"]
        for by, first in (("price", "BOS"), ("stars", "DEN"), ("distance", "ALB")):
            wish = Wish(by, 42.7, -73.8)  # type: ignore[arg-type]
            assert (await (await travel.recommend.start(ctx, wish)).result())[0].id == first
        await (await travel.reserve.start(ctx, Trip("Ada", "ALB", "B6-1018"))).result()
        assert [one.id for one in await (await travel.search.start(ctx, Place(42.7, -73.8))).result()] == ["BOS", "DEN"]


async def test_what_is_offered_again_stays_as_it_is() -> None:
    """A loader that runs twice gives nothing back."""
    async with boki.testing.context() as ctx:
        await offer(ctx)
        await (await travel.reserve.start(ctx, Trip("Ada", "BOS", "B6-1018"))).result()
        await offer(ctx)
        assert await left(ctx) == TAKEN


async def test_the_last_room_is_taken_once() -> None:
    """Of many who want it, one gets it, and nobody else has taken or paid anything."""
    async with boki.testing.context() as ctx:
        await offer(ctx)
        handles = [await travel.reserve.start(ctx, Trip("Ada", "DEN", "B6-1018"), id=f"trip {n}") for n in range(4)]
        states: list[Any] = []
        for handle in handles:
            try:
                states.append((await handle.result()).paid_cents)
            except FunctionFailed as error:
                states.append(error.error_type)
        assert sorted(states, key=str) == [21_000, "SoldOut", "SoldOut", "SoldOut"]
        assert await left(ctx) == {**UNTOUCHED, "hotel:DEN": 0, "flight:B6-1018": 1, "purse": PURSE_CENTS - 21_000}


async def test_a_trip_that_was_called_off_takes_nothing_later() -> None:
    """The compensation may overtake the request that it compensates."""
    async with boki.testing.context() as ctx:
        await offer(ctx)
        handle = await travel.reserve.start(ctx, Trip("Ada", "BOS", "B6-1018"), id="trip")
        await handle.cancel("changed my mind")
        try:
            await handle.result()
        except FunctionFailed as error:
            assert error.error_type == "WorkflowCancelled"
            assert await left(ctx) == UNTOUCHED
        else:
            assert await left(ctx) == TAKEN


TRIPS = [
    (Trip("Ada", "BOS", "B6-1018"), None, TAKEN),
    (Trip("Ada", "BOS", "UA-1"), SoldOut, UNTOUCHED),
    (Trip("Ada", "BOS", "XX-1"), TooExpensive, UNTOUCHED),
]


async def travel_with(trip: Trip, death: Death) -> tuple[World, type[Exception] | None, dict[str, Any]]:
    """Reserve a trip with a process that dies then; the error that it ended with, and what is left."""
    world = World()
    async with boki.testing.context(log=world.log) as ctx:
        await offer(ctx)
    error: type[Exception] | None = None
    with installed(AroundSteps(world)):
        try:
            reservation = await world.run(travel.reserve, trip, death=death)
            assert reservation.trip == trip
        except (SoldOut, TooExpensive) as caught:
            error = type(caught)
    world.log.begin(NO_DEATH)
    async with boki.testing.context(log=world.log) as ctx:
        return world, error, await left(ctx)


@pytest.mark.parametrize(("trip", "error", "expected"), TRIPS, ids=["reserved", "sold out", "too expensive"])
async def test_a_trip_is_all_or_nothing_whenever_its_process_dies(
    trip: Trip, error: type[Exception] | None, expected: dict[str, Any]
) -> None:
    """At every append, without and with its effect, and before and after the body of every step: enumerated."""
    world, found, after = await travel_with(trip, NO_DEATH)
    assert (found, after) == (error, expected)
    deaths = all_deaths(world.appends, world.boundaries)
    assert len(deaths) >= 16
    for death in deaths:
        _, found, after = await travel_with(trip, death)
        assert (found, after) == (error, expected), death


async def test_a_trip_survives_every_crash_under_forced_replay() -> None:
    """The same in a system that replays after each step."""
    async for ctx in flows.every_crash():
        await offer(ctx)
        with flows.forced_replay():
            handle = await travel.reserve.start(ctx, TRIPS[0][0])
            await handle.result()
        assert await left(ctx) == TAKEN


async def offer_together(ctx: boki.testing.Context) -> None:
    """The same in one LogBook."""
    await ctx.invoke(travel.offer_hotels, [BOSTON, DENVER, ALBANY], book=travel.BOOK)
    await ctx.invoke(travel.offer_flights, [SHUTTLE, FULL, LUXURY], book=travel.BOOK)


async def left_together(ctx: boki.testing.Context) -> dict[str, Any]:
    """What is left in that LogBook."""
    store = Store(ctx.logbook_named(travel.BOOK))
    names = ("hotel:BOS", "hotel:DEN", "flight:B6-1018", "flight:UA-1")
    found = {name: await store.object(name).get("left") for name in names}
    return {**found, "purse": await store.object(f"purse:{travel.key_of('Ada')}").get("left", PURSE_CENTS)}


async def together(trip: Trip, death: Death) -> tuple[World, str, dict[str, Any]]:
    """Reserve in one transaction with a process that dies then; what it failed with, and what is left."""
    world, error = World(), ""
    async with boki.testing.context(log=world.log) as ctx:
        await offer_together(ctx)
    with installed(AroundSteps(world)):
        try:
            reservation = await world.run(travel.reserve_together, trip, death=death)
            assert (reservation.trip, reservation.paid_cents) == (trip, 16_000)
        except (FunctionFailed, TooExpensive) as caught:
            error = str(caught)
    world.log.begin(NO_DEATH)
    async with boki.testing.context(log=world.log) as ctx:
        return world, error, await left_together(ctx)


@pytest.mark.parametrize(
    ("trip", "error", "expected"),
    [(TRIPS[0][0], "", TAKEN), (TRIPS[1][0], "flight UA-1 is sold out", UNTOUCHED), (TRIPS[2][0], "costs", UNTOUCHED)],
    ids=["reserved", "sold out", "too expensive"],
)
async def test_a_transaction_takes_both_or_neither_whenever_its_process_dies(
    trip: Trip, error: str, expected: dict[str, Any]
) -> None:
    """At every append, without and with its effect, and before and after every command: enumerated."""
    world, found, after = await together(trip, NO_DEATH)
    assert error in found
    assert bool(found) == bool(error)
    assert after == expected
    deaths = all_deaths(world.appends, world.boundaries)
    assert len(deaths) >= 10
    for death in deaths:
        _, found, after = await together(trip, death)
        assert error in found, death
        assert after == expected, death


async def test_of_many_transactions_for_the_last_room_one_takes_it() -> None:
    """The others have taken and paid nothing, whether they saw the room or not."""
    async with boki.testing.context() as ctx:
        await offer_together(ctx)
        handles = [await travel.reserve_together.start(ctx, Trip("Ada", "DEN", "B6-1018")) for _ in range(4)]
        paid: list[int] = []
        for handle in handles:
            try:
                paid.append((await handle.result()).paid_cents)
            except FunctionFailed as error:
                assert "hotel DEN is sold out" in str(error)
        assert paid == [21_000]
        wanted = {**UNTOUCHED, "hotel:DEN": 0, "flight:B6-1018": 1, "purse": PURSE_CENTS - 21_000}
        assert await left_together(ctx) == wanted


async def test_a_transaction_survives_every_lost_append() -> None:
    """Each append of the trip and of the workflows that it calls is lost once, with and without its effect."""
    async for ctx in after_each_loss(offer_together):
        await (await travel.reserve_together.start(ctx, TRIPS[0][0])).result()
        assert await left_together(ctx) == TAKEN
