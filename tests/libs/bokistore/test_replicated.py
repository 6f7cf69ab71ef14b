"""Replicated objects: methods applied in the order of the log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import boki.testing
from boki import InvalidArgument, VersionTooNew
from boki.libs.bokistore import (
    ReplicatedObject,
    Store,
    WrongShape,
    accessor,
    check_deterministic,
    machines,
    mutator,
)
from boki.libs.bokistore.blocking import Store as BlockingStore
from boki.libs.bokistore.machines import SAVE_AFTER, Machine, Machines
from boki.libs.fold.steps import Step, Steps
from tests.libs.bokiqueue.running import asynchronous
from tests.libs.bokistore.auction import (
    Auction,
    Careful,
    Careless,
    Forgetful,
    Hoard,
    LaterAuction,
    Named,
    Shared,
    Words,
)
from tests.libs.bokistore.interleaving import Process, logbook


@asynchronous
async def test_results_are_what_the_order_of_the_log_says() -> None:
    """Of many bids at the same time one of each height is told that it is the best so far."""
    async with boki.testing.context() as ctx:
        auction = Store(ctx).replicated("a", Auction)
        assert await auction.ask(Auction.winner) == ""
        results = await asyncio.gather(*(auction.call(Auction.bid, f"w{n}", amount=n % 5) for n in range(20)))
        assert results.count(True) <= 4
        assert await auction.call(Auction.bid, "ada", 30) is True
        assert await auction.call(Auction.bid, "bob", 30) is False
        assert await Store(ctx).replicated("a", Auction).ask(Auction.winner) == "ada"


@asynchronous
async def test_what_a_mutator_raises_is_its_result_and_changes_nothing() -> None:
    """In no process."""
    async with boki.testing.context() as ctx:
        auction = Store(ctx).replicated("a", Auction)
        with pytest.raises(WrongShape, match="ValueError: a bid is not negative; nothing was changed"):
            await auction.call(Auction.bid, "ada", -1)
        with pytest.raises(WrongShape, match="TypeError"):
            await auction.call(Auction.bid, "ada", "many")  # type: ignore[arg-type]
        assert await auction.ask(Auction.all_bids) == []
        ctx.logbook.session.shared(Machines).forget()
        assert await Store(ctx).replicated("a", Auction).ask(Auction.all_bids) == []


class Leaver(ReplicatedObject):
    """One of its methods ends the process that carries it out."""

    def __init__(self) -> None:
        self.calls = 0

    @mutator
    def leave(self) -> None:
        self.calls += 1
        raise SystemExit("no more")

    @accessor
    def count(self) -> int:
        return self.calls


@asynchronous
async def test_a_mutator_that_exits_ends_no_process() -> None:
    """The call stays in the log: each process that came to it ended, and so did those in its place."""
    async with boki.testing.context() as ctx:
        with pytest.raises(WrongShape, match="SystemExit: no more; nothing was changed"):
            await Store(ctx).replicated("a", Leaver).call(Leaver.leave)
        ctx.logbook.session.shared(Machines).forget()
        assert await Store(ctx).replicated("a", Leaver).ask(Leaver.count) == 0


@asynchronous
async def test_answers_are_copies() -> None:
    """What is done with them changes no state."""
    async with boki.testing.context() as ctx:
        auction = Store(ctx).replicated("a", Auction)
        await auction.call(Auction.bid, "ada", 1)
        (await auction.ask(Auction.all_bids)).append(["forged", 99])
        assert await auction.ask(Auction.all_bids) == [["ada", 1]]


@asynchronous
async def test_it_is_saved_and_the_calls_that_are_in_it_are_trimmed() -> None:
    """Whoever begins later, and whoever has slept through it, comes to the same state."""
    async with boki.testing.context() as ctx:
        auction = Store(ctx).replicated("a", Auction)
        for number in range(SAVE_AFTER + 10):
            await auction.call(Auction.bid, "ada", number)
        assert len((await ctx.logbook.read("!or:a")).records) == 10
        expected = await auction.ask(Auction.all_bids)
        ctx.logbook.session.shared(Machines).forget()
        assert await Store(ctx).replicated("a", Auction).ask(Auction.all_bids) == expected


@asynchronous
async def test_calls_of_newer_code_stop_the_older() -> None:
    """It would carry them out differently; older calls are carried out by newer code."""
    async with boki.testing.context() as ctx:
        old, new = Store(ctx).replicated("a", Auction), Store(ctx).replicated("a", LaterAuction)
        await old.call(Auction.bid, "ada", 1)
        assert await new.ask(LaterAuction.winner) == "ada"
        await new.call(LaterAuction.bid, "bob", 2)
        with pytest.raises(VersionTooNew, match="version 2 of Auction"):
            await old.ask(Auction.winner)


def test_processes_of_new_code_agree_on_the_calls_of_older_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has carried them out itself takes what older code has saved, as one that begins later does."""
    monkeypatch.setattr(machines, "SAVE_AFTER", 4)
    process, new = Process(logbook()), Machine("a", LaterAuction)
    old, another = Machine("a", Auction), Machine("a", Auction)
    for number in range(4):
        process.run(machines.call(old, "bid", ("ada", number), {}, b"%d" % number))
    process.run(machines.call(another, "bid", ("bob", 5), {}, b"bob"))
    process.run(machines.ask(new, "all_bids", (), {}))
    process.run(machines.save(old))  # without the last bid
    bids = process.run(machines.ask(new, "all_bids", (), {}))
    assert bids == [["ada", 0], ["ada", 1], ["ada", 2], ["ada", 3], ["bob", 50]]
    assert process.run(machines.ask(Machine("a", LaterAuction), "all_bids", (), {})) == bids


@asynchronous
async def test_what_cannot_be_called() -> None:
    """A mutator is not asked, an accessor not called, and anything else neither; arguments are JSON."""
    async with boki.testing.context() as ctx:
        auction = Store(ctx).replicated("a", Auction)
        for work in (auction.ask(Auction.bid, "x", 1), auction.call(Auction.winner), auction.call(Auction.helper)):
            with pytest.raises(InvalidArgument, match="Auction has no"):
                await work
        with pytest.raises(InvalidArgument, match="type bytes"):
            await auction.call(Auction.bid, b"x", 1)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match="ReplicatedObject"):
            Store(ctx).replicated("a", int)  # type: ignore[type-var]
        with pytest.raises(InvalidArgument, match="made without arguments in every process, and missing a required"):
            Store(ctx).replicated("a", Named)
        with pytest.raises(InvalidArgument, match=r"give the method itself, such as Auction.bid, not 'bid'"):
            await auction.call("bid", "x", 1)  # type: ignore[arg-type]
        assert (await ctx.logbook.read()).records == []


@asynchronous
async def test_records_of_strangers_are_passed_by() -> None:
    """And a deleted book begins again."""
    async with boki.testing.context() as ctx:
        auction = Store(ctx).replicated("a", Auction)
        await auction.call(Auction.bid, "ada", 1)
        await ctx.logbook.append(b"junk", tags=["!or:a"])
        assert await auction.call(Auction.bid, "bob", 2)
        await ctx.logbook.delete()
        assert await auction.ask(Auction.all_bids) == []
        assert await auction.call(Auction.bid, "eve", 1)
        assert await auction.ask(Auction.all_bids) == [["eve", 1]]


def test_a_caller_that_begins_late_skips_no_call_of_another_one() -> None:
    """Its answer to where a process begins comes when others have gone on: they read again what it has undone."""
    process, machine = Process(logbook()), Machine("a", Auction)
    late = machines.ask(machine, "all_bids", (), {})
    asked = next(late)
    answer = process.run(_alone(asked))
    process.run(machines.call(machine, "bid", ("ada", 1), {}, b"1"))
    reading = machines.call(machine, "bid", ("bob", 2), {}, b"2")
    page = process.run(_alone(reading.send(process.run(_alone(next(reading))))))
    asked = late.send(answer)
    while True:
        try:
            page = process.run(_alone(reading.send(page)))
        except StopIteration as end:
            assert end.value is True
            break
    while True:
        try:
            asked = late.send(process.run(_alone(asked)))
        except StopIteration as end:
            assert end.value == [["ada", 1], ["bob", 2]]
            break
    assert process.run(machines.ask(machine, "all_bids", (), {})) == [["ada", 1], ["bob", 2]]


def _alone(step: Step) -> Steps[Any]:
    return (yield step)


@asynchronous
async def test_a_state_that_cannot_be_saved_takes_no_result_from_a_call() -> None:
    """The call was carried out: an error would say that it was not."""
    async with boki.testing.context() as ctx:
        hoard = Store(ctx).replicated("h", Hoard)
        for number in range(SAVE_AFTER + 10):
            assert await hoard.call(Hoard.keep) == number + 1
        assert await hoard.ask(Hoard.count) == SAVE_AFTER + 10


@pytest.mark.parametrize(("kind", "first", "next_one", "result"), [(Words, ["a"], ["b"], 1), (Shared, [], [], 6)])
def test_a_state_that_would_come_back_as_another_one_is_not_saved(
    kind: type[ReplicatedObject], first: list[str], next_one: list[str], result: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has loaded it would come to other results than one that has replayed the calls."""
    monkeypatch.setattr(machines, "SAVE_AFTER", 3)
    process, machine = Process(logbook()), Machine("w", kind)
    for number in range(5):
        process.run(machines.call(machine, "add", first, {}, b"%d" % number))
        process.run(machines.save(machine))
    late = Machine("w", kind)
    assert process.run(machines.call(late, "add", next_one, {}, b"x")) == result
    assert process.run(machines.ask(late, "total", [], {})) == process.run(machines.ask(machine, "total", [], {}))


def test_plain_functions() -> None:
    """The same, without `await`."""
    with boki.testing.blocking_context() as ctx:
        auction = BlockingStore(ctx).replicated("a", Auction)
        assert auction.call(Auction.bid, "ada", 1)
        assert auction.ask(Auction.winner) == "ada"


def test_determinism_is_checked_in_processes_of_their_own() -> None:
    """What depends on hashes or chance is found; what does not, passes."""
    check_deterministic(Auction, [("bid", ["ada", 1]), ("bid", ["bob", -1]), ("bid", ["bob", 3])])
    with pytest.raises(AssertionError, match="Careless is not deterministic"):
        check_deterministic(Careless, [("note", ["a", "b", "c", "d", "e"])])
    check_deterministic(Careful, [("add", ["a"]), ("add", ["a"])])
    with pytest.raises(AssertionError, match=r"Forgetful is not deterministic: .* the state saved before each call"):
        check_deterministic(Forgetful, [("add", ["a"]), ("add", ["b"])])
    with pytest.raises(InvalidArgument, match=r"state\.counts is of type Counter, which JSON does not give back"):
        check_deterministic(Words, [("add", ["a"])])
    with pytest.raises(AssertionError, match="not deterministic"):
        check_deterministic(Careless, [("draw", [])])
