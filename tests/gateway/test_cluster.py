"""Log operations, logged calls and status through a gateway whose engines are other processes."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

import boki.protocol.call_messages
from boki.errors import ConnectionLost, DeadlineExceeded, DiskFull, NoSuchInvocation, Unavailable, WrongState
from boki.log.ids import NodeId
from boki.log.membership import Member, Membership, Role
from boki.log.operations import Appended, Failure, Found, Operation, Read, Sync, TrimBook
from boki.protocol.calls import CallFilter, FunctionInfo
from boki.protocol.messages import Message
from tests.books.calls.call_world import EPOCH_US, a_call, now_us, time_passes
from tests.engine.remote_world import GATEWAY, MESSAGES, A, B, Cluster, append, home, in_cluster

# The log


def test_a_books_operations_go_to_one_engine_and_carry_positions() -> None:
    """What the caller has seen goes along, and what it has seen then comes back."""

    async def scenario(cluster: Cluster) -> None:
        seen = {0: 4}
        answer = await cluster.backend.request(append(b"1"), seen, 5.0)
        assert isinstance(answer, Appended)
        found = await cluster.backend.request(Read("book", "t"), seen, 5.0)
        assert isinstance(found, Found)
        assert len(found.slabs) == 1
        assert seen == {0: 9}
        first, second = home(cluster)
        assert (len(first.log.operations), len(second.log.operations)) == (2, 0)

    in_cluster(scenario)


@pytest.mark.parametrize("operation", [Read("book", "t"), Sync("book"), append(b"2", key="k")])
def test_what_may_be_repeated_is_asked_of_another_engine(operation: Operation) -> None:
    """Reads and appends under a key survive an engine's death and its silence, well within their time."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        first.log.holds = True
        asked = asyncio.create_task(cluster.backend.request(operation, {}, 30.0))
        await time_passes(0.05)
        cluster.wire.loses = lambda sender, to, _message: first.node in (sender, to)
        await asyncio.wait_for(asked, 1.5)
        assert second.log.operations == [operation]

    in_cluster(scenario)


@pytest.mark.parametrize("operation", [append(b"1"), TrimBook("book", 7)])
def test_what_must_not_be_repeated_ends_as_unknown(operation: Operation) -> None:
    """An append without a key may be in the log already, and a trim must not be carried out late."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        first.log.holds = True
        asked = asyncio.create_task(cluster.backend.request(operation, {}, 30.0))
        await time_passes(0.05)
        cluster.register(second.node)
        with pytest.raises(ConnectionLost) as caught:
            await asked
        assert caught.value.outcome == "unknown"
        assert not second.log.operations

    in_cluster(scenario)


def test_a_definite_refusal_for_want_of_readiness_is_tried_elsewhere() -> None:
    """Also an append: nothing has happened. If nobody can, the refusal is the answer."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        first.log.refusal = Unavailable("no primary yet")
        assert isinstance(await cluster.backend.request(append(b"1"), {}, 5.0), Appended)
        second.log.refusal = Unavailable("nor here")
        with pytest.raises(Unavailable, match="nor here"):
            await cluster.backend.request(append(b"1"), {}, 5.0)

    in_cluster(scenario)


@pytest.mark.parametrize(
    ("operation", "outcome"), [(append(b"2", key="k"), "unknown"), (Read("book", "t"), "not_applied")]
)
def test_a_refusal_after_a_lost_attempt_does_not_speak_for_that(operation: Operation, outcome: str) -> None:
    """The second engine has no room, for certain; the first one may have appended the record before it was lost."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        first.log.holds = True
        second.log.refusal = DiskFull("no room")
        asked = asyncio.create_task(cluster.backend.request(operation, {}, 30.0))
        await time_passes(0.05)
        cluster.register(second.node)
        with pytest.raises(DiskFull) as caught:
            await asked
        assert caught.value.outcome == outcome
        assert second.log.operations == [operation]

    in_cluster(scenario)


def test_an_engine_that_does_not_answer_in_time_is_an_unknown_outcome() -> None:
    """It is there, and says so: the operation's own deadline decides, and a second of grace."""

    async def scenario(cluster: Cluster) -> None:
        home(cluster)[0].log.holds = True
        with pytest.raises(DeadlineExceeded):
            await cluster.backend.request(append(b"1"), {}, 5.0)
        assert EPOCH_US + 6_000_000 <= now_us() <= EPOCH_US + 6_500_000

    in_cluster(scenario)


def test_after_the_deadline_nobody_else_is_asked() -> None:
    """An engine falls silent, and the time is up before that shows: the caller is told so, and does not wait on."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        cluster.wire.loses = lambda sender, to, _message: first.node in (sender, to)
        begun_us = now_us()
        with pytest.raises(ConnectionLost):
            await cluster.backend.request(append(b"1", key="k"), {}, 0.3)
        assert now_us() - begun_us < 1_300_000
        assert not second.log.operations

    in_cluster(scenario)


def test_a_read_whose_answer_is_lost_is_asked_again() -> None:
    """Some seconds later at the latest, and the reader hears nothing of it."""

    async def scenario(cluster: Cluster) -> None:
        lost: list[Message] = []

        def loses(_sender: NodeId, _to: NodeId, message: Message) -> bool:
            if isinstance(message, boki.protocol.call_messages.LogReply) and not lost:
                lost.append(message)
                return True
            return False

        cluster.wire.loses = loses
        assert isinstance(await asyncio.wait_for(cluster.backend.request(Read("book"), {}, 30.0), 5.0), Found)
        assert lost

    in_cluster(scenario)


def test_without_an_engine_requests_wait_for_one_and_are_refused_after_some_seconds() -> None:
    """As not applied; while one engine ends and the next one starts, their callers notice nothing but the time."""

    async def scenario(cluster: Cluster) -> None:
        first, _ = home(cluster)
        cluster.register()
        began_us = now_us()
        with pytest.raises(Unavailable, match="no engine is up"):
            await cluster.backend.request(Read("book"), {}, 30.0)
        assert began_us + 5_000_000 <= now_us() <= began_us + 5_500_000
        asked = asyncio.create_task(cluster.backend.request(append(b"1"), {}, 30.0))
        await time_passes(2.0)
        assert not asked.done()
        cluster.register(first.node)
        assert isinstance(await asyncio.wait_for(asked, 5.0), Appended)

    in_cluster(scenario)


def test_who_was_registered_a_while_ago_is_told_of() -> None:
    """A node that has gone is not forgotten with its registration; one that is back, or gone for long, is no news."""

    async def scenario(cluster: Cluster) -> None:
        first, second = home(cluster)
        cluster.register(second.node)
        await time_passes(7.0)
        (gone,) = (await cluster.backend.status())["gone"]
        assert (gone["node"], gone["role"], round(gone["since_s"])) == (first.node, "engine", 7)
        cluster.register(first.node, second.node)
        assert (await cluster.backend.status())["gone"] == []
        cluster.register(second.node)
        await time_passes(700.0)
        assert (await cluster.backend.status())["gone"] == []

    in_cluster(scenario)


# Logged calls


def test_logged_calls_are_accepted_and_told_by_any_engine_with_the_index() -> None:
    """With key and delay; what the engine refuses is raised."""

    async def scenario(cluster: Cluster) -> None:
        call = a_call(1)
        assert await cluster.backend.ledger.accept(call, key="k", delay_s=2.5) == call.id
        first, _ = home(cluster, call.id)
        assert first.ledger.accepted == [(call.id, "k", 2.5)]
        state = await cluster.backend.ledger.state(call.id, 3.0)
        assert 2_900_000 <= state.due_us <= 3_000_000
        with pytest.raises(NoSuchInvocation):
            await cluster.backend.ledger.state(a_call(2).id)

    in_cluster(scenario)


def test_a_call_under_a_key_goes_on_at_another_engine() -> None:
    """The same call, with the time that is left; its caller sees nothing but its end."""

    async def scenario(cluster: Cluster) -> None:
        call = a_call(1)
        first, second = home(cluster, call.id)
        waiting = asyncio.create_task(cluster.backend.ledger.call_once(call, "k"))
        await time_passes(1.0)
        cluster.register(second.node)
        await time_passes(1.0)
        assert second.ledger.accepted == first.ledger.accepted == [(call.id, "k", 0.0)]
        second.ledger.ends.set()
        assert (await waiting)[0] == call.id

    in_cluster(scenario)


def test_workflows_gather_beside_a_primary_until_many_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose end a gateway waits for: they share batches there. Other calls, and further workflows, are spread."""
    monkeypatch.setattr("boki.gateway.server.cluster._GATHERED", 20)

    async def scenario(cluster: Cluster) -> None:
        backend, ledgers = cluster.backend, [engine.ledger for engine in cluster.engines.values()]
        backend.registry.functions["echo"] = backend.registry.functions["echo"].used_by("flow", {"replays": True})
        host, primary = NodeId("node-2"), Member(node=NodeId("sequencer-2"), role=Role.SEQUENCER, incarnation=1)
        near = msgspec.structs.replace(cluster.engines[B].member, host=host)
        members = (cluster.engines[A].member, near, msgspec.structs.replace(primary, host=host))
        backend.on_membership(Membership(number=2, members=members))

        async def accepted(first: int, function: str = "echo") -> tuple[int, int]:
            before = [len(ledger.accepted) for ledger in ledgers]
            calls = [a_call(number, function) for number in range(first, first + 20)]
            waiting.extend([asyncio.create_task(backend.ledger.call_once(call, call.id)) for call in calls])
            await time_passes(0.1)
            a, b = (len(ledger.accepted) - count for ledger, count in zip(ledgers, before, strict=True))
            return a, b

        async def end_all() -> None:
            for ledger in ledgers:
                ledger.ends.set()
            await asyncio.gather(*waiting)
            for ledger in ledgers:
                ledger.ends.clear()

        waiting: list[asyncio.Task[Any]] = []
        assert 0 < (await accepted(0))[0] < 20, "there is no primary beside an engine yet"
        await end_all()
        backend.registry.on_primaries((NodeId("sequencer-2"),))
        assert 0 < (await accepted(20, "hang"))[0] < 20, "calls that are not replayed"
        await end_all()
        assert await accepted(40) == (0, 20)
        assert 0 < (await accepted(60))[0] < 20, "many are there"
        await end_all()

    in_cluster(scenario)


def test_the_engine_that_runs_a_call_is_asked_how_it_is() -> None:
    """That no worker has it yet is in no record; if that engine says nothing, what the records say is the answer."""

    async def scenario(cluster: Cluster) -> None:
        call = a_call(1)
        first, second = home(cluster, call.id)
        first.ledger.owner, second.ledger.known = second.node, "running"
        for engine in (first, second):
            await engine.ledger.accept(call)
        assert (await cluster.backend.ledger.state(call.id)).state == "running"
        cluster.wire.loses = lambda sender, to, _message: second.node in (sender, to)
        assert (await cluster.backend.ledger.state(call.id)).state == "accepted"

    in_cluster(scenario)


def test_an_engine_without_the_index_leaves_logged_calls_to_one_that_has_it() -> None:
    """Whoever is asked first."""

    async def scenario(cluster: Cluster) -> None:
        cluster.engines[A].service.calls = None
        for number in range(1, 9):
            await cluster.backend.ledger.accept(a_call(number))
        assert len(cluster.engines[B].ledger.accepted) == 8

    in_cluster(scenario)


# What they say of themselves


def test_status_gathers_what_every_member_says() -> None:
    """One that does not answer is there with that, after a second."""

    async def scenario(cluster: Cluster) -> None:
        cluster.wire.loses = lambda _sender, to, message: (
            to == B and isinstance(message, boki.protocol.call_messages.AskStatus)
        )
        status = await cluster.backend.status()
        assert status["nodes"][A] == {"node": A}
        assert status["nodes"][B]["error"] == f"{B} did not answer in time"  # and nothing may have been carried out
        assert [member["node"] for member in status["members"]] == [A, B]

    in_cluster(scenario)


def test_messages_of_the_core_pass_by_the_shell() -> None:
    """And what the gateway sends reaches only the shell."""

    async def scenario(cluster: Cluster) -> None:
        cluster.wire.send(GATEWAY, A, boki.protocol.call_messages.LogReply(1, {}, Failure("a", "b", "unknown", True)))
        await time_passes(0.1)
        assert [type(message) for message in cluster.engines[A].core] == [boki.protocol.call_messages.LogReply]

    in_cluster(scenario)


def test_a_description_that_is_too_large_goes_without_schemas() -> None:
    """The names are what calls need."""

    async def scenario(cluster: Cluster) -> None:
        functions = cluster.engines[A].functions
        schema = {"description": "x" * 3_000_000}
        functions.functions["large"] = FunctionInfo(name="large", module="m", is_async=True, payload_schema=schema)
        functions.functions_number += 1
        await time_passes(1.0)
        assert cluster.backend.functions["large"].payload_schema == {}

    in_cluster(scenario)


def test_who_may_send_what_is_said_for_every_message() -> None:
    """So that links can refuse what comes from the wrong role."""
    sendable = {kind for kind in MESSAGES if kind is not Message}
    assert set(boki.protocol.call_messages.SENDERS) == sendable
    assert all(
        Role.STORAGE not in roles
        for kind, roles in boki.protocol.call_messages.SENDERS.items()
        if kind.__name__ != "TellStatus"
    )


def test_logged_calls_are_listed_cancelled_and_run_again_at_any_engine() -> None:
    """The filter and the page travel whole, refusals too; an engine that is lost is no obstacle."""

    async def scenario(cluster: Cluster) -> None:
        ledger, call = cluster.backend.ledger, a_call(1)
        first, second = home(cluster, call.id)
        for engine in (first, second):
            await engine.ledger.accept(call)
        assert (await ledger.cancel(call.id)).state == "cancelled"
        assert (await ledger.retry(call.id)).state == "accepted"
        wanted = CallFilter("f", ("failed", "cancelled"), 1, 2, 3, 50)
        page = await ledger.page(wanted)
        assert ([state.id for state in page.calls], page.before) == ([call.id], 7)
        assert [*first.ledger.filters, *second.ledger.filters] == [wanted]
        with pytest.raises(NoSuchInvocation):
            await ledger.cancel(a_call(2).id)
        first.ledger.known = second.ledger.known = "done"
        with pytest.raises(WrongState) as caught:
            await ledger.retry(call.id)
        assert caught.value.state == "done"
        first.ledger.known = second.ledger.known = "running"
        asked = asyncio.create_task(ledger.cancel(call.id))
        await first.kill()
        cluster.register(second.node)
        assert (await asked).state == "cancelled"

    in_cluster(scenario)
