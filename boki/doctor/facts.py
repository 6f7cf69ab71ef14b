"""Measures a machine for `boki doctor`: each check by itself, so that one that cannot be made spoils no other."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from boki.doctor import findings
from boki.doctor.findings import Finding
from boki.host.file_systems import MEMORY_FILE_SYSTEMS, file_system_of
from boki.launch.zookeeper.java import find_java
from boki.launch.zookeeper.parts import zookeeper_jars

SYNCS: Final = 40
_SYNC_BYTES: Final = 4096
_SYNC_LIMIT_S: Final = 3.0
"""A slow disk is measured less often."""
_TIME_ERROR: Final = 5
_TIMEX_BYTES: Final = 512
_NO_LIMIT_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Subject:
    """What is looked at: a folder for data, and the settings that a system would have."""

    data: Path
    host: str
    port: int
    reserve_bytes: int
    budget_bytes: int
    port_refusal: Callable[[], str]
    """Why nothing could listen there; empty if it could."""
    running_url: str
    """Where this folder's Boki listens, which may be elsewhere; empty: none runs."""


def examine(subject: Subject) -> Iterator[Finding]:
    """Each finding, as soon as it is made."""
    began, began_monotonic = time.time(), time.monotonic()
    folder = _existing(subject.data)
    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("python", lambda: findings.python_finding(sys.version_info[:3], sys.version.split()[0])),
        ("packages", _packages),
        ("java", _java),
        ("zookeeper", lambda: findings.jars_finding(*zookeeper_jars())),
        ("disk sync", lambda: _sync(folder)),
        ("disk space", lambda: findings.space_finding(shutil.disk_usage(folder).free, subject.reserve_bytes)),
        ("memory", lambda: findings.memory_finding(_available_bytes(), subject.budget_bytes)),
        ("open files", lambda: findings.files_finding(*resource.getrlimit(resource.RLIMIT_NOFILE))),
        ("port", lambda: _port(subject)),
        ("clock", lambda: _clock(began, began_monotonic)),
    )
    for name, check in checks:
        try:
            yield check()
        except (OSError, ValueError) as error:
            yield Finding(name, "bad", f"cannot be looked at: {error}")


def _packages() -> Finding:
    """The dependencies of Boki itself, without those of its extras."""
    required: dict[str, str] = {}
    for line in metadata.requires("boki") or ():
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*([^;]*)(;.*)?$", line)
        if match is not None and "extra" not in (match[3] or ""):
            required[match[1]] = match[2].strip()
    installed: dict[str, str | None] = {}
    for name in required:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = None
    return findings.packages_finding(required, installed)


def _java() -> Finding:
    search = find_java()
    return findings.java_finding(search.version, str(search.java or ""), search.problems)


def _sync(folder: Path) -> Finding:
    """Real syncs of a file there, as a storage node makes them for each batch."""
    if file_system_of(folder) in MEMORY_FILE_SYSTEMS:
        return findings.sync_finding(str(folder), [0.0], in_memory=True)
    times: list[float] = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".boki-doctor-") as file:
        until = time.monotonic() + _SYNC_LIMIT_S
        while len(times) < SYNCS and (len(times) < 3 or time.monotonic() < until):
            file.write(b"x" * _SYNC_BYTES)
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return findings.sync_finding(str(folder), times, in_memory=False)


def _port(subject: Subject) -> Finding:
    refusal = "" if subject.running_url or not subject.port else subject.port_refusal()
    return findings.port_finding(subject.host, subject.port, refusal, subject.running_url)


def _clock(began: float, began_monotonic: float) -> Finding:
    now = time.time()
    stepped_s = (now - began) - (time.monotonic() - began_monotonic)
    utc = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return findings.clock_finding(utc, stepped_s, _is_synchronized())


def _is_synchronized() -> bool | None:
    """Whether the kernel says that a time service keeps the clock; None: it does not say."""
    with contextlib.suppress(OSError, AttributeError):
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))  # modes 0: it only reads
        return None if state < 0 else bool(state != _TIME_ERROR)
    return None


def _available_bytes() -> int:
    """Memory that is free for this process: of the machine, or of its container."""
    found = _NO_LIMIT_BYTES
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())  # ValueError: "max", so there is none
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        found = min(found, max(0, limit - used))
    if found == _NO_LIMIT_BYTES:
        raise OSError("this system does not say how much memory is available")
    return found


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    folder = folder.resolve()
    while not folder.is_dir():
        folder = folder.parent
    return folder
