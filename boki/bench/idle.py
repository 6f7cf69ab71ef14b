"""`boki bench idle`: processor time and memory of a system that has nothing to do, with all its processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from boki.bench.rows import Row, median
from boki.bench.system import LOAD_FUNCTIONS, Options, target
from boki.bench.turns import Step, row_of
from boki.dispatch.server.machine import resident_bytes

_SETTLE_S: Final = 5.0
"""Starting is over by then: caches are read, and workers that nobody calls are not there."""
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process: processor time so far, and memory. `proportional_bytes` divides shared pages among sharers."""

    is_java: bool
    processor_s: float
    resident_bytes: int
    proportional_bytes: int


_Round = tuple[float, dict[int, Usage], dict[int, Usage]]
"""Its length, and what processes had used before it and after it."""


def idle(options: Options, step: Step) -> Iterator[Row]:
    """The system without functions, and with some, which its engines keep a zygote of workers for."""
    with TemporaryDirectory(prefix="boki-bench-") as empty:
        yield from _idle(options, step, "idle", Path(empty))
    yield from _idle(options, step, "idle, with functions", LOAD_FUNCTIONS)


def _idle(options: Options, step: Step, called: str, functions: Path) -> Iterator[Row]:
    """A row for all processes of the system together, and one for those of ZooKeeper among them."""
    with target(options, functions=functions) as system:
        child = system.child
        assert child is not None, "a benchmark of idleness has a system of its own"
        step("settling")
        time.sleep(_SETTLE_S)
        rounds: list[_Round] = []
        for number in range(options.rounds):
            step(f"{called}, round {number + 1}")
            before, began = usage_of(family(child.pid)), time.monotonic()
            time.sleep(options.duration_s)
            rounds.append((time.monotonic() - began, before, usage_of(family(child.pid))))
    for name, is_java in ((called, False), (f"{called}, of that ZooKeeper", True)):
        shown = [(took_s, _of(before, is_java), _of(after, is_java)) for took_s, before, after in rounds]
        if shown[-1][2]:
            yield row_of(options, name, 0, None, figures(shown))


def figures(rounds: Iterable[_Round]) -> dict[str, float | int | None]:
    """Medians over rounds. A process that has begun in a round has used all that it has in that round."""
    shares, residents, proportionals, counts = [], [], [], []
    for took_s, before, after in rounds:
        none = Usage(False, 0.0, 0, 0)
        used_s = sum(usage.processor_s - before.get(pid, none).processor_s for pid, usage in after.items())
        shares.append(100 * used_s / took_s)
        residents.append(sum(usage.resident_bytes for usage in after.values()) / 1e6)
        proportionals.append(sum(usage.proportional_bytes for usage in after.values()) / 1e6)
        counts.append(len(after))
    return {
        "core_percent": median(shares),
        "resident_mb": median(residents),
        "proportional_mb": median(proportionals),
        "processes": max(counts),
    }


def family(pid: int) -> list[int]:
    """The process and all its descendants that run now."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue  # it has just ended
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, ())
    return found


def usage_of(pids: Iterable[int]) -> dict[int, Usage]:
    """What each of them has used; those that have ended are left out."""
    found = {}
    for pid in pids:
        folder = Path("/proc") / str(pid)
        try:
            stat = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            is_java = b"java" in (folder / "cmdline").read_bytes().partition(b"\0")[0]
            rollup = (folder / "smaps_rollup").read_text(encoding="ascii")
        except OSError:
            continue
        shares = [int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:")]
        processor_s = (int(stat[11]) + int(stat[12])) / _TICKS_PER_S
        found[pid] = Usage(is_java, processor_s, resident_bytes(pid), sum(shares))
    return found


def _of(usages: dict[int, Usage], is_java: bool) -> dict[int, Usage]:
    """All of them, or those of ZooKeeper."""
    return {pid: usage for pid, usage in usages.items() if usage.is_java or not is_java}
