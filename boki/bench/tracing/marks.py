"""Marks of traced processes: which probe was passed when, in a file that outlives SIGKILL.

All processes are on one machine and read one monotonic clock, so their marks can be compared.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic_ns
from typing import Final, NamedTuple

FOLDER_VARIABLE: Final = "TRACED_INTO"
"""Not BOKI_…: the system's own processes do not inherit those."""
_AT_START: Final = Path(__file__).parent / "at_start"
_MARK: Final = struct.Struct("<qqq")
_MOST_MARKS: Final = 1 << 18
_FILE_BYTES: Final = _MOST_MARKS * _MARK.size


class Mark(NamedTuple):
    """A probe was passed. `value`: what the probe reads there, as the last local id of a batch; else 0."""

    time_ns: int
    pid: int
    probe: int
    value: int


class Recorder:
    """The marks of this process. A forked child begins a file of its own."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._open()
        os.register_at_fork(after_in_child=self._open)

    def _open(self) -> None:
        with (self._folder / f"{os.getpid()}.marks").open("w+b") as file:
            file.truncate(_FILE_BYTES)  # sparse: what is not written takes no space
            self._map = mmap.mmap(file.fileno(), _FILE_BYTES)
        self._slots = itertools.count()

    def mark(self, probe: int, value: int) -> None:
        """Note the time, from any thread. A full file takes no more."""
        slot = next(self._slots)
        if slot < _MOST_MARKS:
            _MARK.pack_into(self._map, slot * _MARK.size, monotonic_ns(), probe, value)


def read_marks(folder: Path) -> list[Mark]:
    """All marks of all processes, by time."""
    found = []
    for path in folder.glob("*.marks"):
        pid = int(path.stem)
        for time_ns, probe, value in _MARK.iter_unpack(path.read_bytes()):
            if time_ns:
                found.append(Mark(time_ns, pid, probe, value))
    return sorted(found)


@contextmanager
def traced(scratch: Path) -> Iterator[Path]:
    """Processes that are started in this block are traced; their marks stand in that folder."""
    with tempfile.TemporaryDirectory(prefix="boki-trace-", dir=scratch) as folder:
        path = os.pathsep.join(filter(None, (str(_AT_START), os.environ.get("PYTHONPATH", ""))))
        wanted = {FOLDER_VARIABLE: folder, "PYTHONPATH": path}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
