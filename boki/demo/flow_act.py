"""`boki demo flow`: trips whose machine is killed at random lines of their code, again and again, and that end once.

The functions of the machine stop at a line that the seed has drawn (`boki.demo.reaper`); then the whole system gets
SIGKILL and is started again. In the end every room, every seat and every payment is compared with what the trips say.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from boki.client import Client
from boki.config.loading import DevConfig
from boki.config.up import UpConfig
from boki.demo.reaper import Note, Plan, notes_in
from boki.demo.tables import load_travel, travel_rows
from boki.errors import BokiError
from boki.launch.child import Child

KILLS: Final = 7
"""A workflow that was lost eight times without progress is paused, and a trip makes none before its only transaction
has committed.
"""
TRAVELLERS: Final = ("Ada", "Grace", "Edsger", "Barbara")
SOURCE: Final = "travel.py"
_LINES: Final = (4, 30)
_LINES_IN_CLUSTER: Final = (2, 20)
"""Fewer: its engines share the trips, and each counts its own lines."""
_ALL_LINES: Final = 1 << 40
_PURSE_CENTS: Final = 200_000
_BOOK: Final = "travel"
"""Where the trips' hotels and flights are, so that one transaction reaches all of them."""
_POLL_S: Final = 0.01
_LIFE_S: Final = 120.0
_WAIT_S: Final = 60.0


class Trip(msgspec.Struct, frozen=True):
    """A trip, as the workflow takes it."""

    traveller: str
    hotel: str
    flight: str


@dataclass(slots=True)
class Scene:
    """What is to be shown."""

    trips: list[Trip]
    machine: str = "starts"
    kills: list[Note] = field(default_factory=list)
    """Where the machine was when it was killed."""
    begun: Counter[str] = field(default_factory=Counter)
    """How often each function of the file began."""
    states: dict[str, str] = field(default_factory=dict)
    """Of each traveller's trip, as far as it is known."""


Draw = Callable[[Scene], None]


@dataclass(frozen=True, slots=True)
class TripFound:
    """The outcome of a trip, and what it has left."""

    trip: Trip
    state: str
    error: str
    paid_cents: int
    """What the workflow says that it cost."""
    purse_cents: list[int]
    """What was in the purse after each payment."""

    @property
    def is_right(self) -> bool:
        """Whether it was paid for once, or nothing was. What it took is judged by what is left."""
        if self.state == "done":
            return self.paid_cents > 0 and self.purse_cents == [_PURSE_CENTS - self.paid_cents]
        return self.error == "SoldOut" and not self.purse_cents


@dataclass(frozen=True, slots=True)
class Survived:
    """The outcome of the whole demonstration."""

    scene: Scene
    trips: list[TripFound]
    wrong_counts: list[str]
    """Hotels and flights that have another number left than the trips leave."""

    @property
    def matches(self) -> bool:
        """Whether each effect is there exactly once, both or neither, though the machine was killed."""
        is_right = all(trip.is_right for trip in self.trips) and not self.wrong_counts
        ends = {trip.state for trip in self.trips}
        return is_right and bool(self.scene.kills) and ends == {"done", "failed"}


async def kill_at_lines(
    config: DevConfig | UpConfig, source: Path, random: Random, draw: Draw, *, kills: int = KILLS
) -> Survived:
    """Start trips, kill the machine at random lines of `source`, wait for the ends of the trips, and judge.

    A copy of `source` goes into the functions of `config`. There are fewer than `kills` if the trips end before.
    """
    folder = config.functions.parent
    plan, notes = folder / "plan.json", folder / "notes"
    _copy_watched(source, config.functions / SOURCE, plan, notes)
    hotels, flights = travel_rows()
    scene = Scene(_draw_trips(random, hotels, flights))
    offered = {row["id"]: int(row["rooms"] if "rooms" in row else row["seats"]) for row in (*hotels, *flights)}
    bounds = _LINES_IN_CLUSTER if isinstance(config, UpConfig) else _LINES
    with Child(config) as child:
        machine = _Machine(child, scene, notes, draw)
        await machine.start()
        async with Client(child.url) as client:
            await load_travel(client, hotels, flights, _BOOK)
        child.kill()
        ids: dict[str, str] = {}
        for _ in range(kills):
            plan.write_bytes(msgspec.json.encode(Plan(random.randint(*bounds))))
            await machine.start()
            if await machine.live(ids):
                break
            machine.kill()
        child.kill()
        plan.write_bytes(msgspec.json.encode(Plan(_ALL_LINES)))
        await machine.start()
        await machine.live(ids)
        async with Client(child.url) as client:
            return await _judge(client, scene, ids, offered)


def _copy_watched(source: Path, target: Path, plan: Path, notes: Path) -> None:
    shutil.copyfile(source, target)
    with target.open("a", encoding="utf-8") as file:
        file.write("\n\nfrom boki.demo.reaper import watch_lines\n\n")
        file.write(f"watch_lines(__file__, {str(plan)!r}, {str(notes)!r})\n")


def _draw_trips(random: Random, hotels: list[dict[str, Any]], flights: list[dict[str, Any]]) -> list[Trip]:
    """Trips on the flights' own routes. All but the last can be had; the seats of the last one are sold out."""
    chosen = random.sample(flights, len(TRAVELLERS))
    chosen[-1]["seats"] = 0
    at = {hotel["id"] for hotel in hotels}
    assert all(flight["dest"] in at for flight in chosen), "a hotel stands where flights go"
    return [Trip(who, flight["dest"], flight["id"]) for who, flight in zip(TRAVELLERS, chosen, strict=True)]


class _Machine:
    """The machine, from one kill to the next."""

    def __init__(self, child: Child, scene: Scene, notes: Path, draw: Draw) -> None:
        self._child = child
        self._scene = scene
        self._notes = notes
        self._note_count = 0
        self._draw = draw

    async def start(self) -> None:
        """Start it, or start it again."""
        self._show("starts")
        await asyncio.to_thread(self._child.start)
        self._show("runs")

    def kill(self) -> None:
        """SIGKILL, and what that leaves behind is shown."""
        self._child.kill()
        self._show("was killed")

    async def live(self, ids: dict[str, str]) -> bool:
        """Have the trips begin, or continue, until the machine stalls at its line; whether all have ended before.

        `ids`: the calls of the trips; those that are missing are started, under a key each.
        """
        async with asyncio.timeout(_LIFE_S), Client(self._child.url) as client:
            travelling = asyncio.ensure_future(self._travel(client, ids))
            try:
                while not travelling.done():
                    if self._is_at_its_line():
                        return False
                    await asyncio.sleep(_POLL_S)
                travelling.result()
                return not self._is_at_its_line()
            finally:
                travelling.cancel()
                with contextlib.suppress(asyncio.CancelledError, BokiError):
                    await travelling

    def _is_at_its_line(self) -> bool:
        new = notes_in(self._notes, self._note_count)
        self._note_count += len(new)
        ends = [note for note in new if note.is_end]
        self._scene.begun.update(note.function for note in new if not note.is_end)
        self._scene.kills += ends[:1]
        if new:
            self._draw(self._scene)
        return bool(ends)

    async def _travel(self, client: Client, ids: dict[str, str]) -> None:
        for trip in self._scene.trips:
            if trip.traveller not in ids:
                key = f"trip of {trip.traveller}"
                ids[trip.traveller] = await client.invoke_later("reserve_together", msgspec.to_builtins(trip), key=key)
        await asyncio.gather(*(self._follow(client, who, call) for who, call in ids.items()))

    async def _follow(self, client: Client, who: str, call: str) -> None:
        while (state := (await client.invocation(call, wait_s=1)).state) not in ("done", "failed", "cancelled"):
            self._scene.states[who] = state
            self._draw(self._scene)
        self._scene.states[who] = state
        self._draw(self._scene)

    def _show(self, machine: str) -> None:
        self._scene.machine = machine
        self._draw(self._scene)


def _named(error: BokiError) -> str:
    """The name of an error; that of a called workflow stands in the message."""
    return "SoldOut" if "SoldOut" in error.message else str(error.details.get("error_type", error.code))


async def _judge(client: Client, scene: Scene, ids: dict[str, str], offered: dict[str, int]) -> Survived:
    found, taken = [], Counter[str]()
    for trip in scene.trips:
        call = await client.invocation(ids[trip.traveller], wait_s=_WAIT_S)
        purse = await client.invoke("payments", trip.traveller)
        error = "" if call.error is None else _named(call.error)
        paid_cents = call.result["paid_cents"] if call.state == "done" else 0
        found.append(TripFound(trip, call.state, error, paid_cents, purse))
        if call.state == "done":
            taken.update((trip.hotel, trip.flight))
    wrong = []
    for trip in scene.trips:
        for name, left in zip(
            (trip.hotel, trip.flight), await client.invoke("left_of", msgspec.to_builtins(trip)), strict=True
        ):
            if left != offered[name] - taken[name]:
                wrong.append(f"{name} has {left} left, not {offered[name] - taken[name]}")
    return Survived(scene, found, wrong)
