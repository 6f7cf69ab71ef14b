"""The checker of lists that transactions append to and read (after Elle, VLDB '20).

A list that was read shows the order of the appends to it, so the dependencies between transactions follow from what
their callers have seen, without a look into the system. Whatever no serial order explains is found and named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from boki.verify.histories.cycles import Dependencies
from boki.verify.histories.txns import Anomaly, Read, Txn, Wrote, told


def find_anomalies(txns: Iterable[Txn]) -> list[Anomaly]:
    """All that is wrong with a history of lists."""
    history = Lists(txns)
    return [*history.wrong_reads(), *history.wrong_orders(), *history.dependencies().anomalies()]


class Lists:
    """A history, and what follows from it."""

    def __init__(self, txns: Iterable[Txn]) -> None:
        self.txns = told(txns)
        self.writers: dict[tuple[str, int], int] = {}
        """By list and element."""
        self._appended: dict[str, list[int]] = defaultdict(list)
        self._last: dict[tuple[int, str], int] = {}
        """The last element that a transaction has appended to a list."""
        self._twice: list[Anomaly] = []
        for txn in self.txns.values():
            for write in txn.writes:
                place = (write.key, write.value)
                if place in self.writers:
                    text = f"{write.value} was appended to {write.key} by {self.writers[place]} and by {txn.number}"
                    self._twice.append(Anomaly("duplicate-appends", text))
                self.writers[place] = txn.number
                self._appended[write.key].append(write.value)
                self._last[txn.number, write.key] = write.value
        self.orders = self._orders()
        """The order of elements, as the longest read of each list shows it."""

    def reads(self) -> Iterator[tuple[Txn, Read]]:
        """All that is known to have been read."""
        for txn in self.txns.values():
            if txn.told == "ok":
                for op in txn.ops:
                    if isinstance(op, Read):
                        yield txn, op

    def _orders(self) -> dict[str, tuple[int, ...]]:
        longest: dict[str, tuple[int, ...]] = {}
        for _, read in self.reads():
            if len(read.values) > len(longest.get(read.key, ())):
                longest[read.key] = read.values
        orders = {key: tuple(dict.fromkeys(values)) for key, values in longest.items()}
        return {read.key: orders.get(read.key, ()) for _, read in self.reads()}

    # single reads

    def wrong_reads(self) -> Iterator[Anomaly]:
        """Reads of what was aborted, not final, never written, twice, or not in agreement with the own writes."""
        yield from self._twice
        judged: set[tuple[str, int]] = set()
        for txn, read in self.reads():
            if len(set(read.values)) < len(read.values):
                yield Anomaly("duplicate-elements", _shown(txn, read))
            if read.values == self.orders[read.key][: len(read.values)]:
                yield from self._strange(txn, read, self.orders[read.key], judged)  # once for all that have the prefix
            else:
                yield from self._strange(txn, read, read.values, set())
            last = read.values[-1] if read.values else None
            writer = self.writers.get((read.key, last)) if last is not None else None
            if writer is not None and writer != txn.number and self._last[writer, read.key] != last:
                yield Anomaly("G1b", f"{_shown(txn, read)}: {writer} has appended more after {last}")
        for txn in self.txns.values():
            if txn.told == "ok":
                yield from _internal(txn)

    def _strange(self, txn: Txn, read: Read, values: Sequence[int], judged: set[tuple[str, int]]) -> Iterator[Anomaly]:
        """Elements that were aborted or never written, unless they were judged before."""
        if values and (read.key, values[0]) in judged:
            return
        for value in values:
            judged.add((read.key, value))
            writer = self.writers.get((read.key, value))
            if writer is None:
                yield Anomaly("garbage-read", f"{_shown(txn, read)}: nobody has appended {value}")
            elif not self.txns[writer].has_happened:
                yield Anomaly("G1a", f"{_shown(txn, read)}: {value} is of {writer}, which was aborted")

    # orders

    def wrong_orders(self) -> Iterator[Anomaly]:
        """Reads of one list that disagree about its order, aborted elements below others, and lost updates."""
        for txn, read in self.reads():
            if read.values == self.orders[read.key][: len(read.values)]:
                continue
            seen = tuple(dict.fromkeys(read.values))
            if seen != self.orders.get(read.key, ())[: len(seen)]:
                text = f"transaction {txn.number} has read {read.key} as {list(seen)}"
                yield Anomaly("incompatible-order", f"{text}, another one as {list(self.orders[read.key])}")
        for key, order in self.orders.items():
            aborted = False
            for value in order:
                txn_of = self.txns.get(self.writers.get((key, value), -1))
                if txn_of is None:
                    continue
                if txn_of.told == "fail":
                    aborted = True
                elif aborted and txn_of.told == "ok":
                    text = f"{key} is {list(order)}, where transaction {txn_of.number} stands on an aborted element"
                    yield Anomaly("dirty-update", text)
                    break
        yield from self._lost_updates()

    def _lost_updates(self) -> Iterator[Anomaly]:
        seen: dict[tuple[str, tuple[int, ...]], list[int]] = defaultdict(list)
        for txn in self.txns.values():
            if txn.told == "ok":
                for key, first in _first_reads(txn).items():
                    if any(write.key == key for write in txn.writes):
                        seen[key, first].append(txn.number)
        for (key, values), numbers in seen.items():
            if len(numbers) > 1:
                yield Anomaly(
                    "lost-update", f"transactions {numbers} have all read {key} as {list(values)} and appended"
                )

    # dependencies

    def dependencies(self) -> Dependencies:
        """The graph of who came before whom."""
        graph = Dependencies(self.txns.values())
        certain = {number for number, txn in self.txns.items() if txn.told == "ok"}
        for key, values in self.orders.items():  # of a transaction of which something was seen, all has happened
            certain |= {writer for value in values if (writer := self._writer(key, value)) is not None}
        rows: dict[str, tuple[dict[int, int], list[int], list[int]]] = {}
        for key in self._appended.keys() | self.orders.keys():
            order = [value for value in self.orders.get(key, ()) if self._writer(key, value) is not None]
            seen = set(order)
            unseen = [
                value
                for value in self._appended.get(key, ())
                if value not in seen and self.writers[key, value] in certain
            ]
            for before, after in pairwise(order):
                graph.add(self.writers[key, before], self.writers[key, after], "ww")
            for value in unseen:
                if order:
                    graph.add(self.writers[key, order[-1]], self.writers[key, value], "ww")
            rows[key] = ({value: number for number, value in enumerate(order)}, order, unseen)
        for txn, read in self.reads():
            self._add_read(graph, txn, read, *rows[read.key])
        return graph

    def _writer(self, key: str, value: int) -> int | None:
        writer = self.writers.get((key, value))
        return writer if writer is not None and self.txns[writer].has_happened else None

    def _add_read(
        self,
        graph: Dependencies,
        txn: Txn,
        read: Read,
        place: Mapping[int, int],
        order: Sequence[int],
        unseen: Sequence[int],
    ) -> None:
        own = {write.value for write in txn.writes if write.key == read.key}
        values = list(dict.fromkeys(read.values)) if read.values != tuple(order[: len(read.values)]) else read.values
        last = next((value for value in reversed(values) if value not in own and value in place), None)
        if last is not None:
            graph.add(self.writers[read.key, last], txn.number, "wr")
        start = place[last] + 1 if last is not None else 0
        while start < len(order) and order[start] in own:
            start += 1
        for value in order[start : start + 1] or unseen:
            graph.add(txn.number, self.writers[read.key, value], "rw")


def _shown(txn: Txn, read: Read) -> str:
    return f"transaction {txn.number} has read {read.key} as {list(read.values)}"


def _first_reads(txn: Txn) -> dict[str, tuple[int, ...]]:
    """What a transaction has read of each list before it appended to it."""
    first: dict[str, tuple[int, ...]] = {}
    written: set[str] = set()
    for op in txn.ops:
        if isinstance(op, Wrote):
            written.add(op.key)
        elif isinstance(op, Read) and op.key not in written:
            first.setdefault(op.key, op.values)
    return first


def _internal(txn: Txn) -> Iterator[Anomaly]:
    """A transaction that disagrees with itself."""
    known: dict[str, tuple[int, ...]] = {}
    own: dict[str, tuple[int, ...]] = defaultdict(tuple)
    later: dict[str, list[int]] = defaultdict(list)
    for write in txn.writes:
        later[write.key].append(write.value)
    for op in txn.ops:
        if isinstance(op, Wrote):
            own[op.key] += (op.value,)
            later[op.key].remove(op.value)
            if op.key in known:
                known[op.key] += (op.value,)
        elif isinstance(op, Read):
            shown = f"transaction {txn.number} has read {op.key} as {list(op.values)}"
            future = [value for value in op.values if value in later[op.key]]
            if future:
                yield Anomaly("future-read", f"{shown}, and appends {future[0]} only then")
            elif op.key in known and op.values != known[op.key]:
                yield Anomaly("internal", f"{shown}, which must be {list(known[op.key])}")
            elif op.key not in known and own[op.key] and op.values[-len(own[op.key]) :] != own[op.key]:
                yield Anomaly("internal", f"{shown}, which must end with {list(own[op.key])}")
            known[op.key] = op.values
