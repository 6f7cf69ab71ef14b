"""What measured facts mean: good, worth a look, or bad, and then what to do. Pure: the facts are measured elsewhere."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final, Literal

State = Literal["ok", "note", "bad"]

SLOW_SYNC_S: Final = 0.05
FAST_SYNC_S: Final = 0.000_05
"""No disk syncs in less: it is memory, or something in between answers too early."""
LOW_DISK_BYTES: Final = 1 << 30
LOW_FILES: Final = 4_096
STEP_S: Final = 0.05
CLUSTER_BYTES: Final = 2 << 30
"""What a default `boki up` needs, with ZooKeeper's Java and some calls."""
RUNTIME_BYTES: Final = 256 << 20
"""What a `boki dev` takes besides its budgets, with a few workers."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found, and what to do if it is not good."""

    check: str
    state: State
    found: str
    remedy: str = ""


def python_finding(version: tuple[int, int, int], text: str) -> Finding:
    """Whether this Python is new enough."""
    if version >= (3, 11, 0):
        return Finding("python", "ok", text)
    return Finding("python", "bad", text, "install Python 3.11 or newer")


def packages_finding(required: Mapping[str, str], installed: Mapping[str, str | None]) -> Finding:
    """Whether each dependency is there in a version that is allowed. `required`: as `>=3.10,<4`."""
    wrong = [
        f"{name} {installed.get(name) or 'is missing'} (needed: {allowed})"
        for name, allowed in required.items()
        if not fits(installed.get(name) or "", allowed)
    ]
    if wrong:
        return Finding("packages", "bad", "; ".join(wrong), "pip install boki adds what is missing")
    return Finding("packages", "ok", ", ".join(f"{name} {version}" for name, version in installed.items()))


def fits(version: str, allowed: str) -> bool:
    """Whether a version is in a range.

    >>> fits("3.10.1", ">=3.10,<4"), fits("4.0", ">=3.10,<4"), fits("", ">=1")
    (True, False, False)
    """
    if not version:
        return False
    mine = _numbers(version)
    for part in allowed.split(","):
        match = re.match(r"\s*(>=|<=|==|<|>|~=|!=)\s*([\d.]+)", part)
        if match is None:
            continue
        other = _numbers(match[2])
        width = max(len(mine), len(other))
        left, right = (numbers + (0,) * (width - len(numbers)) for numbers in (mine, other))
        holds = {">=": left >= right, "<=": left <= right, "<": left < right, ">": left > right}
        if not holds.get(match[1], True):
            return False
    return True


def java_finding(version: int | None, path: str, problems: Sequence[str]) -> Finding:
    """Java is needed by `boki up` without --zookeeper, and by Spark."""
    if path:
        return Finding("java", "ok", f"{version or 'of unknown version'} ({path})")
    if problems:
        return Finding("java", "bad", problems[0].partition(";")[0], problems[0].partition("; ")[2])
    return Finding(
        "java", "note", "none", "only `boki up` without --zookeeper and Spark need one: pip install 'boki[cluster]'"
    )


def jars_finding(found: Sequence[Path], missing: Sequence[str]) -> Finding:
    """The jars of ZooKeeper, which PySpark brings."""
    if not missing:
        return Finding("zookeeper", "ok", ", ".join(jar.stem for jar in found if jar.stem.startswith("zookeeper-")))
    return Finding(
        "zookeeper",
        "note",
        f"no jars of {', '.join(missing[:3])}",
        "only `boki up` without --zookeeper needs them: pip install 'boki[cluster]'",
    )


def sync_finding(folder: str, seconds: Sequence[float], in_memory: bool) -> Finding:
    """How long a sync of the disk takes: no append returns earlier."""
    times = sorted(seconds)
    found = f"median {_ms(median(times))}, slowest of {len(times)} {_ms(times[-1])} ({folder})"
    if in_memory:
        return Finding("disk sync", "bad", f"{folder} is in memory", "choose a folder on a disk with --data")
    if median(times) > SLOW_SYNC_S:
        remedy = "each append waits for it: choose a faster disk with --data, or --durability memory for a test"
        return Finding("disk sync", "bad", found, remedy)
    if median(times) < FAST_SYNC_S:
        remedy = "too fast for a disk: a power cut may lose what was synced; look at its write cache"
        return Finding("disk sync", "note", found, remedy)
    return Finding("disk sync", "ok", found)


def space_finding(free_bytes: int, reserve_bytes: int) -> Finding:
    """How much room the disk has; below the reserve, appends are refused."""
    found = f"{_gib(free_bytes)} free"
    if free_bytes <= reserve_bytes:
        return Finding("disk space", "bad", found, "appends are refused: free some, or choose another disk with --data")
    if free_bytes < LOW_DISK_BYTES:
        return Finding("disk space", "note", found, "it will be full soon: free some, or trim LogBooks")
    return Finding("disk space", "ok", found)


def files_finding(soft: int, hard: int) -> Finding:
    """How many files a process may open; Boki raises the soft limit to the hard one by itself."""
    found = f"{hard:,}" if soft == hard else f"{hard:,} (now {soft:,}, which Boki raises)"
    if hard < LOW_FILES:
        remedy = f"connections will be refused: raise it to {LOW_FILES:,} or more, as with `ulimit -Hn`"
        return Finding("open files", "bad", found, remedy)
    return Finding("open files", "ok", found)


def clock_finding(utc: str, stepped_s: float, is_synchronized: bool | None) -> Finding:
    """Whether the clock runs evenly and follows a reference; record times and leases follow it."""
    if abs(stepped_s) > STEP_S:
        found = f"{utc} UTC, stepped by {stepped_s:+.3f} s while this ran"
        return Finding("clock", "bad", found, "let a time service slew the clock instead of setting it, as chrony does")
    if is_synchronized is False:
        return Finding("clock", "note", f"{utc} UTC, not synchronized", "start a time service, as chrony")
    return Finding("clock", "ok", f"{utc} UTC, {'synchronized' if is_synchronized else 'steady'}")


def port_finding(host: str, port: int, refusal: str, running_url: str) -> Finding:
    """Whether the configured port is free, or where this folder's Boki listens already."""
    if running_url:
        return Finding("port", "ok", f"{running_url} is this folder's Boki, which runs")
    if refusal:
        return Finding("port", "bad", f"{host}:{port}: {refusal}", "choose another with --port or in boki.toml")
    return Finding("port", "ok", f"{host}:{port} is free")


def memory_finding(available_bytes: int, budget_bytes: int) -> Finding:
    """Whether what is free holds the budgets of the index and the cache, and workers."""
    found = f"{_gib(available_bytes)} available"
    needed = budget_bytes + RUNTIME_BYTES
    if available_bytes < needed:
        remedy = f"a system may take {_gib(needed)}: lower --index-memory-bytes and --cache-bytes, or stop something"
        return Finding("memory", "bad", found, remedy)
    if available_bytes < CLUSTER_BYTES:
        return Finding("memory", "note", found, f"enough for `boki dev`; a `boki up` takes about {_gib(CLUSTER_BYTES)}")
    return Finding("memory", "ok", found)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
