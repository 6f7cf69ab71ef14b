"""What is kept of workflows: histories are trimmed after their end, and long ones begin as new."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

import boki.testing
from boki import ConditionFailed, ConfigError, Expect, FunctionFailed, InvalidArgument, LogBook, Page, Record
from boki.extending import forget_tags
from boki.libs.bokiflow import Limit, flow, step, workflow
from boki.libs.bokiflow.handles import Handle
from boki.libs.bokiflow.records import Began, Done, Entry, encode_entry, inbox_tag, journal_tag
from boki.libs.bokiflow.replaying import read_history
from boki.libs.bokiflow.sweeping import _ended_before, place_of

pytestmark = pytest.mark.usefixtures("each_mode")

DONE: list[str] = []
DAY_S = 24 * 3600


@pytest.fixture(autouse=True)
def forget() -> None:
    DONE.clear()


@step
async def act(what: str) -> str:
    DONE.append(what)
    if what == "wrong":
        raise ValueError(what)
    return what


@workflow(keep_s=1_000)
async def short(what: str) -> str:
    found = await act(what)
    if what == "killed":
        await flow.sleep(100)
    if what == "told":
        found += str(await flow.receive("word"))
    return found


async def left(ctx: boki.testing.Context, handle: Handle[Any]) -> tuple[int, int]:
    """How many records there are in its journal and in its inbox."""
    run = handle.invocation_id
    tags = journal_tag(run), inbox_tag(run)
    journal, inbox = [len((await ctx.logbook.read(tag)).records) for tag in tags]
    return journal, inbox


async def sweep(ctx: boki.testing.Context) -> None:
    """Another workflow ends, which has its process look at what is old."""
    await (await short.start(ctx, "other")).result()
    await ctx.clock.advance(1)


async def ended(ctx: boki.testing.Context, what: str, flow_id: str) -> Handle[str]:
    handle = await short.start(ctx, what, id=flow_id)
    if what == "told":
        await handle.signal("word", "!")
    if what == "killed":
        await ctx.clock.advance(1)
        await handle.kill()
    elif what == "wrong":
        with pytest.raises(FunctionFailed):
            await handle.result()
    else:
        await handle.result()
    return handle


@pytest.mark.parametrize("what", ["well", "told", "wrong", "killed"])
async def test_histories_are_trimmed_after_their_time(boki_context: boki.testing.Context, what: str) -> None:
    """Not before it, and the result stays; however the workflow has ended, and whatever its last record was."""
    ctx = boki_context
    handle = await ended(ctx, what, "one")
    await ctx.clock.advance(500)
    await sweep(ctx)
    kept = await left(ctx, handle)
    assert kept[0] >= 1
    assert kept[1] == (what == "told")
    await ctx.clock.advance(600)
    await sweep(ctx)
    assert await left(ctx, handle) == (0, 0)
    assert (await handle.status()).status == {"wrong": "failed", "killed": "cancelled"}.get(what, "done")
    if what in ("well", "told"):
        assert (await handle.result()).startswith(what)


async def test_an_id_is_used_again_after_its_history_was_trimmed(boki_context: boki.testing.Context) -> None:
    """The log still counts the places of the journal, and so does the new workflow; a fork may take such an id, too."""
    ctx = boki_context
    handle = await ended(ctx, "well", "one")
    await ctx.clock.advance(1_100)
    await sweep(ctx)
    assert await left(ctx, handle) == (0, 0)
    with pytest.raises(InvalidArgument, match="nothing has ended yet"):
        await handle.rewind(1)
    again = await short.start(ctx, "again", id="one", if_ended="again")
    assert await again.result() == "again"
    assert await again.rewind(0) == 0
    assert await again.result() == "again"
    assert DONE.count("again") == 2


async def trimmed(ctx: boki.testing.Context, tag: str, count: int) -> None:
    """What an earlier life has left of a journal whose call is not kept any more: the log counts its places."""
    for place in range(count):
        last = await ctx.logbook.append(encode_entry(Entry(7, 0, 0, 1, Began(), 1, 5)), [tag])
        await ctx.logbook.trim(last + 1, tag=tag)
        assert await place_of(ctx.logbook, tag) == place + 1


@pytest.mark.parametrize("in_block", [False, True])
async def test_an_id_whose_call_was_forgotten_first_is_used_again(
    boki_context: boki.testing.Context, in_block: bool
) -> None:
    """A first life does not ask for its place, and hears of it when its first record is refused. It was appended to
    that place again and again, while the workflow repeated its effects."""

    @workflow(keep_s=1_000)
    async def first(what: str) -> str:
        if in_block:
            async with flow.store.transaction() as txn:
                await txn.object("counter").increment("n", 1)
        await act(what)
        return await act("last")

    ctx = boki_context
    handle = first.handle(ctx, "one")
    tag = journal_tag(handle.invocation_id)
    await trimmed(ctx, tag, 2)
    await first.start(ctx, "x", id="one")
    await ctx.clock.advance(60)
    assert (await handle.status()).status == "done"
    assert await handle.result() == "last"
    assert DONE.count("last") == 1
    assert DONE.count("x") == (1 if in_block else 2), "the first record of a step was refused, and no other"
    assert await handle.rewind(0 if not in_block else 1) >= 0
    assert await handle.result() == "last"


async def test_a_life_that_was_killed_before_its_first_record_leaves_its_place(
    boki_context: boki.testing.Context,
) -> None:
    """The record of its end is the first of the journal that is kept, and says how many have been in front of it. The
    next life took its place for the first, at which the log refused all of its records."""
    ctx = boki_context
    handle = await ended(ctx, "well", "one")
    await ctx.clock.advance(1_100)
    await sweep(ctx)
    assert await left(ctx, handle) == (0, 0)
    await short.start(ctx, "late", id="one", if_ended="again", delay_s=50)
    await ctx.clock.advance(1)
    await handle.kill()
    await ctx.clock.advance(10)
    assert await left(ctx, handle) == (1, 0)
    history = await read_history(ctx.logbook, journal_tag(handle.invocation_id))
    assert history.place == await place_of(ctx.logbook, journal_tag(handle.invocation_id)) > 1
    again = await short.start(ctx, "again", id="one", if_ended="again")
    await ctx.clock.advance(60)
    assert (await again.status()).status == "done"
    assert DONE == ["well", "other", "again"]


async def test_a_life_that_was_not_let_begin_leaves_its_end_behind_what_was_trimmed(
    boki_context: boki.testing.Context,
) -> None:
    """Else a request that ended it would end the next one, too."""

    @workflow(limit=Limit(concurrency=1))
    async def limited(what: str) -> str:
        await flow.receive("go")
        return await act(what)

    ctx = boki_context
    await limited.start(ctx, "first", id="first")
    handle = limited.handle(ctx, "one")
    tag = journal_tag(handle.invocation_id)
    await trimmed(ctx, tag, 2)
    await limited.start(ctx, "one", id="one")
    await ctx.clock.advance(5)
    await handle.cancel("enough")
    with pytest.raises(FunctionFailed, match="enough"):
        await handle.result()
    assert await place_of(ctx.logbook, tag) == 3
    await limited.handle(ctx, "first").kill()
    await limited.start(ctx, "two", id="one", if_ended="again")
    await handle.signal("go")
    await ctx.clock.advance(60)
    assert await handle.result() == "two"


async def test_one_that_was_begun_again_is_kept(boki_context: boki.testing.Context) -> None:
    """A rewind stands on records that are old: they are trimmed after its own end."""
    ctx = boki_context
    handle = await ended(ctx, "told", "one")
    await ctx.clock.advance(900)
    await handle.rewind()
    assert await handle.result() == "told!"
    await ctx.clock.advance(200)
    await sweep(ctx)
    assert (await left(ctx, handle))[0] >= 2
    assert (await read_history(ctx.logbook, journal_tag(handle.invocation_id))).entries
    await ctx.clock.advance(1_000)
    await sweep(ctx)
    assert await left(ctx, handle) == (0, 0)


async def test_many_end_at_once(boki_context: boki.testing.Context) -> None:
    """More than one page of them are trimmed in one look, each tag in the end as well."""
    ctx = boki_context
    handles = [await short.start(ctx, f"n{number}") for number in range(230)]
    for handle in handles:
        await handle.result()
    await ctx.clock.advance(1_100)
    await sweep(ctx)
    assert [await left(ctx, handle) for handle in handles] == [(0, 0)] * 230
    assert 0 not in await places(ctx, *handles)
    await ctx.clock.advance(DAY_S)
    await sweep(ctx)
    assert await places(ctx, *handles) == [0] * 230
    assert len((await ctx.logbook.read("!fe:1000")).records) == 1


async def places(ctx: boki.testing.Context, *handles: Handle[Any]) -> list[int]:
    """How many records the log says that their journals have had."""
    return [await place_of(ctx.logbook, journal_tag(handle.invocation_id)) for handle in handles]


@pytest.mark.parametrize("what", ["well", "killed"])
async def test_a_late_record_of_what_has_ended_is_refused_until_it_is_forgotten(
    boki_context: boki.testing.Context, what: str
) -> None:
    """An execution that was cut off may still have an append under way: the log knows the places for a day."""
    ctx = boki_context
    handle = await ended(ctx, what, "one")
    tag = journal_tag(handle.invocation_id)
    await sweep(ctx)
    await ctx.clock.advance(1_100)
    await sweep(ctx)
    assert await left(ctx, handle) == (0, 0)
    with pytest.raises(ConditionFailed):
        await ctx.logbook.append(b"late", tags=[tag], when=Expect(tag, count=0))
    await ctx.clock.advance(DAY_S - 1_300)
    await sweep(ctx)
    assert await places(ctx, handle) != [0]
    await ctx.clock.advance(400)
    await sweep(ctx)
    assert await places(ctx, handle) == [0]
    with pytest.raises(ConditionFailed):
        await ctx.logbook.append(b"later", tags=[tag], when=Expect(tag, count=1))


async def test_an_id_is_used_again_after_it_was_forgotten(boki_context: boki.testing.Context) -> None:
    """The new workflow counts its places from 0, also behind a record that came much too late."""
    ctx = boki_context
    handle = await ended(ctx, "told", "one")
    tag = journal_tag(handle.invocation_id)
    await ctx.clock.advance(DAY_S + 100)
    await sweep(ctx)
    assert await places(ctx, handle) == [0]
    late = encode_entry(Entry(7, 0, 0, 0, Began(), 1, 12345))
    await ctx.logbook.append(late, tags=[tag], when=Expect(tag, count=0))
    again = await short.start(ctx, "again", id="one", if_ended="again")
    assert await again.result() == "again"
    assert DONE.count("again") == 1
    assert await again.rewind(0) == 0
    assert await again.result() == "again"


async def test_long_workflows_begin_as_new(boki_context: boki.testing.Context) -> None:
    """At the point that the body offers, once it has done this many steps; it continues with the payload."""
    rounds: list[int] = []

    @workflow(continue_after=10)
    async def counting(count: int) -> int:
        rounds.append(count)
        while count < 100:
            await act(f"step {count}")
            count += 1
            flow.continue_if_long(count)
        return count

    handle = await counting.start(boki_context, 0, id="c")
    assert await handle.result() == 100
    assert len(DONE) == len(set(DONE)) == 100
    assert sorted(set(rounds)) == list(range(0, 101, 10))
    history = await read_history(boki_context.logbook, journal_tag(handle.invocation_id))
    assert history.continued is not None
    assert len(history.entries) <= 10


async def test_a_shorter_limit_does_not_change_what_was_done(boki_context: boki.testing.Context) -> None:
    """A replay comes past points at which the code of today would have begun as new."""

    @workflow(continue_after=1_000)
    async def changing(count: int) -> int:
        while count < 6:
            await act(f"step {count}")
            count += 1
            await flow.sleep(100)
            flow.continue_if_long(count)
        return count

    handle = await changing.start(boki_context, 0, id="c")
    await boki_context.clock.advance(250)
    changing.continue_after = 2
    assert await handle.result() == 6
    assert [f"step {n}" for n in range(6)] == DONE


def test_what_is_refused() -> None:
    """Times and limits that mean nothing."""

    async def nothing() -> None: ...

    for options in ({"keep_s": 0}, {"keep_s": "long"}, {"continue_after": 0}):
        with pytest.raises((ConfigError, InvalidArgument)):
            workflow(**options)(nothing)  # type: ignore[call-overload]


class OneByOne:
    """A LogBook none of whose records are in the cache, so that its pages have one record each."""

    def __init__(self, times: list[int]) -> None:
        self.records = [Record(number + 1, ("tag",), b"", None, time) for number, time in enumerate(times)]

    async def read(self, _tag: str, *, start: int, limit: int) -> Page:
        assert limit > 0
        first, *others = [record for record in self.records if record.seqnum >= start]
        return Page([first], first.next_seqnum, is_end=not others)


@pytest.mark.parametrize(("until_us", "count"), [(0, 0), (4, 3), (100, 5)])
async def test_all_that_is_old_is_looked_at_however_short_the_pages_are(until_us: int, count: int) -> None:
    """A short page was taken for the end: one look in two seconds, of some records, fell behind where some hundred
    workflows end in a second."""
    logbook = OneByOne([1, 2, 3, 4, 5])
    pages = _ended_before(cast("LogBook", logbook), "tag", 0, until_us)
    found = [[record.seqnum for record in page] async for page in pages]
    assert found == ([list(range(1, count + 1))] if count else [])


@pytest.mark.parametrize("in_block", [False, True])
async def test_a_life_whose_journal_is_forgotten_under_it_continues(
    boki_context: boki.testing.Context, in_block: bool
) -> None:
    """A sweep that looked at the call before it was started again forgets what was left of the life before. The records
    of the new one were always refused: they expect a count that the log does not know any more."""
    ctx = boki_context

    @step
    async def sweep_late() -> None:
        await forget_tags(ctx.logbook, last.next_seqnum, [tag])
        assert await place_of(ctx.logbook, tag) == 0

    @workflow(keep_s=1_000)
    async def again(n: int) -> str:
        if n and not DONE:
            DONE.append("swept")
            await sweep_late()
        if in_block:
            await flow.store.object("counter").increment("n", 1)
        return await act("last")

    handle = await again.start(ctx, 0, id="one")
    await handle.result()
    DONE.clear()
    tag = journal_tag(handle.invocation_id)
    last = await ctx.logbook.check_tail(tag)
    assert last is not None
    await again.start(ctx, 1, id="one", if_ended="again")
    await ctx.clock.advance(60)
    assert (await handle.status()).status == "done"
    assert await handle.result() == "last"


async def test_an_id_is_used_again_of_whose_journal_a_part_was_trimmed(boki_context: boki.testing.Context) -> None:
    """The first record that is left says no more than where its writer began. The next life took a place for its own
    that is not, was refused there, and began again and again."""
    ctx = boki_context
    handle = short.handle(ctx, "one")
    tag = journal_tag(handle.invocation_id)
    lasts = [await ctx.logbook.append(encode_entry(Entry(7, 0, 0, 1, Began(), 1, 5)), [tag]) for _ in range(5)]
    await ctx.logbook.trim(lasts[3], tag=tag)
    await short.start(ctx, "again", id="one", if_ended="again")
    for _ in range(1_000):
        await asyncio.sleep(0)
    await ctx.clock.advance(60)
    assert (await handle.status()).status == "done"
    history = await read_history(ctx.logbook, tag)
    assert history.place == await place_of(ctx.logbook, tag)
    assert [type(entry.fact) for entry in history.entries][:1] == [Done]
    assert await handle.rewind(0) == 0
    assert await handle.result() == "again"
