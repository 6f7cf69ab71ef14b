"""The end of some runs: what the system has said to be safe is put to the test by taking everything else away.

When all is healed and has been read, half of these runs lose a storage node without a word: it is presumed lost, and
what lacks a replica gets another one. Then as many storage nodes as there are replicas are drained, and others come in
their place. What moves to these is slow: they cannot hear each other at first. When the system says that a drain is
complete, the drained nodes are switched off permanently. When it says that nothing lacks a replica, the power fails, as
many disks as may are lost, and an engine that has never been there must read everything again.

Where nodes play several roles, whole nodes go: their storage nodes are drained, the plan names other sequencers, and
the former ones stay until no term needs them. The nodes that come have a storage node, a sequencer and a controller
each, with one log if those that go have one.

Rule: what is safe is told by what an operator sees (`status`), never by what a test can see inside.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final

from boki.log.ids import NodeId
from boki.log.membership import Role
from boki.verify.histories.facts import Violation
from boki.verify.sim.controllers import ControllerNode
from boki.verify.sim.log_nodes import StorageNode
from boki.verify.sim.nodes import Node, WholeWorld

_LOOK_US: Final = 100_000
_DEAF_US: Final = 2_500_000
_LOST_US: Final = 4_000_000
"""A node that has been silent for this long is presumed lost."""
_TIMEOUT_US: Final = 60_000_000
_SAVE_US: Final = 1_000_000
_READER: Final = NodeId("engine-last")
"""The only engine after the power failure."""


class Decommission:
    """What one run ends with. `victims` are nodes whose disks may have been damaged already, and may be lost again."""

    def __init__(self, world: WholeWorld, victims: list[Node], read_all: Callable[[str], list[Violation]]) -> None:
        self._world = world
        self._clock = world.clock
        self._victims = victims
        self._read_all = read_all
        self._rng = Random(f"{world.options.seed}:farewell")

    def run(self) -> list[Violation]:
        """Take away what is not needed; → what is missing then."""
        lost = self._lose_one()
        if lost and not self._wait(self._is_repaired):
            return [Violation("liveness", f"what was on {_names(lost)} gets no other replicas: {self._repair()}")]
        drained = self._drain(lost)
        if not self._wait(lambda: self._is_drained(drained)):
            return [Violation("liveness", f"{_names(drained)} cannot be drained: {self._repair()}")]
        self._switch_off(drained)
        if not self._wait(self._is_repaired):
            return [Violation("liveness", f"not everything gets its replicas: {self._repair()}")]
        self._lose_disks(lost + drained)
        found = self._read_all(_READER)
        assert {node.name for node in self._world.of(Role.ENGINE) if node.core is not None} <= {_READER}, (
            "it reads alone"
        )
        return found

    def _wait(self, is_done: Callable[[], bool]) -> bool:
        ends_us = self._clock.now_us + _TIMEOUT_US
        while self._clock.now_us < ends_us:
            if is_done():
                return True
            self._clock.run_until(self._clock.now_us + _LOOK_US)
        return False

    # what an operator sees

    def _repair(self) -> dict[str, Any]:
        """What the controller that leads says of repair; empty if there is none."""
        status = self._status()
        return dict(status["repair"]) if status else {}

    def _status(self) -> dict[str, Any]:
        for node in self._world.of(Role.CONTROLLER):
            if isinstance(node, ControllerNode) and node.core is not None:
                status = node.controller.status()
                if status["is_leader"]:
                    return status
        return {}

    def _is_drained(self, nodes: list[Node]) -> bool:
        draining = self._repair().get("draining", {})
        is_drained = all(draining.get(node.name, {}).get("is_complete") for node in nodes)
        return is_drained and self._sequencers_of(nodes).isdisjoint(self._needed_sequencers())

    def _needed_sequencers(self) -> set[NodeId]:
        """Those of this term, and those that alone keep an earlier one."""
        status = self._status()
        former = status["former_sequencers_needed"] if status else self._world.coordinator.views[0].sequencers
        return {*self._world.coordinator.views[-1].sequencers, *former}

    def _sequencers_of(self, nodes: list[Node]) -> set[NodeId]:
        """The sequencers that go with these nodes."""
        return {role.name for node in nodes for role in self._world.process_of(node) if role.role is Role.SEQUENCER}

    def _leaves_controller(self, gone: list[Node]) -> bool:
        """Whether a controller remains: without one nothing is repaired."""
        hosts = [node.host for node in gone]
        return any(node.host not in hosts for node in self._world.of(Role.CONTROLLER))

    def _is_repaired(self) -> bool:
        repair = self._repair()
        counts = ["shards_moving", "shards_incomplete", "shards_lacking_replicas", "open_on_lost_nodes"]
        counts += ["records_missing", "index_copies_lacking"]
        return bool(repair) and repair["is_known"] and not any(repair[count] for count in counts)

    # taking away

    def _lose_one(self) -> list[Node]:
        """One whose disk may be lost never comes back. Nobody has asked for that, so nobody is told."""
        rng = Random(f"{self._world.options.seed}:farewell:lost")
        lossy = {node.name for node in self._victims}
        victims = [n for n in self._victims if n.role is Role.STORAGE and self._sequencers_of([n]) <= lossy]
        if not victims or rng.random() < 0.5:
            return []
        lost = rng.choice(victims)
        is_needed = len(self._world.of(Role.STORAGE)) <= self._world.options.replicas
        if is_needed or not self._leaves_controller([lost]):
            self._add("spare")
        self._clock.note(f"{lost.name} is gone for good")
        self._take_away(lost)
        self._clock.run_until(self._clock.now_us + _LOST_US)  # until then what is seen of repair is from before
        return [lost]

    def _drain(self, gone: list[Node]) -> list[Node]:
        """As many as there are replicas, so that some shards lose all of theirs."""
        world, replicas = self._world, self._world.options.replicas
        old = [node for node in world.of(Role.STORAGE) if node not in gone]
        drained = self._rng.sample(old, min(replicas, len(old)))
        plan = world.coordinator.plan
        going = self._sequencers_of(drained)
        staying = [node.name for node in world.of(Role.SEQUENCER) if node.name not in going | self._sequencers_of(gone)]
        lacking = max(0, replicas - (len(old) - len(drained)), (plan.sequencers - len(staying)) if going else 0)
        lacking = max(lacking, 0 if self._leaves_controller([*gone, *drained]) else 1)
        for number in range(lacking):
            staying += [role.name for role in self._add(f"new-{number + 1}") if role.role is Role.SEQUENCER]
        self._clock.note(f"to be drained, for others: {_names(drained)}")
        names = [str(node.name) for node in world.of(Role.STORAGE)]
        world.coordinator.on_placement.append(lambda: self._deafen(names))
        changes: dict[str, Any] = {"draining": tuple(node.name for node in drained)}
        if going:
            changes["sequencer_names"] = tuple(staying[-plan.sequencers :])
            self._save_indexes()
        world.coordinator.change_plan(**changes)
        return drained

    def _add(self, name: str) -> list[Node]:
        """Something to take the place of what goes."""
        if self._world.options.is_hosted:
            return self._world.add_node(name)
        return [self._world.add(StorageNode, f"storage-{name}")]

    def _save_indexes(self) -> None:
        """Checkpoints come by themselves in production, and with them terms are no longer needed."""
        for node in self._world.of(Role.ENGINE):
            node.save()
        self._clock.after(_SAVE_US, self._save_indexes)

    def _deafen(self, names: list[str]) -> None:
        """Shards are to move: the nodes that are to take them cannot fetch anything yet."""
        network = self._world.network
        self._world.coordinator.on_placement.clear()
        self._clock.after(_DEAF_US, network.mend, network.cut(names, names))

    def _switch_off(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._clock.note(f"{node.name} is empty, and is taken away")
            self._take_away(node)

    def _take_away(self, node: Node) -> None:
        """It never comes back, nor do the other roles of its process."""
        roles = self._world.process_of(node)
        if len(roles) > 1:
            self._clock.sometimes("a node was taken away with all its roles")
        if node.mates:
            self._clock.sometimes("a node with one log for two roles was taken away")
        node.crash()
        for role in roles:
            role.wipe()

    def _lose_disks(self, gone: list[Node]) -> None:
        """The power fails; of the disks, as many are lost as allowed."""
        self._clock.sometimes("all that was not needed any more was taken away")
        world = self._world
        left = [node for node in world.of(Role.STORAGE) if node not in gone]
        # what has rotted is noticed when somebody looks
        has_rotted = not world.options.faults.keys().isdisjoint(("rot", "decay"))
        fair = [node for node in left if node in self._victims] if has_rotted else left
        count = min(world.options.write_quorum - 1, len(fair))
        if world.options.shares_log:  # with each the disk of a sequencer
            lost = self._rng.sample(fair, min(count, world.options.sequencers // 2))
        else:
            lost = self._rng.sample(fair, count) + [node for node in self._victims if node.role is Role.SEQUENCER]
        for node in world.nodes.values():
            if node.role in (Role.STORAGE, Role.SEQUENCER, Role.ENGINE):
                node.crash(keeps_some=False)
        for node in lost:
            self._clock.note(f"{node.name} has lost its disk")
            node.wipe()
        engines = world.of(Role.ENGINE)
        for node in engines:
            node.host.dismiss(node)  # else the other roles of its process would bring it back
        for node in world.nodes.values():
            if node not in engines and all(node.host is not each.host for each in gone):
                node.start()


def _names(nodes: list[Node]) -> str:
    return " ".join(NodeId(node.name) for node in nodes)
