"""Suspended calls: no process between two runs; woken once by the time or by a record, whatever crashes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import pytest

from boki.books.calls import checkpoints, trimming
from boki.books.calls.ledger import (
    BOOK,
    CODEC,
    Accepted,
    Checkpoint,
    Finished,
    Started,
    Suspended,
    end_tags,
    id_tag,
)
from boki.books.calls.runs import cancelled
from boki.errors import (
    AlreadyExists,
    BokiError,
    FunctionFailed,
    KeyReused,
)
from boki.log.chunk import Group, encode_chunk
from boki.log.operations import Append, Appended, Read, TrimBook
from boki.protocol.calls import Call, CallFilter, ChosenId, IfEnded, IfRunning, Outcome, Suspension, WakeOn
from boki.retry import Retry
from tests.books.calls.call_world import CallWorld, Fault, Gate, WatchedLog, a_call, failing, now_us, run, time_passes
from tests.books.calls.test_logged_calls_asked import Stubborn
from tests.books.calls.test_taken_over import Cluster, with_engines

INBOX = "!inbox"


def put(log: WatchedLog, tag: str = INBOX, book: str = "book") -> int:
    """Append a record that may wake somebody: its seqnum."""
    answer = log.answer(Append(book, encode_chunk(book, [Group([(b"news", (tag,))])])), now_us())
    assert isinstance(answer, Appended)
    return answer.first_seqnum


def asleep(wake_s: float = 0, *wakes: WakeOn, note: str = "") -> Outcome:
    """How a run ends whose body raised `Suspend`."""
    wake_us = now_us() + round(wake_s * 1e6) if wake_s else 0
    return Outcome(None, None, {}, Suspension(wake_us, wakes, note))


class Script:
    """A body whose runs end as the steps say, one after the other; each is told when it began."""

    def __init__(self, *steps: Callable[[Call], Outcome]) -> None:
        self.steps = steps
        self.began_us: list[int] = []
        self.runs: list[int] = []

    async def __call__(self, call: Call) -> Outcome:
        self.began_us.append(now_us())
        self.runs.append(call.run)
        step = self.steps[min(len(self.runs), len(self.steps)) - 1]
        return step(call)


def done(call: Call) -> Outcome:
    """A run that ends its call."""
    return Outcome(call.payload, None)


def test_a_suspended_call_runs_again_at_its_time() -> None:
    """Under the same id, as the next run, once; between the runs nothing runs, and its state says what it waits for."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["nap"] = Script(lambda _: asleep(3600, note="until noon"), done)
        calls = await world.start()
        began = now_us()
        await calls.accept(a_call(1, "nap"))
        await time_passes(1)
        state = await calls.state(a_call(1).id)
        assert (state.state, state.attempts, state.next_us) == ("suspended", 1, began + 3600 * 10**6)
        assert state.suspension is not None
        assert state.suspension.note == "until noon"
        assert (calls.suspended_count, calls.running_count) == (1, 0)
        (listed,) = (await calls.page(CallFilter(states=("suspended",)))).calls
        assert (listed.id, listed.next_us, listed.suspension) == (state.id, state.next_us, state.suspension)
        state = await calls.state(a_call(1).id, wait_s=4000)
        assert (state.state, state.attempts, body.runs) == ("done", 2, [1, 2])
        assert 0 <= body.began_us[1] - (began + 3600 * 10**6) <= 50_000
        assert calls.suspended_count == 0
        await time_passes(10_000)
        assert len(body.runs) == 2
        await calls.stop()

    run(scenario())


def test_a_record_wakes_and_is_noticed_once() -> None:
    """Of that tag, at or above that seqnum; others do not."""

    async def scenario() -> None:
        world = CallWorld()
        before = put(world.log)
        body = world.bodies["wait"] = Script(lambda _: asleep(0, WakeOn("book", INBOX, before + 1)), done)
        calls = await world.start()
        await calls.accept(a_call(1, "wait"))
        await time_passes(100)
        put(world.log, "other")
        put(world.log, INBOX, "other book")
        await time_passes(100)
        assert body.runs == [1]
        put(world.log)
        put(world.log)
        state = await calls.state(a_call(1).id, wait_s=1)
        assert (state.state, body.runs) == ("done", [1, 2])
        await time_passes(100)
        assert body.runs == [1, 2]
        await calls.stop()

    run(scenario())


def test_a_record_that_came_before_the_suspension_wakes_at_once() -> None:
    """However late the suspension is recorded, nothing is lost between the body's look and its record."""

    async def scenario() -> None:
        world = CallWorld()

        def look_then_lose_the_race(_: Call) -> Outcome:
            outcome = asleep(0, WakeOn("book", INBOX, 1))
            put(world.log)
            return outcome

        body = world.bodies["wait"] = Script(look_then_lose_the_race, done)
        calls = await world.start()
        await calls.accept(a_call(1, "wait"))
        state = await calls.state(a_call(1).id, wait_s=1)
        assert (state.state, body.runs) == ("done", [1, 2])
        await calls.stop()

    run(scenario())


@pytest.mark.parametrize("comes_first", ["record", "time", "both"])
def test_time_and_record_wake_one_run_together(comes_first: str) -> None:
    """Whichever comes first; the other one wakes nobody afterwards, nor when the call sleeps on."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["wait"] = Script(
            lambda _: asleep(10, WakeOn("book", INBOX, 1), WakeOn("book", "!more", 1)), lambda _: asleep(100), done
        )
        calls = await world.start()
        await calls.accept(a_call(1, "wait"))
        await time_passes(10 if comes_first == "both" else 9 if comes_first == "record" else 11)
        put(world.log)
        put(world.log, "!more")
        await time_passes(50)
        put(world.log)
        await time_passes(20)
        assert body.runs == [1, 2]
        assert (await calls.state(a_call(1).id, wait_s=60)).state == "done"
        assert body.runs == [1, 2, 3]
        await calls.stop()

    run(scenario())


def test_failures_after_a_suspension_begin_a_new_round_of_attempts() -> None:
    """A call that sleeps for long has not failed, and its policy's deadline does not pass meanwhile."""

    async def scenario() -> None:
        world = CallWorld()
        bad = failing(FunctionFailed("bad: ValueError: no", error_type="ValueError"))
        body = world.bodies["wait"] = Script(
            lambda _: bad, lambda _: asleep(1_000), lambda _: bad, lambda _: asleep(1_000), lambda _: bad, done
        )
        calls = await world.start()
        policy = Retry(attempts=2, first_s=1, deadline_s=60)
        await calls.accept(msgspec.structs.replace(a_call(1, "wait"), retry=policy))
        state = await calls.state(a_call(1).id, wait_s=3_000)
        assert (state.state, state.attempts, state.errors) == ("done", 6, {"ValueError": 3})
        assert body.runs == [1, 2, 3, 4, 5, 6]
        await calls.stop()

    run(scenario())


def test_a_suspended_call_is_cancelled_and_not_woken() -> None:
    """Neither by its time nor by its record."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["wait"] = Script(lambda _: asleep(10, WakeOn("book", INBOX, 1)))
        calls = await world.start()
        await calls.accept(a_call(1, "wait"))
        await time_passes(1)
        assert (await calls.cancel(a_call(1).id)).state == "cancelled"
        put(world.log)
        await time_passes(100)
        assert body.runs == [1]
        assert (calls.suspended_count, calls.waiting_count) == (0, 0)
        await calls.stop()

    run(scenario())


def test_a_woken_body_does_not_wait_for_the_record_of_its_start() -> None:
    """Whoever signals it waits for the body; the record follows, and the end waits for it."""

    async def scenario() -> None:
        world = CallWorld()
        started: list[int] = []

        def step(call: Call) -> Outcome:
            started.append(sum(isinstance(entry, Started) for entry in world.entries()))
            return asleep(10) if call.run < 3 else done(call)

        world.bodies["nap"] = Script(step)
        calls = await world.start()
        await calls.accept(a_call(1, "nap"))
        assert (await calls.state(a_call(1).id, wait_s=60)).attempts == 3
        assert started == [0, 0, 1]
        assert [entry.runs.total for entry in world.entries() if isinstance(entry, Started)] == [2, 3]
        await calls.stop()

    run(scenario())


def test_a_woken_body_ends_when_its_call_was_cancelled_elsewhere_meanwhile() -> None:
    """The record of its start is refused, and so the body is ended as one that was cancelled."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        cluster.bodies["wait"] = Script(lambda _: asleep(10))
        calls = cluster.engines["a"].calls
        await calls.accept(a_call(1, "wait"))
        await time_passes(1)
        end = Finished(a_call(1).id, "wait", "book", cancelled(1), 1, 1, 1, 1)
        row = (CODEC.encode(end), (id_tag(end.id), *end_tags(end)))

        class Overtaken(Stubborn):
            """Its call is cancelled while the record of its start is on its way."""

            async def __call__(self, call: Call) -> Outcome:
                cluster.log.answer(Append(BOOK, encode_chunk(BOOK, [Group([row])])), now_us())
                return await super().__call__(call)

        body = cluster.bodies["wait"] = Overtaken()
        await time_passes(20)
        assert (body.started.is_set(), body.was_cancelled, calls.running_count) == (True, True, 0)
        assert not cluster.entries(Started)
        assert len(cluster.entries(Finished)) == 1


def test_what_a_record_woke_before_its_time_runs_again_at_once_after_a_loss() -> None:
    """Its run began, and its engine was lost: the time that it waited for, too, has nothing to do with the next run."""

    async def scenario() -> None:
        world, runs = CallWorld(), list[int]()

        async def wait(call: Call) -> Outcome:
            runs.append(call.run)
            if len(runs) == 1:
                return asleep(1e9, WakeOn("book", INBOX, 1))
            if len(runs) == 2:
                await asyncio.get_running_loop().create_future()
            return done(call)

        world.bodies["wait"] = wait
        calls = await world.start()
        await calls.accept(a_call(1, "wait"))
        await time_passes(1)
        put(world.log)
        await time_passes(1)
        assert len(runs) == 2
        await world.kill()
        calls = await world.start()
        assert (await calls.state(a_call(1).id, wait_s=10)).state == "done"
        await calls.stop()

    run(scenario())


def test_the_heir_of_a_lost_engine_wakes_what_it_had_suspended() -> None:
    """By time and by record, also by one that came while nobody watched; each runs once, as the next run."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        timed = cluster.bodies["timed"] = Script(lambda _: asleep(100), done)
        tagged = cluster.bodies["tagged"] = Script(lambda _: asleep(0, WakeOn("book", INBOX, 1)), done)
        for number, function in ((1, "timed"), (2, "tagged")):
            await cluster.engines["a"].calls.accept(a_call(number, function))
        await time_passes(1)
        cluster.lose("a")
        put(cluster.log)
        state = await cluster.engines["b"].calls.state(a_call(2).id, wait_s=10)
        assert (state.state, state.attempts, state.errors, tagged.runs) == ("done", 2, {}, [1, 2])
        state = await cluster.engines["b"].calls.state(a_call(1).id, wait_s=100)
        assert (state.state, state.attempts, timed.runs) == ("done", 2, [1, 2])
        assert 0 <= timed.began_us[1] - timed.began_us[0] - 100 * 10**6 <= 100_000


@pytest.mark.parametrize("fault", ["refuse", "lose_request", "lose_answer", "halt_before", "halt_after"])
def test_whatever_fails_at_whatever_operation_nothing_is_lost_and_it_ends_once(fault: Fault) -> None:
    """At every operation of an engine that suspends and wakes; another one continues if it dies there."""

    async def play(at: int | None) -> int:
        cluster = Cluster()
        with suppress(BokiError, TimeoutError):
            await asyncio.wait_for(cluster.start("a", {} if at is None else {at: fault}), 5.0)
        cluster.bodies["both"] = lambda call: _sleep_twice(cluster, call)
        first = cluster.engines["a"]
        with suppress(BokiError, TimeoutError):
            await asyncio.wait_for(first.calls.accept(a_call(1, "both")), 5.0)
        await time_passes(20.0)
        put(cluster.log)
        await time_passes(20.0)
        first.port.faults, count = {}, len(first.port.operations)
        if at is not None and fault.startswith("halt"):
            first.port.is_halted = True  # a read that waits would halt it later
        if first.port.is_halted or not first.calls._is_open:
            cluster.lose("a")
            await cluster.start("b")
            with suppress(BokiError):
                await cluster.engines["b"].calls.accept(a_call(1, "both"))
        survivor = next(iter(cluster.engines.values()))
        await survivor.calls.accept(a_call(1, "both"))
        assert (await survivor.calls.state(a_call(1).id, wait_s=60)).state == "done", (fault, at)
        assert len(cluster.entries(Finished)) == 1
        assert len(cluster.entries(Suspended)) >= 2
        await cluster.stop()
        return count

    count = run(play(None))
    assert count > 15
    for at in range(count):
        run(_bounded(play(at)))


async def _sleep_twice(cluster: Cluster, call: Call) -> Outcome:
    """First until a time, then until a record, as the log says how far it is."""
    naps = len(cluster.entries(Suspended))
    if naps == 0:
        return asleep(5)
    return asleep(0, WakeOn("book", INBOX, 1)) if naps == 1 else done(call)


async def _bounded(work: Awaitable[int]) -> None:
    async with asyncio.timeout(1000):
        await work


def test_suspended_calls_are_carried_forward_and_survive_restarts_and_trims() -> None:
    """What waits for longer than records are kept loses neither its payload nor what it waits for."""

    async def scenario() -> None:
        world = CallWorld()
        body = world.bodies["nap"] = Script(
            lambda _: asleep(400 * 3600, WakeOn("book", "!never", 1), note="long"), lambda _: asleep(10), done
        )
        calls = await world.start()
        began = now_us()
        await calls.accept(a_call(1, "nap"))
        for _ in range(5):
            await time_passes(60 * 3600)
            await world.kill()
            calls = await world.start()
            assert (await calls.state(a_call(1).id)).state == "suspended"
        assert not any(isinstance(entry, Started) for entry in world.entries())
        state = await calls.state(a_call(1).id)
        assert state.suspension is not None
        assert (state.attempts, state.suspension.note, state.suspension.wakes) == (
            1,
            "long",
            (WakeOn("book", "!never", 1),),
        )
        state = await calls.state(a_call(1).id, wait_s=200 * 3600)
        assert (state.state, body.runs, state.accepted_us // 10**6) == ("done", [1, 2, 3], began // 10**6)
        assert 0 <= body.began_us[1] - (began + 400 * 3600 * 10**6) <= 50_000
        await calls.stop()

    run(scenario())


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_checkpoint_of_many_sleepers_has_parts(is_torn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start reads them and what came after, not the whole book; where a part is gone it reads what exists."""
    monkeypatch.setattr(checkpoints, "_CALLS_IN_PART", 4)

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["nap"] = Script(lambda _: asleep(1_000))
        calls = await world.start()
        for number in range(1, 11):
            await calls.accept(a_call(number, "nap"))
        await time_passes(1)
        before = calls._book.ledger.waiting
        await calls.stop()
        (checkpoint,) = [entry for entry in world.entries() if isinstance(entry, Checkpoint)]
        assert (len(checkpoint.parts), len(checkpoint.waiting)) == (2, 2)
        if is_torn:
            world.log.answer(TrimBook(BOOK, checkpoint.parts[0] + 1), now_us())
        calls = await world.start()
        assert calls._book.ledger.waiting.keys() == (set() if is_torn else before.keys())
        assert calls.suspended_count == (0 if is_torn else 10)
        # a read of one record only tells whether trims have taken what the checkpoint builds on
        reads = [each for each in world.port.operations if isinstance(each, Read) and not each.tag and each.limit > 1]
        assert reads[0].start == (0 if is_torn else checkpoint.fold_from)
        await calls.stop()

    run(scenario())


@pytest.mark.whole
def test_all_sleepers_are_carried_forward_in_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, trims keep up: the book stays as long as its day and what sleeps."""
    monkeypatch.setattr(trimming, "_CARRIED_AT_ONCE", 2)

    async def scenario() -> None:
        world = CallWorld()
        world.bodies["nap"] = Script(lambda _: asleep(100 * 24 * 3600))
        calls = await world.start()
        for number in range(1, 101):
            await calls.accept(a_call(number, "nap"))
        await time_passes(1)
        for _ in range(4 * 24):
            await time_passes(3600)
        assert calls.suspended_count == 100
        held = [entry for entry in world.entries() if isinstance(entry, Accepted | Suspended)]
        assert all(isinstance(entry, Accepted) for entry in held)
        assert len(held) <= 200
        await calls.stop()

    run(scenario())


# ids that callers choose


def chosen(number: int, start: str, if_running: IfRunning = "use", if_ended: IfEnded = "use", **fields: object) -> Call:
    """A call under an id that its caller has chosen."""
    return msgspec.structs.replace(a_call(number, **fields), chosen=ChosenId(start, if_running, if_ended))  # type: ignore[arg-type]


def test_a_start_under_a_chosen_id_stands_for_one_call() -> None:
    """Repeated, or started again with the policy "use", by whomever; another request under the id is refused."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        gate = cluster.bodies["wait"] = Gate()
        first, second = (cluster.engines[name].calls for name in "ab")
        for calls, start in ((first, "s1"), (first, "s1"), (second, "s1"), (second, "s2")):
            assert await calls.accept(chosen(1, start, function="wait")) == a_call(1).id
        with pytest.raises(KeyReused, match="was used for another request"):
            await second.accept(chosen(1, "s3", function="wait", data=b"2"))
        with pytest.raises(AlreadyExists, match="has not ended"):
            await second.accept(chosen(1, "s4", "fail", function="wait"))
        assert await second.accept(chosen(1, "s1", "fail", function="wait")) == a_call(1).id
        gate.opened.set()
        assert (await second.state(a_call(1).id, wait_s=5)).state == "done"
        assert await first.accept(chosen(1, "s5", function="wait")) == a_call(1).id
        with pytest.raises(AlreadyExists, match=r"has ended \(done\)"):
            await first.accept(chosen(1, "s6", if_ended="fail", function="wait"))
        await time_passes(5)
        assert cluster.runs == {a_call(1).id: 1}


def test_an_id_whose_call_has_ended_can_be_used_again() -> None:
    """Once for each start, with its own payload and a first run of its own; "again_if_failed" only after a failure."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        first, second = (cluster.engines[name].calls for name in "ab")
        body = cluster.bodies["flaky"] = Script(lambda _: failing(FunctionFailed("no", error_type="No")), done)
        await first.accept(chosen(1, "s1", function="flaky", data=b"1"))
        assert (await first.state(a_call(1).id, wait_s=5)).state == "failed"
        for calls in (second, first, second):  # its answer was lost twice
            await calls.accept(chosen(1, "s2", if_ended="again_if_failed", function="flaky", data=b"2"))
        state = await first.state(a_call(1).id, wait_s=5)
        assert (state.state, state.result and state.result.data, state.attempts) == ("done", b"2", 1)
        await first.accept(chosen(1, "s3", if_ended="again_if_failed", function="flaky", data=b"2"))
        await time_passes(5)
        assert body.runs == [1, 1]
        await first.accept(chosen(1, "s4", if_ended="again", function="flaky", data=b"3"))
        state = await second.state(a_call(1).id, wait_s=5)
        assert (state.state, state.result and state.result.data, body.runs) == ("done", b"3", [1, 1, 1])
