"""Recorded workflows against the code of today: what was recorded by any version replays, and changes are found."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import boki.testing
from boki import CorruptData, FunctionFailed, InvalidArgument
from boki.extending import Function
from boki.libs.bokiflow import Handle, Limit, Workflow, flow, step, workflow
from boki.libs.bokiflow.checking import check
from boki.libs.bokiflow.recorded import Recorded, decode, encode, record
from boki.libs.bokistore import Store
from tests.libs.bokiflow.golden import FEATURES, FIRST, FOLDER, put, recorded
from tests.libs.bokiflow.golden_state import triple


async def check_whole(code: Workflow[Any, Any], found: Recorded) -> None:
    """All that is recorded was replayed, and the code does the same."""
    checked = await check(code, found)
    assert checked.diverged is None
    assert checked.is_whole
    assert checked.replayed == checked.recorded


@pytest.mark.parametrize("name", sorted(FEATURES))
async def test_what_is_recorded_now_replays(name: str) -> None:
    """The way through the file changes nothing."""
    found = await recorded(name)
    assert decode(encode(found), "a file") == found
    await check_whole(FEATURES[name], found)


@pytest.mark.parametrize(
    ("name", "unread"),
    [
        ("transaction", "object seats in a transaction"),
        ("store_reads", "object room"),
        ("log_reads", "tag notes of the LogBook"),
        ("joined", "object room in a transaction"),
        ("joins", "object room in a transaction"),
    ],
)
async def test_a_record_without_what_was_read_is_checked_in_part(name: str, unread: str) -> None:
    """As far as the first read, which is named: what came behind it may diverge, and nobody would know."""
    found = await recorded(name)
    assert found.reads is not None
    checked = await check(FEATURES[name], msgspec.structs.replace(found, reads=None))
    assert checked.diverged is None
    assert not checked.is_whole
    assert (checked.unread, checked.replayed) == (unread, 0)
    assert checked.recorded


@workflow(name="store_reads")
async def reads_less(n: int) -> int:
    missing = await flow.store.read("room", default=n)
    await flow.store.write("room", await triple(missing))
    return await triple(await flow.store.read("room") + 1)


@workflow(name="store_reads")
async def reads_another(n: int) -> int:
    missing = await flow.store.read("hall", default=n)
    await flow.store.write("room", await triple(missing))
    return await triple(await flow.store.read("room"))


@workflow
async def reads_and_ends(n: int) -> int:
    found: int = await flow.store.read("room", default=0)
    return await triple(n) if found else n


async def test_what_was_read_before_the_end_stays_so(boki_context: boki.testing.Context) -> None:
    """Nothing was recorded but the end, which says as of where the body has read: the store has changed since."""
    ctx = boki_context
    handle = await reads_and_ends.start(ctx, 3)
    assert await handle.result() == 3
    await Store(ctx).object("room").set("", 7)
    payload = Function.of(reads_and_ends).encode_payload(3)
    logbook = ctx.logbook_named((await handle.status()).book)
    names = "reads_and_ends", handle.id, handle.invocation_id
    found = await record(logbook, *names, has_ended=True, payload=payload, code=reads_and_ends)
    await check_whole(reads_and_ends, found)


async def test_a_change_behind_a_read_is_found() -> None:
    """The file holds what was read, so the check continues; not behind a read of something else."""
    found = await recorded("store_reads")
    checked = await check(reads_less, found)
    assert checked.diverged is not None
    assert checked.diverged.details["started"] == "started triple#2 with other arguments"
    other = await check(reads_another, found)
    assert (other.diverged, other.unread, other.is_whole) == (None, "object hall", False)


@workflow(name="at_most_once")
async def puts_instead(n: int) -> int:
    return await put(n)


@workflow(name="at_most_once")
async def does_nothing(n: int) -> int:
    return n


@pytest.mark.parametrize(("code", "does"), [(puts_instead, "started put#0"), (does_nothing, "did not start it")])
async def test_an_intent_without_an_outcome_is_compared(code: Workflow[int, int], does: str) -> None:
    """A step that runs at most once may have run: code that does not start it is found."""
    path = FOLDER / FIRST / "at_most_once.json"
    whole = decode(path.read_bytes(), path.name)
    begun = msgspec.structs.replace(whole, journal=whole.journal[:1], has_ended=False)
    await check_whole(FEATURES["at_most_once"], begun)
    error = (await check(code, begun)).diverged
    assert error is not None
    assert (error.details["recorded"], error.details["started"]) == ("launch#0", does)


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
    await check_whole(stay, found)
    await check_whole(patched, found)
    error = (await check(code, found)).diverged
    assert error is not None
    assert (error.details["recorded"], error.details["started"]) == (was, does)


@workflow(limit=Limit(concurrency=1))
async def has_its_turn(n: int) -> int:
    flow.on_query("n", lambda _: n)
    if n:
        flow.compensate(triple, n)
    await flow.receive("go")
    return n


@workflow(name="has_its_turn")
async def undoes_more(n: int) -> int:
    flow.on_query("n", lambda _: n)
    for _ in range(2):
        flow.compensate(triple, n)
    await flow.receive("go")
    return n


async def cancelled_turn(ctx: boki.testing.Context, handle: Handle[int], n: int) -> Recorded:
    await handle.cancel()
    with pytest.raises(FunctionFailed, match="was cancelled"):
        await handle.result()
    logbook = ctx.logbook_named((await handle.status()).book)
    payload = Function.of(has_its_turn).encode_payload(n)
    return await record(logbook, "has_its_turn", handle.id, handle.invocation_id, has_ended=True, payload=payload)


async def test_one_that_was_cancelled_in_the_queue_did_nothing(boki_context: boki.testing.Context) -> None:
    """There is nothing to compare: it was said to wait for its compensation."""
    ctx = boki_context
    runs, waits = [await has_its_turn.start(ctx, 3, id=name) for name in ("runs", "waits")]
    await ctx.clock.advance(2)
    forked = await runs.fork(0, id="fork")
    await ctx.clock.advance(2)
    for handle in (waits, forked):
        assert (await check(has_its_turn, await cancelled_turn(ctx, handle, 3))).diverged is None


@pytest.mark.parametrize("n", [3, 0])
async def test_one_that_was_cancelled_when_it_ran_is_compared(boki_context: boki.testing.Context, n: int) -> None:
    """Also if nothing is recorded of what it did, and if no record says that it has ended: an engine may be lost."""
    ctx = boki_context
    runs = await has_its_turn.start(ctx, n)
    await ctx.clock.advance(2)
    forked = await runs.fork(0)
    found = await cancelled_turn(ctx, runs, n)
    await ctx.clock.advance(2)
    for one in (found, msgspec.structs.replace(found, journal=()), await cancelled_turn(ctx, forked, n)):
        assert (await check(has_its_turn, one)).diverged is None or not one.journal
        assert (await check(undoes_more, one)).diverged is not None


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
