"""The checker of registers that transactions overwrite and read (after Elle, VLDB '20).

A read shows whose value it is, and not what was there before. The order of the versions of a register is known in part:
its first value comes first, and who reads a value and writes another one shows that these follow each other. A system
that can tell the order of all versions gives it as `orders`; then nothing stays unseen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from boki.verify.histories.cycles import Dependencies, components
from boki.verify.histories.txns import Anomaly, ReadRegister, Txn, Value, Wrote, told


def find_anomalies(txns: Iterable[Txn], orders: Mapping[str, Sequence[int]] | None = None) -> list[Anomaly]:
    """All that is wrong with a history of registers. `orders`: the values of registers in the order of their writes."""
    history = Registers(txns, orders or {})
    cyclic = list(history.cyclic_versions())
    return [*history.wrong_reads(), *history.lost_updates(), *(cyclic or history.dependencies().anomalies())]


class Registers:
    """A history, and what follows from it."""

    def __init__(self, txns: Iterable[Txn], orders: Mapping[str, Sequence[int]]) -> None:
        self.txns = told(txns)
        self.writers: dict[tuple[str, int], int] = {}
        self._last: dict[tuple[int, str], int] = {}
        for txn in self.txns.values():
            for write in txn.writes:
                self.writers[write.key, write.value] = txn.number
                self._last[txn.number, write.key] = write.value
        self.versions: dict[str, dict[Value, set[Value]]] = defaultdict(lambda: defaultdict(set))
        """By register: which values follow which."""
        self._follow(orders)

    def _follow(self, orders: Mapping[str, Sequence[int]]) -> None:
        for (key, value), number in self.writers.items():
            if self.txns[number].has_happened and self._last[number, key] == value:
                self.versions[key][None].add(value)
        for txn in self.txns.values():
            if txn.told == "ok":
                for key, first in _first_reads(txn).items():
                    last = self._last.get((txn.number, key))
                    if last is not None and last != first:
                        self.versions[key][first].add(last)
        for key, order in orders.items():
            for before, after in zip((None, *order), order, strict=False):
                self.versions[key][before].add(after)

    def reads(self) -> Iterator[tuple[Txn, ReadRegister]]:
        """All that is known to have been read."""
        for txn in self.txns.values():
            if txn.told == "ok":
                for op in txn.ops:
                    if isinstance(op, ReadRegister):
                        yield txn, op

    def wrong_reads(self) -> Iterator[Anomaly]:
        """Reads of what was aborted, not final or never written, or not in agreement with the own writes."""
        for txn, read in self.reads():
            shown = f"transaction {txn.number} has read {read.key} as {read.value}"
            if read.value is None:
                continue
            writer = self.writers.get((read.key, read.value))
            if writer is None:
                yield Anomaly("garbage-read", f"{shown}, which nobody has written")
            elif not self.txns[writer].has_happened:
                yield Anomaly("G1a", f"{shown}, which is of {writer}, which was aborted")
            elif writer != txn.number and self._last[writer, read.key] != read.value:
                yield Anomaly("G1b", f"{shown}, which {writer} has overwritten itself")
        for txn in self.txns.values():
            if txn.told == "ok":
                yield from _internal(txn)

    def lost_updates(self) -> Iterator[Anomaly]:
        """Several who have read the same version and overwritten it."""
        seen: dict[tuple[str, Value], list[int]] = defaultdict(list)
        for txn in self.txns.values():
            if txn.told == "ok":
                for key, value in _first_reads(txn).items():
                    if (txn.number, key) in self._last:
                        seen[key, value].append(txn.number)
        for (key, value), numbers in seen.items():
            if len(numbers) > 1:
                yield Anomaly(
                    "lost-update", f"transactions {numbers} have all read {key} as {value} and overwritten it"
                )

    def cyclic_versions(self) -> Iterator[Anomaly]:
        """Registers whose values follow each other in a circle."""
        for key, follow in self.versions.items():
            nodes = set(follow) | {after for afters in follow.values() for after in afters}
            for part in components(nodes, partial(_after, follow)):
                yield Anomaly("cyclic-versions", f"values {sorted(map(str, part))} of {key} follow each other")

    def dependencies(self) -> Dependencies:
        """The graph of who came before whom."""
        graph = Dependencies(self.txns.values())
        for key, follow in self.versions.items():
            for before, afters in follow.items():
                for after in afters:
                    earlier, later = self._writer(key, before), self._writer(key, after)
                    if earlier is not None and later is not None:
                        graph.add(earlier, later, "ww")
        for txn in self.txns.values():
            if txn.told != "ok":
                continue
            for key, value in _first_reads(txn).items():
                writer = self._writer(key, value)
                if writer is not None:
                    graph.add(writer, txn.number, "wr")
                for after in self.versions[key].get(value, ()):
                    overwriter = self._writer(key, after)
                    if overwriter is not None:
                        graph.add(txn.number, overwriter, "rw")
        return graph

    def _writer(self, key: str, value: Value) -> int | None:
        writer = None if value is None else self.writers.get((key, value))
        return writer if writer is not None and self.txns[writer].has_happened else None


def _after(follow: Mapping[Value, set[Value]], value: Value) -> Iterable[Value]:
    return follow.get(value, ())


def _first_reads(txn: Txn) -> dict[str, Value]:
    """What a transaction has read of each register before it wrote to it."""
    first: dict[str, Value] = {}
    written: set[str] = set()
    for op in txn.ops:
        if isinstance(op, Wrote):
            written.add(op.key)
        elif isinstance(op, ReadRegister) and op.key not in written:
            first.setdefault(op.key, op.value)
    return first


def _internal(txn: Txn) -> Iterator[Anomaly]:
    """A transaction that disagrees with itself."""
    known: dict[str, Value] = {}
    for op in txn.ops:
        if isinstance(op, Wrote):
            known[op.key] = op.value
        elif isinstance(op, ReadRegister):
            if known.setdefault(op.key, op.value) != op.value:
                yield Anomaly(
                    "internal", f"transaction {txn.number} has read {op.key} as {op.value}, not {known[op.key]}"
                )
            known[op.key] = op.value
