"""Where the time of one append goes, hop by hop, from the marks of a system with a fixed number of appends in flight.

With one in flight an append begins when the worker calls it, and the next one begins when it has returned, so all marks
between these two are its own, but for stragglers: a third replica may report late. With more, the callers that an
answer wakes append together, so as long as all are one batch the way of that batch is the way of each of them; where it
is not, the batch is left out. Therefore each stop of the way is the first mark that
can be caused by the stop before, and of several replicas the last one that the quorum needs. The hops between the stops
add up to the append.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from boki.bench.rows import quantile
from boki.bench.tracing.marks import Mark
from boki.bench.tracing.probes import NUMBERS

_CALLED: Final = NUMBERS["called"]
_WRITES: Final = NUMBERS["worker writes"]
_READ: Final = NUMBERS["worker read"]
_WARM_UP: Final = 50
"""This many first appends open connections and fill caches: they are left out."""
_MOSTLY: Final = 0.9
"""A stop that fewer appends pass is not on the way."""


class Needs(Enum):
    """How many marks make a stop."""

    ONE = "one"
    QUORUM = "quorum"
    """As many as the quorum, wherever they are."""
    PROCESSES = "processes"
    """One in as many processes as the quorum, in each after its own cause."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A place on the way of an append. `hop` says what has happened since the stop before."""

    name: str
    hop: str
    probes: tuple[str, ...]
    after: str
    """The stop that causes it."""
    needs: Needs = Needs.ONE
    carries: bool = False
    """The mark's value is that of the append's batch, or more."""
    at_home: bool = False
    """It is in the process of the engine that took the append."""


STOPS: Final = (
    Stop("written", "worker: encode the chunk", ("worker writes",), "called"),
    Stop("read", "socket: write, and the engine's process wakes", ("engine read",), "written"),
    Stop("sent", "engine: check the chunk, make a batch", ("batch sent",), "read", at_home=True),
    Stop("stored", "net: the batch to storage", ("batch taken in",), "sent", Needs.PROCESSES, carries=True),
    Stop("reported", "net: the report to the primary", ("report heard",), "sent", Needs.QUORUM, carries=True),
    Stop("proposed", "sequencer: propose a cut", ("cut proposed",), "sent"),
    Stop("taken", "net: the cut to a backup", ("cut proposed", "cut taken in"), "proposed", Needs.PROCESSES),
    Stop("syncing", "storage: write, until the sync begins", ("sync began",), "stored", Needs.PROCESSES),
    Stop("synced", "sync of the record", ("sync ended",), "syncing", Needs.PROCESSES),
    Stop("cutting", "sequencer: write, until the sync begins", ("sync began",), "taken", Needs.PROCESSES),
    Stop("cut", "sync of the cut", ("sync ended",), "cutting", Needs.PROCESSES),
    Stop("committed", "sequencer: hear the acknowledgement, commit", ("cut committed",), "proposed"),
    Stop("applied", "net: the cut to the engine; apply it to the index", ("cut applied",), "committed", at_home=True),
    Stop("replied", "engine: answer", ("engine writes",), "applied", at_home=True),
    Stop("back", "socket: write, and the worker wakes", ("worker read",), "replied"),
    Stop("answered", "worker: decode, wake the caller", ("answered",), "back"),
    Stop("returned", "worker: the caller continues", ("called",), "answered"),
)
_NEEDS: Final = {"called": Needs.ONE} | {stop.name: stop.needs for stop in STOPS}


@dataclass(frozen=True, slots=True)
class Hop:
    """One line of the budget. `share` is its part of the mean append."""

    name: str
    p50_us: float
    p99_us: float
    share: float


def budget(marks: Sequence[Mark], quorum: int, inflight: int = 1) -> list[Hop]:
    """The hops in the order in which they happen, and "the whole append". Empty if no append was seen whole."""
    ways = list(itertools.islice(_ways(marks, quorum, inflight), _WARM_UP, None))
    stops = [stop for stop in STOPS if sum(stop.name in way for way in ways) >= _MOSTLY * len(ways)]
    whole = [way for way in ways if all(stop.name in way for stop in stops)]
    if not whole or "returned" not in whole[0]:
        return []
    names = {stop.name: stop.hop for stop in stops}
    order = sorted(names, key=lambda name: statistics.median(way[name] for way in whole))
    total_us = statistics.fmean(way["returned"] for way in whole) / 1e3
    hops = []
    for before, name in itertools.pairwise(["called", *order]):
        took_us = sorted((way[name] - way[before]) / 1e3 for way in whole)
        if any(took_us):  # else both are one event: a cut that shares the sync of its record
            hops.append(_hop(names[name], took_us, total_us))
    return [*hops, _hop("the whole append", sorted(way["returned"] / 1e3 for way in whole), total_us)]


def _hop(name: str, took_us: list[float], total_us: float) -> Hop:
    p50, p99 = quantile(took_us, 0.5), quantile(took_us, 0.99)
    assert p50 is not None and p99 is not None, "some append was seen whole"
    return Hop(name, round(p50, 1), round(p99, 1), round(statistics.fmean(took_us) / total_us, 4))


def _ways(marks: Sequence[Mark], quorum: int, inflight: int) -> Iterator[Mapping[str, int]]:
    """For each batch of `inflight` appends when it passed each stop, in nanoseconds since the first of them was called.
    The last one of a round, after which the worker was told to begin another round, is left out.
    """
    workers = {mark.pid for mark in marks if mark.probe == _WRITES}  # engines append, too
    start = calls = answers = 0
    for number, mark in enumerate(marks):
        if mark.pid not in workers:
            continue
        if mark.probe == _READ:
            answers += 1
        elif mark.probe == _CALLED:
            if answers:
                if (calls, answers) == (inflight, 1):
                    yield _Way(marks[start : number + 1], quorum).passed()
                start, calls, answers = number, 0, 0
            calls += 1


class _Way:
    """One append. `marks` begin with its call and end with the next one."""

    def __init__(self, marks: Sequence[Mark], quorum: int) -> None:
        self._marks = marks
        self._quorum = quorum
        self._at: dict[str, list[Mark]] = {"called": [marks[0]]}
        """The marks that make each stop, by time: of each process one, where it needs processes."""

    def passed(self) -> dict[str, int]:
        """Each stop and when it was passed. One that lacks marks, or its cause, is left out."""
        for stop in STOPS:
            if stop.after in self._at and (found := self._found(stop)):
                self._at[stop.name] = found
        return {name: self._time_of(name) - self._marks[0].time_ns for name in self._at}

    def _time_of(self, name: str) -> int:
        found = self._at[name]
        return found[min(self._quorum, len(found)) - 1 if _NEEDS[name] is Needs.PROCESSES else -1].time_ns

    def _found(self, stop: Stop) -> list[Mark]:
        probes = {NUMBERS[probe] for probe in stop.probes}
        lowest = self._at["sent"][0].value if stop.carries else 0
        homes = {self._at["read"][0].pid} if stop.at_home else None
        causes = self._at[stop.after]
        by_process = stop.needs is Needs.PROCESSES and _NEEDS[stop.after] is Needs.PROCESSES
        since = {mark.pid: mark.time_ns for mark in causes} if by_process else None
        from_ns = 0 if by_process else self._time_of(stop.after)
        later = [
            mark
            for mark in self._marks[1:]
            if mark.probe in probes
            and mark.value >= lowest
            and (homes is None or mark.pid in homes)
            and mark.time_ns >= (from_ns if since is None else since.get(mark.pid, mark.time_ns + 1))
        ]
        if stop.needs is Needs.PROCESSES:
            firsts: dict[int, Mark] = {}
            for mark in later:
                firsts.setdefault(mark.pid, mark)
            later = list(firsts.values())
        needed = 1 if stop.needs is Needs.ONE else self._quorum
        if len(later) < needed:
            return []
        return later if stop.needs is Needs.PROCESSES else later[:needed]
