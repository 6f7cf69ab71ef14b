"""The simulated disk, network and coordinator keep what the real ones keep, and lose what those may lose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from boki.log.ids import NodeId
from boki.log.membership import ClusterPlan, Member, Placement, Role
from boki.protocol.effects import Delete, DiskUnreadable, Load, Put, Send, Store
from boki.protocol.messages import InstallMembership, InstallPlacement, InstallPlan, InstallView
from boki.verify.sim.clockwork import START_US, Clockwork
from boki.verify.sim.coordinator import Coordinator, Session
from boki.verify.sim.disks import SimulatedDisk
from boki.verify.sim.network import Network
from tests.members import view

SECOND = 1_000_000


@pytest.fixture
def clock() -> Clockwork:
    return Clockwork(1)


def run(clock: Clockwork, seconds: float = 10) -> None:
    clock.run_until(clock.now_us + int(seconds * SECOND))


def test_events_happen_in_order_and_time_is_theirs(clock: Clockwork) -> None:
    """Earlier first; of equal times, the one that was asked for first."""
    happened: list[tuple[str, int]] = []
    for delay, name in ((50, "late"), (10, "early"), (50, "later")):
        clock.after(delay, lambda name=name: happened.append((name, clock.now_us - START_US)))
    run(clock)
    assert happened == [("early", 10), ("late", 50), ("later", 50)]
    assert clock.now_us == START_US + 10 * SECOND


# disks


def put(key: bytes, value: bytes = b"value") -> Put:
    return Put(key, value)


def stored(disk: SimulatedDisk, told: list[Any], *writes: Put | Delete, name: str = "stored") -> None:
    disk.store(
        Store(writes, then=(Send(NodeId("x"), name),)), lambda effects: told.extend(each.message for each in effects)
    )


def test_nothing_is_told_before_it_is_durable(clock: Clockwork) -> None:
    """What rides on a store waits for its sync; stores become durable in order."""
    disk, told = SimulatedDisk(clock, "disk", 1000), list[str]()
    stored(disk, told, put(b"a"), name="first")
    stored(disk, told, put(b"b"), name="second")
    assert told == []
    run(clock)
    assert told == ["first", "second"]


def test_a_crash_keeps_what_was_synced_and_a_prefix_of_the_rest() -> None:
    """Of the group that was being synced any prefix may be there; what came later is gone, and nobody is told."""
    kept = set()
    for seed in range(50):
        clock = Clockwork(seed)
        disk, told = SimulatedDisk(clock, "disk", 1000), list[str]()
        stored(disk, told, put(b"a", b"old"))
        run(clock)
        told.clear()
        stored(disk, told, put(b"x"))
        stored(disk, told, put(b"a", b"new"))  # the sync of x is under way: these two wait for it
        stored(disk, told, Delete(b"x", b"y"))
        disk.crash()
        run(clock)
        assert told == []
        assert disk.get(b"a") == b"old"
        kept.add(disk.get(b"x"))
    assert kept == {None, b"value"}


def test_a_group_is_lost_from_its_end() -> None:
    """Never a later store without an earlier one, whether it writes, replaces or deletes."""
    found = set()
    for seed in range(100):
        clock = Clockwork(seed)
        disk, told = SimulatedDisk(clock, "disk", 1000), list[str]()
        stored(disk, told, put(b"a", b"old"), put(b"x"))
        run(clock)
        stored(disk, told, put(b"0"))
        stored(disk, told, put(b"a", b"new"))
        stored(disk, told, Delete(b"x", b"y"))
        clock.run_until(clock.now_us + 10_000, lambda disk=disk: disk.get(b"a") == b"new")  # type: ignore[misc]
        disk.crash()
        found.add((disk.get(b"a"), disk.get(b"x")))
    assert found == {(b"old", b"value"), (b"new", b"value"), (b"new", None)}


def test_a_failed_sync_tells_nobody(clock: Clockwork) -> None:
    """The node is told that its disk is dead; what rode on the store never happens."""
    disk, told = SimulatedDisk(clock, "disk", 1000), list[str]()
    disk.on_failure = told.append
    disk.fail_next_sync = True
    stored(disk, told, put(b"a"))
    run(clock)
    assert told == ["a sync failed"]


def test_a_full_disk_fails_what_writes_and_nothing_else(clock: Clockwork) -> None:
    """As a file system without space: also what a close in good order still had to write is not there."""
    disk, told = SimulatedDisk(clock, "disk", 1000), list[str]()
    disk.on_failure = told.append
    disk.is_full = True
    stored(disk, told)
    run(clock)
    assert told == ["stored"]
    stored(disk, told, put(b"a"))
    run(clock)
    assert told == ["stored", "a write found no space"]
    disk.crash(keeps_some=False)
    stored(disk, told, put(b"b"))
    stored(disk, told, put(b"c"))
    disk.flush()
    assert disk.get(b"c") is None
    disk.is_full = False
    stored(disk, told, put(b"d"))
    run(clock)
    assert told[2:] == ["stored"]


def test_a_stalled_disk_only_takes_longer(clock: Clockwork) -> None:
    """Until the stall is over nothing is told."""
    disk, told = SimulatedDisk(clock, "disk", 1000), list[str]()
    disk.stalled_until_us = clock.now_us + SECOND
    stored(disk, told, put(b"a"))
    run(clock, 0.9)
    assert told == []
    run(clock)
    assert told == ["stored"]


def test_a_load_finds_the_batch_that_covers_a_key(clock: Clockwork) -> None:
    """The last key at or before the one asked for, then all up to the bytes that were asked for."""
    disk = SimulatedDisk(clock, "disk", 1000)
    disk.store_now([put(b"b1"), put(b"b3"), put(b"b5"), put(b"c")])
    assert [key for key, _ in disk.load(Load("t", b"b4", b"b", b"c", 100)).rows] == [b"b3", b"b5"]
    assert [key for key, _ in disk.load(Load("t", b"b4", b"b", b"c", 1)).rows] == [b"b3"]
    assert [key for key, _ in disk.scan(b"b2", b"c", backward=True)] == [b"b5", b"b3"]


def test_a_scan_sees_the_disk_as_it_was_at_its_first_look(clock: Clockwork) -> None:
    """As an iterator of RocksDB: neither a new value nor a new key nor a deletion shows (seed 6821)."""
    disk = SimulatedDisk(clock, "disk", 1000)
    disk.store_now([put(b"b1"), put(b"b3"), put(b"b5")])
    before = list(disk.scan(b"b", b"c"))
    rows = iter(disk.scan(b"b", b"c"))
    seen = [next(rows)]
    disk.store_now([Put(b"b3", b"new"), put(b"b4"), Delete(b"b5", b"b6")])
    assert [*seen, *rows] == before


def test_rot_damages_one_value_and_says_so_if_it_is_unreadable(clock: Clockwork) -> None:
    """A flipped bit comes back as it is; a block that fails its checksum is an error of the load."""
    disk = SimulatedDisk(clock, "disk", 1000)
    assert not disk.rot(b"b")
    disk.store_now([put(b"b1")])
    errors = 0
    for _ in range(20):
        assert disk.rot(b"b")
        loaded = disk.load(Load("t", b"b1", b"b", b"c", 100))
        errors += bool(loaded.error)
    assert errors
    disk.store_now([put(b"b1")])
    assert disk.load(Load("t", b"b1", b"b", b"c", 100)).rows == [(b"b1", b"value")]


def test_a_decayed_block_is_an_error_of_a_load_and_raises_for_all_others(clock: Clockwork) -> None:
    """What stands before it can still be read; writing it again makes it whole."""
    disk = SimulatedDisk(clock, "disk", 1000)
    assert not disk.decay(b"e")
    disk.store_now([put(b"d"), put(b"e"), put(b"f")])
    assert disk.decay(b"e")
    loaded = disk.load(Load("t", b"d", b"d", b"g", 100))
    assert (loaded.rows, bool(loaded.error)) == ([(b"d", b"value")], True)
    assert disk.load(Load("t", b"d", b"d", b"e", 100)).error == ""
    for read in (lambda: disk.get(b"e"), lambda: list(disk.scan(b"d", b"g"))):
        with pytest.raises(DiskUnreadable):
            read()
    assert disk.has(b"e")
    assert list(disk.scan(b"f", b"g")) == [(b"f", b"value")]
    disk.store_now([put(b"e")])
    assert disk.get(b"e") == b"value"


# the network


def sent(clock: Clockwork, network: Network, count: int = 200) -> list[int]:
    arrived: list[int] = []
    for number in range(count):
        network.send("a", "b", arrived.append, number)
    run(clock)
    return arrived


@pytest.mark.parametrize(
    ("rates", "is_kept", "is_once", "is_ordered"),
    [
        ({}, True, True, True),
        ({"delay": 0.2}, True, True, True),
        ({"loss": 0.2}, False, True, True),
        ({"repeat": 0.2}, True, False, True),
        ({"reorder": 0.2}, True, True, False),
    ],
)
def test_each_fault_of_a_link_does_what_it_is_called(
    clock: Clockwork, rates: dict[str, float], is_kept: bool, is_once: bool, is_ordered: bool
) -> None:
    """And nothing else; without any a link keeps all messages, once, in order."""
    arrived = sent(clock, Network(clock, 100, rates))
    assert (set(arrived) == set(range(200))) is is_kept
    assert (len(arrived) == len(set(arrived))) is is_once
    assert (list(dict.fromkeys(arrived)) == sorted(set(arrived))) is is_ordered


def test_a_cut_is_one_way_and_is_taken_back(clock: Clockwork) -> None:
    """Two cuts of one link must both be healed; what was under way when it was cut is lost."""
    network = Network(clock, 100, {})
    first, second = network.cut(["a"], ["b", "a"]), network.cut(["a"], ["b"])
    assert network.is_cut("a", "b")
    assert not network.is_cut("b", "a")
    assert sent(clock, network, 3) == []
    network.mend(first)
    assert sent(clock, network, 3) == []
    network.mend(second)
    assert sent(clock, network, 3) == [0, 1, 2]
    arrived: list[int] = []
    network.send("a", "b", arrived.append, 1)
    network.cut(["a"], ["b"])
    run(clock)
    assert arrived == []


# the coordinator


class Process:
    """Somebody with a session."""

    def __init__(self, coordinator: Coordinator, name: str, role: Role = Role.CONTROLLER) -> None:
        self.news: list[Any] = []
        self.states: list[str] = []
        self.leads: list[bool] = []
        self.coordinator = coordinator
        self.session: Session = coordinator.open(
            NodeId(name), frozenset({role}), self.news.append, self.leads.append, self.states.append
        )
        coordinator.register(self.session, Member(node=NodeId(name), role=role, incarnation=1))
        coordinator.follow(self.session)

    def heard(self, kind: type[Any]) -> Sequence[Any]:
        return [news for news in self.news if isinstance(news, kind)]


class Ensemble(Coordinator):
    """A coordinator whose links a test cuts by hand."""

    def __init__(self, clock: Clockwork, doubt: float = 0.0, stale: float = 0.0) -> None:
        self.cut: set[str] = set()
        super().__init__(clock, ClusterPlan(), self.cut.__contains__, 2 * SECOND, doubt, stale)


def test_who_comes_is_told_everything_and_what_changes(clock: Clockwork) -> None:
    """Views, members, placement and plan; views one after the other, none twice."""
    ensemble = Ensemble(clock)
    process = Process(ensemble, "controller-1")
    run(clock)
    for term in (1, 2):
        assert ensemble.install(view(term))
        run(clock)
    ensemble.change_plan(logs=2)
    run(clock)
    assert [each.term for news in process.heard(InstallView) for each in news.views] == [1, 2]
    assert process.heard(InstallPlan)[-1].plan.logs == 2
    assert process.heard(InstallMembership)[-1].membership.find(NodeId("controller-1")) is not None
    assert process.heard(InstallPlacement)


def test_of_two_writes_from_one_version_one_counts(clock: Clockwork) -> None:
    """Views and placements are compare-and-sets; a repeated write finds its own."""
    ensemble = Ensemble(clock)
    assert ensemble.install(view(1))
    assert ensemble.install(view(1))
    assert not ensemble.install(view(1, log_count=1, storage=4))
    assert not ensemble.install(view(3))
    assert ensemble.place(Placement(version=0))
    assert not ensemble.place(Placement(version=5))


def test_a_connection_that_breaks_is_made_again_and_news_come_then(clock: Clockwork) -> None:
    """Nothing is told to whoever is out of touch, not even what was on its way; afterwards it hears all it missed."""
    ensemble = Ensemble(clock)
    process = Process(ensemble, "controller-1")
    run(clock, 1)
    ensemble.install(view(1))
    ensemble.cut.add("controller-1")
    ensemble.lose_touch(process.session)
    run(clock, 1)
    assert process.states == ["suspended"]
    assert not process.heard(InstallView)
    ensemble.cut.clear()
    run(clock, 1)
    assert process.states == ["suspended", "connected"]
    assert [each.term for news in process.heard(InstallView) for each in news.views] == [1]


def test_slow_writes_are_carried_out_late(clock: Clockwork) -> None:
    """An ensemble whose disks are slow does what it is asked for, later."""
    ensemble = Ensemble(clock)
    process, answers = Process(ensemble, "controller-1"), list[bool]()
    ensemble.slow_us = SECOND
    ensemble.ask(process.session, lambda: ensemble.install(view(1)), answers.append)
    run(clock, 0.9)
    assert not ensemble.views
    run(clock, 0.5)
    assert answers == [True]


def test_a_silent_process_loses_its_session_and_learns_of_it_when_it_is_heard_again(clock: Clockwork) -> None:
    """Its registration goes after the timeout, at the ensemble; it itself is first suspended, and then expired."""
    ensemble = Ensemble(clock)
    process, other = Process(ensemble, "controller-1"), Process(ensemble, "controller-2")
    run(clock, 1)
    ensemble.cut.add("controller-1")
    run(clock, 1)
    assert process.states == ["suspended"]
    assert NodeId("controller-1") in ensemble.members
    run(clock, 3)
    assert NodeId("controller-1") not in ensemble.members
    assert process.states == ["suspended"]
    assert (process.leads, other.leads) == ([True], [True])
    ensemble.cut.clear()
    run(clock, 1)
    assert process.states == ["suspended", "expired"]


def test_a_short_silence_costs_nothing(clock: Clockwork) -> None:
    """The session continues, and what changed meanwhile is told."""
    ensemble = Ensemble(clock)
    process = Process(ensemble, "controller-1")
    run(clock, 1)
    ensemble.cut.add("controller-1")
    run(clock, 0.5)
    ensemble.install(view(1))
    run(clock, 0.5)
    assert not process.heard(InstallView)
    ensemble.cut.clear()
    run(clock, 1)
    assert process.states == ["suspended", "connected"]
    assert process.heard(InstallView)


def test_a_write_in_doubt_is_answered_once_and_rightly() -> None:
    """Whether the first attempt was carried out or not, the repetition tells the truth."""
    for seed in range(50):
        clock = Clockwork(seed)
        ensemble = Ensemble(clock, doubt=0.7)
        process = Process(ensemble, "controller-1")
        answers: list[bool] = []
        ensemble.ask(process.session, lambda ensemble=ensemble: ensemble.install(view(1)), answers.append)  # type: ignore[misc]
        run(clock, 60)
        assert answers == [True]
        assert len(ensemble.views) == 1


def test_a_request_of_a_session_that_is_over_is_never_answered(clock: Clockwork) -> None:
    """Its process begins again: an answer would reach another incarnation."""
    ensemble = Ensemble(clock)
    process = Process(ensemble, "controller-1")
    answers: list[bool] = []
    ensemble.ask(process.session, lambda: True, answers.append)
    ensemble.expire(process.session)
    run(clock)
    assert answers == []
    assert process.states == ["expired"]
