"""Two executions of one run that take a message and the end of a step in different orders."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

import boki.testing
from boki.extending import Function
from boki.libs.bokiflow import flow, step, workflow
from boki.libs.bokiflow.machine import Machine
from boki.libs.bokiflow.records import CancelRequested, encode_note, inbox_tag
from tests.libs.bokiflow.crashes import RUN_ID, in_run


class Race:
    """What the two executions wait for, and the keys under which they undid."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.is_decided = asyncio.Event()
        self.keys: list[str] = []


RACES: list[Race] = []


@step
async def slow() -> None:
    """Ends once the other execution undoes."""
    RACES[-1].has_begun.set()
    await RACES[-1].may_end.wait()


@step
async def next_one() -> None:
    """The log has decided that `slow` ended before the cancellation."""
    RACES[-1].is_decided.set()


@step
async def undo() -> None:
    """The first time it lasts until one execution has lost."""
    race = RACES[-1]
    race.keys.append(step.key)
    race.may_end.set()
    if len(race.keys) > 1:
        race.is_decided.set()
    await race.is_decided.wait()


@workflow
async def cancelled(_: int) -> None:
    flow.compensate(undo)
    await slow()
    await next_one()
    await flow.receive("never")


async def keys_of_a_race() -> set[str]:
    """Under which keys it is undone, if one execution is cancelled while the step of the other one runs."""
    RACES.append(race := Race())
    async with boki.testing.context("test") as outer:
        late = asyncio.ensure_future(Function.of(cancelled).run(in_run(outer, 0), 0))
        await race.has_begun.wait()
        await outer.logbook.append(encode_note(CancelRequested()), [inbox_tag(RUN_ID)])
        woken = asyncio.ensure_future(Function.of(cancelled).run(in_run(outer, 0, run=2), 0))
        await asyncio.wait([late, woken])
        assert late.exception() is not None
        assert woken.exception() is not None
    return set(race.keys)


async def test_what_follows_a_message_has_one_key_in_both() -> None:
    """That the message came before the end of the step is recorded before anything follows from it."""
    assert len(await keys_of_a_race()) == 1


async def test_a_race_that_is_not_recorded_is_noticed() -> None:
    """The ablation: each execution goes by its own order, and it is undone under two keys."""
    with patch.object(Machine, "raced", property(lambda _self: 0, lambda _self, _seqnum: None), create=True):
        assert len(await keys_of_a_race()) == 2
