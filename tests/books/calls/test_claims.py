"""Claims to the calls of lost owners: records in the name of an owner, written by engines whose folds are stale."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

import msgspec
import pytest

from boki.api.log_calls import records_of
from boki.books.calls.call_book import CallBook
from boki.books.calls.inquiries import Inquiries
from boki.books.calls.ledger import (
    BOOK,
    CODEC,
    Accepted,
    Finished,
    Ledger,
    TakenOver,
    acceptance_tags,
    request_hash,
)
from boki.books.calls.lives import carry_forward
from boki.books.calls.runs import Runs
from boki.books.calls.trimming import Trimmer
from boki.books.calls.waiting import Owner, Unfinished
from boki.log.limits import Limits
from boki.log.operations import Found, Read
from boki.protocol.calls import PINNED, Call, ChosenId, Move, Outcome, Suspension, WakeOn
from tests.books.calls.call_world import CallWorld, FaultyPort, Gate, WatchedLog, a_call, now_us, run, time_passes
from tests.books.calls.test_suspended_calls import INBOX, Script, asleep, done, put
from tests.books.calls.test_taken_over import Cluster, Engine, with_engines

LOST, HEIR, SECOND_HEIR, THIRD, MOVER = (Owner(name, number) for number, name in enumerate("abcde", 1))
ALIVE = {SECOND_HEIR, THIRD, MOVER}
DAY_US = 24 * 3600 * 10**6

ORDER = ("third folds", "third carries", "mover folds", "mover moves", "heir claims", "second heir claims")
AFTER = {"third carries": "third folds", "mover moves": "mover folds", "second heir claims": "heir claims"}


def every_order(done_before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All orders of the steps in which each comes after the one that it depends on."""
    if len(done_before) == len(ORDER):
        yield done_before
    for step in ORDER:
        if step not in done_before and AFTER.get(step, step) in (*done_before, step):
            yield from every_order((*done_before, step))


@contextmanager
def unconditional_carrying() -> Iterator[None]:
    """Calls are carried as earlier versions did: whatever has become of their owners."""

    async def carry(self: CallBook, carried: Accepted, expected_seqnum: int) -> bool:
        return await self.append_after(carried, expected_seqnum, acceptance_tags(carried))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CallBook, "carry", carry)
        yield


def pinned_call() -> Call:
    """A call that can be moved to another version."""
    chosen = ChosenId("start", attributes={PINNED: 1})
    return msgspec.structs.replace(a_call(1), chosen=chosen)


def acceptance(state: Unfinished) -> Accepted:
    """What the owner that will be lost has accepted."""
    call = pinned_call()
    entry = Accepted(call, request_hash(call, DAY_US), DAY_US, owner=LOST)
    if state == "accepted":
        return entry
    suspension = Suspension(now_us() + DAY_US, (WakeOn("book", INBOX, 1),))
    return msgspec.structs.replace(entry, state=state, suspension=suspension, runs=Runs(1, 5, 6))


class History:
    """Engines over one log, each of which folds when it is told to."""

    def __init__(self) -> None:
        self.log = WatchedLog(Limits())
        self.books = {owner: self.book(owner) for owner in (LOST, HEIR, SECOND_HEIR, THIRD, MOVER)}

    def book(self, owner: Owner) -> CallBook:
        return CallBook(FaultyPort(self.log), owner, clock=now_us)

    async def take(self, step: str) -> None:
        """Carry out one step."""
        third, mover = self.books[THIRD], self.books[MOVER]
        match step:
            case "third folds":
                await third.recover()
            case "third carries":
                for waiting in list(third.ledger.waiting.values()):
                    await Trimmer(third).carry(waiting)
            case "mover folds":
                await mover.recover()
            case "mover moves":
                runs = mover.ledger.waiting[a_call(1).id].attempts
                await Inquiries(mover, 60.0, now_us).move(a_call(1).id, Move(2, runs))
            case "heir claims":
                await self.books[HEIR].take_over(LOST)
            case "second heir claims":
                await self.books[SECOND_HEIR].take_over(HEIR)

    async def play(self, order: tuple[str, ...], state: Unfinished) -> None:
        """The owner accepts a call, and the steps follow."""
        entry = acceptance(state)
        await self.books[LOST].accept(entry, None)
        for step in order:
            await self.take(step)

    async def owners(self) -> set[Owner]:
        """The owners of all calls, as every engine that is alive sees them, one that starts from a stale checkpoint,
        and one that folds the whole book.
        """
        await self.books[THIRD].checkpoint()
        new, whole = self.book(Owner("new", 9)), Ledger()
        for record in records_of(self.found()):
            whole.apply(record.seqnum, record.time, CODEC.decode(record.data))
        ledgers = [whole]
        for book in (new, *(self.books[owner] for owner in sorted(ALIVE))):
            await book.recover()
            ledgers.append(book.ledger)
        assert all(dict(each.waiting) == dict(whole.waiting) for each in ledgers)
        return set(whole.owners())

    async def watch(self) -> None:
        """What the watch over lost owners does at each engine, once."""
        for me in sorted(ALIVE):
            for owner in self.books[me].ledger.owners():
                if owner not in ALIVE:
                    await self.books[me].take_over(owner)

    def found(self) -> Found:
        """The book."""
        answer = self.log.answer(Read(BOOK, limit=1_000), now_us())
        assert isinstance(answer, Found)
        return answer

    def claims(self) -> list[TakenOver]:
        """In order."""
        entries = [CODEC.decode(record.data) for record in records_of(self.found())]
        return [entry for entry in entries if isinstance(entry, TakenOver)]


@pytest.mark.parametrize("state", ["accepted", "suspended"])
def test_a_call_never_falls_back_to_a_lost_owner(state: Unfinished) -> None:
    """Calls are carried and moved by engines that know of no claim, or of the first one, in every order."""

    async def scenario() -> None:
        for order in every_order():
            history = History()
            await history.play(order, state)
            assert await history.owners() == {SECOND_HEIR}, order
            assert len(history.claims()) == 2, order
            (waiting,) = history.books[THIRD].ledger.waiting.values()
            has_moved = order.index("mover moves") < order.index("heir claims") or waiting.attributes == {PINNED: 2}
            assert has_moved, "a move that met a claim is repeated for the heir"

    run(scenario())


@pytest.mark.parametrize("state", ["accepted", "suspended"])
def test_what_earlier_versions_give_back_to_a_lost_owner_is_claimed_again(state: Unfinished) -> None:
    """Without the condition calls fall back, which the test above would notice; one look at each engine ends that."""

    async def scenario() -> None:
        fallen_back = 0
        for order in every_order():
            history = History()
            with unconditional_carrying():
                await history.play(order, state)
            owners = await history.owners()
            fallen_back += not owners <= ALIVE
            await history.watch()
            assert await history.owners() <= ALIVE, order
            assert len(history.claims()) == 2 + (not owners <= ALIVE), order
        assert fallen_back

    run(scenario())


def test_a_move_takes_over_what_an_earlier_version_has_given_back() -> None:
    """It does not repeat until something else has claimed the call."""

    async def scenario() -> None:
        history = History()
        with unconditional_carrying():
            await history.play(("third folds", "heir claims", "third carries"), "suspended")
        await history.take("mover folds")
        await history.take("mover moves")
        assert await history.owners() == {MOVER}
        assert [claim.heir for claim in history.claims()] == [HEIR, MOVER]

    run(scenario())


def test_a_claim_stays_for_as_long_as_a_stale_engine_could_write_in_the_owner_s_name() -> None:
    """When claims are trimmed, all calls that they were about have other last records."""

    async def scenario() -> None:
        history = History()
        await history.play(("third folds", "heir claims", "second heir claims"), "suspended")
        stale = history.books[THIRD]
        loaded = await stale.load_call(stale.ledger.waiting[a_call(1).id])
        assert loaded is not None
        await time_passes(10)
        await history.take("mover folds")
        trimmer = Trimmer(history.books[MOVER])
        await trimmer.trim(now_us())
        await trimmer.trim(now_us())
        assert history.claims() == []
        waiting = stale.ledger.waiting[a_call(1).id]
        assert not await stale.carry(carry_forward(*loaded, waiting, Runs()), waiting.seqnum)
        await stale.recover()  # else it would write a checkpoint of what was trimmed
        assert await history.owners() == {SECOND_HEIR}

    run(scenario())


# With bodies


async def carried_late(cluster: Cluster, carrier: Engine, invocation_id: str) -> None:
    """The engine has decided to carry a call when the call's owner is lost, and is slow until there is an heir."""
    book = carrier.calls._book
    waiting, newest = book.ledger.waiting[invocation_id], book.newest

    async def slow(wanted: str) -> object:
        found = await newest(wanted)
        cluster.lose(waiting.owner.node)
        while not cluster.entries(TakenOver):
            await time_passes(0.1)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(book, "newest", slow)
        await Trimmer(book).carry(waiting)


@pytest.mark.parametrize("is_earlier_version", [False, True])
def test_a_sleeper_that_is_carried_while_its_owner_is_lost_wakes_once(*, is_earlier_version: bool) -> None:
    """Also if the record of a version without the condition gives it back, and wakes it before the second claim."""

    @with_engines("a", "b", "c")
    async def scenario(cluster: Cluster) -> None:
        timed = cluster.bodies["timed"] = Script(lambda _: asleep(100), done)
        tagged = cluster.bodies["tagged"] = Script(lambda _: asleep(0, WakeOn("book", INBOX, 1)), done)
        await cluster.engines["a"].calls.accept(a_call(1, "timed"))
        await cluster.engines["a"].calls.accept(a_call(2, "tagged"))
        await time_passes(1)
        with unconditional_carrying() if is_earlier_version else nullcontext():
            await carried_late(cluster, cluster.engines["c"], a_call(2).id)
        put(cluster.log)
        for number, script in ((2, tagged), (1, timed)):
            state = await cluster.engines["b"].calls.state(a_call(number).id, wait_s=200)
            assert (state.state, state.attempts, script.runs) == ("done", 2, [1, 2])
        assert len(cluster.entries(TakenOver)) == 1 + is_earlier_version
        assert len(cluster.entries(Finished)) == 2


@pytest.mark.parametrize("is_earlier_version", [False, True])
def test_a_delayed_call_that_is_carried_while_its_owner_is_lost_runs_once(*, is_earlier_version: bool) -> None:
    """At its time."""

    @with_engines("a", "b", "c")
    async def scenario(cluster: Cluster) -> None:
        await cluster.engines["a"].calls.accept(a_call(1), delay_s=100)
        await time_passes(1)
        with unconditional_carrying() if is_earlier_version else nullcontext():
            await carried_late(cluster, cluster.engines["c"], a_call(1).id)
        state = await cluster.engines["b"].calls.state(a_call(1).id, wait_s=200)
        assert (state.state, state.attempts, cluster.runs[a_call(1).id]) == ("done", 1, 1)
        assert 0 <= state.started_us - state.due_us <= 100_000


def test_a_call_that_is_retried_while_its_body_ends_runs_again() -> None:
    """It was cancelled, and is accepted again before its body has noticed: the end of the old run forgets no call."""

    async def scenario() -> None:
        world = CallWorld()
        left = asyncio.Event()

        class Slow(Gate):
            """A body that takes its time when it is cancelled."""

            async def __call__(self, call: Call) -> Outcome:
                try:
                    return await super().__call__(call)
                finally:
                    while not left.is_set():
                        with suppress(asyncio.CancelledError):
                            await left.wait()

        body = world.bodies["slow"] = Slow()
        calls = await world.start()
        await calls.accept(a_call(1, "slow"))
        await body.started.wait()
        await calls.cancel(a_call(1).id)
        await calls.retry(a_call(1).id)
        await time_passes(1)
        world.bodies.clear()
        left.set()
        assert (await calls.state(a_call(1).id, wait_s=10)).state == "done"
        await calls.stop()

    run(scenario())
