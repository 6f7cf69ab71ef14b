"""A node's disk: RocksDB, synced through its write-ahead log, with group commit and no timer.

**Where memory ends and the disk begins.** `Disk.store` takes writes and the effects that may follow them. All that has
gathered is written in one batch and synced, and only when that has returned the effects go back to the event loop.
While one sync runs, the next writes gather; when it ends they all go. Nothing else in Boki makes records or metalogs
durable: every promise about durability rests on the line marked SYNC below.

**In a thread, or here.** A committer thread syncs, so that a slow disk does not hold up the event loop. Handing over to
it and back costs two wake-ups, which is as much as a third of a quick disk's sync. So after `_TRUSTED` syncs in a row
that were quick, the event loop syncs itself, once each turn for all writes of that turn; until one is slow.

Writing and syncing are apart because rocksdict holds the GIL in the first and gives it up only in the second.

A failed write or sync is never repeated (after a failed fsync Linux may call lost pages clean): the disk is dead, and
its owner must stop the node.
"""

from __future__ import annotations

import os
import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, TypeVar

from boki.errors import StoreFailed, VersionTooNew
from boki.host.private_files import make_private_folder
from boki.host.rocksdb import RocksDb
from boki.protocol.effects import Delete, DiskRoom, DiskUnreadable, Effect, Load, Loaded, Put, Store

Then = Callable[[Sequence[Effect]], None]
_Core = TypeVar("_Core")

_QUICK_S: Final = 0.001
"""A sync within this time is quick: an event loop may stand still for so long."""
_SLOW_S: Final = 0.005
"""One that takes longer is the last that the event loop waits for, until the disk is trusted again."""
_TRUSTED: Final = 32
_STEP_BYTES: Final = 256 << 10
"""So much is read before the event loop goes on: about 0.1 ms from memory."""


@dataclass(slots=True)
class _Loading:
    """A load under way. `rows` is the iterator that it has come to, None before its first step."""

    load: Load
    then: Callable[[Loaded], None]
    rows: Iterator[tuple[bytes, bytes]] | None = None
    found: list[tuple[bytes, bytes]] = field(default_factory=list)
    size_bytes: int = 0


class Disk:
    """One RocksDB and its committer thread. All methods but the thread's are called from the event loop's thread.

    `synced=False` leaves out the sync of all but votes, for `durability = "memory"`. `on_failure` is called once, in
    the loop, with the error that killed the disk. `DiskUnreadable` if the database does not open, or has lost what it
    had synced.
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
        self.path = path
        self.sync_count = 0
        try:
            make_private_folder(path)
            self._db = RocksDb(path)
        except VersionTooNew:
            raise
        except Exception as failure:  # rocksdict raises plain Exception for every failure
            raise self._unreadable(failure) from failure
        self._loop = loop
        self._on_failure = on_failure
        self._reserve_bytes = reserve_bytes
        self._synced = synced
        self._gathered: list[tuple[Store, Then]] = []
        """What this turn of the loop wants to be durable."""
        self._handed = 0
        """Stores that the thread has, or that it has not been told of yet."""
        self._quick_count = 0
        """Syncs in a row that were quick."""
        self._is_dead = False
        self._pending: SimpleQueue[tuple[Store, Then] | None] = SimpleQueue()
        self._loadings: deque[_Loading] = deque()
        self._thread = threading.Thread(target=self._commit_for_ever, name=f"commit {path.name}", daemon=True)
        self._thread.start()

    # durable writes

    def store(self, store: Store, then: Then) -> None:
        """Make `store.writes` durable, after all earlier ones; then call `then(store.then)` in the event loop."""
        if self._handed or self._quick_count < _TRUSTED:
            self._handed += 1
            self._pending.put((store, then))
            return
        self._gathered.append((store, then))
        if len(self._gathered) == 1:
            self._loop.call_soon(self._commit_here)

    def _commit_here(self) -> None:
        """Write and sync in the event loop, because the disk is quick."""
        stores, self._gathered = self._gathered, []
        if not stores or self._is_dead:
            return
        try:
            took_s = self._write([store for store, _ in stores])
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception for every failure
            self._is_dead = True
            self._fail(error)
            return
        self._note(took_s)
        self._go_on_with(stores)

    def _note(self, took_s: float) -> None:
        """A sync took so long."""
        if took_s <= _QUICK_S:
            self._quick_count += 1
        elif took_s > _SLOW_S or self._quick_count < _TRUSTED:
            self._quick_count = 0

    def store_now(self, writes: Sequence[Put | Delete]) -> None:
        """Make the writes durable before returning. For starting up, when nothing else waits for the loop."""
        try:
            self._write([Store(writes, is_vote=True)])
        except Exception as error:  # rocksdict raises plain Exception for every failure
            raise self._failed(error) from error

    def _commit_for_ever(self) -> None:
        while True:
            group = [self._pending.get()]
            while not self._pending.empty():
                group.append(self._pending.get())
            stores = [item for item in group if item is not None]
            if not stores:
                return  # it may have been the event loop whose sync failed: none comes after it
            try:
                took_s = self._write([store for store, _ in stores])
            except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception for every failure
                self._fail(error)
                return
            self._tell(self._finish, stores, took_s)
            if None in group:
                return

    def _write(self, stores: Sequence[Store]) -> float:
        """Make them durable; the seconds that the sync took."""
        self._db.write(write for store in stores for write in store.writes)
        began_s = monotonic()
        if self._synced or any(store.is_vote for store in stores):
            self._db.sync()  # SYNC: what follows this line may be acknowledged, nothing before it
            self.sync_count += 1
        return monotonic() - began_s

    def _finish(self, group: list[tuple[Store, Then]], took_s: float) -> None:
        self._handed -= len(group)
        self._note(took_s)
        self._go_on_with(group)

    @staticmethod
    def _go_on_with(group: list[tuple[Store, Then]]) -> None:
        for store, then in group:
            if store.then:
                then(store.then)

    def _fail(self, error: Exception) -> None:
        self._tell(self._on_failure, self._failed(error))

    def _failed(self, error: Exception) -> StoreFailed:
        return StoreFailed(
            f"{self.path}: a write or sync failed ({error}); the node has stopped. Look at the disk, then start again"
        )

    def _tell(self, callback: Callable[..., None], *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    # reading

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`, synced or not."""
        try:
            return self._db.get(key)
        except Exception as failure:  # rocksdict raises plain Exception for every failure
            raise self._unreadable(failure) from failure

    def scan(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) with `start <= key < stop`, ascending or descending, read as they are asked for."""
        try:
            yield from self._db.scan(start, stop, backward=backward)
        except Exception as failure:
            raise self._unreadable(failure) from failure

    def restore(self, make: Callable[[], _Core]) -> _Core:
        """Make a core from what is here. `DiskUnreadable` if that does not decode, whatever was raised instead."""
        try:
            return make()
        except (DiskUnreadable, VersionTooNew):
            raise
        except Exception as failure:
            raise DiskUnreadable(f"{self.path}: what it holds does not decode: {failure!r}") from failure

    def _unreadable(self, failure: Exception) -> DiskUnreadable:
        return DiskUnreadable(f"{self.path}: {' '.join(str(failure).split())}")

    def load(self, load: Load, then: Callable[[Loaded], None]) -> None:
        """Carry out a `Load` and call `then` with what it found, in the order of asking.

        What one step of it covers is read at once; a larger one lets the event loop go on between its steps. No
        thread would help: rocksdict holds the GIL while it reads. Errors of the disk come back in the answer, so that
        another replica can be asked.
        """
        loading = _Loading(load, then)
        if self._loadings or not self._step(loading):
            self._loadings.append(loading)
            if len(self._loadings) == 1:
                self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Take the next step of the oldest load."""
        if self._loadings and self._step(self._loadings[0]):
            self._loadings.popleft()
        if self._loadings:
            self._loop.call_soon(self._go_on)

    def _step(self, loading: _Loading) -> bool:
        """Read a little; True if that was the last of it, and has been told."""
        load, error = loading.load, ""
        try:
            if loading.rows is None:
                first = next(self.scan(load.floor, load.key + b"\x00", backward=True), None)
                loading.rows = self.scan(first[0] if first is not None else load.key, load.stop)
            step_bytes = 0
            for row in loading.rows:
                loading.found.append(row)
                step_bytes += len(row[1])
                if loading.size_bytes + step_bytes >= load.max_bytes:
                    break
                if step_bytes >= _STEP_BYTES:
                    loading.size_bytes += step_bytes
                    return False
        except DiskUnreadable as failure:
            error = str(failure)
        loading.then(Loaded(load.token, loading.found, error))
        return True

    @property
    def free_bytes(self) -> int:
        """What the file system has left for us."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    @property
    def room(self) -> DiskRoom:
        """Whether records may be added. The last quarter of the reserve is for trims, metalogs and compaction alone."""
        free_bytes = self.free_bytes
        return DiskRoom(free_bytes > self._reserve_bytes, free_bytes > self._reserve_bytes // 4)

    def close(self) -> None:
        """Write what is pending, stop the thread and close the database. Loads under way are not answered."""
        self._loadings.clear()
        self._commit_here()
        self._pending.put(None)
        self._thread.join()
        self._db.close()
