"""Checkpoints, what is trimmed, the past by seqnum and by time, histories and forks."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

import pytest

import boki.testing
from boki import MAX_SEQNUM, InvalidArgument, Page, Trimmed, WrongType
from boki.libs.bokistore import ConflictError, KeyExpired, Store, Version, saving
from boki.libs.bokistore.json_values import MISSING
from boki.libs.bokistore.memory import Memory
from boki.libs.bokistore.past import History
from boki.libs.bokistore.queries import WHOLE
from boki.libs.bokistore.reading import SAVE_AFTER
from boki.libs.bokistore.records import checkpoints_tag, row_tag
from boki.libs.bokistore.requests import Requests
from boki.libs.fold.steps import Step, Steps, drive
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokistore.interleaving import Process, logbook


async def count_up(ctx: boki.testing.Context, name: str, times: int) -> None:
    """Increment, and wait for what is done beside."""
    for _ in range(times):
        await Store(ctx).object(name).increment("n")
    await ctx.logbook.session.shared(Memory).come_to_rest()


async def versions_of(store: Store, name: str) -> list[Version]:
    return [version async for version in store.history(name)]


async def row_of(ctx: boki.testing.Context, name: str) -> list[int]:
    return [record.seqnum for record in (await ctx.logbook.read(row_tag(name), limit=10_000)).records]


@asynchronous
async def test_an_object_with_many_updates_is_saved_and_opened_with_few_reads() -> None:
    """By the process that has applied too many records; nothing is trimmed unless the store says so."""
    async with boki.testing.context() as ctx:
        await count_up(ctx, "x", 2 * SAVE_AFTER + 10)
        checkpoints = (await ctx.logbook.read(checkpoints_tag("x"))).records
        assert len(checkpoints) == 2
        assert len(await row_of(ctx, "x")) == 2 * SAVE_AFTER + 10
        memory = ctx.logbook.session.shared(Memory)
        memory.forget()
        assert await Store(ctx).object("x").get("n") == 2 * SAVE_AFTER + 10
        row = memory.reader("test").rows.find("x")
        assert row is not None
        assert row.replayed == 10


@asynchronous
async def test_what_is_older_than_the_history_is_trimmed() -> None:
    """And can no longer be read; what exists is as before, and conditions still hold."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.configure(history_s=3600)
        await count_up(ctx, "x", SAVE_AFTER)
        early = await store.object("x").version()
        await ctx.clock.advance(3601)
        await count_up(ctx, "x", SAVE_AFTER)
        middle = await store.object("x").version()
        rows = await row_of(ctx, "x")
        assert rows[0] == early
        assert len(rows) == SAVE_AFTER + 1
        assert await store.at(middle - 5).object("x").get("n") == 2 * SAVE_AFTER - 5
        ctx.logbook.session.shared(Memory).forget()
        with pytest.raises(Trimmed, match="longer history"):
            await store.at(early - 5).object("x").get("n")
        await ctx.clock.advance(3601)
        await count_up(ctx, "x", SAVE_AFTER)
        assert (await row_of(ctx, "x"))[0] == middle
        ctx.logbook.session.shared(Memory).forget()
        async with store.transaction() as txn:
            assert await txn.object("x").increment("n") == 3 * SAVE_AFTER + 1
        versions = await versions_of(store, "x")
        assert [version.value["n"] for version in versions][-3:] == [3 * SAVE_AFTER + 1 - n for n in (2, 1, 0)]


@asynchronous
async def test_a_key_outlives_the_past_that_its_result_needs() -> None:
    """Then a repetition changes nothing and says that the first one counts; another request is refused as such."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.configure(history_s=0)
        await store.object("x").increment("n", key="update")
        async with store.transaction(key="transaction") as txn:
            await txn.object("x").increment("n")
        await count_up(ctx, "x", 2 * SAVE_AFTER)
        before = await store.object("x").get("n")
        for _ in range(2):
            with pytest.raises(KeyExpired, match="'update' in book 'test' at seqnum") as update:
                await store.object("x").increment("n", key="update")
            with pytest.raises(KeyExpired, match="its result was trimmed") as transaction:
                async with store.transaction(key="transaction") as txn:
                    await txn.object("x").increment("n")
            assert (update.value.outcome, transaction.value.outcome) == ("not_applied", "not_applied")
            assert update.value.seqnum < transaction.value.seqnum
            ctx.logbook.session.shared(Memory).forget()
        assert await store.object("x").get("n") == before


def test_a_process_that_has_slept_through_a_trim_begins_with_the_checkpoint() -> None:
    """It reads what exists, and its updates and transactions count."""
    book = logbook()
    one, other = Process(book), Process(book)
    one.run(saving.configure(0))
    for process in (one, other):
        assert process.run(Requests(process.direct, "x", None).increment("n", 1, None)) in {1, 2}
    for number in range(3, 60):
        assert one.run(Requests(one.direct, "x", None).increment("n", 1, None)) == number
        if number % 10 == 0:
            one.run(saving.save(one.reader, "x"))
    assert len(book.read("!o:x").records) == 10
    assert len(book.read("!oc:x").records) == 1
    txn = other.begin()
    assert other.run(Requests(txn, "x", None).increment("n", 1, None)) == 60
    other.run(txn.commit())
    other.run(saving.save(other.reader, "x"))  # on an old idea of what was saved: the faster one counts
    assert len(book.read("!oc:x").records) == 1
    assert one.run(Requests(one.direct, "x", None).get("n", None)) == 60


def test_a_process_that_knows_less_does_not_save_over_one_that_knows_more() -> None:
    """Else whoever begins with its checkpoint misses what was trimmed in between."""
    book = logbook()
    one, other = Process(book), Process(book)
    one.run(saving.configure(0))
    assert other.run(Requests(other.direct, "x", None).increment("n", 1, None)) == 1
    for number in range(2, 20):
        assert one.run(Requests(one.direct, "x", None).increment("n", 1, None)) == number
    one.run(saving.save(one.reader, "x"))
    for _ in range(2):  # the first time it is told of the other one
        other.run(saving.save(other.reader, "x"))
    assert len(book.read("!oc:x").records) == 1
    cold = Process(book)
    assert cold.run(Requests(cold.direct, "x", None).get("n", None)) == 19


@asynchronous
async def test_the_past_is_what_it_was() -> None:
    """At each seqnum and time, whatever was cached, checkpointed or deleted since."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        moments: list[tuple[int, float, Any]] = []
        for number in range(30):
            await ctx.clock.advance(10)
            if number == 20:
                await store.object("x").delete()
            else:
                await store.object("x").append("l", number)
            value = await store.object("x").get()
            record = await ctx.logbook.get(await store.object("x").version())
            moments.append((record.seqnum, record.time / 1e6, value))
        for forget in (False, True):
            if forget:
                ctx.logbook.session.shared(Memory).forget()
            for seqnum, time_s, value in moments:
                assert await store.at(seqnum).object("x").get() == value
                assert await store.at(time=time_s).object("x").get() == value
                assert await store.at(time=time_s + 9).object("x").get() == value
                assert await store.at(time=datetime.fromtimestamp(time_s + 5, UTC)).object("x").get() == value
        assert await store.at(0).object("x").get() is None
        assert await store.at(time=0).object("x").get() is None
        assert await store.at(time=4e9).object("x").get() == moments[-1][2]
        assert await store.at(1 << 60).object("x").get() == moments[-1][2]


@asynchronous
async def test_moments_that_are_none() -> None:
    """Exactly one of a seqnum and a time, of the right type."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        for arguments in (
            {},
            {"seqnum": 1, "time": 1.0},
            {"seqnum": -1},
            {"seqnum": 1.5},
            {"time": "noon"},
            {"time": -1},
        ):
            with pytest.raises((InvalidArgument, WrongType)):
                store.at(**arguments)


@asynchronous
async def test_a_history_names_what_wrote_each_version() -> None:
    """In order, with time, call, and the objects that changed with it; what did not fit is no version."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        assert await versions_of(store, "x") == []
        await store.object("x").set("n", 1)
        await ctx.clock.advance(60)
        with pytest.raises(boki.BokiError):
            await store.object("x").set("n.m", 1)
        async with store.transaction() as txn:
            await txn.object("x").set("n", 2)
            await txn.object("y").set("n", 2)
        await Store(ctx.logbook).object("x").delete()
        versions = await versions_of(store, "x")
        assert [version.value for version in versions] == [{"n": 1}, {"n": 2}, None]
        assert [version.exists for version in versions] == [True, True, False]
        assert [version.invocation for version in versions] == [ctx.invocation_id, ctx.invocation_id, ""]
        assert [version.is_transaction for version in versions] == [False, True, False]
        assert versions[1].objects == ("x", "y")
        assert versions[1].seqnum == txn.seqnum
        assert 60 <= versions[1].time_s - versions[0].time_s < 61


@asynchronous
async def test_a_history_has_more_than_one_page() -> None:
    """From the first to the last."""
    async with boki.testing.context() as ctx:
        await count_up(ctx, "x", 600)
        assert [version.value["n"] for version in await versions_of(Store(ctx), "x")] == list(range(1, 601))


@pytest.mark.parametrize("history_s", [None, 0])
@asynchronous
async def test_a_history_may_begin_late(history_s: float | None) -> None:
    """With what is kept from there on: before a record, at it, and where a trim has taken away what was wanted."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.configure(history_s=history_s)
        await store.object("x").set("n", 0)
        await count_up(ctx, "x", SAVE_AFTER + 20)
        await store.object("y").set("n", 1)
        async with store.transaction() as txn:  # several records
            for number in range(20):
                await txn.object(f"z{number}").set("n", 1)
            await txn.object("x").set("m", 1)
        await count_up(ctx, "x", 20)
        every = await versions_of(store, "x")
        rows = await row_of(ctx, "x")
        for start in [1, *rows[:3], *rows[-30:], rows[-1] + 1, MAX_SEQNUM]:
            expected = [version for version in every if version.seqnum >= start]
            for forgets in (False, True):
                if forgets:
                    ctx.logbook.session.shared(Memory).forget()
                assert [version async for version in store.history("x", start=start)] == expected
        trial = await store.fork("trial")
        await trial.object("x").set("n", 0)
        [version] = await versions_of(trial, "x")
        assert [one async for one in trial.history("x", start=version.seqnum)] == [version]
        for wrong in (-1, True, 1.5, MAX_SEQNUM + 1):
            with pytest.raises(WrongType, match="start must be a seqnum"):
                [one async for one in store.history("x", start=wrong)]  # type: ignore[arg-type]


def test_a_history_that_begins_late_reads_little() -> None:
    """As much as opening the object, and not all that was before."""
    process = Process(logbook())
    count_to(process, {}, 2_000)
    seqnums = [record.seqnum for record in process.book.read(row_tag("x"), start=0, limit=10_000).records]
    process.run(saving.save(process.reader, "x"))
    count_to(process, dict.fromkeys(range(2_000), 0), 2_010)
    late, pages = History(Process(process.book).reader, "x", seqnums[-1] + 2), list[Page]()

    def carry_out(read: Step) -> object:
        answer = process.run(alone(read))
        pages.extend([answer] if isinstance(answer, Page) else [])
        return answer

    assert [version.value["n"] for version in drive(late.page(), carry_out)] == list(range(2_001, 2_011))
    assert sum(len(page.records) for page in pages) <= 25


@asynchronous
async def test_a_fork_shares_the_past_and_nothing_that_comes() -> None:
    """Both continue; transactions, histories and forks of the fork included."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        for name in ("a", "b"):
            await store.object(name).set("n", 1)
        records = len((await ctx.logbook.read()).records)
        fork = await store.fork("copy")
        assert fork.book == "copy"
        assert len((await ctx.logbook.read()).records) == records + 1
        await store.object("a").set("n", 10)
        assert await fork.object("a").get("n") == 1
        async with fork.transaction() as txn:
            assert await txn.object("a").increment("n") == 2
            await txn.object("c").set("n", await txn.object("b").get("n"))
        assert await store.object("a").get("n") == 10
        assert await store.object("c").get() is None
        deeper = await fork.fork("deeper")
        await fork.object("b").set("n", 5)
        assert await deeper.object("a").get("n") == 2
        assert await deeper.object("b").get("n") == 1
        ctx.logbook.session.shared(Memory).forget()
        assert await deeper.object("b").get("n") == 1
        assert await deeper.object("b").increment("n") == 2
        assert [version.value for version in await versions_of(deeper, "b")] == [{"n": 2}]
        again = await store.fork("copy")
        assert await again.object("a").get("n") == 2


@asynchronous
async def test_a_fork_of_the_past() -> None:
    """As of a seqnum; and its own past begins with that."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        seqnums = []
        for number in range(3):
            await ctx.clock.advance(10)
            await store.object("x").set("n", number)
            seqnums.append(await store.object("x").version())
        fork = await store.fork("copy", at=seqnums[1])
        assert await fork.object("x").get("n") == 1
        times = [(await ctx.logbook.get(seqnum)).time / 1e6 for seqnum in seqnums]
        assert await fork.at(time=times[0]).object("x").get("n") == 0
        assert await fork.at(seqnums[0]).object("x").get("n") == 1  # of another book, maybe of another log
        future = await store.fork("future", at=1 << 60)
        await store.object("x").set("n", 9)
        assert await future.object("x").get("n") == 2


@asynchronous
async def test_forks_that_cannot_be() -> None:
    """Into a book that has records, as another moment than before, or with a name that is none."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("n", 1)
        await ctx.logbook_named("used").append(b"something")
        with pytest.raises(InvalidArgument, match="has records already"):
            await store.fork("used")
        await store.fork("copy", at=await store.object("x").version())
        with pytest.raises(InvalidArgument, match="a fork of book 'test'"):
            await store.fork("copy", at=17)
        with pytest.raises(InvalidArgument, match="a fork of book 'test'"):
            await Store(ctx.logbook_named("other")).fork("copy")
        for name, at in (("a b", 0), ("fine", -1)):
            with pytest.raises(InvalidArgument):
                await store.fork(name, at=at)


@asynchronous
async def test_a_fork_whose_book_was_trimmed_is_the_same_fork() -> None:
    """Only the record that says what it is a copy of is left: making it again changes nothing."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("n", 1)
        fork = await store.fork("copy")
        await fork.object("y").set("n", 2)
        await fork.way.logbook.trim(await fork.object("y").version() + 1)
        again = await store.fork("copy")
        assert await again.object("x").get("n") == 1
        with pytest.raises(InvalidArgument, match="a fork of book 'test'"):
            await store.fork("copy", at=17)


@pytest.mark.parametrize("at", [0, 1 << 60])
@asynchronous
async def test_what_a_fork_needs_is_kept_until_it_is_released(at: int) -> None:
    """The parent is trimmed above that only then; a fork that comes too late says so. One as of a moment that has not
    come yet is a fork of now.
    """
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.configure(history_s=0)
        await count_up(ctx, "x", 10)
        fork = await store.fork("copy", at=at)
        await count_up(ctx, "x", 3 * SAVE_AFTER)
        ctx.logbook.session.shared(Memory).forget()
        assert await fork.object("x").get("n") == 10
        await store.release("copy")
        await count_up(ctx, "x", SAVE_AFTER)
        ctx.logbook.session.shared(Memory).forget()
        late = await Store(ctx.logbook).fork("late", at=(await row_of(ctx, "x"))[0] - 1)
        deeper = await late.fork("deeper")
        for too_late in (late, deeper):
            with pytest.raises(Trimmed, match="object 'x' of book 'test' was trimmed"):
                await too_late.object("x").get("n")


def test_what_a_book_was_before_it_was_deleted_is_not_taken_for_nothing() -> None:
    """Neither by a process that has never seen it: as of then it is trimmed, and from then on there is nothing."""
    process, cold = Process(book := logbook()), Process(book)
    values: dict[int, int] = {}
    count_to(process, values, 40)
    before = max(values)
    reading = cold.begin()
    assert cold.run(reading.look("y", WHOLE)) is MISSING
    count_to(process, values, 41)
    book.delete()
    assert process.run(process.reader.view_at("x", before)).value == {"n": 40}
    with pytest.raises(ConflictError):
        cold.run(reading.look("x", WHOLE))
    for _ in range(2):
        with pytest.raises(Trimmed, match="longer history"):
            cold.run(cold.reader.view_at("x", before - 1))
        assert cold.run(cold.direct.look("x", WHOLE)) is MISSING
    assert cold.run(Requests(cold.direct, "x", None).increment("n", 1, "k")) == 1
    assert cold.run(Requests(Process(book).direct, "x", None).increment("n", 1, "k")) == 1


@asynchronous
async def test_a_fork_of_a_book_that_was_deleted_says_so() -> None:
    """It does not begin again with nothing."""
    async with boki.testing.context() as ctx:
        store = Store(ctx)
        await store.object("x").set("n", 40)
        fork = await store.fork("copy")
        await ctx.logbook.delete()
        ctx.logbook.session.shared(Memory).forget()
        for work in (fork.object("x").get("n"), fork.object("x").increment("n")):
            with pytest.raises(Trimmed):
                await work


@pytest.mark.parametrize("saved", [0, 20])
@pytest.mark.parametrize("moment", range(9))
def test_a_history_that_a_trim_overtakes_continues_with_what_is_left(saved: int, moment: int) -> None:
    """Whichever read it comes after: every version that is told has the value that the object had, up to the newest."""
    writer, reader = Process(book := logbook()), Process(book)
    writer.run(saving.configure(0))
    values: dict[int, int] = {}
    if saved:
        count_to(writer, values, saved)
        writer.run(saving.save(writer.reader, "x"))
    count_to(writer, values, 300)
    history, reads = History(reader.reader, "x"), count()

    def carry_out(read: Step) -> object:
        answer = reader.run(alone(read))
        if next(reads) == moment:
            writer.run(saving.save(writer.reader, "x"))
            count_to(writer, values, 310)
        return answer

    told: dict[int, int] = {}
    while not history.is_end:
        told |= {version.seqnum: version.value["n"] for version in drive(history.page(), carry_out)}
    assert told.items() <= values.items()
    assert max(told.values()) >= 300


def count_to(process: Process, values: dict[int, int], last: int) -> None:
    """Increment the object x until it is there; `values`: which version had which value."""
    while len(values) < last:
        process.run(Requests(process.direct, "x", None).increment("n", 1, None))
        row = process.reader.rows.find("x")
        assert row is not None
        values[row.newest.version] = len(values) + 1


def alone(read: Step) -> Steps[object]:
    return (yield read)
