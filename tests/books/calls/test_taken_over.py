"""Logged calls of several engines over one log: an engine is lost, and exactly one other runs what it has left."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from boki.books.calls.ledger import Accepted, Finished, Started, TakenOver
from boki.books.calls.logged_calls import LoggedCalls
from boki.books.calls.waiting import Owner
from boki.errors import BokiError, CallLost, Unavailable
from boki.log.chunk import Group, encode_chunk
from boki.log.ids import NodeId
from boki.log.limits import Limits
from boki.log.membership import Member, Membership, Role
from boki.log.operations import Append, Appended
from boki.protocol.calls import Call, Outcome, Suspension, WakeOn
from boki.retry import LOSSES_ONLY
from tests.books.calls.call_world import (
    CallWorld,
    Fault,
    FaultyPort,
    Gate,
    WatchedLog,
    a_call,
    echo,
    now_us,
    run,
    time_passes,
)


class Engine:
    """One engine incarnation: its ledger, and what it ran. A fence or a kill halts it."""

    def __init__(self, cluster: Cluster, name: str, incarnation: int, faults: dict[int, Fault] | None = None) -> None:
        self.cluster = cluster
        self.me = Owner(name, incarnation)
        self.port = FaultyPort(cluster.log, faults)
        self.ran: list[Call] = []
        self.calls = LoggedCalls(
            self.port,
            self._run,
            me=self.me,
            fence=self._fence,
            clock=now_us,
            grace_s=3.0,
            replays=cluster.replayed.__contains__,
        )

    async def _run(self, call: Call) -> Outcome:
        self.ran.append(call)
        self.cluster.runs[call.id] += 1
        return await self.cluster.bodies.get(call.function, echo)(call)

    async def _fence(self, incarnation: int) -> None:
        if self.cluster.fence_failures:
            raise self.cluster.fence_failures.pop()
        await time_passes(0.01)
        self.cluster.fenced.append(incarnation)
        for engine in self.cluster.engines.values():
            if engine.me.incarnation == incarnation:
                engine.port.is_halted = True

    def kill(self) -> None:
        """It does nothing more; its tasks hang forever, as those of another process would be gone."""
        self.port.is_halted = True
        self.calls._is_open = False
        for timer in (self.calls._timer, self.calls._housekeeping._timer, self.calls._takeover._timer):
            if timer is not None:
                timer.cancel()


class Cluster:
    """Engines over one log, and who is registered."""

    def __init__(self) -> None:
        self.log = WatchedLog(Limits())
        self.engines: dict[str, Engine] = {}
        self.bodies: dict[str, Callable[[Call], Awaitable[Outcome]]] = {}
        self.replayed: set[str] = set()
        """Functions whose bodies are replayed."""
        self.runs: Counter[str] = Counter()
        self.fenced: list[int] = []
        self.fence_failures: list[Unavailable] = []
        self._incarnation = 0
        self._number = 0
        self._old: list[Engine] = []

    async def start(self, name: str, faults: dict[int, Fault] | None = None) -> Engine:
        self._incarnation += 1
        if name in self.engines:
            self._old.append(self.engines[name])
        engine = self.engines[name] = Engine(self, name, self._incarnation, faults)
        self.register()
        await engine.calls.start()
        return engine

    def register(self, *gone: str) -> None:
        """Everybody is registered but these."""
        self._number += 1
        members = tuple(
            Member(node=NodeId(name), role=Role.ENGINE, incarnation=engine.me.incarnation)
            for name, engine in self.engines.items()
            if name not in gone
        )
        for engine in self.engines.values():
            engine.calls.on_membership(Membership(number=self._number, members=members))

    def lose(self, name: str) -> None:
        """The engine's process dies, and its registration goes."""
        self.engines[name].kill()
        self.register(name)
        self._old.append(self.engines.pop(name))

    def entries(self, kind: type) -> list[Any]:
        world = CallWorld()
        world.log = self.log
        return [entry for entry in world.entries() if isinstance(entry, kind)]

    async def stop(self) -> None:
        for engine in self.engines.values():
            if not engine.port.is_halted:
                await engine.calls.stop(0)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def with_engines(*names: str) -> Callable[[Callable[[Cluster], Awaitable[None]]], None]:
    def play(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
        async def whole() -> None:
            cluster = Cluster()
            for name in names:
                await cluster.start(name)
            try:
                await scenario(cluster)
            finally:
                await cluster.stop()

        run(whole())

    return play


def test_exactly_one_survivor_runs_what_a_lost_engine_has_left() -> None:
    """Under the same ids, once the lost one is fenced; each outcome is recorded once."""

    @with_engines("a", "b", "c")
    async def scenario(cluster: Cluster) -> None:
        lost = cluster.engines["a"]
        cluster.bodies["wait"] = Gate()
        ids = [await lost.calls.accept(a_call(number, "wait")) for number in range(1, 6)]
        await time_passes(0.1)
        cluster.lose("a")
        cluster.bodies.clear()
        for invocation_id in ids:
            state = await cluster.engines["b"].calls.state(invocation_id, wait_s=10)
            assert (state.state, state.attempts, state.errors) == ("done", 2, {"call_lost": 1})
            assert state.started_us < state.last_started_us
        assert set(cluster.fenced) == {lost.me.incarnation}
        (taken,) = cluster.entries(TakenOver)
        assert taken.lost == lost.me
        heir, other = (cluster.engines[name] for name in (("b", "c") if taken.heir.node == "b" else ("c", "b")))
        assert sorted(call.id for call in heir.ran) == ids
        assert not other.ran
        assert Counter(entry.id for entry in cluster.entries(Finished)) == dict.fromkeys(ids, 1)


def test_what_a_vanished_engine_had_begins_again_within_two_seconds() -> None:
    """Of the news that its node is gone, with all its roles and without a word: what ran, what was suspended and has
    its message, and what was delayed and is due. Nobody asks for these calls.
    """

    @with_engines("a", "b", "c")
    async def scenario(cluster: Cluster) -> None:
        begun: dict[str, int] = {}

        async def note(call: Call) -> Outcome:
            begun[call.id] = now_us()
            return await echo(call)

        async def sleep(_: Call) -> Outcome:
            return Outcome(None, None, {}, Suspension(0, (WakeOn("book", "!inbox", 1),)))

        gate = cluster.bodies["running"] = Gate()
        cluster.bodies["suspended"] = sleep
        ids = [await cluster.engines["a"].calls.accept(a_call(1, "running"))]
        ids.append(await cluster.engines["a"].calls.accept(a_call(2, "suspended")))
        ids.append(await cluster.engines["a"].calls.accept(a_call(3, "delayed"), delay_s=10.5))
        await gate.started.wait()
        await time_passes(10.0)
        assert cluster.engines["b"].calls.suspended_count == 1
        cluster.bodies = dict.fromkeys(("running", "suspended", "delayed"), note)
        gone_us = now_us()
        cluster.lose("a")
        message = Append("book", encode_chunk("book", [Group([(b"message", ("!inbox",))])]))
        assert isinstance(cluster.log.answer(message, now_us()), Appended)
        await time_passes(30.0)
        assert sorted(begun) == ids
        assert max(begun.values()) - gone_us <= 2_000_000
        assert Counter(entry.id for entry in cluster.entries(Finished)) == dict.fromkeys(ids, 1)


def test_nothing_runs_elsewhere_before_the_lost_engine_is_fenced() -> None:
    """However long that takes: its old bodies may still append."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        cluster.bodies["wait"] = Gate()
        await cluster.engines["a"].calls.accept(a_call(1, "wait"))
        cluster.fence_failures = [Unavailable("no primary") for _ in range(5)]
        cluster.lose("a")
        while cluster.fence_failures:
            assert not cluster.engines["b"].ran
            await time_passes(0.5)
        cluster.bodies.clear()
        assert (await cluster.engines["b"].calls.state(a_call(1).id, wait_s=10)).state == "done"


def test_an_engine_that_comes_back_takes_over_from_itself_at_once() -> None:
    """Its former incarnation is fenced like any other; there is no grace to wait for."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        cluster.bodies["wait"] = Gate()
        old = cluster.engines["a"]
        await old.calls.accept(a_call(1, "wait"))
        await time_passes(0.1)
        old.kill()
        cluster.bodies.clear()
        await cluster.start("a")
        assert (await cluster.engines["b"].calls.state(a_call(1).id, wait_s=1.0)).state == "done"
        assert set(cluster.fenced) == {old.me.incarnation}


def test_a_short_absence_is_no_loss() -> None:
    """An engine that is registered again within the grace keeps its calls."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        gate = cluster.bodies["wait"] = Gate()
        await cluster.engines["a"].calls.accept(a_call(1, "wait"))
        await gate.started.wait()
        cluster.register("a")
        await time_passes(0.8)
        cluster.register()
        await time_passes(10.0)
        gate.opened.set()
        assert (await cluster.engines["b"].calls.state(a_call(1).id, wait_s=1)).state == "done"
        assert not cluster.fenced
        assert not cluster.entries(TakenOver)


def test_a_call_under_a_key_is_answered_by_any_engine() -> None:
    """While it runs elsewhere, when its engine is lost, and afterwards: one id, one outcome."""

    @with_engines("a", "b", "c")
    async def scenario(cluster: Cluster) -> None:
        gate = cluster.bodies["wait"] = Gate()
        first = asyncio.create_task(cluster.engines["a"].calls.call_once(a_call(1, "wait"), "k"))
        await gate.started.wait()
        second = asyncio.create_task(cluster.engines["b"].calls.call_once(a_call(2, "wait"), "k"))
        await time_passes(1.0)
        assert not second.done()
        cluster.lose("a")
        cluster.bodies.clear()
        invocation_id, outcome = await second
        assert (invocation_id, outcome.failure) == (a_call(1).id, None)
        assert await cluster.engines["c"].calls.call_once(a_call(3, "wait"), "k") == (invocation_id, outcome)
        assert cluster.runs == {a_call(1).id: 2}
        first.cancel()


@pytest.mark.parametrize("key", [None, "k"])
def test_an_acceptance_that_is_repeated_at_another_engine_is_one_call(key: str | None) -> None:
    """A gateway that has lost the answer asks again: the call belongs to the engine that logged it, and runs once."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        for name in ("a", "b", "a", "b"):
            assert await cluster.engines[name].calls.accept(a_call(1), key=key) == a_call(1).id
            await time_passes(0.1)
        assert cluster.runs == {a_call(1).id: 1}
        assert [call.id for call in cluster.engines["a"].ran] == [a_call(1).id]
        assert len(cluster.entries(Accepted)) == len(cluster.entries(Finished)) == 1


def test_an_acceptance_that_is_repeated_while_it_waits_is_one_call() -> None:
    """Also to the engine that has it already."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        gate = cluster.bodies["wait"] = Gate()
        for name in ("a", "a", "b"):
            assert await cluster.engines[name].calls.accept(a_call(1, "wait")) == a_call(1).id
            await time_passes(0.1)
        gate.opened.set()
        assert (await cluster.engines["b"].calls.state(a_call(1).id, wait_s=10)).state == "done"
        assert cluster.runs == {a_call(1).id: 1}


def test_delayed_calls_are_taken_over_and_wait_on() -> None:
    """They run when they are due, not earlier."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        await cluster.engines["a"].calls.accept(a_call(1), delay_s=3600)
        before = await cluster.engines["b"].calls.state(a_call(1).id)
        cluster.lose("a")
        await time_passes(3000)
        assert not cluster.runs
        state = await cluster.engines["b"].calls.state(a_call(1).id, wait_s=1000)
        assert (state.state, state.due_us) == ("done", before.due_us)
        assert 0 <= state.started_us - state.due_us < 1_000_000


def test_the_restart_of_everything_runs_everything_that_is_left() -> None:
    """Whoever is there first takes over, and each call ends once."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        cluster.bodies["wait"] = Gate()
        for number in range(1, 9):
            await cluster.engines["ab"[number % 2]].calls.accept(a_call(number, "wait"))
        for name in ("a", "b"):
            cluster.lose(name)
        cluster.bodies.clear()
        await cluster.start("b")
        for number in range(1, 9):
            assert (await cluster.engines["b"].calls.state(a_call(number).id, wait_s=10)).state == "done"
        assert len(cluster.entries(Finished)) == 8
        assert len(cluster.entries(TakenOver)) == 2


def test_a_call_that_ends_its_engines_is_given_up() -> None:
    """Starts are in the log, so that they are counted although nobody lives to tell."""

    @with_engines("a")
    async def scenario(cluster: Cluster) -> None:
        cluster.bodies["poison"] = Gate()
        await cluster.engines["a"].calls.accept(a_call(1, "poison"))
        for _ in range(LOSSES_ONLY.attempts + 1):
            await time_passes(1.0)
            cluster.engines["a"].kill()
            await cluster.start("a")
        state = await cluster.engines["a"].calls.state(a_call(1).id, wait_s=10)
        assert state.failure is not None
        assert (state.state, state.failure.code) == ("failed", CallLost.code)
        assert (state.attempts, state.errors) == (LOSSES_ONLY.attempts, {"call_lost": LOSSES_ONLY.attempts})
        assert cluster.runs == {a_call(1).id: LOSSES_ONLY.attempts}
        assert [entry.starts for entry in cluster.entries(Started)] == list(range(2, LOSSES_ONLY.attempts + 1))


def test_a_call_that_waits_its_turn_is_not_counted_as_started() -> None:
    """However often its engine is lost meanwhile."""

    @with_engines("a")
    async def scenario(cluster: Cluster) -> None:
        await cluster.engines["a"].calls.accept(a_call(1), delay_s=100)
        for _ in range(LOSSES_ONLY.attempts + 3):
            await time_passes(1.0)
            cluster.engines["a"].kill()
            await cluster.start("a")
        state = await cluster.engines["a"].calls.state(a_call(1).id, wait_s=200)
        assert (state.state, state.attempts) == ("done", 1)


def test_every_engine_knows_who_runs_a_call() -> None:
    """So that it can be asked; when the call is over there is nobody to ask."""

    @with_engines("a", "b")
    async def scenario(cluster: Cluster) -> None:
        gate = cluster.bodies["wait"] = Gate()
        first, second = (cluster.engines[name].calls for name in ("a", "b"))
        await first.accept(a_call(1, "wait"))
        await time_passes(0.1)
        assert (first.other_owner(a_call(1).id), second.other_owner(a_call(1).id)) == (None, "a")
        gate.opened.set()
        await second.state(a_call(1).id, wait_s=5)
        await time_passes(0.1)
        assert second.other_owner(a_call(1).id) is None


def test_a_running_heir_says_that_it_runs_to_everybody() -> None:
    """Its start is a record."""

    @with_engines("a", "b", "c")
    async def scenario(cluster: Cluster) -> None:
        cluster.bodies["wait"] = Gate()
        await cluster.engines["a"].calls.accept(a_call(1, "wait"))
        cluster.lose("a")
        await time_passes(5.0)
        for name in ("b", "c"):
            state = await cluster.engines[name].calls.state(a_call(1).id)
            assert (state.state, state.attempts, state.function) == ("running", 2, "wait")


@pytest.mark.parametrize("fault", ["refuse", "lose_request", "lose_answer", "halt_before", "halt_after"])
def test_whatever_fails_while_calls_are_taken_over_they_end_once(fault: Fault) -> None:
    """At every operation of the heir; if it dies there, another heir continues."""

    async def play(at: int | None) -> int:
        cluster = Cluster()
        await cluster.start("a")
        cluster.bodies["wait"] = Gate()
        for number in (1, 2):
            await cluster.engines["a"].calls.accept(a_call(number, "wait"))
        cluster.lose("a")
        cluster.bodies.clear()
        with suppress(BokiError, TimeoutError):  # the start itself may fail
            await asyncio.wait_for(cluster.start("b", {} if at is None else {at: fault}), 5.0)
        heir = cluster.engines["b"]
        await time_passes(20.0)
        heir.port.faults, count = {}, len(heir.port.operations)
        if heir.port.is_halted or not heir.calls._is_open:
            cluster.lose("b")
            await cluster.start("c")
        survivor = next(iter(cluster.engines.values()))
        for number in (1, 2):
            assert (await survivor.calls.state(a_call(number).id, wait_s=60)).state == "done", (fault, at)
        assert Counter(entry.id for entry in cluster.entries(Finished)) == {a_call(1).id: 1, a_call(2).id: 1}
        await cluster.stop()
        return count

    count = run(play(None))
    assert count > 8
    for at in range(count):
        run(_bounded(play(at)))


async def _bounded(work: Awaitable[int]) -> None:
    async with asyncio.timeout(1000):
        await work
