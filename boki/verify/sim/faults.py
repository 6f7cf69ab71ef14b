"""Faults as a seed draws them: when each strikes, whom, and how it is taken back.

**What may be lost.** Disks are damaged permanently (wiped, rotten) only on nodes that were drawn as victims: as many
storage nodes as `write_quorum - 1`, as many sequencers as `f`. So a good copy of everything that counts is left, and
whatever is missing in the end is a broken promise. Crashes, pauses and cuts may hit everybody. `swap` may take two
other disks, if all that is on them is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.log.view import View
from boki.protocol.effects import DiskRoom
from boki.protocol.messages import Seal
from boki.verify.sim.ahead_scenarios import Ahead
from boki.verify.sim.coordinator import NAME as ZOOKEEPER
from boki.verify.sim.echoes import Echo
from boki.verify.sim.log_nodes import StorageNode
from boki.verify.sim.lost_indexes import LostIndex
from boki.verify.sim.mistakes import Mistake
from boki.verify.sim.nodes import Node
from boki.verify.sim.options import seconds_between
from boki.verify.sim.scenarios import Cluster, LoneCopy, OldPrimary, Scenario, Swap
from boki.verify.sim.short_incarnations import ShortIncarnation

MAX_PAUSE_US: Final = 2_500_000
MAX_OFFSET_US: Final = 1_000_000
_RATES_ELSEWHERE: Final = {"loss", "repeat", "reorder", "delay", "doubt", "stale", "seal_crash"}
_SHORT_INCARNATION_RATE: Final = 0.6
_RESERVE_BYTES: Final = 16 << 10
"""Of a full disk: a quarter of it holds the index of a short run, and not that of a long one."""
_KINDS_ON_DISK: Final = {
    Role.SEQUENCER: (b"e", b"e", b"e", b"z", b"l", b"b", b"w"),
    Role.STORAGE: (b"x", b"h", b"o", b"p", b"s"),
}
"""How keys begin that `decay` strikes: see `boki.sequencer.metalog_store`, `boki.storage.state` and `.checkpoints`."""


class Faults:
    """All faults of a run, until `end`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._options = cluster.options
        self._rng: Random = cluster.clock.fault_rng
        self._is_over = False
        self.victims = self._draw_victims()
        self._swapping = Swap(cluster, self._later, self.victims)
        self._keeping = LoneCopy(cluster, self._later, self.victims)
        self._waking = OldPrimary(cluster, self._later)
        self._short_incarnation = ShortIncarnation(cluster, self._later)
        if "crash" in self._options.faults:
            rng = Random(f"{self._options.seed}:fault:short life")
            self._schedule(partial(self._short_incarnation.strike, rng), _SHORT_INCARNATION_RATE, rng)
        self._scenarios: dict[str, Scenario] = {
            "mistake": Mistake(cluster, self._later),
            "ahead": Ahead(cluster, self._later, self.victims),
            "echo": Echo(cluster, self._later),
            "lost_index": LostIndex(cluster, self._later, self.victims),
        }
        for name, rate in sorted(self._options.scenarios.items()):
            rng = Random(f"{self._options.seed}:scheme:{name}")
            self._schedule(partial(self._scenarios[name].strike, rng), rate, rng)
        if "seal_crash" in self._options.faults:
            self._seal_rng = Random(f"{self._options.seed}:fault:seal_crash")
            cluster.coverage.on_seal.append(self._on_seal)
            cluster.coverage.on_proposal.append(self._on_proposal)
        for fault, rate in sorted(self._options.faults.items()):
            if fault not in _RATES_ELSEWHERE:
                # a stream of its own, so that one class switched off leaves the others where they were
                rng = Random(f"{self._options.seed}:fault:{fault}")
                self._schedule(getattr(self, f"_{fault}" if fault != "clock" else "_clock_jump"), rate, rng)

    def _draw_victims(self) -> list[Node]:
        storage, sequencers = self._cluster.of(Role.STORAGE), self._cluster.of(Role.SEQUENCER)
        spared = min(self._options.write_quorum - 1, len(storage))
        count = min(self._options.sequencers // 2, len(sequencers))
        if self._options.shares_log:  # a log is lost for both
            lost = self._rng.sample(sequencers, count)
            fair = [node for node in storage if all(mate is node or mate in lost for mate in node.mates.values())]
            return [*self._rng.sample(fair, min(spared, len(fair))), *lost]
        return [*self._rng.sample(storage, spared), *self._rng.sample(sequencers, count)]

    def _schedule(self, strike: Callable[[], None], rate: float, rng: Random) -> None:
        self._clock.after(int(seconds_between(rate, rng) * 1e6), self._strike, strike, rate, rng)

    def _strike(self, strike: Callable[[], None], rate: float, rng: Random) -> None:
        if self._is_over:
            return
        self._rng = rng
        strike()
        self._schedule(strike, rate, rng)

    def end(self) -> None:
        """Heal everything: what is cut is joined, what is down comes up, what is stopped continues."""
        self._is_over = True
        self._swapping.stop()
        self._keeping.stop()
        self._waking.stop()
        self._short_incarnation.stop()
        for scenario in self._scenarios.values():
            scenario.stop()
        self._clock.note("everything is healed")
        self._cluster.network.heal()
        self._cluster.coordinator.slow_us = 0
        self._cluster.coordinator.uninformed.clear()
        self._cluster.coordinator.doubt = self._cluster.coordinator.stale = 0.0
        for node in self._cluster.nodes.values():
            node.disk.fail_next_sync = node.disk.is_full = False
            node.resume()
            node.start()
            node.disk.stalled_until_us = 0
            if isinstance(node, StorageNode):
                node.set_room(DiskRoom(True))
        self._cluster.coordinator.change_plan(draining=())

    # drawing

    def _pick(self, *roles: Role) -> Node:
        names = [node for node in self._cluster.nodes.values() if node.role in roles]
        return self._rng.choice(names)

    def _some_us(self, low_us: int, high_us: int) -> int:
        return int(low_us * (high_us / low_us) ** self._rng.random())

    def _later(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        self._clock.after(delay_us, self._unless_over, action, arguments)

    def _unless_over(self, action: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if not self._is_over:  # else it has been healed already, and nothing bad is to happen any more
            action(*arguments)

    # nodes

    def _crash(self) -> None:
        node = self._pick(*Role)
        self._fall(node)
        self._later(self._some_us(10_000, 3_000_000), node.start)

    def _crash_primary(self) -> None:
        """Half of the time its disk had been slow, so that it has sent what it has not stored; and it is back soon."""
        views = self._cluster.coordinator.views
        if not views:
            return
        node = self._cluster.nodes[self._rng.choice(views[-1].primaries)]
        if self._rng.random() < 0.5:
            self._later(0, self._crash_and_start, node, self._some_us(10_000, 3_000_000))
            return
        slow_us = self._some_us(5_000, 100_000)
        self._clock.note(f"the disk of {node.name} is slow for {slow_us} us, and then it dies")
        node.disk.stalled_until_us = self._clock.now_us + slow_us
        down_us = self._some_us(10_000, 300_000)
        self._later(int(slow_us * self._rng.random()), self._crash_and_start, node, down_us)

    def _on_seal(self, node: Node, _sender: NodeId) -> None:
        """A sequencer dies just before or after its seal is durable."""
        rng = self._seal_rng
        if not self._is_over and rng.random() < self._options.faults["seal_crash"] / 4:
            self._later(
                rng.randint(0, 4 * self._options.sync_us), self._crash_and_start, node, rng.randint(1_000, 30_000)
            )

    def _on_proposal(self, controller: Node, view: View) -> None:
        """Backups of the term that is over die, and are back before the next one is there; or the controller does."""
        rng = self._seal_rng
        if self._is_over or view.term == 1:
            return
        if rng.random() < self._options.faults["seal_crash"] / 4:
            self._later(rng.randint(0, 10_000), self._crash_and_start, controller, rng.randint(10_000, 500_000))
        last = self._cluster.coordinator.views[-1]
        for name in last.sequencers:
            if name not in last.primaries and rng.random() < self._options.faults["seal_crash"]:
                node = self._cluster.nodes[name]
                is_wiped = node in self.victims and "wipe" in self._options.faults and rng.random() < 0.5
                fall = self._wipe_node if is_wiped else self._crash_and_start
                self._later(rng.randint(0, 20_000), fall, node, rng.randint(1_000, 30_000))

    def _crash_and_start(self, node: Node, down_us: int) -> None:
        self._fall(node)
        self._later(down_us, node.start)

    def _fall(self, node: Node) -> None:
        node.crash()
        if len(self._cluster.process_of(node)) > 1:
            self._clock.sometimes("a node died with all its roles")

    def _power_cut(self) -> None:
        """Everything at once. Mostly all disks had been slow just before, so much was not synced."""
        if self._rng.random() < 0.3:
            self._clock.note("the power fails")
            self._fail_power()
            return
        slow_us = self._some_us(100_000, 800_000)
        for node in self._cluster.nodes.values():
            node.disk.stalled_until_us = self._clock.now_us + slow_us
        self._clock.note("all disks are slow, and then the power fails")
        self._later(int(slow_us * (0.5 + self._rng.random() / 2)), self._fail_power)

    def _fail_power(self) -> None:
        for node in self._cluster.nodes.values():
            node.crash()
            # not `self._rng`, which may be another fault's by now
            self._later(self._clock.fault_rng.randint(10_000, 1_000_000), node.start)

    def _stop(self) -> None:
        node = self._pick(*Role)
        self._clock.note(f"{node.name} shall stop")
        node.stop()

    def _save(self) -> None:
        self._pick(Role.STORAGE, Role.ENGINE).save()

    def _pause(self) -> None:
        node = self._pick(*Role)
        node.pause()
        self._later(self._some_us(20_000, MAX_PAUSE_US), node.resume)

    def _wipe(self) -> None:
        if self.victims:
            node = self._rng.choice(self.victims)
            if not self._may_lose(node):
                return
            node.crash()
            node.wipe()
            self._clock.note(f"{node.name} has lost its disk")
            self._clock.sometimes("a disk was wiped")
            self._later(self._some_us(10_000, 3_000_000), node.start)

    def _may_lose(self, victim: Node) -> bool:
        """Whether what is on its disk is elsewhere: if other disks are lost on purpose, that is not so by itself."""
        shares_budget = "swap" in self._options.faults and victim.role is Role.STORAGE
        return not shares_budget or (not self._swapping.is_going and self._swapping.may_lose([victim]))

    def _swap(self) -> None:
        if not self._options.shares_log:  # with the one role's disk the other's would be lost
            self._swapping.strike(self._rng)

    def _handover(self) -> None:
        scenario = self._keeping if self._rng.random() < 0.5 else self._waking
        if not (self._keeping.is_going or self._waking.is_going):
            scenario.strike(self._rng)

    def _wipe_node(self, node: Node, down_us: int = 20_000) -> None:
        if not self._is_over:
            node.crash()
            node.wipe()
            self._clock.note(f"{node.name} has lost its disk")
            self._later(down_us, node.start)

    def _clock_jump(self) -> None:
        """Some node's clock is wrong; or the primaries' are ahead, and others soon take their place who are behind."""
        views = self._cluster.coordinator.views
        if not views or self._rng.random() < 0.5:
            self._set_clock(self._pick(*Role), self._rng.randint(-MAX_OFFSET_US, MAX_OFFSET_US))
            return
        for node in self._cluster.of(Role.SEQUENCER):
            offset_us = self._rng.randint(0, MAX_OFFSET_US)
            self._set_clock(node, offset_us if node.name in views[-1].primaries else -offset_us)
        self._later(self._some_us(10_000, 300_000), self._sequencers)

    def _set_clock(self, node: Node, offset_us: int) -> None:
        for role in self._cluster.process_of(node):
            role.offset_us = offset_us
        self._clock.note(f"the clock of {node.name} is wrong by {offset_us} us")

    # disks

    def _stall(self) -> None:
        node = self._pick(Role.STORAGE, Role.SEQUENCER, Role.ENGINE)
        stall_us = self._some_us(10_000, 2_000_000)
        self._clock.note(f"the disk of {node.name} stands still for {stall_us} us")
        node.disk.stalled_until_us = self._clock.now_us + stall_us

    def _fsync_error(self) -> None:
        node = self._pick(Role.STORAGE, Role.SEQUENCER, Role.ENGINE)
        self._clock.note(f"the next sync of {node.name} will fail")
        node.disk.fail_next_sync = True

    def _rot(self) -> None:
        rotten = [node for node in self.victims if node.role is Role.STORAGE]
        if rotten:
            node = self._rng.choice(rotten)
            if self._may_lose(node) and node.disk.rot(b"b"):
                self._clock.sometimes("a bit rotted")

    def _decay(self) -> None:
        """Something that is no batch cannot be read any more: entries, seals, saved indexes, what is known of shards.

        Not where disks are lost on purpose, too: who notices that is given a new disk, whenever that is.
        """
        fair = [node for node in self.victims if node.role is Role.SEQUENCER or "swap" not in self._options.faults]
        if fair:
            node = self._rng.choice(fair)
            if node.disk.decay(self._rng.choice(_KINDS_ON_DISK[node.role])):
                self._clock.sometimes("a block decayed")

    def _full(self) -> None:
        node = self._pick(Role.STORAGE)
        assert isinstance(node, StorageNode)
        room = DiskRoom(False, self._rng.random() < 0.7, _RESERVE_BYTES)
        self._clock.note(f"the disk of {node.name} is full", room)
        node.set_room(room)
        self._later(self._some_us(50_000, 2_000_000), node.set_room, DiskRoom(True))

    def _no_space(self) -> None:
        """No write goes through any more. Storage nodes are told before it comes to that, or it comes at once."""
        node = self._pick(Role.STORAGE, Role.SEQUENCER, Role.ENGINE)
        self._clock.note(f"the disk of {node.name} takes nothing any more")
        if isinstance(node, StorageNode) and self._rng.random() < 0.5:
            node.set_room(DiskRoom(False, False))
        node.disk.is_full = True
        self._later(self._some_us(50_000, 2_000_000), self._make_space, node)

    def _make_space(self, node: Node) -> None:
        node.disk.is_full = False
        if isinstance(node, StorageNode):
            node.set_room(DiskRoom(True))

    # links

    def _cut(self, sources: list[str], targets: list[str], hold_us: int) -> None:
        """`sources` and `targets`: processes, roles or the coordinator."""
        network = self._cluster.network
        self._clock.note(f"cut: {' '.join(sources)} to {' '.join(targets)} for {hold_us} us")
        self._later(hold_us, network.mend, network.cut(self._roles(sources), self._roles(targets)))

    def _roles(self, names: list[str]) -> list[str]:
        """All roles of those that are processes, and the others as they are."""
        whole = {str(name): [str(role.name) for role in host.roles] for name, host in self._cluster.hosts.items()}
        return [role for name in names for role in whole.get(name, [name])]

    def _partition(self) -> None:
        names = [*map(str, self._cluster.hosts), ZOOKEEPER]
        count = self._rng.randint(1, len(names) - 1) if self._rng.random() < 0.5 else 1
        group = self._rng.sample(names, count)
        rest = [name for name in names if name not in group]
        hold_us = self._some_us(100_000, 3_000_000)
        self._cut(group, rest, hold_us)
        self._cut(rest, group, hold_us)

    def _one_way(self) -> None:
        names = [*map(str, self._cluster.hosts)]
        group = self._rng.sample(names, self._rng.choice((1, 1, 2)))
        rest = [name for name in (*names, ZOOKEEPER) if name not in group]
        if self._rng.random() < 0.3:
            rest = self._rng.sample(rest, 1)
        pair = (group, rest) if self._rng.random() < 0.5 else (rest, group)
        self._cut(*pair, self._some_us(100_000, 3_000_000))

    def _hide(self) -> None:
        """The primary and the controllers do not see each other; everybody else sees both."""
        views = self._cluster.coordinator.views
        if views:
            primary = [str(self._rng.choice(views[-1].primaries))]
            controllers = [str(node.name) for node in self._cluster.of(Role.CONTROLLER)]
            hold_us = self._some_us(600_000, 4_000_000)
            self._cut(primary, controllers, hold_us)
            self._cut(controllers, primary, hold_us)
            if self._rng.random() < 0.7:
                self._cut([ZOOKEEPER], primary, hold_us)

    # coordination and changes

    def _session(self) -> None:
        node = self._pick(*Role)
        if node.session is not None and self._rng.random() < 0.3:
            self._clock.note(f"the session of {node.name} is given up")
            self._cluster.coordinator.expire(node.session)
            return
        hold_us = self._some_us(100_000, 2 * self._options.session_us)
        self._cut([node.name], [ZOOKEEPER], hold_us)
        self._cut([ZOOKEEPER], [node.name], hold_us)

    def _false_seal(self) -> None:
        """Somebody seals the current term without need: that is always safe, and somebody must finish it."""
        views = self._cluster.coordinator.views
        if not views:
            return
        term = views[-1].term
        for name in views[-1].sequencers:
            if self._rng.random() < 0.7:
                self._clock.note(f"somebody seals term {term} at {name}")
                node = self._cluster.nodes[name]
                self._later(self._some_us(100, 50_000), node.deliver, NodeId("nobody"), Seal(term))

    def _logs(self) -> None:
        self._cluster.coordinator.change_plan(logs=self._rng.randint(1, 3))

    def _sequencers(self) -> None:
        names = [node.name for node in self._cluster.of(Role.SEQUENCER)]
        counts = [count for count in (1, 3, 5) if count <= len(names)]
        # fewer than before would need fewer survivors than the victims were drawn for
        counts = [count for count in counts if count >= self._options.sequencers]
        chosen = tuple(self._rng.sample(names, self._rng.choice(counts)))
        self._cluster.coordinator.change_plan(sequencers=len(chosen), sequencer_names=chosen)

    def _drain(self) -> None:
        names = [node.name for node in self._cluster.of(Role.STORAGE)]
        spare = len(names) - self._options.replicas
        if spare > 0:
            draining = tuple(self._rng.sample(names, self._rng.randint(0, spare)))
            self._clock.note(f"to be drained: {' '.join(draining)}")
            self._cluster.coordinator.change_plan(draining=draining)
