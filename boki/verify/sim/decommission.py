"""The end of some runs: what the system has said to be safe is put to the test by taking everything else away.

When all is healed and has been read, half of these runs lose a storage node without a word: it is presumed lost, and
what lacks a replica gets another one. Then as many storage nodes as there are replicas are drained, and others come in
their place. What moves to these is slow: they cannot hear each other at first. When the system says that a drain is
complete, the drained nodes are switched off permanently. When it says that nothing lacks a replica, the power fails, as
many disks as may are lost, and an engine that has never been there must read everything again.

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
from boki.verify.sim.nodes import Node, StorageNode, WholeWorld

_LOOK_US: Final = 100_000
_DEAF_US: Final = 2_500_000
_LOST_US: Final = 4_000_000
"""A node that has been silent for this long is presumed lost."""
_TIMEOUT_US: Final = 60_000_000


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
        return self._read_all("engine-last")

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
        for node in self._world.of(Role.CONTROLLER):
            if isinstance(node, ControllerNode) and node.core is not None:
                status = node.controller.status()
                if status["is_leader"]:
                    return dict(status["repair"])
        return {}

    def _is_drained(self, nodes: list[Node]) -> bool:
        draining = self._repair().get("draining", {})
        return all(draining.get(node.name, {}).get("is_complete") for node in nodes)

    def _is_repaired(self) -> bool:
        repair = self._repair()
        counts = ["shards_moving", "shards_incomplete", "shards_lacking_replicas", "open_on_lost_nodes"]
        counts += ["records_missing", "index_copies_lacking"]
        return bool(repair) and repair["is_known"] and not any(repair[count] for count in counts)

    # taking away

    def _lose_one(self) -> list[Node]:
        """One whose disk may be lost never comes back. Nobody has asked for that, so nobody is told."""
        rng = Random(f"{self._world.options.seed}:farewell:lost")
        victims = [node for node in self._victims if node.role is Role.STORAGE]
        if not victims or rng.random() < 0.5:
            return []
        lost = rng.choice(victims)
        if len(self._world.of(Role.STORAGE)) <= self._world.options.replicas:
            self._world.add(StorageNode, "storage-spare")
        self._clock.note(f"{lost.name} is gone for good")
        lost.crash()
        lost.wipe()
        self._clock.run_until(self._clock.now_us + _LOST_US)  # until then what is seen of repair is from before
        return [lost]

    def _drain(self, gone: list[Node]) -> list[Node]:
        """As many as there are replicas, so that some shards lose all of theirs."""
        world, replicas = self._world, self._world.options.replicas
        old = [node for node in world.of(Role.STORAGE) if node not in gone]
        drained = self._rng.sample(old, min(replicas, len(old)))
        for number in range(max(0, replicas - (len(old) - len(drained)))):
            world.add(StorageNode, f"storage-new-{number + 1}")
        self._clock.note(f"to be drained, for others: {_names(drained)}")
        names = [str(node.name) for node in world.of(Role.STORAGE)]
        world.coordinator.on_placement.append(lambda: self._deafen(names))
        world.coordinator.change_plan(draining=tuple(node.name for node in drained))
        return drained

    def _deafen(self, names: list[str]) -> None:
        """Shards are to move: the nodes that are to take them cannot fetch anything yet."""
        network = self._world.network
        self._world.coordinator.on_placement.clear()
        self._clock.after(_DEAF_US, network.mend, network.cut(names, names))

    def _switch_off(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._clock.note(f"{node.name} is empty, and is taken away")
            node.crash()
            node.wipe()

    def _lose_disks(self, gone: list[Node]) -> None:
        """The power fails; of the disks, as many are lost as allowed."""
        self._clock.sometimes("all that was not needed any more was taken away")
        world = self._world
        left = [node for node in world.of(Role.STORAGE) if node not in gone]
        # what has rotted is noticed when somebody looks
        has_rotted = not world.options.faults.keys().isdisjoint(("rot", "decay"))
        fair = [node for node in left if node in self._victims] if has_rotted else left
        lost = self._rng.sample(fair, min(world.options.write_quorum - 1, len(fair)))
        lost += [node for node in self._victims if node.role is Role.SEQUENCER]
        for node in world.nodes.values():
            if node.role in (Role.STORAGE, Role.SEQUENCER, Role.ENGINE):
                node.crash(keeps_some=False)
        for node in lost:
            self._clock.note(f"{node.name} has lost its disk")
            node.wipe()
        for node in world.nodes.values():
            if node.role is not Role.ENGINE and node not in gone:
                node.start()


def _names(nodes: list[Node]) -> str:
    return " ".join(NodeId(node.name) for node in nodes)
