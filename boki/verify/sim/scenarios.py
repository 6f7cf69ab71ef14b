"""Scenarios: faults in several acts, each as soon as what it waits for has happened.

A rule that matters in one order of events only is hardly ever tried by faults that come when they come. Here that order
is brought about. Still no more is lost than the system promises to survive, so whatever is missing in the end is a
broken promise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from boki.log.ids import LogId, NodeId
from boki.log.membership import Role
from boki.log.metalog import covers
from boki.log.view import View
from boki.sequencer.core import SequencerCore
from boki.sequencer.metalog_store import MetalogStore
from boki.verify.sim.clockwork import Clockwork
from boki.verify.sim.coordinator import NAME as ZOOKEEPER
from boki.verify.sim.coordinator import Coordinator
from boki.verify.sim.coverage import Coverage
from boki.verify.sim.engines import EngineNode
from boki.verify.sim.hosts import NodeHost
from boki.verify.sim.log_nodes import StorageNode
from boki.verify.sim.network import Network
from boki.verify.sim.nodes import Node
from boki.verify.sim.options import Options

_LOOK_US: Final = 2_000


class Cluster(Protocol):
    """What faults can reach."""

    clock: Clockwork
    network: Network
    coordinator: Coordinator
    options: Options
    coverage: Coverage
    nodes: dict[NodeId, Node]
    hosts: dict[NodeId, NodeHost]

    def process_of(self, node: Node) -> list[Node]:
        """The roles that are lost together with it, itself among them."""

    def of(self, role: Role) -> list[Node]:
        """The nodes of a role."""


class Counted(Protocol):
    """An open shard as a primary counts it: per replica (incarnation, stored until), and how far it is ordered."""

    replicas: tuple[NodeId, ...]
    stored: dict[NodeId, tuple[int, int]]
    cut_until: int


Later = Callable[..., None]
"""`later(delay_us, action, *arguments)`: unless all has been healed by then."""


class Scenario(ABC):
    """What scenarios have in common: one at a time, and links that are cut until its end."""

    def __init__(self, cluster: Cluster, later: Later) -> None:
        self.is_going = False
        self._cluster = cluster
        self._clock = cluster.clock
        self._later = later
        self._cuts: dict[str, list[tuple[str, str]]] = {}

    def stop(self) -> None:
        """Everything is healed: nothing more is to be cut."""
        self.is_going = False

    @abstractmethod
    def strike(self, rng: Random) -> None:
        """Begin, if that is possible and fair."""

    def _wait(
        self,
        is_so: Callable[[], bool],
        then: Callable[[], None],
        timeout_us: int,
        look_us: int = _LOOK_US,
    ) -> None:
        """Continue as soon as something is so; give the scenario up if that takes too long."""
        if is_so():
            then()
        elif timeout_us <= 0:
            self._end()
        else:
            self._later(look_us, self._wait, is_so, then, timeout_us - look_us, look_us)

    def _cut(self, name: str, sources: Sequence[str], targets: Sequence[str]) -> None:
        self._cuts.setdefault(name, []).extend(self._cluster.network.cut(sources, targets))

    def _mend(self, name: str) -> None:
        self._cluster.network.mend(self._cuts.pop(name, ()))

    def _end(self) -> None:
        for name in list(self._cuts):
            self._mend(name)
        self.is_going = False

    def _lose_disk(self, node: Node, down_us: int = 20_000) -> None:
        node.crash()
        node.wipe()
        self._clock.note(f"{node.name} has lost its disk")
        self._later(down_us, node.start)


class SequencerScenario(Scenario):
    """What scenarios have in common that are about one log of one term."""

    _view: View
    _log: LogId

    def _store(self, node: Node) -> MetalogStore | None:
        core = node.core
        if not isinstance(core, SequencerCore) or self._view.term not in core.chain:
            return None
        return core._stores.get((self._view.term, self._log))  # noqa: SLF001 - when to strike, not a check

    def _busiest(self, view: View, logs: Sequence[int]) -> LogId:
        """The log of these whose primary has the most entries."""
        self._view = view
        lengths = {}
        for log in logs:
            self._log = LogId(log)
            store = self._store(self._cluster.nodes[view.primaries[log]])
            lengths[LogId(log)] = store.length if store is not None else 0
        return max(lengths, key=lambda log: lengths[log])

    def _is_well(self) -> bool:
        """Whether the term continues, and all its sequencers take part."""
        nodes = [self._cluster.nodes[name] for name in self._view.sequencers]
        return self._cluster.coordinator.views[-1] is self._view and all(
            store is not None and node.incarnation == self._view.incarnations[node.name] and store.may("append")
            for node in nodes
            for store in [self._store(node)]
        )


class Swap(Scenario):
    """Storage nodes lose their disks one after the other, and what is stored meanwhile reaches only them.

    One of them says that it has a batch and loses it; then the victims get it, one less than a write quorum, and lose
    it, too. A primary that counted them all would order it. At no time is more lost than a record must survive: what
    was acknowledged before is whole elsewhere (else nothing is done), and what is acknowledged meanwhile had only the
    victims to survive.
    """

    def __init__(self, cluster: Cluster, later: Later, victims: Sequence[Node]) -> None:
        super().__init__(cluster, later)
        self._victims = [node for node in victims if node.role is Role.STORAGE]

    def strike(self, rng: Random) -> None:
        """Begin, if that is possible and fair."""
        names = {str(node.name) for node in self._victims}
        beside = {name for shard in self._shards() if names <= set(shard.replicas) for name in shard.replicas} - names
        if self.is_going or not names or not beside:
            return
        self.is_going = True
        self._first = self._cluster.nodes[rng.choice(sorted(beside))]
        lost = [self._first, *self._victims]
        self._wait(lambda: self.may_lose(lost), self._keep_to_first, 500_000, 10_000)

    def _shards(self) -> list[Counted]:
        """Open shards as their primaries count them."""
        return [
            shard
            for sequencer in self._cluster.of(Role.SEQUENCER)
            for primary in getattr(sequencer.core, "_primaries", {}).values()
            for shard in primary._shards.values()  # noqa: SLF001 - when to strike and what is fair, not a check
        ]

    def may_lose(self, lost: list[Node]) -> bool:
        """Whether these may lose their disks: others have everything, and no primary counts a disk that is gone."""
        return self._are_lives_known() and is_whole_without(lost, self._cluster.of(Role.STORAGE))

    def _are_lives_known(self) -> bool:
        storage = self._cluster.of(Role.STORAGE)
        incarnations = {node.name: node.incarnation for node in storage}
        return all(node.core is not None for node in storage) and all(
            incarnation >= incarnations[name]
            for shard in self._shards()
            for name, (incarnation, _) in shard.stored.items()
        )

    def _keep_to_first(self) -> None:
        self._clock.note(f"{self._first.name} and then the victims are to lose their disks")
        self._engines = [str(node.name) for node in self._cluster.of(Role.ENGINE)]
        for node in self._cluster.of(Role.STORAGE):
            if node is not self._first:
                self._cut(str(node.name), self._engines, [str(node.name)])
        # what was on its way to all is ordered by then
        self._later(50_000, self._wait, self._has_told, self._lose_first, 600_000)

    def _has_told(self) -> bool:
        """Whether a primary counts on the first one for what is not ordered yet."""
        name = self._first.name
        return self._are_lives_known() and any(
            name in shard.stored and shard.stored[name][1] > shard.cut_until for shard in self._shards()
        )

    def _lose_first(self) -> None:
        self._cut(str(self._first.name), self._engines, [str(self._first.name)])
        self._lose_disk(self._first)
        self._wait(self._is_one_loss, self._open_victims, 1_500_000, 5_000)

    def _is_one_loss(self) -> bool:
        """Whether nobody counts on what the first one has lost, and the victims have nothing that others lack."""
        return self.may_lose(self._victims)

    def _open_victims(self) -> None:
        for node in self._victims:
            self._mend(str(node.name))
        self._wait(self._have_victims_alone, self._lose_victims, 1_000_000)

    def _have_victims_alone(self) -> bool:
        storage = self._cluster.of(Role.STORAGE)
        return all(node.core is not None for node in storage) and not is_whole_without(self._victims, storage)

    def _lose_victims(self) -> None:
        self._clock.sometimes("disks were wiped one after the other")
        ordered_us = 30_000 + 8 * (self._cluster.options.sync_us + self._cluster.options.link_us)
        for node in self._victims:
            self._later(ordered_us, self._lose_disk, node)
        self._later(ordered_us + 200_000, self._end)


class LoneCopy(SequencerScenario):
    """An entry is durable on one backup only when its term ends, and that backup loses its disk in the next one.

    By then a majority must have it: it is in the term's end that the next view names, and engines have gone by it. The
    backup is one of the sequencers whose disks may be lost.
    """

    def __init__(self, cluster: Cluster, later: Later, victims: Sequence[Node]) -> None:
        super().__init__(cluster, later)
        self._victims = [node for node in victims if node.role is Role.SEQUENCER]
        cluster.coverage.on_completion.append(self._on_completion)
        self._awaits_completion = False

    def strike(self, rng: Random) -> None:
        """Begin, if that is possible and fair."""
        views = self._cluster.coordinator.views
        if self.is_going or not views or len(views[-1].sequencers) != 3:
            return
        view = views[-1]
        holders = [node for node in self._victims if node.name in view.sequencers]
        if not holders:
            return
        self._holder = rng.choice(holders)
        logs = [log for log, primary in enumerate(view.primaries) if primary != self._holder.name]
        if logs:
            self.is_going = True
            self._log = self._busiest(view, logs)
            self._primary = self._cluster.nodes[view.primaries[self._log]]
            names = [name for name in view.sequencers if name not in (self._holder.name, self._primary.name)]
            self._other = self._cluster.nodes[names[0]]
            self._wait(self._is_well, self._keep_to_holder, 300_000, 20_000)

    def _keep_to_holder(self) -> None:
        self._clock.note(f"of {self._primary.name}'s entries one is to be on {self._holder.name} alone")
        self._cut("primary", [self._primary.name], [self._other.name])
        self._primary.disk.stalled_until_us = self._clock.now_us + 500_000
        self._wait(self._is_alone, self._kill_primary, 450_000, 1_000)

    def _is_alone(self) -> bool:
        holder, other, primary = (self._store(node) for node in (self._holder, self._other, self._primary))
        if holder is None or other is None or primary is None:
            return False
        return bool(holder.durable_until > max(other.length, primary.durable_until))

    def _kill_primary(self) -> None:
        self._awaits_completion = True
        self._primary.crash(keeps_some=False)
        self._wait(self._has_next_view, self._await_engines, 3_000_000)

    def _on_completion(self, node: Node) -> None:
        """The other backup is sent what it lacks: now its disk stalls for a while, so that it has that late."""
        if self.is_going and self._awaits_completion and node is self._other:
            self._awaits_completion = False
            node.disk.stalled_until_us = self._clock.now_us + 900_000

    def _has_next_view(self) -> bool:
        return len(self._cluster.coordinator.views) > self._view.term

    def _await_engines(self) -> None:
        self._wait(self._has_gone_by, self._lose_holder, 800_000)

    def _has_gone_by(self) -> bool:
        """Whether an engine has applied the term to its end."""
        nodes = [node for node in self._cluster.of(Role.ENGINE) if isinstance(node, EngineNode)]
        engines = [node.engine for node in nodes if node.core is not None]
        return any(engine is not None and engine.follower.term > self._view.term for engine in engines)

    def _lose_holder(self) -> None:
        self._clock.sometimes("the one backup with an entry of the term before lost its disk")
        if self._other.disk.stalled_until_us > self._clock.now_us:
            self._other.crash(keeps_some=False)
            self._later(20_000, self._other.start)
        self._later(20_000, self._lose_disk, self._holder)
        self._later(100_000, self._end)

    def _end(self) -> None:
        self._awaits_completion = False
        self._primary.start()
        super()._end()


class OldPrimary(SequencerScenario):
    """A primary that is cut off has an entry that nobody else has; its term ends; then a backup restarts and hears it.

    Neither that backup nor any engine knows of the next view yet. Were the seal forgotten by the restart, the two would
    be a majority for an entry behind the end of the term, and engines would go by it.
    """

    def __init__(self, cluster: Cluster, later: Later) -> None:
        super().__init__(cluster, later)
        cluster.coverage.on_proposal.append(self._on_proposal)
        self._awaits_proposal = False

    def strike(self, rng: Random) -> None:
        """Begin, if that is possible."""
        views = self._cluster.coordinator.views
        if self.is_going or not views or len(views[-1].sequencers) != 3:
            return
        self.is_going = True
        self._log = self._busiest(views[-1], range(views[-1].log_count))
        self._primary = self._cluster.nodes[self._view.primaries[self._log]]
        names = [name for name in self._view.sequencers if name != self._primary.name]
        self._backups = [self._cluster.nodes[name] for name in names]
        self._woken = rng.choice(self._backups)
        self._wait(self._is_well, self._cut_off, 300_000, 20_000)

    def _cut_off(self) -> None:
        primary, backups = str(self._primary.name), [str(node.name) for node in self._backups]
        self._clock.note(f"{primary} is to go on after its term")
        self._cut("backups", [primary], backups)
        far = [ZOOKEEPER, *(str(node.name) for node in self._cluster.of(Role.CONTROLLER))]
        self._cut("far", [primary], far)
        self._cut("far", far, [primary])
        self._wait(self._has_more, self._await_proposal, 400_000)

    def _has_more(self) -> bool:
        """Whether the primary has a durable entry that no backup has."""
        mine, theirs = self._store(self._primary), [self._store(node) for node in self._backups]
        return mine is not None and all(other is not None and mine.durable_until > other.length for other in theirs)

    def _await_proposal(self) -> None:
        self._awaits_proposal = True
        self._later(3_000_000, self._end)

    def _on_proposal(self, _controller: Node, view: View) -> None:
        if not (self.is_going and self._awaits_proposal) or view.term != self._view.term + 1:
            return
        self._awaits_proposal = False
        self._cluster.coordinator.slow_us = 100_000
        for node in self._cluster.of(Role.ENGINE):
            self._silence(node)
        self._later(0, self._restart)

    def _silence(self, node: Node) -> None:
        """The coordinator's news do not reach it."""
        self._cut("news", [ZOOKEEPER], [str(node.name)])
        if node.session is not None:
            self._cluster.coordinator.lose_touch(node.session)

    def _restart(self) -> None:
        self._woken.crash()
        self._woken.start()
        self._wait(lambda: self._store(self._woken) is not None, self._bring_together, 100_000, 200)

    def _bring_together(self) -> None:
        self._clock.sometimes("a primary that nobody had told went on after its term")
        self._silence(self._woken)
        self._cluster.coordinator.slow_us = 0
        self._mend("backups")
        self._later(500_000, self._end)

    def _end(self) -> None:
        self._awaits_proposal = False
        self._cluster.coordinator.slow_us = 0
        super()._end()


def is_whole_without(lost: list[Node], storage: list[Node]) -> bool:
    """Whether all that any storage node has is on one that is not to be lost: records, and the newest index.

    All must be up to tell. Whoever looks at what an operator is told sees the same: `records_missing` and
    `index_copies_lacking`.
    """
    cores = [(node, node.storage) for node in storage if isinstance(node, StorageNode) and node.core is not None]
    if len(cores) < len(storage):
        return False
    wanted: dict[tuple[int, int, int], int] = {}
    spared: dict[tuple[int, int, int], int] = {}
    for node, core in cores:
        for key, shard in core.holdings.shards.items():
            until = 0 if shard.is_removed else shard.stored_until
            wanted[key] = max(wanted.get(key, 0), until, shard.order.until_lid)
            if node not in lost:  # and there it must be synced, or a crash could take it
                spared[key] = max(spared.get(key, 0), min(until, shard.written_until))
    indexes = [core.checkpoints.positions for _, core in cores]
    left = [core.checkpoints.positions for node, core in cores if node not in lost]
    has_index = any(all(covers(mine, each) for each in indexes) for mine in left)
    return has_index and all(spared.get(key, 0) >= until for key, until in wanted.items())
