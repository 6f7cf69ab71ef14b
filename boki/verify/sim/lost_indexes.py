"""A scenario: a checkpoint of the index is not where it must be, and then everything that was saved elsewhere goes.

Either a single storage node gets it, one of those whose disks may be lost, or none makes it durable, because all their
disks stall. Then the power fails, that disk is lost, and all engines lose theirs, which are caches. Whoever comes
then begins from the checkpoint before, and needs every entry that followed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from boki.log.membership import Role
from boki.log.metalog import Positions, covers
from boki.protocol.messages import StoreCheckpoint
from boki.verify.sim.engines import EngineNode
from boki.verify.sim.log_nodes import StorageNode
from boki.verify.sim.nodes import Node
from boki.verify.sim.scenarios import Cluster, Later, Scenario

_STALL_US: Final = 1_500_000
_SAVES: Final = 4
_SAVE_US: Final = 200_000


class LostIndex(Scenario):
    """`victims` are those whose disks may be lost."""

    def __init__(self, cluster: Cluster, later: Later, victims: Sequence[Node]) -> None:
        super().__init__(cluster, later)
        self._victims = [node for node in victims if node.role is Role.STORAGE]

    def strike(self, rng: Random) -> None:
        """Begin, if that is possible and fair."""
        if self.is_going:
            return
        self.is_going = True
        is_alone = bool(self._victims) and rng.random() < 0.5
        begin = self._keep_to_one if is_alone else self._stall
        self._victim = rng.choice(self._victims) if is_alone else None
        self._wait(lambda: all(self._positions().values()), begin, 2_000_000, 10_000)

    def _engines(self) -> list[EngineNode]:
        return [node for node in self._cluster.of(Role.ENGINE) if isinstance(node, EngineNode)]

    def _positions(self) -> dict[Node, Positions]:
        """How far the newest checkpoint of each storage node covers the metalogs; not at all if the node is down."""
        nodes = [node for node in self._cluster.of(Role.STORAGE) if isinstance(node, StorageNode)]
        return {node: node.storage.checkpoints.positions if node.core is not None else {} for node in nodes}

    def _save(self, times: int) -> None:
        for engine in self._engines():
            engine.save()
        if times > 1:
            self._later(_SAVE_US, self._save, times - 1)

    # one has it

    def _keep_to_one(self) -> None:
        assert self._victim is not None
        self._clock.note(f"a checkpoint is to reach {self._victim.name} alone")
        others = [node for node in self._cluster.of(Role.STORAGE) if node is not self._victim]
        for engine in self._engines():
            self._cluster.network.withheld |= {(engine.name, other.name): StoreCheckpoint for other in others}
        self._save(_SAVES)
        self._later(_SAVES * _SAVE_US, self._wait, self._has_one_more, self._lose_one, 500_000)

    def _has_one_more(self) -> bool:
        positions = self._positions()
        assert self._victim is not None
        newest = positions.pop(self._victim)
        return not any(covers(other, newest) for other in positions.values())

    def _lose_one(self) -> None:
        assert self._victim is not None
        self._lose_disk(self._victim)
        self._fail_power()

    def _end(self) -> None:
        self._cluster.network.withheld.clear()
        super()._end()

    # none has it

    def _stall(self) -> None:
        self._clock.note("checkpoints are to be lost before they are durable")
        for node in self._cluster.of(Role.STORAGE):
            node.disk.stalled_until_us = self._clock.now_us + _STALL_US
        self._save(_SAVES)
        self._later((_SAVES + 1) * _SAVE_US, self._fail_power)

    def _fail_power(self) -> None:
        """Sequencers lose what they had in memory, too: entries that they have dropped are still there."""
        for node in (*self._cluster.of(Role.STORAGE), *self._cluster.of(Role.SEQUENCER)):
            node.crash(keeps_some=False)
            self._later(20_000, node.start)
        self._clock.sometimes("all engines lost their indexes, and storage nodes their newest one")
        for engine in self._engines():
            self._lose_disk(engine, 50_000)
        self._later(300_000, self._end)
