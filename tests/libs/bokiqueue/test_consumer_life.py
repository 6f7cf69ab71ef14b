"""The life of a consumer of a function: which stage follows which, and that real consumers go through all of them."""

from __future__ import annotations

import pytest

from boki.libs.bokiqueue.consuming import Consumption
from boki.libs.bokiqueue.face.consumers import NEXT, Event, Place, Stage
from tests.gateway.fake_backend import run, turns_until
from tests.gateway.test_consumers import (
    SINGLE,
    consuming,
    end_calls,
    enough_turns,
    gateway_of,
    info_of,
    push,
    push_many,
)


def test_every_stage_is_reached_and_every_event_moves_some_consumer() -> None:
    """From one that waits for the place of another. Whatever it does it can be told to leave, once."""
    found = {Stage.HELD}
    while more := {after for (before, _), after in NEXT.items() if before in found} - found:
        found |= more
    assert found == set(Stage)
    assert {event for _, event in NEXT} == set(Event)
    assert {stage for stage, event in NEXT if event is Event.LEAVE} == set(Stage) - {Stage.LEAVING, Stage.ENDED}
    assert {after for (before, _), after in NEXT.items() if before is Stage.LEAVING} == {Stage.LEAVING, Stage.ENDED}
    assert Stage.ENDED not in {before for before, _ in NEXT}


def test_only_what_has_no_messages_ends_at_once() -> None:
    """One that is busy would leave its messages to their leases, and one that is held a place to two after it."""
    ends_at_once = {before for (before, event), after in NEXT.items() if event is Event.LEAVE and after is Stage.ENDED}
    assert ends_at_once == {Stage.CLOSED, Stage.IDLE}
    assert {before for (before, event) in NEXT if event is Event.TAKEN} == {Stage.IDLE}


def test_consumers_of_a_gateway_go_through_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function is changed in its call, and again before its new place has begun; a group is dropped under another."""
    stages: list[Stage] = []
    events: set[Event] = set()
    move = Place.move

    def noting(place: Place, event: Event) -> None:
        stages.append(place.stage)
        move(place, event)
        events.add(event)
        stages.append(place.stage)

    monkeypatch.setattr(Place, "move", noting)

    async def changed() -> None:
        async with gateway_of(monkeypatch, info_of("hang", SINGLE)) as (_, backend, http):
            await push_many(http, 1)
            await backend.until(lambda: bool(backend.hanging))
            for retry_s in (5.0, 6.0):
                backend.functions = {"hang": info_of("hang", Consumption(queue="q", retry_s=retry_s))}
                await enough_turns()
            end_calls(backend)
            await backend.until_waiting()

    async def dropped() -> None:
        async with consuming(monkeypatch) as (backend, http):
            await push(backend, http, "one")
            async with http.delete("/queue/b/q/groups/g"):
                await turns_until(lambda: Event.LOST in events)

    run(changed())
    assert set(stages) == set(Stage)
    run(dropped())
    assert events == set(Event)
