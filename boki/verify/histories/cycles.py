"""Cycles of dependencies between transactions, and their names.

Nodes are transactions. An edge says that one came before the other in every serial order: it wrote what the other
overwrote (*ww*) or read (*wr*), or read what the other overwrote (*rw*); or the other one began after it in the same
process, or on the clock. A history is serializable if the first three have no cycle, strictly so if none of them has.

A cycle is named by the weakest promise that forbids it (Adya; Elle's names): *G0* has ww alone, *G1c* also wr, a
*G-single* has one rw, *G-nonadjacent* several but never two in a row, *G2* any. A cycle that needs the order of a
process or of time has that as a suffix, and is looked for only among transactions that have none without.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Final, Literal, TypeVar

from boki.verify.histories.txns import Anomaly, Txn

Kind = Literal["ww", "wr", "rw", "process", "realtime"]
Node = Hashable
Edges = dict[Node, dict[Node, set[Kind]]]
N = TypeVar("N", bound=Hashable)

_READ: Final[frozenset[Kind]] = frozenset({"rw"})
_SEEN: Final[frozenset[Kind]] = frozenset({"wr"})
_LEVELS: Final[Sequence[tuple[str, frozenset[Kind]]]] = (
    ("", frozenset({"ww", "wr", "rw"})),
    ("-process", frozenset({"ww", "wr", "rw", "process"})),
    ("-realtime", frozenset({"ww", "wr", "rw", "process", "realtime"})),
)


class Dependencies:
    """The graph of a history."""

    def __init__(self, txns: Iterable[Txn]) -> None:
        self._edges: Edges = defaultdict(lambda: defaultdict(set))
        happened = [txn for txn in txns if txn.has_happened]
        self._add_processes(happened)
        self._add_time(happened)

    def add(self, before: int, after: int, kind: Kind) -> None:
        """One transaction depends on another; on itself none does."""
        if before != after:
            self._edges[before][after].add(kind)

    def has(self, before: int, after: int, kind: Kind) -> bool:
        """Whether that dependency is known."""
        return kind in self._edges.get(before, {}).get(after, ())

    def edges(self, *kinds: Kind) -> set[tuple[Node, Node]]:
        """All dependencies of these kinds."""
        return {
            (before, after)
            for before, afters in self._edges.items()
            for after, known in afters.items()
            if known & set(kinds)
        }

    def _add_processes(self, txns: Sequence[Txn]) -> None:
        """One after the other; but what was told as unknown may happen at any time after it was asked for."""
        last: dict[int, int] = {}
        for txn in sorted(txns, key=_when):
            if txn.process is not None:
                if txn.process in last:
                    self.add(last[txn.process], txn.number, "process")
                if txn.told == "ok":
                    last[txn.process] = txn.number

    def _add_time(self, txns: Sequence[Txn]) -> None:
        """A chain of moments, one for each answer: whoever has answered stands before it, who asks later after it."""
        events = [(txn.asked, 0, txn) for txn in txns if txn.asked is not None]
        events += [(txn.told_at, 1, txn) for txn in txns if txn.told_at is not None and txn.told == "ok"]
        moment: tuple[str, int] | None = None
        for number, (_, is_answer, txn) in enumerate(sorted(events, key=lambda event: event[:2])):
            if not is_answer:
                if moment is not None:
                    self._edges[moment][txn.number].add("realtime")
            else:
                later = ("moment", number)
                self._edges[txn.number][later].add("realtime")
                if moment is not None:
                    self._edges[moment][later].add("realtime")
                moment = later

    # cycles

    def anomalies(self) -> Iterator[Anomaly]:
        """The named cycles, the worst of each set of transactions that depend on each other."""
        known: set[Node] = set()
        for suffix, kinds in _LEVELS:
            for members in self._components(kinds):
                if known & members:
                    continue
                for name in self._names(members, kinds):
                    known |= members
                    shown = sorted(node for node in members if isinstance(node, int))
                    more = f" and {len(shown) - 8} more" if len(shown) > 8 else ""
                    yield Anomaly(name + suffix, f"transactions {', '.join(map(str, shown[:8]))}{more}")

    def _within(self, members: set[Node], kinds: frozenset[Kind]) -> Callable[[Node], Iterator[Node]]:
        def after(node: Node) -> Iterator[Node]:
            for other, known in self._edges.get(node, {}).items():
                if other in members and known & kinds:
                    yield other

        return after

    def _components(self, kinds: frozenset[Kind]) -> list[set[Node]]:
        nodes = set(self._edges) | {after for afters in self._edges.values() for after in afters}
        return list(components(nodes, self._within(nodes, kinds)))

    def _names(self, members: set[Node], kinds: frozenset[Kind]) -> Iterator[str]:
        """The shapes of cycles among these, all of which depend on each other."""
        seen: frozenset[Kind] = kinds - _READ
        blind: frozenset[Kind] = seen - _SEEN
        found = False
        if any(True for _ in components(members, self._within(members, blind))):
            found = True
            yield "G0"
        for part in components(members, self._within(members, seen)):
            if any("wr" in self._edges[a][b] for a in part for b in self._within(part, seen)(a)):
                found = True
                yield "G1c"
                break
        reads = [(a, b) for a in members for b in self._within(members, _READ)(a)]
        if any(self._reaches(b, a, self._within(members, seen)) for a, b in reads):
            yield "G-single-item"
        elif reads and self._has_nonadjacent(members, seen):
            yield "G-nonadjacent-item"
        elif reads and not found:
            yield "G2-item"

    @staticmethod
    def _reaches(start: Node, goal: Node, after: Callable[[Node], Iterator[Node]]) -> bool:
        seen, waiting = {start}, deque([start])
        while waiting:
            node = waiting.popleft()
            if node == goal:
                return True
            for other in after(node):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        return False

    def _has_nonadjacent(self, members: set[Node], plain: frozenset[Kind]) -> bool:
        """Whether there is a cycle without two rw in a row. The second half of a node is where a rw comes in."""
        by_plain = self._within(members, plain)
        by_read = self._within(members, _READ)

        def after(node: tuple[Node, bool]) -> Iterator[tuple[Node, bool]]:
            for other in by_plain(node[0]):
                yield other, False
            if not node[1]:
                for other in by_read(node[0]):
                    yield other, True

        halves = {(node, half) for node in members for half in (False, True)}
        return any(any(half for _, half in part) for part in components(halves, after))


def _when(txn: Txn) -> tuple[float, int]:
    return (txn.asked if txn.asked is not None else txn.number, txn.number)


def components(nodes: Iterable[N], after: Callable[[N], Iterable[N]]) -> Iterator[set[N]]:
    """Sets of two or more nodes each of which reaches each other one (Tarjan, without recursion)."""
    order: dict[N, int] = {}
    low: dict[N, int] = {}
    stack: list[N] = []
    on_stack: set[N] = set()
    for root in nodes:
        if root in order:
            continue
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(after(root)))]
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in order:
                    order[other] = low[other] = len(order)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(after(other))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    part: set[N] = set()
                    while node not in part:
                        part.add(stack.pop())
                    on_stack -= part
                    if len(part) > 1:
                        yield part
