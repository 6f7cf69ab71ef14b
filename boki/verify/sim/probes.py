"""What is demanded of a healed cluster beside what its clients happen to do: appends, wherever one can be asked for.

Clients choose their engines and books, and half of what they do then reads. So every engine and every gateway is asked
for an append of its own, and every book, each in another way until it is acknowledged.
"""

from __future__ import annotations

from itertools import cycle
from typing import Any, Final

from boki.verify.histories.history import Appending, Call, History, Ordered, Written
from boki.verify.sim.clients import operation_of, result_of, tag_name
from boki.verify.sim.engines import EngineNode
from boki.verify.sim.gateways import GatewayNode
from boki.verify.sim.nodes import WholeWorld

_TIMEOUT_US: Final = 5_000_000
_AGAIN_US: Final = 100_000


class Probe:
    """An append by one node into one book. One that is refused, or dies with its node, is followed by another one."""

    def __init__(self, world: WholeWorld, node: EngineNode | GatewayNode, book: str) -> None:
        self._world = world
        self._node = node
        self._book = book
        self._count = 0
        self.is_done = False
        self._try()

    def __str__(self) -> str:
        return f"{self._book} by {self._node.name}"

    def _try(self) -> None:
        world, node = self._world, self._node
        if not node.has_come:
            world.clock.after(_AGAIN_US, self._try_again)
            return
        self._count += 1
        name = f"probe-{node.name}-{self._book}-{self._count}"
        request = Appending((Written(name, (tag_name(0),)),))
        now_us, incarnation = world.clock.now_us, node.incarnation
        call = world.history.begin(name, self._book, request, now_us, now_us + _TIMEOUT_US, {})
        world.clock.note(f"{name} is asked for")
        operation = operation_of(self._book, request, world.options.payload_bytes)
        node.submit(operation, {}, _TIMEOUT_US, lambda answer, positions: self._done(call, answer, positions))
        world.clock.after(_AGAIN_US, self._look, call, incarnation)

    def _done(self, call: Call, answer: Any, positions: dict[int, int]) -> None:
        if call.is_abandoned:
            return
        result = result_of(call.request, answer)
        History.end(call, result, self._world.clock.now_us, positions)
        self.is_done |= isinstance(result, Ordered)

    def _look(self, call: Call, incarnation: int) -> None:
        """Whether it was answered, or its node is another one by now."""
        if call.result is None and self._node.incarnation == incarnation:
            self._world.clock.after(_AGAIN_US, self._look, call, incarnation)
            return
        call.is_abandoned = call.result is None
        self._try_again()

    def _try_again(self) -> None:
        if not self.is_done:
            self._try()


def probe_all(world: WholeWorld) -> list[Probe]:
    """Probes of every engine, gateway and book."""
    nodes = [node for node in world.nodes.values() if isinstance(node, EngineNode | GatewayNode)]
    books = [f"book-{number}" for number in range(world.options.books)]
    count = max(len(nodes), len(books))
    pairs = zip(cycle(nodes), cycle(books), range(count), strict=False)
    return [Probe(world, node, book) for node, book, _ in pairs]
