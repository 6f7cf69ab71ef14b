"""Faults and their schedule: each class comes, is felt or not, and is taken back; without any effect nothing counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from random import Random

import pytest

from boki.log.membership import Role
from boki.verify.chaos.disks import FULL, faults_of
from boki.verify.chaos.faults import FAULTS, Fault, Schedule, inflict
from tests.books.calls.call_world import run

COUNTS = {Role.GATEWAY: 1, Role.ENGINE: 2, Role.STORAGE: 4, Role.SEQUENCER: 3, Role.CONTROLLER: 2}
REST_S = (0.3, 2.0)


class Stone:
    """A target that feels nothing: every order is noted, and none has an effect."""

    def __init__(self) -> None:
        self.orders: Counter[str] = Counter()

    def nodes(self, role: Role) -> list[str]:
        return [f"{role}-{number}" for number in range(1, COUNTS[role] + 1)]

    def all_nodes(self) -> list[str]:
        return [node for role in COUNTS for node in self.nodes(role)]

    async def primary(self) -> str:
        return "sequencer-1"

    def pid(self, node: str) -> int:
        return 1 + self.all_nodes().index(node)

    def kill(self, node: str) -> None:
        self.orders["kill"] += 1

    def pause(self, node: str) -> None:
        self.orders["pause"] += 1

    def resume(self, node: str) -> None:
        self.orders["resume"] += 1

    def is_paused(self, node: str) -> bool:
        return False

    def busy_links(self) -> list[tuple[str, str]]:
        return [("engine-1", "storage-2"), ("gateway-1", "engine-1")]

    async def cut(self, links: Collection[tuple[str, str]]) -> None:
        self.orders["cut"] += len(links)

    async def heal(self, links: Collection[tuple[str, str]]) -> None:
        self.orders["heal"] += len(links)

    def reset_links(self, node: str) -> int:
        return 0

    def held_back(self, links: Collection[tuple[str, str]]) -> int:
        return 0

    def break_disk(self, node: str, how: str) -> None:
        self.orders["break"] += 1

    def repair_disk(self, node: str, how: str) -> None:
        self.orders["mend"] += 1

    def has_felt(self, node: str, how: str) -> bool:
        return False

    def rider_of(self, storage: str) -> str:
        return ""

    async def kill_zookeeper_leader(self) -> None:
        self.orders["kill"] += 1

    async def end_zookeeper(self) -> None:
        self.orders["end"] += 1

    async def begin_zookeeper(self) -> None:
        self.orders["begin"] += 1

    def pause_zookeeper(self) -> None:
        self.orders["pause"] += 1

    def resume_zookeeper(self) -> None:
        self.orders["resume"] += 1

    def zookeeper_pids(self) -> list[int]:
        return [101, 102, 103]

    def wipe(self, node: str) -> None:
        self.orders["wipe"] += 1

    async def incarnation(self, node: str) -> int:
        return 1

    async def is_whole(self) -> bool:
        return True

    async def change_plan(self, random: Random) -> str:
        return "nothing"

    async def is_as_planned(self) -> bool:
        return False


class Torn(Stone):
    """A target whose records lack copies."""

    async def is_whole(self) -> bool:
        return False


def _inflict(fault: Fault, target: Stone) -> tuple[bool, list[str]]:
    said: list[str] = []
    return run(inflict(fault, target, Random(1), 0.5, said.append)), said


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_without_effect_does_not_count_and_is_taken_back(fault: Fault) -> None:
    """No class can pass by doing nothing; and whatever is begun is ended."""
    target = Stone()
    was_felt, said = _inflict(fault, target)
    assert not was_felt
    assert "nobody felt it" in said[-1]
    for begun, ended in (("pause", "resume"), ("cut", "heal"), ("break", "mend"), ("end", "begin")):
        assert target.orders[begun] == target.orders[ended], begun


@pytest.mark.parametrize("name", ["wipe-storage", "wipe-sequencer"])
def test_no_second_disk_is_lost_before_the_first_is_made_up_for(name: str) -> None:
    """That would be more than the cluster promises to survive."""
    target = Torn()
    fault = next(fault for fault in FAULTS if fault.name == name)
    was_felt, _ = _inflict(fault, target)
    assert not was_felt
    assert not target.orders["wipe"]


def _turns(seed: int, count: int) -> list[list[Fault]]:
    schedule = Schedule(seed, FAULTS, REST_S)
    turns = []
    for _ in range(count):
        turn, rest_s = schedule.next()
        assert REST_S[0] <= rest_s <= REST_S[1]
        for fault, hold_s in turn:
            assert fault.hold_s[0] <= hold_s <= fault.hold_s[1]
        turns.append([fault for fault, _ in turn])
    return turns


@pytest.mark.parametrize("seed", range(20))
def test_every_class_comes_before_any_comes_twice(seed: int) -> None:
    """Whatever the seed; never two at once that both need ZooKeeper; and the seed says all."""
    turns = _turns(seed, len(FAULTS))
    assert turns == _turns(seed, len(FAULTS))
    names = [fault.name for turn in turns for fault in turn]
    assert len(set(names[: len(FAULTS)])) == len(FAULTS)
    assert all(len(turn) <= 2 and sum(fault.needs_zookeeper for fault in turn) <= 1 for turn in turns)


def test_two_faults_come_together_now_and_then() -> None:
    """In a fifth to a third of all turns."""
    turns = [turn for seed in range(50) for turn in _turns(seed, 20)]
    assert 0.15 < sum(len(turn) == 2 for turn in turns) / len(turns) < 0.35


def test_a_fault_that_was_not_felt_comes_again_in_its_round() -> None:
    """After the others that are due."""
    schedule = Schedule(3, FAULTS, REST_S)
    (first, _), *_ = schedule.next()[0]
    schedule.again(first)
    names = [fault.name for _ in range(len(FAULTS)) for fault, _ in schedule.next()[0]]
    assert first.name in names[: len(FAULTS)]


def test_a_disk_feels_what_its_own_file_says(tmp_path: Path) -> None:
    """A fault is felt when the node has met it, and by that node only; the end of it leaves nothing."""
    (tmp_path / "storage-1").mkdir()
    (tmp_path / "storage-2").mkdir()
    mine, other = (faults_of(tmp_path, Path("nodes", node, "disk")) for node in ("storage-1", "storage-2"))
    mine.begin(FULL)
    assert not mine.is_felt(FULL)
    assert not other.has(FULL)
    assert mine.has(FULL)
    assert mine.is_felt(FULL)
    assert not other.is_felt(FULL)
    mine.end(FULL)
    assert not mine.has(FULL)
    assert list((tmp_path / "storage-1").iterdir()) == []
