"""The classes of faults, each as what it does to a running cluster and how it is taken back.

A fault begins, holds for a while that the schedule draws, and ends; then the cluster must continue by itself. What a
fault hits is drawn from the seed, so a run can be repeated as far as real processes repeat anything. Every fault checks
whether
 it was felt: a signal to a process that was not there proves nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from random import Random
from typing import Protocol

from boki.log.membership import Role
from boki.verify.chaos.disks import FAIL_SYNC, FULL

_SHORT_S = (0.3, 4.0)
_LONG_S = (6.5, 9.0)
"""Longer than every timeout of nodes, sessions and connections."""
_TOGETHER = 0.25
"""How often two faults come at the same time."""
_FELT_WITHIN_S = 30.0
_WHOLE_WITHIN_S = 120.0
"""How long a wiped disk may take to be filled again: repair leaves most of a machine to appends, however slow it is."""
_STANDS_WITHIN_S = 5.0
_POLL_S = 0.1

Links = Collection[tuple[str, str]]
"""Directions between nodes: (source, destination)."""


class TargetCluster(Protocol):
    """A cluster that can be hurt, and looked at while it is."""

    def nodes(self, role: Role) -> list[str]:
        """The names under which a role is played. What is done to one of them is done to its whole process."""

    def all_nodes(self) -> list[str]:
        """All processes: links are cut between them."""

    async def primary(self) -> str:
        """The sequencer that orders log 0 now, as far as the cluster's status tells."""

    def pid(self, node: str) -> int:
        """Its process; 0 if it does not run now."""

    def kill(self, node: str) -> None:
        """SIGKILL; the supervisor starts it again."""

    def pause(self, node: str) -> None:
        """SIGSTOP."""

    def resume(self, node: str) -> None:
        """SIGCONT."""

    def is_paused(self, node: str) -> bool:
        """Whether it stalls, as the kernel says."""

    def busy_links(self) -> list[tuple[str, str]]:
        """Pairs of nodes of which the first has much to say to the second."""

    async def cut(self, links: Links) -> None:
        """Let nothing through in these directions, (source, destination) each."""

    async def heal(self, links: Links) -> None:
        """They carry again."""

    def reset_links(self, node: str) -> int:
        """Break all its connections; how many there were."""

    def held_back(self, links: Links) -> int:
        """How many bytes cuts of these links have held back ever."""

    def break_disk(self, node: str, how: str) -> None:
        """From now on that node's disk fails: `boki.verify.chaos.disks`."""

    def repair_disk(self, node: str, how: str) -> None:
        """Take that back."""

    def has_felt(self, node: str, how: str) -> bool:
        """Whether that node has met what its disk does since `break_disk`."""

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

    def zookeeper_pids(self) -> list[int]:
        """The processes of the ensemble that run and are not paused."""

    def rider_of(self, storage: str) -> str:
        """The sequencer whose newest writes are in that storage node's write-ahead log; empty: none has them there."""

    def wipe(self, node: str) -> None:
        """Lose the node's directory with all that is in it, and the process. With a log its rider is lost, too."""

    async def incarnation(self, node: str) -> int:
        """The incarnation of a node that is at work; 0 if it is not."""

    async def is_whole(self) -> bool:
        """Whether all records have all their copies, as far as the cluster's status tells."""

    async def change_plan(self, random: Random) -> str:
        """Ask for another number of logs, or drain a storage node that is in use: what was asked for."""

    async def is_as_planned(self) -> bool:
        """Whether the cluster is what was asked for last."""


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault that has begun. `text` is for people; `is_felt` says whether it has had its effect: without one it shows
    nothing, and does not count.
    """

    text: str
    is_felt: Callable[[], Awaitable[bool]]
    within_s: float = _FELT_WITHIN_S
    """How long that may take."""


Begin = Callable[[TargetCluster, Random], AbstractAsyncContextManager[Blow]]


@dataclass(frozen=True, slots=True)
class Fault:
    """One class of faults. `begin` holds it, `hold_s` at least and at most."""

    name: str
    begin: Begin
    hold_s: tuple[float, float]
    needs_zookeeper: bool = False
    """Whether it is done to ZooKeeper, or by means of it: no two such faults at once."""
    cuts_nodes: bool = False
    """Whether it cuts nodes off from each other, which takes proxies between them."""


def _blow(text: str, is_felt: Callable[[], bool]) -> Blow:
    return Blow(text, _asked(is_felt))


def _asked(is_so: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def ask() -> bool:
        return is_so()

    return ask


def _killing(choose: Callable[[TargetCluster, Random], Awaitable[str]]) -> Begin:
    @contextlib.asynccontextmanager
    async def killing(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
        node = await choose(target, random)
        pid = target.pid(node)
        target.kill(node)
        yield _blow(f"kill -9 {node}", lambda: target.pid(node) not in (0, pid) and pid != 0)

    return killing


def _pausing(choose: Callable[[TargetCluster, Random], Awaitable[str]]) -> Begin:
    @contextlib.asynccontextmanager
    async def pausing(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
        node = await choose(target, random)
        target.pause(node)
        try:
            # looked at now: another fault may kill or wake it meanwhile
            is_felt = await becomes_so(_asked(lambda: target.is_paused(node)), _STANDS_WITHIN_S)
            yield _blow(f"SIGSTOP {node}", lambda: is_felt)
        finally:
            target.resume(node)

    return pausing


@contextlib.asynccontextmanager
async def _pausing_all(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:  # noqa: ARG001
    nodes = target.all_nodes()
    before = {node: target.pid(node) for node in nodes}
    for node in nodes:
        target.pause(node)
    try:
        text = "SIGSTOP of every node, as when a laptop sleeps"
        stand = _asked(lambda: all(target.is_paused(node) for node, pid in before.items() if pid))
        is_felt = await becomes_so(stand, _STANDS_WITHIN_S)
        yield _blow(text, lambda: is_felt)
    finally:
        for node in nodes:
            target.resume(node)


def _one_of(role: Role) -> Callable[[TargetCluster, Random], Awaitable[str]]:
    async def choose(target: TargetCluster, random: Random) -> str:
        return random.choice(target.nodes(role))

    return choose


async def _primary(target: TargetCluster, random: Random) -> str:  # noqa: ARG001 - the shape of every choice
    return await target.primary()


async def _backup(target: TargetCluster, random: Random) -> str:
    primary = await target.primary()
    return random.choice([node for node in target.nodes(Role.SEQUENCER) if node != primary])


@contextlib.asynccontextmanager
async def _cutting(target: TargetCluster, text: str, links: Links) -> AsyncIterator[Blow]:
    before = target.held_back(links)
    await target.cut(links)
    try:
        yield _blow(text, lambda: target.held_back(links) > before)
    finally:
        await target.heal(links)


@contextlib.asynccontextmanager
async def _cutting_one_way(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
    node = random.choice(_linked(target))
    others = [other for other in target.all_nodes() if other != node]
    is_deaf = random.random() < 0.5
    links = [(other, node) if is_deaf else (node, other) for other in others]
    async with _cutting(target, f"{node} {'hears' if is_deaf else 'reaches'} nobody", links) as blow:
        yield blow


@contextlib.asynccontextmanager
async def _cutting_both_ways(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
    cuttable = _linked(target)
    first, second = random.choice([pair for pair in target.busy_links() if set(pair) <= set(cuttable)])
    is_alone = random.random() < 0.5
    pairs = [(first, other) for other in target.all_nodes() if other != first] if is_alone else [(first, second)]
    links = [link for one, other in pairs for link in ((one, other), (other, one))]
    async with _cutting(target, f"{first} cut off from {'everybody' if is_alone else second}", links) as blow:
        yield blow


@contextlib.asynccontextmanager
async def _resetting(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
    node = random.choice(target.all_nodes())
    count = target.reset_links(node)
    yield _blow(f"{count} connections of {node} are reset", lambda: count > 0)


def _linked(target: TargetCluster) -> list[str]:
    """Nodes whose links may be cut: without a gateway that stands alone, nobody could tell how the rest does."""
    return [node for node in target.all_nodes() if node not in target.nodes(Role.GATEWAY)]


@contextlib.asynccontextmanager
async def _filling(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
    nodes = random.sample(target.nodes(Role.STORAGE), 1 + (random.random() < 0.5))
    for node in nodes:
        target.break_disk(node, FULL)
    try:
        text = f"the disks of {', '.join(nodes)} are full"
        yield _blow(text, lambda: all(target.has_felt(node, FULL) for node in nodes))
    finally:
        for node in nodes:
            target.repair_disk(node, FULL)


@contextlib.asynccontextmanager
async def _failing_sync(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
    storage = target.nodes(Role.STORAGE)
    riders = {target.rider_of(node) for node in storage}  # seldom sync a database of their own
    node = random.choice(storage + [node for node in target.nodes(Role.SEQUENCER) if node not in riders])
    pid = target.pid(node)
    target.break_disk(node, FAIL_SYNC)
    try:
        yield _blow(f"fsync fails on {node}", lambda: target.has_felt(node, FAIL_SYNC) and target.pid(node) != pid != 0)
    finally:
        target.repair_disk(node, FAIL_SYNC)


def _wiping(choose: Callable[[TargetCluster, Random], Awaitable[str]]) -> Begin:
    @contextlib.asynccontextmanager
    async def wiping(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
        if not await becomes_so(target.is_whole, _WHOLE_WITHIN_S):
            # one more disk than may be lost at a time
            yield _blow("no disk is lost: not all records have all their copies", lambda: False)
            return
        node = await choose(target, random)
        before = await target.incarnation(node)
        target.wipe(node)

        async def is_refilled() -> bool:
            return await target.incarnation(node) not in (0, before) and await target.is_whole()

        yield Blow(f"{node} loses its disk", is_refilled, _WHOLE_WITHIN_S)

    return wiping


async def _storage(target: TargetCluster, random: Random) -> str:
    """One with which no other sequencer is lost than `_last_sequencer`."""
    spared = target.nodes(Role.SEQUENCER)[:-1]
    return random.choice([node for node in target.nodes(Role.STORAGE) if target.rider_of(node) not in spared])


async def _last_sequencer(target: TargetCluster, random: Random) -> str:  # noqa: ARG001
    """Always the same one: of what ended terms left to sequencers, the others give it nothing back."""
    return target.nodes(Role.SEQUENCER)[-1]


@contextlib.asynccontextmanager
async def _killing_zookeeper_leader(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:  # noqa: ARG001
    before = set(target.zookeeper_pids())
    await target.kill_zookeeper_leader()
    yield _blow("kill -9 of ZooKeeper's leader", lambda: len(before - set(target.zookeeper_pids())) == 1)


@contextlib.asynccontextmanager
async def _stopping_zookeeper(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:  # noqa: ARG001
    target.pause_zookeeper()
    try:
        text = "SIGSTOP of all of ZooKeeper: it may give sessions up when it wakes"
        yield _blow(text, lambda: not target.zookeeper_pids())
    finally:
        target.resume_zookeeper()


@contextlib.asynccontextmanager
async def _ending_zookeeper(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:  # noqa: ARG001
    await target.end_zookeeper()
    try:
        yield _blow("kill -9 of all of ZooKeeper", lambda: not target.zookeeper_pids())
    finally:
        await target.begin_zookeeper()


@contextlib.asynccontextmanager
async def _changing_plan(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
    yield Blow(await target.change_plan(random), target.is_as_planned)


@contextlib.asynccontextmanager
async def _cutting_power(target: TargetCluster, random: Random) -> AsyncIterator[Blow]:
    nodes = random.sample(target.all_nodes(), len(target.all_nodes()))
    before = {node: target.pid(node) for node in nodes}
    for node in nodes:
        target.kill(node)

    async def all_again() -> bool:
        return all(target.pid(node) not in (0, pid) for node, pid in before.items())

    order = "in whatever order"
    if random.random() < 0.5 and await becomes_so(all_again):
        order = f"as {', '.join(nodes)}"
        for node in nodes:
            target.pause(node)
        for node in nodes:
            await asyncio.sleep(random.uniform(0.0, 0.3))
            target.resume(node)
    yield Blow(f"power cut: kill -9 of every node; they come back {order}", all_again)


async def becomes_so(ask: Callable[[], Awaitable[bool]], within_s: float = _FELT_WITHIN_S) -> bool:
    """Wait until it is so; False if it does not become so in time. Processes have no event to wait for."""
    until = asyncio.get_running_loop().time() + within_s
    is_so = await ask()
    while not is_so and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_POLL_S)
        is_so = await ask()
    return is_so


FAULTS: tuple[Fault, ...] = (
    *(Fault(f"kill-{role}", _killing(_one_of(role)), (0.5, 3.0)) for role in Role if role is not Role.SEQUENCER),
    Fault("kill-primary", _killing(_primary), (0.5, 3.0)),
    Fault("kill-backup", _killing(_backup), (0.5, 3.0)),
    *(Fault(f"stop-{role}", _pausing(_one_of(role)), _SHORT_S) for role in Role if role is not Role.SEQUENCER),
    Fault("stop-primary", _pausing(_primary), _SHORT_S),
    Fault("stop-backup", _pausing(_backup), _SHORT_S),
    Fault("stop-all", _pausing_all, _LONG_S),
    Fault("cut-one-way", _cutting_one_way, _SHORT_S, cuts_nodes=True),
    Fault("cut-both-ways", _cutting_both_ways, _SHORT_S, cuts_nodes=True),
    Fault("reset-links", _resetting, (0.1, 0.5)),
    Fault("disk-full", _filling, _SHORT_S),
    Fault("sync-fails", _failing_sync, (1.0, 2.0)),
    Fault("wipe-storage", _wiping(_storage), (0.5, 2.0)),
    Fault("wipe-sequencer", _wiping(_last_sequencer), (0.5, 2.0)),
    Fault("zookeeper-leader", _killing_zookeeper_leader, (1.0, 3.0), needs_zookeeper=True),
    Fault("zookeeper-away", _ending_zookeeper, (1.0, 6.0), needs_zookeeper=True),
    Fault("stop-zookeeper", _stopping_zookeeper, (0.5, 3.0), needs_zookeeper=True),
    Fault("reconfigure", _changing_plan, (0.5, 2.0), needs_zookeeper=True),
    Fault("power-cut", _cutting_power, (0.5, 1.0)),
)


class Schedule:
    """Which fault comes when, from a seed: every class in turn before any comes twice, in an order of its own. Now and
    then two come together.
    """

    def __init__(self, seed: int, faults: tuple[Fault, ...], rest_s: tuple[float, float]) -> None:
        """`rest_s`: how long the cluster is left alone between faults, at least and at most."""
        self.random = Random(seed)
        self._rest_s = rest_s
        self._faults = faults
        self._round: list[Fault] = []

    def next(self) -> tuple[list[tuple[Fault, float]], float]:
        """What comes next: one fault or two, how long each holds; and how long the rest is after them, in seconds."""
        if not self._round:
            self._round = self.random.sample(self._faults, len(self._faults))
        turn = [self._round.pop()]
        if self.random.random() < _TOGETHER:
            fitting = [fault for fault in self._round if not (fault.needs_zookeeper and turn[0].needs_zookeeper)]
            if fitting:
                self._round.remove(fitting[-1])
                turn.append(fitting[-1])
        return [(fault, self.random.uniform(*fault.hold_s)) for fault in turn], self.random.uniform(*self._rest_s)

    def again(self, fault: Fault) -> None:
        """It was not felt: let it come once more, in the end."""
        self._round.insert(0, fault)


async def inflict(
    fault: Fault, target: TargetCluster, random: Random, hold_s: float, tell: Callable[[str], None]
) -> bool:
    """Begin the fault, hold it until it has been felt, and `hold_s` at least, and take it back. Whether it was felt."""
    async with fault.begin(target, random) as blow:
        tell(f"{fault.name}: {blow.text}")
        await asyncio.sleep(hold_s)
        is_felt = await becomes_so(blow.is_felt, blow.within_s)
    tell(f"{fault.name}: {'over' if is_felt else 'over, and nobody felt it'}")
    return is_felt
