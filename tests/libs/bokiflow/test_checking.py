"""Recorded workflows against the code of today: what was recorded by any version replays, and changes are found."""

from __future__ import annotations

from typing import Any

import pytest

import boki.testing
from boki import CorruptData, InvalidArgument
from boki.extending import Function
from boki.libs.bokiflow import Workflow, flow, step, workflow
from boki.libs.bokiflow.checking import check
from boki.libs.bokiflow.recorded import Recorded, decode, encode, record
from tests.libs.bokiflow.golden import FEATURES, FOLDER, recorded


@pytest.mark.parametrize("name", sorted(FEATURES))
async def test_golden_histories_replay(name: str) -> None:
    """One for each feature, as the version recorded it that brought the feature."""
    path = FOLDER / f"{name}.json"
    found = decode(path.read_bytes(), path.name)
    assert found.journal
    assert await check(FEATURES[name], found) is None


@pytest.mark.parametrize("name", sorted(FEATURES))
async def test_what_is_recorded_now_replays(name: str) -> None:
    """The way through the file changes nothing."""
    found = await recorded(name)
    assert decode(encode(found), "a file") == found
    assert await check(FEATURES[name], found) is None


@step
async def book(room: str) -> str:
    return f"{room} is booked"


@step
async def pay(cents: int) -> int:
    return cents


@step
async def thank(who: str) -> str:
    return f"thank you, {who}"


@workflow(name="stay")
async def stay(cents: int) -> str:
    await book("a room")
    await pay(cents)
    return await thank("Ada")


@workflow(name="stay_renamed")
async def another_step(cents: int) -> str:
    await thank("Ada")
    await pay(cents)
    return await thank("Ada")


@workflow(name="stay_arguments")
async def other_arguments(cents: int) -> str:
    await book("a room")
    await pay(cents + 1)
    return await thank("Ada")


@workflow(name="stay_early")
async def ends_early(_cents: int) -> str:
    return await book("a room")


@workflow(name="stay_late")
async def goes_on(cents: int) -> str:
    await book("a room")
    await pay(cents)
    await thank("Ada")
    return await thank("Grace")


@workflow(name="stay_timer")
async def sleeps(cents: int) -> str:
    await book("a room")
    await flow.sleep(60)
    await pay(cents)
    return await thank("Ada")


@workflow(name="stay_patched")
async def patched(cents: int) -> str:
    await book("a room")
    if flow.patched("pays later"):
        await flow.sleep(60)
    await pay(cents)
    return await thank("Ada")


@workflow(name="stay_text")
async def takes_text(cents: str) -> str:
    return await book(cents)


async def recorded_stay() -> Recorded:
    async with boki.testing.context() as ctx:
        handle = await stay.start(ctx, 7)
        await handle.result()
        payload = Function.of(stay).encode_payload(7)
        logbook = ctx.logbook_named((await handle.status()).book)
        return await record(logbook, "stay", handle.id, handle.invocation_id, has_ended=True, payload=payload)


@pytest.mark.parametrize(
    ("code", "was", "does"),
    [
        (another_step, "book#0", "started thank#0"),
        (other_arguments, "pay#1", "started pay#1 with other arguments"),
        (ends_early, "pay#1", "did not start it"),
        (goes_on, "the end of the workflow", "waits for thank#3"),
        (sleeps, "pay#1", "started timer#1"),
    ],
)
async def test_changes_are_found_before_they_are_deployed(code: Workflow[int, str], was: str, does: str) -> None:
    """Both sides are named; a change behind `flow.patched` is none."""
    found = await recorded_stay()
    assert await check(stay, found) is None
    assert await check(patched, found) is None
    error = await check(code, found)
    assert error is not None
    assert (error.details["recorded"], error.details["started"]) == (was, does)


async def test_a_payload_that_does_not_fit_any_more() -> None:
    """It is refused as it would be when the workflow is run again."""
    with pytest.raises(InvalidArgument, match="stay_text"):
        await check(takes_text, await recorded_stay())


@pytest.mark.parametrize(
    ("content", "said"), [(b"[]", "is no recorded workflow"), (b"\xff", "is no recorded workflow")]
)
def test_files_that_are_none(content: bytes, said: str) -> None:
    """They are named."""
    with pytest.raises(CorruptData, match=f"a file {said}"):
        decode(content, "a file")


def test_files_of_a_newer_version() -> None:
    """They are not half understood."""
    fields: dict[str, Any] = dict.fromkeys(("workflow", "id", "invocation", "book"), "x")
    newer = Recorded(version=2, has_ended=True, payload=None, journal=(), inbox=(), **fields)
    with pytest.raises(CorruptData, match="newer Boki"):
        decode(encode(newer), "a file")
