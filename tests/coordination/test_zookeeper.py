"""The coordinator against a real ZooKeeper: what happens to views, plans, registrations and leadership when
connections, sessions and servers are lost.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from boki.coordination.session import SessionEnded, SessionState
from boki.coordination.zookeeper import ZooKeeperCoordinator
from boki.errors import ConfigError, Unavailable, VersionTooNew
from boki.launch.zookeeper.server import Ensemble, free_ports
from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan, Member, Moved, Placement, Role
from boki.protocol.messages import InstallMembership, InstallPlacement, InstallPlan
from tests.controller.coordinators import ENGINE, expire, joined, lose_answers, run
from tests.members import view


def test_all_processes_of_a_cluster_agree_on_its_id(zookeeper: str, chroot: str) -> None:
    """The id is made once, also by many at the same time, and kept; another chroot is another cluster."""

    async def body() -> None:
        async def look(root: str) -> str:
            async with joined(zookeeper, root, follow=False) as process:
                return process.coordinator.cluster_id

        ids = await asyncio.gather(*(look(chroot) for _ in range(4)))
        assert len({*ids, await look(chroot)}) == 1
        assert await look(f"{chroot}-b") not in ids

    run(body())


def test_incarnations_are_given_out_once(zookeeper: str, chroot: str) -> None:
    """Many ask at the same time, answers are lost, and no number comes twice."""

    async def body() -> None:
        async with joined(zookeeper, chroot, follow=False) as one, joined(zookeeper, chroot, follow=False) as two:
            lose_answers(one, "set_async", count=3)
            asked = [one.coordinator.next_incarnation() for _ in range(8)]
            asked += [two.coordinator.next_incarnation() for _ in range(8)]
            numbers = await asyncio.gather(*asked)
            assert len(set(numbers)) == 16
            assert min(numbers) >= 1

    run(body())


def test_of_two_views_of_a_term_one_is_installed(zookeeper: str, chroot: str) -> None:
    """Two controllers install different views of the same term at once: one wins, the chain has no gap, both see it."""

    async def body() -> None:
        async with joined(zookeeper, chroot) as one, joined(zookeeper, chroot) as two:
            assert not await one.coordinator.install(view(2))  # nothing comes before its predecessor
            for term in range(1, 6):
                won = await asyncio.gather(
                    one.coordinator.install(view(term, start_time_us=1)),
                    two.coordinator.install(view(term, start_time_us=2)),
                )
                assert sorted(won) == [False, True]
                chain = await one.coordinator.views()
                assert chain[-1].start_time_us == (1 if won[0] else 2)
            assert [row.term for row in chain] == [1, 2, 3, 4, 5]
            assert chain == await two.coordinator.views()
            for process in (one, two):
                await process.until(lambda process=process: process.terms == [1, 2, 3, 4, 5])

    run(body())


def test_a_write_whose_answer_is_lost_is_read_back(zookeeper: str, chroot: str) -> None:
    """A view, a plan, a placement, a registration and a candidacy are each told as done when they were done."""

    async def body() -> None:
        async with joined(zookeeper, chroot, election=True) as process:
            coordinator = process.coordinator
            lose_answers(process, "create_async")
            assert await coordinator.install(view(1))
            lose_answers(process, "create_async")
            plan = await coordinator.ensure_plan(ClusterPlan(logs=2))
            lose_answers(process, "set_async", count=2)
            assert await coordinator.change_plan(msgspec.structs.replace(plan, logs=3))
            assert not await coordinator.change_plan(msgspec.structs.replace(plan, logs=4))
            placement = await coordinator.placement()
            lose_answers(process, "set_async")
            moved = (Moved(1, 0, 7, (NodeId("storage-4"),)),)
            assert await coordinator.place(msgspec.structs.replace(placement, moved=moved))
            assert (await coordinator.placement()).moved == moved
            lose_answers(process, "create_async")
            await coordinator.register(ENGINE)
            lose_answers(process, "create_async")
            await coordinator.campaign(NodeId("controller-1"))
            await process.until(lambda: process.is_leader)
            await process.until(lambda: process.names == {"engine-1"})
            await process.until(lambda: [m.plan.logs for m in process.heard(InstallPlan)][-1:] == [3])
            await process.until(lambda: process.heard(InstallPlacement)[-1].placement.moved == moved)

    run(body())


def test_of_two_changes_from_the_same_version_one_counts(zookeeper: str, chroot: str) -> None:
    """Placement is replaced by compare-and-set, and what a late writer did not know is not lost."""

    async def body() -> None:
        async with joined(zookeeper, chroot, follow=False) as one, joined(zookeeper, chroot, follow=False) as two:
            base = await one.coordinator.placement()
            rows = [(Moved(1, 0, shard, (NodeId("storage-9"),)),) for shard in range(2)]
            won = await asyncio.gather(
                one.coordinator.place(msgspec.structs.replace(base, moved=rows[0])),
                two.coordinator.place(msgspec.structs.replace(base, moved=rows[1])),
            )
            assert sorted(won) == [False, True]
            stored = await two.coordinator.placement()
            assert stored.moved == rows[won.index(True)]
            assert stored.version > base.version

    run(body())


def test_a_placement_of_many_shards_fits(zookeeper: str, chroot: str) -> None:
    """A node of ZooKeeper holds a megabyte at most; 20,000 moved shards take less."""

    async def body() -> None:
        async with joined(zookeeper, chroot, follow=False) as process:
            names = tuple(NodeId(f"storage-{number}") for number in range(1, 4))
            moved = tuple(Moved(term, 0, term << 10, names) for term in range(20_000))
            base = await process.coordinator.placement()
            assert await process.coordinator.place(Placement(version=base.version, moved=moved))
            assert (await process.coordinator.placement()).moved == moved

    run(body())


def test_membership_follows_who_comes_and_goes(zookeeper: str, chroot: str) -> None:
    """Everybody sees who is registered, in snapshots whose numbers grow, and who is draining."""

    async def body() -> None:
        async with joined(zookeeper, chroot) as watcher:
            async with joined(zookeeper, chroot) as engine, joined(zookeeper, chroot) as storage:
                await engine.coordinator.register(ENGINE)
                store = Member(node=NodeId("storage-1"), role=Role.STORAGE, incarnation=4)
                await storage.coordinator.register(store)
                await watcher.until(lambda: watcher.names == {"engine-1", "storage-1"})
                await engine.coordinator.register(msgspec.structs.replace(ENGINE, has_index=True))
                await watcher.until(lambda: [m.has_index for m in watcher.coordinator.membership.members[:1]] == [True])
                await storage.coordinator.unregister()
                await watcher.until(lambda: watcher.names == {"engine-1"})
                plan = await watcher.coordinator.ensure_plan(ClusterPlan(draining=(store.node,)))
                await watcher.until(lambda: watcher.coordinator.membership.draining == plan.draining)
            await watcher.until(lambda: watcher.names == set())
            numbers = [message.membership.number for message in watcher.heard(InstallMembership)]
            assert numbers == sorted(set(numbers))

    run(body())


def test_an_engine_whose_slot_was_taken_holds_no_index_for_others(zookeeper: str, chroot: str) -> None:
    """It may stall and not know it; everybody is told at once, and the slot goes to who claims it."""

    async def body() -> None:
        async with (
            joined(zookeeper, chroot, follow=False) as still,
            joined(zookeeper, chroot, follow=False) as other,
            joined(zookeeper, chroot, follow=False) as watcher,
        ):
            await watcher.coordinator.ensure_plan(ClusterPlan(index_replicas=1))
            await watcher.coordinator.follow()
            second = msgspec.structs.replace(ENGINE, node=NodeId("engine-2"), has_index=True)
            assert await still.coordinator.claim_index_slot(ENGINE.node, 1) == 0
            assert await other.coordinator.claim_index_slot(second.node, 1) is None
            await still.coordinator.register(msgspec.structs.replace(ENGINE, has_index=True))
            holders = lambda: [m.node for m in watcher.coordinator.membership.members if m.has_index]  # noqa: E731
            await watcher.until(lambda: holders() == ["engine-1"])
            assert await still.coordinator.claim_index_slot(ENGINE.node, 1) == 0
            assert await watcher.coordinator.release_index_slots(["engine-1", "engine-3"]) == ["engine-1"]
            await watcher.until(lambda: holders() == [])
            assert watcher.names == {"engine-1"}
            assert await other.coordinator.claim_index_slot(second.node, 1) == 0
            await other.coordinator.register(second)
            await watcher.until(lambda: holders() == ["engine-2"])
            assert await still.coordinator.claim_index_slot(ENGINE.node, 1) is None

    run(body())


def test_a_node_that_begins_anew_takes_its_former_lifes_place(zookeeper: str, chroot: str) -> None:
    """From the same data directory: at once, though the old session is still there. From another: refused by name."""

    async def body() -> None:
        async with joined(zookeeper, chroot, home="a", election=True) as old:
            await old.coordinator.register(ENGINE)
            await old.coordinator.campaign(ENGINE.node)
            assert await old.coordinator.claim_index_slot(ENGINE.node, 1) == 0
            async with joined(zookeeper, chroot, home="b", follow=False, session_s=1.0) as stranger:
                with pytest.raises(ConfigError, match="engine-1 is registered already"):
                    await stranger.coordinator.register(ENGINE)
                assert await stranger.coordinator.claim_index_slot(ENGINE.node, 1) is None
            async with joined(zookeeper, chroot, home="a", election=True) as new:
                await new.coordinator.register(msgspec.structs.replace(ENGINE, incarnation=5))
                await new.until(lambda: [m.incarnation for m in new.coordinator.membership.members] == [5])
                await new.coordinator.campaign(ENGINE.node)
                await new.until(lambda: new.is_leader)
                assert await new.coordinator.claim_index_slot(ENGINE.node, 1) == 0

    run(body())


def test_a_former_life_that_wakes_up_late_takes_no_candidate_away(zookeeper: str, chroot: str) -> None:
    """Its process stalled, and looks at the election when its successor leads already; that continues to lead."""

    async def body() -> None:
        names = NodeId("controller-1"), NodeId("controller-2")
        async with joined(zookeeper, chroot, home="a", follow=False) as old:
            await old.coordinator.campaign(names[0])
            async with joined(zookeeper, chroot, home="a", election=True) as new:
                await new.coordinator.campaign(names[0])
                await new.until(lambda: new.is_leader)
                await old.coordinator.follow(election=True)
                async with joined(zookeeper, chroot, home="b", follow=False) as other:
                    await other.coordinator.campaign(names[1])
                    await other.coordinator.follow(election=True)
                    assert [process.is_leader for process in (old, new, other)] == [False, True, False]

    run(body())


def test_one_controller_leads_and_another_follows_it(zookeeper: str, chroot: str) -> None:
    """There is one leader; when it goes the next one leads."""

    async def body() -> None:
        async with joined(zookeeper, chroot, election=True) as second:
            async with joined(zookeeper, chroot, election=True) as first:
                await first.coordinator.campaign(NodeId("controller-1"))
                await first.until(lambda: first.is_leader)
                await second.coordinator.campaign(NodeId("controller-2"))
                await second.coordinator.views()
                assert not second.is_leader
            await second.until(lambda: second.is_leader)

    run(body())


def test_a_leader_that_withdraws_is_followed_by_another_while_its_session_lasts(zookeeper: str, chroot: str) -> None:
    """Its process stops one role after the other."""

    async def body() -> None:
        async with (
            joined(zookeeper, chroot, election=True) as first,
            joined(zookeeper, chroot, election=True) as second,
        ):
            await first.coordinator.campaign(NodeId("controller-1"))
            await first.until(lambda: first.is_leader)
            await second.coordinator.campaign(NodeId("controller-2"))
            await first.coordinator.withdraw()
            await second.until(lambda: second.is_leader)
            await first.until(lambda: not first.is_leader)

    run(body())


def test_a_leader_that_stands_down_is_followed_by_another(zookeeper: str, chroot: str) -> None:
    """It goes to the end of the queue, and leads again when the others have gone; alone it stays."""

    async def body() -> None:
        async with joined(zookeeper, chroot, election=True) as first:
            await first.coordinator.campaign(NodeId("controller-1"))
            await first.until(lambda: first.is_leader)
            assert not await first.coordinator.stand_down(NodeId("controller-1"))
            async with joined(zookeeper, chroot, election=True) as second:
                await second.coordinator.campaign(NodeId("controller-2"))
                assert await first.coordinator.stand_down(NodeId("controller-1"))
                await second.until(lambda: second.is_leader)
                await first.until(lambda: not first.is_leader)
            await first.until(lambda: first.is_leader)

    run(body())


def test_an_expired_session_is_told_and_never_used_again(zookeeper: str, chroot: str) -> None:
    """The registration is gone for others; whoever had the session is told once, and cannot write under another."""

    async def body() -> None:
        async with joined(zookeeper, chroot) as watcher, joined(zookeeper, chroot, election=True) as process:
            await process.coordinator.register(ENGINE)
            await process.coordinator.campaign(ENGINE.node)
            await watcher.until(lambda: watcher.names == {"engine-1"})
            await expire(process.coordinator, zookeeper)
            await process.until(lambda: SessionState.EXPIRED in process.states)
            assert process.states.count(SessionState.EXPIRED) == 1
            with pytest.raises(SessionEnded):
                await process.coordinator.install(view(1))
            await watcher.until(lambda: watcher.names == set())

    run(body())


def test_what_a_newer_boki_wrote_is_refused_by_name(zookeeper: str, chroot: str) -> None:
    """A newer version and a stranger's data stop the start, with the path that holds them."""

    async def body() -> None:
        async with joined(zookeeper, chroot) as process:
            session = process.coordinator._session
            process.coordinator.on_failure = process.on_failure
            await session.set("/placement", b'J{"version":2,"writer":"","value":{}}')
            with pytest.raises(VersionTooNew, match="/placement was written by data version 2"):
                await process.coordinator.placement()
            await session.set("/format", b"hello")
            with pytest.raises(ConfigError, match="/format is not Boki's"):
                async with joined(zookeeper, chroot):
                    pass
            await process.coordinator.ensure_plan(ClusterPlan())
            await process.until(lambda: bool(process.heard(InstallPlan)))
            assert process.failures == []  # what runs continues with what it knows

    run(body())


def test_no_zookeeper_is_told_with_its_address(chroot: str) -> None:
    """Whoever starts without one is told where none answers."""

    async def body() -> None:
        hosts = f"127.0.0.1:{free_ports(1)[0]}"
        with pytest.raises(Unavailable, match=hosts):
            await ZooKeeperCoordinator.connect(hosts, chroot, timeout_s=0.3)

    run(body())


def test_sessions_outlive_a_short_absence_of_zookeeper(own_zookeeper: Ensemble, chroot: str) -> None:
    """Killed and started again, it finds the same processes registered; what changed meanwhile is told."""

    async def body() -> None:
        async with joined(own_zookeeper.hosts, chroot, election=True) as process:
            await process.coordinator.register(ENGINE)
            await process.coordinator.campaign(ENGINE.node)
            await process.until(lambda: process.is_leader)
            loop = asyncio.get_running_loop()
            own_zookeeper.servers[0].kill()
            await process.until(lambda: process.states[-1:] == [SessionState.SUSPENDED])
            install = asyncio.create_task(process.coordinator.install(view(1)))
            await loop.run_in_executor(None, own_zookeeper.start)
            assert await install
            await process.until(lambda: process.terms == [1])
            assert process.states[-1] is SessionState.CONNECTED
            assert SessionState.EXPIRED not in process.states
            assert process.coordinator.membership.members == (ENGINE,)

    run(body())


def test_the_loss_of_an_ensembles_leader_is_survived(ensemble: Ensemble, chroot: str) -> None:
    """Writes continue over the loss, sessions live, and nothing is written twice."""

    async def body() -> None:
        async with joined(ensemble.hosts, chroot) as one, joined(ensemble.hosts, chroot) as two:
            await one.coordinator.register(ENGINE)
            assert await one.coordinator.install(view(1))
            ensemble.leader.kill()
            terms = range(2, 8)
            for term in terms:
                won = await asyncio.gather(
                    one.coordinator.install(view(term, start_time_us=1)),
                    two.coordinator.install(view(term, start_time_us=2)),
                )
                assert sorted(won) == [False, True]
            await two.until(lambda: two.terms == [1, *terms])
            assert SessionState.EXPIRED not in one.states + two.states
            await two.until(lambda: two.names == {"engine-1"})

    run(body())
