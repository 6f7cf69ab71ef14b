"""The classes of faults, each as what it does to a running cluster and how it is taken back.

A fault begins, holds for a while that the schedule draws, and ends; then the cluster must go on by itself. What a
fault hits is drawn from the seed, so a run can be repeated as far as real processes repeat anything.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import Protocol

from boki.log.membership import Role


class Patient(Protocol):
    """A cluster that can be hurt."""

    def nodes(self, role: Role) -> list[str]:
        """The nodes of a role, by name."""

    def all_nodes(self) -> list[str]:
        """All nodes."""

    async def primary(self) -> str:
        """The sequencer that orders log 0 now, as far as the cluster's status tells."""

    def kill(self, node: str) -> None:
        """SIGKILL; the supervisor starts it again."""

    def pause(self, node: str) -> None:
        """SIGSTOP."""

    def resume(self, node: str) -> None:
        """SIGCONT."""

    async def cut(self, source: str, destination: str) -> None:
        """Let nothing through in that direction."""

    async def heal(self) -> None:
        """All links carry again."""

    def break_disk(self, node: str, how: str) -> None:
        """From now on that node's disk fails: `boki.chaos.disks`."""

    def mend_disk(self, node: str) -> None:
        """Take that back."""

    async def kill_zookeeper_leader(self) -> None:
        """SIGKILL the leader of the ensemble, and start it again."""

    async def end_zookeeper(self) -> None:
        """SIGKILL the whole ensemble."""

    async def begin_zookeeper(self) -> None:
        """Start it again."""

    def pause_zookeeper(self) -> None:
        """SIGSTOP the whole ensemble."""

    def resume_zookeeper(self) -> None:
        """SIGCONT it."""

    async def change_plan(self, random: Random) -> str:
        """Ask for another number of logs, or drain a storage node that is in use: what was asked for."""

    async def power_cut(self) -> None:
        """SIGKILL every node at once, and start all again."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One class of faults. `begin` yields a text for people while the fault holds, `hold_s` at least and at most."""

    name: str
    begin: Callable[[Patient, Random], AbstractAsyncContextManager[str]]
    hold_s: tuple[float, float]


def _killing(
    choose: Callable[[Patient, Random], Awaitable[str]],
) -> Callable[[Patient, Random], AbstractAsyncContextManager[str]]:
    @contextlib.asynccontextmanager
    async def killing(patient: Patient, random: Random) -> AsyncIterator[str]:
        node = await choose(patient, random)
        patient.kill(node)
        yield f"kill -9 {node}"

    return killing


def _pausing(
    choose: Callable[[Patient, Random], Awaitable[str]],
) -> Callable[[Patient, Random], AbstractAsyncContextManager[str]]:
    @contextlib.asynccontextmanager
    async def pausing(patient: Patient, random: Random) -> AsyncIterator[str]:
        node = await choose(patient, random)
        patient.pause(node)
        try:
            yield f"SIGSTOP {node}"
        finally:
            patient.resume(node)

    return pausing


def _one_of(role: Role) -> Callable[[Patient, Random], Awaitable[str]]:
    async def choose(patient: Patient, random: Random) -> str:
        return random.choice(patient.nodes(role))

    return choose


async def _primary(patient: Patient, random: Random) -> str:  # noqa: ARG001 - the shape of every choice
    return await patient.primary()


async def _backup(patient: Patient, random: Random) -> str:
    primary = await patient.primary()
    return random.choice([node for node in patient.nodes(Role.SEQUENCER) if node != primary])


@contextlib.asynccontextmanager
async def _cutting_one_way(patient: Patient, random: Random) -> AsyncIterator[str]:
    node = random.choice(_linked(patient))
    is_deaf = random.random() < 0.5
    for other in patient.all_nodes():
        if other != node:
            await patient.cut(*((other, node) if is_deaf else (node, other)))
    try:
        yield f"{node} {'hears' if is_deaf else 'reaches'} nobody"
    finally:
        await patient.heal()


@contextlib.asynccontextmanager
async def _cutting_both_ways(patient: Patient, random: Random) -> AsyncIterator[str]:
    nodes = _linked(patient)
    first, second = random.sample(nodes, 2)
    alone = random.random() < 0.5
    pairs = [(first, other) for other in patient.all_nodes() if other != first] if alone else [(first, second)]
    for one, other in pairs:
        await patient.cut(one, other)
        await patient.cut(other, one)
    try:
        yield f"{first} cut off from {'everybody' if alone else second}"
    finally:
        await patient.heal()


def _linked(patient: Patient) -> list[str]:
    """Nodes whose links may be cut: without its one gateway, nobody could tell how the rest does."""
    return [node for node in patient.all_nodes() if node not in patient.nodes(Role.GATEWAY)]


@contextlib.asynccontextmanager
async def _filling(patient: Patient, random: Random) -> AsyncIterator[str]:
    nodes = random.sample(patient.nodes(Role.STORAGE), 1 + (random.random() < 0.5))
    for node in nodes:
        patient.break_disk(node, "full")
    try:
        yield f"the disks of {', '.join(nodes)} are full"
    finally:
        for node in nodes:
            patient.mend_disk(node)


@contextlib.asynccontextmanager
async def _failing_sync(patient: Patient, random: Random) -> AsyncIterator[str]:
    node = random.choice(patient.nodes(Role.STORAGE) + patient.nodes(Role.SEQUENCER))
    patient.break_disk(node, "fail-sync")
    try:
        yield f"fsync fails on {node}"
    finally:
        patient.mend_disk(node)


@contextlib.asynccontextmanager
async def _killing_zookeeper_leader(patient: Patient, random: Random) -> AsyncIterator[str]:  # noqa: ARG001
    await patient.kill_zookeeper_leader()
    yield "kill -9 of ZooKeeper's leader"


@contextlib.asynccontextmanager
async def _stopping_zookeeper(patient: Patient, random: Random) -> AsyncIterator[str]:  # noqa: ARG001
    patient.pause_zookeeper()
    try:
        yield "SIGSTOP of all of ZooKeeper: it may give sessions up when it wakes"
    finally:
        patient.resume_zookeeper()


@contextlib.asynccontextmanager
async def _ending_zookeeper(patient: Patient, random: Random) -> AsyncIterator[str]:  # noqa: ARG001
    await patient.end_zookeeper()
    try:
        yield "kill -9 of all of ZooKeeper"
    finally:
        await patient.begin_zookeeper()


@contextlib.asynccontextmanager
async def _changing_plan(patient: Patient, random: Random) -> AsyncIterator[str]:
    yield await patient.change_plan(random)


@contextlib.asynccontextmanager
async def _cutting_power(patient: Patient, random: Random) -> AsyncIterator[str]:  # noqa: ARG001
    await patient.power_cut()
    yield "power cut: kill -9 of every node"


_SHORT_S = (0.3, 4.0)
FAULTS: tuple[Fault, ...] = (
    *(Fault(f"kill-{role}", _killing(_one_of(role)), (0.5, 3.0)) for role in Role if role is not Role.SEQUENCER),
    Fault("kill-primary", _killing(_primary), (0.5, 3.0)),
    Fault("kill-backup", _killing(_backup), (0.5, 3.0)),
    *(Fault(f"stop-{role}", _pausing(_one_of(role)), _SHORT_S) for role in Role if role is not Role.SEQUENCER),
    Fault("stop-primary", _pausing(_primary), _SHORT_S),
    Fault("stop-backup", _pausing(_backup), _SHORT_S),
    Fault("cut-one-way", _cutting_one_way, _SHORT_S),
    Fault("cut-both-ways", _cutting_both_ways, _SHORT_S),
    Fault("disk-full", _filling, _SHORT_S),
    Fault("sync-fails", _failing_sync, (1.0, 2.0)),
    Fault("zookeeper-leader", _killing_zookeeper_leader, (1.0, 3.0)),
    Fault("zookeeper-away", _ending_zookeeper, (1.0, 6.0)),
    Fault("stop-zookeeper", _stopping_zookeeper, (0.5, 3.0)),
    Fault("reconfigure", _changing_plan, (0.5, 2.0)),
    Fault("power-cut", _cutting_power, (0.5, 1.0)),
)


class Schedule:
    """Which fault comes when, from a seed: every class in turn before any comes twice, in an order of its own."""

    def __init__(self, seed: int, faults: tuple[Fault, ...] = FAULTS) -> None:
        self.random = Random(seed)
        self._faults = faults
        self._round: list[Fault] = []

    def next(self) -> tuple[Fault, float, float]:
        """(the fault, how long it holds, how long the cluster is left alone afterwards), in seconds."""
        if not self._round:
            self._round = self.random.sample(self._faults, len(self._faults))
        fault = self._round.pop()
        return fault, self.random.uniform(*fault.hold_s), self.random.uniform(0.3, 2.0)


async def inflict(fault: Fault, patient: Patient, random: Random, hold_s: float, tell: Callable[[str], None]) -> None:
    """Begin the fault, hold it and take it back."""
    async with fault.begin(patient, random) as text:
        tell(text)
        await asyncio.sleep(hold_s)
