"""A scenario for cuts that run ahead: a cut and its records are on as few disks as can be when its primary dies.

**On one backup.** The primary's disk is slow and another backup hears nothing. Then the primary dies, and what it had
not synced is gone. Either the term is completed from that backup, which loses its disk as soon as the next view is
there: its records must be elsewhere by then. Or the backup stalls until the others have begun a term without it,
and comes back: what it alone had must not count, nor have counted.

**On none.** No backup gets the records. Then the primary dies, or the engine that sent them: nothing may wait for them
forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from boki.log.ids import LogId, NodeId
from boki.log.membership import Role
from boki.verify.sim.nodes import Node
from boki.verify.sim.scenarios import Cluster, Later, SequencerScenario

_STALL_US: Final = 500_000
_END_US: Final = 300_000


class Ahead(SequencerScenario):
    """`victims`: nodes whose disks may be lost."""

    def __init__(self, cluster: Cluster, later: Later, victims: Sequence[Node]) -> None:
        super().__init__(cluster, later)
        self._victims = victims

    def strike(self, rng: Random) -> None:
        """Begin, if that is possible and fair."""
        views = self._cluster.coordinator.views
        if self.is_going or not views or not views[-1].beside:
            return
        self._view = views[-1]
        self._log = self._busiest(self._view, range(self._view.log_count))
        self._primary = self._cluster.nodes[self._view.primaries[self._log]]
        backups = [self._cluster.nodes[name] for name in self._view.sequencers if name != self._primary.name]
        lossy = [node for node in backups if self._may_lose(node)]
        self._loses = bool(lossy) and rng.random() < 0.7
        # a term that ends without the holder needs a controller that leads elsewhere
        apart = [node for node in backups if node.session is None or not node.session.is_told_leader] or backups
        self._holder = rng.choice(lossy if self._loses else apart)
        self._others = [node for node in backups if node is not self._holder]
        self._engine_dies = rng.random() < 0.5
        # an acknowledgement that comes too early is told to a client by then
        self._grace_us = 0 if rng.random() < 0.3 else 5_000 + 8 * self._cluster.options.link_us
        self.is_going = True
        begin = self._keep_to_holder if rng.random() < 0.7 else self._keep_from_backups
        self._wait(self._is_well, begin, 300_000, 20_000)

    def _may_lose(self, node: Node) -> bool:
        """Whether its disk and that of the storage node beside it may be lost."""
        return all(mate in self._victims for mate in node.mates.values())

    def _storage(self, node: Node) -> str:
        return str(self._view.beside[self._view.sequencers.index(NodeId(node.name))])

    def _withhold(self, backups: Sequence[Node], *, entries: bool) -> None:
        """These get no records from engines, and no entries of the primary if that is so."""
        engines = [str(node.name) for node in self._cluster.of(Role.ENGINE)]
        self._cut("records", engines, [self._storage(node) for node in backups])
        if entries:
            self._cut("entries", [str(self._primary.name)], [str(node.name) for node in backups])
        store = self._store(self._primary)
        self._from = store.length if store is not None else 0
        for mate in self._primary.mates.values():
            mate.disk.stalled_until_us = self._clock.now_us + _STALL_US

    # on one backup

    def _keep_to_holder(self) -> None:
        self._clock.note(f"a cut that runs ahead is to be on {self._holder.name} alone")
        self._withhold(self._others, entries=True)
        self._wait(self._is_alone, lambda: self._later(self._grace_us, self._kill_primary), 400_000, 1_000)

    def _is_alone(self) -> bool:
        """Whether the holder has synced what no other backup has; the primary's disk is slow."""
        holder, others = self._store(self._holder), [self._store(node) for node in self._others]
        if holder is None or holder.durable_until <= self._from:
            return False
        return all(store is not None and store.length <= self._from for store in others)

    def _kill_primary(self) -> None:
        self._clock.sometimes("a cut that ran ahead was on one backup alone")
        self._primary.crash(keeps_some=False)
        if self._loses:
            self._wait(self._has_next_view, self._lose_holder, 3_000_000, 500)
            return
        self._holder.pause()
        self._primary.start()
        self._wait(self._has_next_view, self._let_holder_go_on, 1_500_000)

    def _has_next_view(self) -> bool:
        return len(self._cluster.coordinator.views) > self._view.term

    def _lose_holder(self) -> None:
        self._clock.sometimes("the one backup with a cut that ran ahead lost its disk")
        self._lose_disk(self._cluster.nodes[NodeId(self._storage(self._holder))])  # and with it its mate's
        self._later(20_000, self._start_all)

    def _let_holder_go_on(self) -> None:
        self._holder.resume()
        self._later(_END_US, self._end)

    # on none

    def _keep_from_backups(self) -> None:
        self._clock.note("the records of a cut that runs ahead are to reach no backup")
        self._withhold([self._holder, *self._others], entries=False)
        self._wait(self._is_ahead, self._kill_before_it_is_stored, 450_000, 1_000)

    def _is_ahead(self) -> bool:
        """Whether the primary has proposed what the backups lack, and they know."""
        store = self._store(self._primary)
        told = getattr(self._holder.core, "behind", None)
        heard = self._store(self._holder)
        if store is None or heard is None or store.committed >= store.length:
            return False
        return heard.length == store.length or (told is not None and told.is_waited_for(store.term, LogId(store.log)))

    def _kill_before_it_is_stored(self) -> None:
        self._clock.sometimes("a primary's cut ran ahead of records that no backup had")
        doomed = {self._primary.name: self._primary}
        if self._engine_dies:
            doomed = {node.name: node for node in self._cluster.of(Role.ENGINE)}
        for node in doomed.values():
            node.crash(keeps_some=False)
        self._later(_END_US, self._start_all)

    # the end

    def _start_all(self) -> None:
        for node in self._cluster.nodes.values():
            node.start()
        self._later(_END_US, self._end)

    def _end(self) -> None:
        for node in (self._holder, self._primary):
            node.resume()
            node.start()
        super()._end()
