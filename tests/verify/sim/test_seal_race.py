"""The seal race, exhaustively: a primary that nobody stops, two backups, a controller, one crash, in every order.

The primary has one more entry on its way to both backups when the controller seals them. Every message may be
delivered, every write synced and the crashed backup restarted at any moment; messages of one sender keep their order,
as on a link. In every state that can be reached: what was published stands below the end of the term, whatever end is
proposed. (BookKeeper lost acknowledged data this way: an old append was taken after the fence was answered.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from copy import copy, deepcopy
from typing import Any

import pytest

from boki.controller.plans import Plan
from boki.controller.term_change import TermChange
from boki.log.ids import NodeId
from boki.log.metalog import Trim
from boki.protocol.effects import Effect, Load, ProposeView, Send, Store
from boki.protocol.messages import FetchMetalog, InstallView, Metalog, RequestEntry, Seal
from boki.sequencer.core import SequencerCore
from tests.members import ENGINE, view
from tests.verify.sim.ablations import ABLATIONS
from tests.world import MemoryDisk

PRIMARY, A, B = NODES = view().sequencers
CONTROLLER, READER = NodeId("controller-1"), NodeId("reader-1")
Action = tuple[str, str, str]


class Race:
    """One state; `act` leads to another one, and `after` leaves this one as it is."""

    def __init__(self) -> None:
        self.last = last = view()
        self.disks = {node: MemoryDisk() for node in NODES}
        self.cores: dict[NodeId, Any] = {node: SequencerCore(node, 1, self.disks[node]) for node in NODES}
        self.plan = Plan(1, NODES, last.incarnations, last.storage, 3, 2)
        self.cores[CONTROLLER] = TermChange(last, self.plan)
        self.node_keys: dict[NodeId, str] = {}
        """What was said of nodes by `key`; those that have not acted since say the same."""
        self.stores: dict[NodeId, deque[Store]] = {node: deque() for node in NODES}
        self.links: dict[tuple[NodeId, NodeId], deque[Any]] = {}
        self.story: tuple[str, ...] = ()
        self.published = 0
        self.end: int | None = None
        self.crashes_left = 1
        for node in NODES:
            self.give(node, "coordinator", InstallView((last,)))
        self.drain()
        self.give(PRIMARY, READER, FetchMetalog(1, 0, 0))
        self.give(PRIMARY, ENGINE, RequestEntry(1, 0, Trim("book", None, 1, False, ENGINE, 1)))
        self.drain()
        self.give(PRIMARY, ENGINE, RequestEntry(1, 0, Trim("book", None, 2, False, ENGINE, 2)))
        for node in (A, B):  # the seal of the primary is lost: it never hears that its term is over
            self.links.setdefault((CONTROLLER, node), deque()).append(Seal(1))

    def after(self, action: Action) -> Race:
        """Another one, in which that has happened. One node acts at a time, so the others are shared, as are messages,
        writes, the view and the plan, which are immutable.
        """
        other = copy(self)
        other.links = {pair: deque(messages) for pair, messages in self.links.items()}
        other.stores = {node: deque(stores) for node, stores in self.stores.items()}
        other.disks, other.cores, other.node_keys = dict(self.disks), dict(self.cores), dict(self.node_keys)
        node = NodeId(action[2] if action[0] == "deliver" else action[1])
        constant = [self.last, self.plan, *(each for queue in self._queues() for each in queue)]
        memo = {id(each): each for each in constant}
        if node in self.disks:
            other.disks[node] = deepcopy(self.disks[node], memo)
        if node in self.cores:
            other.cores[node] = deepcopy(self.cores[node], memo)
        other.node_keys.pop(node, None)
        other.act(action)
        return other

    def _queues(self) -> list[deque[Any]]:
        return [*self.links.values(), *self.stores.values()]

    def drain(self) -> None:
        """Let everything happen until nothing is under way."""
        while actions := [action for action in self.actions() if action[0] in ("deliver", "sync")]:
            self.act(actions[0])

    @property
    def key(self) -> Any:
        """All that the future depends on."""
        for node in self.cores.keys() - self.node_keys.keys():
            self.node_keys[node] = self._key_of(node)
        nodes = [self.node_keys[node] for node in self.cores]
        links = sorted((pair, list(messages)) for pair, messages in self.links.items() if messages)
        return repr((nodes, links, self.crashes_left, self.published, self.end))

    def _key_of(self, node: NodeId) -> str:
        core = self.cores[node]
        if isinstance(core, SequencerCore):
            store = core._stores[1, 0]
            lead = [tuple(sorted(primary.acknowledged.items())) for primary in core._primaries.values()]
            writes = [tuple(write.writes) for write in self.stores[node]]
            kept = tuple(self.disks[node].rows)
            return repr((node, store.length, store.durable_until, store.committed, store.phase, lead, writes, kept))
        sealed, done = sorted(core._sealed.items()), sorted(core._durable.get(0, {}).items())
        return repr((core.step, sealed, done, core._ends, core._base, len(core._entries.get(0, ()))))

    def actions(self) -> list[Action]:
        """What may happen next."""
        found: list[Action] = [
            ("deliver", source, target)
            for (source, target), messages in self.links.items()
            if messages and target in self.cores
        ]
        found += [("sync", node, "") for node, stores in self.stores.items() if stores and node in self.cores]
        if A not in self.cores:
            found.append(("restart", A, ""))
        elif self.crashes_left:
            found.append(("crash", A, ""))
        return found

    def act(self, action: Action) -> None:
        """Let it happen."""
        self.story += (" ".join(action),)
        kind, first, second = action
        node = NodeId(first)
        match kind:
            case "deliver":
                self.give(NodeId(second), first, self.links[node, NodeId(second)].popleft())
            case "sync":
                store = self.stores[node].popleft()
                self.disks[node].write(store.writes)
                self.perform(node, store.then)
            case "crash":
                self.crashes_left -= 1
                del self.cores[node]
                self.stores[node].clear()
            case "restart":
                self.cores[node] = SequencerCore(node, 1, self.disks[node])
                self.give(node, "coordinator", InstallView((self.last,)))
                # whoever was not answered asks again
                self.links.setdefault((CONTROLLER, node), deque()).append(Seal(1))

    def give(self, node: NodeId, sender: str, message: Any) -> None:
        core = self.cores[node]
        self.perform(node, core.receive(NodeId(sender), message, 1))
        self.perform(node, core.settle(1))

    def perform(self, node: NodeId, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, Metalog() as message) if to == READER:
                    self.published = max(self.published, message.committed)
                case Send(to, message) if to == node:
                    self.give(node, node, message)
                case Send(to, message) if to in (*NODES, CONTROLLER):
                    self.links.setdefault((node, to), deque()).append(message)
                case Store():
                    self.stores[node].append(effect)
                case Load():
                    raise AssertionError("so few entries are in memory")
                case ProposeView(proposed):
                    assert self.end in (None, proposed.previous_ends[0])
                    self.end = proposed.previous_ends[0]


def explore(start: Race) -> Iterator[Race]:
    """Every state that can be reached, once."""
    seen = {start.key}
    frontier = [start]
    while frontier:
        state = frontier.pop()
        yield state
        for action in state.actions():
            following = state.after(action)
            if (key := following.key) not in seen:
                seen.add(key)
                frontier.append(following)


def is_broken(state: Race) -> bool:
    return state.end is not None and state.published > state.end


def test_what_is_published_stands_below_the_end_in_every_state() -> None:
    """Nothing that a reader may have seen is cut off by the next term (hazards H3 and H4)."""
    states = ends = lengths = 0
    for state in explore(Race()):
        states += 1
        assert not is_broken(state), f"published {state.published}, end {state.end}: {state.story}"
        ends |= 1 << (state.end or 0)
        lengths |= 1 << state.published
    assert states > 1000
    assert ends & 0b110 == 0b110, "the race is won by either side"
    assert lengths & 0b110 == 0b110


@pytest.mark.parametrize("name", ["durable seal", "term check"])
def test_the_race_is_lost_without_the_safeguards(name: str) -> None:
    """A seal that a crash forgets, or that does not stop a backup, cuts off what was published."""
    with ABLATIONS[name]():
        assert any(is_broken(state) for state in explore(Race()))
