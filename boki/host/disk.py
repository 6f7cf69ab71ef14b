"""A node's disk: RocksDB, synced through its write-ahead log, with group commit and no timer.

**Where memory ends and the disk begins.** `Disk.store` takes writes and the effects that may follow them. A committer
thread writes all that has gathered in one batch, calls ``flush_wal(True)``, and only when that has returned hands the
effects back to the event loop. While one sync runs, the next writes gather; when it ends they all go. Nothing else in
Boki makes anything durable: every promise about durability rests on the line marked SYNC below.

Writing is split in two because rocksdict holds the GIL in ``write`` and gives it up only in ``flush_wal``.

A failed write or sync is never repeated (after a failed fsync Linux may call lost pages clean): the disk is dead, and
its owner must stop the node.
"""

from __future__ import annotations

import os
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rocksdict import DBRecoveryMode, Options, Rdict, WriteBatch

from boki.effects import Delete, Effect, Load, Loaded, Put, Store
from boki.errors import StoreFailed

_WRITE_BUFFER_BYTES = 64 << 20

Then = Callable[[Sequence[Effect]], None]


def open_rocksdb(path: Path) -> Rdict:
    """Open or create the database. A torn tail of the write-ahead log is what was never synced, and is dropped."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_recycle_log_file_num(0)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(4 * _WRITE_BUFFER_BYTES)
    options.set_keep_log_file_num(2)
    options.set_max_open_files(256)
    return Rdict(str(path), options)


class Disk:
    """One RocksDB and its committer thread. All methods but the thread's are called from the event loop's thread.

    `durability="memory"` leaves out the sync, for the cluster mode of that name. `on_failure` is called once, in the
    loop, with the error that killed the disk.
    """

    def __init__(
        self,
        path: Path,
        loop: AbstractEventLoop,
        *,
        on_failure: Callable[[StoreFailed], None],
        reserve_bytes: int = 0,
        synced: bool = True,
    ) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.sync_count = 0
        self._db = open_rocksdb(path)
        self._loop = loop
        self._on_failure = on_failure
        self._reserve_bytes = reserve_bytes
        self._synced = synced
        self._pending: list[tuple[Store, Then]] = []
        self._wake = threading.Condition()
        self._closing = False
        self._dead = False
        self._thread = threading.Thread(target=self._commit_for_ever, name=f"commit {path.name}", daemon=True)
        self._thread.start()

    # durable writes

    def store(self, store: Store, then: Then) -> None:
        """Make `store.writes` durable, after all earlier ones; then call `then(store.then)` in the event loop."""
        with self._wake:
            self._pending.append((store, then))
            if len(self._pending) == 1:
                self._wake.notify()

    def store_now(self, writes: Sequence[Put | Delete]) -> None:
        """Make the writes durable before returning. For starting up, when nothing else waits for the loop."""
        self._write([Store(writes)])

    def _commit_for_ever(self) -> None:
        while True:
            with self._wake:
                while not self._pending and not self._closing:
                    self._wake.wait()
                group, self._pending = self._pending, []
                if not group:
                    return
            try:
                self._write([store for store, _ in group])
            except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception for every failure
                self._fail(error)
                return
            self._tell(self._finish, group)

    def _write(self, stores: Sequence[Store]) -> None:
        batch = WriteBatch(raw_mode=True)
        for store in stores:
            for write in store.writes:
                if isinstance(write, Put):
                    batch.put(write.key, write.value)
                else:
                    batch.delete_range(write.start, write.stop)
        if not batch.is_empty():
            self._db.write(batch)
        if self._synced:
            self._db.flush_wal(True)  # SYNC: what follows this line may be acknowledged, nothing before it
            self.sync_count += 1

    @staticmethod
    def _finish(group: list[tuple[Store, Then]]) -> None:
        for store, then in group:
            if store.then:
                then(store.then)

    def _fail(self, error: Exception) -> None:
        self._dead = True
        failed = StoreFailed(
            f"{self.path}: a write or sync failed ({error}); the node has stopped. Look at the disk, then start again"
        )
        self._tell(self._on_failure, failed)

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    # reading

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`, synced or not."""
        value: bytes | None = self._db.get(key)
        return value

    def scan(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) with `start <= key < stop`, ascending or descending, read as they are asked for."""
        rows = self._db.iter()
        if backward:
            rows.seek_for_prev(stop)
            if rows.valid() and rows.key() == stop:
                rows.prev()
        else:
            rows.seek(start)
        while rows.valid() and start <= (key := rows.key()) < stop:
            yield key, rows.value()
            if backward:
                rows.prev()
            else:
                rows.next()
        rows.status()

    def load(self, load: Load) -> Loaded:
        """Carry out a `Load`. Errors of the disk come back in the answer, so that another replica can be asked."""
        found: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        try:
            first = next(self.scan(load.floor, load.key + b"\x00", backward=True), None)
            start = first[0] if first is not None else load.key
            for key, value in self.scan(start, load.stop):
                found.append((key, value))
                size_bytes += len(value)
                if size_bytes >= load.max_bytes:
                    break
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception for every failure
            return Loaded(load.token, found, error=f"{self.path}: {error}")
        return Loaded(load.token, found)

    @property
    def free_bytes(self) -> int:
        """What the file system has left for us."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    @property
    def has_room(self) -> bool:
        """Whether records may still be added: the reserve is kept for trims, metalog entries and compaction."""
        return self.free_bytes > self._reserve_bytes

    def close(self) -> None:
        """Write what is pending, stop the thread and close the database."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        self._thread.join()
        self._db.close()
