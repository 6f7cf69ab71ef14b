"""A database that forgets at a kill whatever no returned sync had covered.

SIGKILL keeps what the kernel has, so killing a process alone can never show a missing fsync. Here the durable image is
a RocksDB of its own that sees writes only when `sync` is called; what is read comes from a second one, which has
everything and is thrown away at the next start. Installed by tests in a child process in place of `RocksDb`.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from boki.host.rocksdb import AMPLE, Memory, RocksDb
from boki.protocol.effects import Delete, Put


class ForgetfulDb:
    """Stands in for `boki.host.rocksdb.RocksDb`."""

    def __init__(self, path: Path, memory: Memory = AMPLE) -> None:
        self.path = path
        current = path / "current"
        durable = path / "durable"
        shutil.rmtree(current, ignore_errors=True)
        if durable.exists():
            shutil.copytree(durable, current)
        self._durable = RocksDb(durable, memory)
        self._current = RocksDb(current, memory)
        self._unsynced: list[Put | Delete] = []
        self._lock = threading.Lock()

    def write(self, writes: Iterable[Put | Delete]) -> None:
        writes = list(writes)
        with self._lock:
            self._current.write(writes)
            self._unsynced += writes

    def sync(self) -> None:
        with self._lock:
            writes, self._unsynced = self._unsynced, []
            self._durable.write(writes)
            self._durable.sync()

    def get(self, key: bytes) -> bytes | None:
        return self._current.get(key)

    def scan(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterator[tuple[bytes, bytes]]:
        return self._current.scan(start, stop, backward=backward)

    def close(self) -> None:
        """A clean end forgets too: nothing but `sync` makes anything durable."""
        self._current.close()
        self._durable.close()
