"""A node's disk: RocksDB, synced through its write-ahead log, with group commit and no timer.

**Where memory ends and the disk begins.** `Disk.store` takes writes and the effects that may follow them. All that has
gathered is written in one batch and synced, and only when that has returned the effects go back to the event loop.
While one sync runs, the next writes gather; when it ends they all go. Nothing else in Boki makes records or metalogs
durable: every promise about durability rests on the line marked SYNC below.

**One log for two roles.** A disk may be `beside` another one and share its write-ahead log (`boki.host.redo`): then the
writes of both are one sequence, and what is ready together shares one sync. `boki.protocol.output_commit` says what
that allows: before a sync, hosts that were told of unsynced writes decide what follows, so that it shares that sync.

**In a thread, or here.** A committer thread syncs, so that a slow disk does not hold up the event loop. Handing over to
it and back costs two wake-ups, which is as much as a third of a quick disk's sync. So after `_TRUSTED` syncs in a row
that were quick, the event loop syncs itself, once each turn for all writes of that turn; until one is slow, or several
were not quick.

Writing and syncing are apart because rocksdict holds the GIL in the first and gives it up only in the second.

A failed write or sync is never repeated (after a failed fsync Linux may call lost pages clean): the disk is dead, and
its owner must stop the node.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import monotonic
from typing import Any, Final, Protocol, TypeVar

from boki.errors import StoreFailed, VersionTooNew
from boki.host.loads import Loads
from boki.host.private_files import make_private_folder
from boki.host.redo import RedoLog, RedoMissing, end_riding, identify, recover
from boki.host.rocksdb import AMPLE, Memory, RocksDb
from boki.protocol.effects import Delete, DiskRoom, DiskUnreadable, Effect, Load, Loaded, Put, Store

Then = Callable[[Sequence[Effect]], None]
_Core = TypeVar("_Core")

_ROOM_AGAIN_BYTES: Final = 32 << 20
"""A disk that had no room has some again with this much more than its reserve free, or an eighth if that is less."""
_QUICK_S: Final = 0.001
"""A sync within this time is quick: an event loop may stall for this long."""
_SLOW_S: Final = 0.005
"""One that takes longer is the last that the event loop waits for, until the disk is trusted again."""
_NO_ROOM: Final = os.strerror(errno.ENOSPC)
_TRUSTED: Final = 32
_LOSS: Final = 8
"""This many quick syncs make up for one between the two: a disk that is seldom quick is not trusted."""
_ROUNDS: Final = 4
"""So often hosts that are ahead decide before a sync: a report, a cut, its acknowledgement, and one more."""
_MAX_UNHURRIED: Final = 256
"""The maximum number of stores that are held back because nothing waits for them."""


class _Ahead(Protocol):
    """A host that was told of writes that are not durable yet."""

    def take_in(self) -> bool:
        """Decide what follows from messages that have come; False if there are none."""


@dataclass(slots=True)
class _Item:
    """Writes, and what happens when they are durable."""

    writes: Sequence[Put | Delete]
    is_vote: bool
    done: Callable[[], None]


class GroupCommit:
    """The write-ahead log of one database, for all disks that share it. `users` counts them.

    All methods but the thread's are called from the event loop's thread.
    """

    def __init__(self, path: Path, db: RocksDb, loop: AbstractEventLoop, *, synced: bool) -> None:
        self.db = db
        self.sync_count = 0
        self.users = 1
        self.queued = 0
        """How many items there were,"""
        self.durable = 0
        """and how many of them are durable."""
        self.is_dead = False
        self.on_failure: list[Callable[[StoreFailed], None]] = []
        self._path = path
        self._loop = loop
        self._synced = synced
        self._ahead: dict[_Ahead, None] = {}
        self._gathered: list[_Item] = []
        """What this turn of the loop wants to be durable."""
        self._unhurried: list[_Item] = []
        """What is written in front of the next item, and nothing waits for."""
        self._handed = 0
        """Items that the thread has, or has not told of yet. While there are any, all others go the same way."""
        self._quick_count = 0
        """Syncs in a row that were quick, and a credit for the next that are not."""
        self._pending: SimpleQueue[list[_Item] | Callable[[], None] | None] = SimpleQueue()
        self._finished: deque[tuple[list[_Item], float]] = deque()
        self._start_thread()

    def _start_thread(self) -> None:
        name = f"commit {self._path.name}"
        self._thread = threading.Thread(target=self._commit_for_ever, name=name, daemon=True)
        self._thread.start()

    def store(self, item: _Item, *, can_wait: bool = False) -> None:
        """Make the writes durable, after all earlier ones; if they can wait, together with the next that cannot."""
        self.queued += 1
        self._unhurried.append(item)
        if can_wait and len(self._unhurried) < _MAX_UNHURRIED:
            return
        self._hurry()

    def _hurry(self) -> None:
        """Something waits now for what is in front of the next item."""
        items, self._unhurried = self._unhurried, []
        if self._handed:
            self._handed += len(items)
            self._pending.put(items)
            return
        if items and not self._gathered:
            self._loop.call_soon(self._commit)
        self._gathered += items

    def settle_before(self, host: _Ahead) -> None:
        """Let that host decide before the next sync: what follows may share it."""
        self._ahead[host] = None

    def _commit(self) -> None:
        """Write and sync what has gathered: in the event loop if the disk is quick, else in the thread."""
        for _ in range(_ROUNDS):
            took_in = [host.take_in() for host in list(self._ahead)]
            if not any(took_in):
                break
        self._ahead.clear()
        items, self._gathered = self._gathered, []
        if not items or self.is_dead:
            return
        if self._quick_count < _TRUSTED:
            self._handed += len(items)
            self._pending.put(items)
            return
        try:
            took_s = self._write(items)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception for every failure
            self.fail(error)
            return
        self._note(took_s)
        self._go_on_with(items)

    def _note(self, took_s: float) -> None:
        """A sync took this long."""
        if took_s <= _QUICK_S:
            self._quick_count = min(self._quick_count + 1, 2 * _TRUSTED)
            return
        self._quick_count -= _LOSS
        if took_s > _SLOW_S or self._quick_count < _TRUSTED:
            self._quick_count = 0

    def store_now(self, writes: Sequence[Put | Delete]) -> None:
        """Make the writes durable before returning. For starting up, when nothing else waits for the loop."""
        try:
            self._write([_Item(writes, True, _nothing)])
        except Exception as error:  # rocksdict raises plain Exception for every failure
            raise self.failed(error) from error

    def run_in_thread(self, job: Callable[[], None]) -> None:
        """Let the thread do something that takes as long as a sync. What it raises is a failure of the disk."""
        self._pending.put(job)

    def tell(self, callback: Callable[..., None], *args: Any) -> None:
        """Call something in the event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

    def _commit_for_ever(self) -> None:
        while self._commit_next():
            pass

    def _commit_next(self) -> bool:
        """Wait for the next jobs of the thread, and do them; False if they are the last.

        A method of its own, so that a thread that waits holds nothing of the last writes, which may be megabytes.
        """
        group = [self._pending.get()]
        while not self._pending.empty():
            group.append(self._pending.get())
        items = [item for part in group if isinstance(part, list) for item in part]
        try:
            if items:
                took_s = self._write(items)
                self._finished.append((items, took_s))
                self.tell(self._finish)
            for part in group:
                if callable(part):
                    part()
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception for every failure
            self.fail(error)
            return False
        return None not in group

    def _write(self, items: Sequence[_Item]) -> float:
        """Make them durable; the seconds that the sync took."""
        self.db.write(write for item in items for write in item.writes)
        began_s = monotonic()
        if self._synced or any(item.is_vote for item in items):
            self.db.sync()  # SYNC: what follows this line may be acknowledged, nothing before it
            self.sync_count += 1
        return monotonic() - began_s

    def _finish(self) -> None:
        while self._finished:
            items, took_s = self._finished.popleft()
            self._handed -= len(items)
            self._note(took_s)
            self._go_on_with(items)

    def _go_on_with(self, items: list[_Item]) -> None:
        self.durable += len(items)
        for item in items:
            item.done()

    def fail(self, error: Exception) -> None:
        """The disk is dead, for all that share it."""
        if self.is_dead:
            return
        self.is_dead = True
        failed = self.failed(error)
        for on_failure in self.on_failure:
            self.tell(on_failure, failed)

    def failed(self, error: Exception) -> StoreFailed:
        """What is told of a failed write or sync."""
        return StoreFailed(
            f"{self._path}: a write or sync failed ({error}); the node has stopped. Look at the disk, then start again"
        )

    def flush(self, *, is_last: bool = False) -> None:
        """Make everything durable that was stored so far, and wait for it."""
        self._hurry()
        self._commit()
        self._pending.put(None)
        self._thread.join()
        self._finish()
        if not is_last:
            self._start_thread()

    def leave(self) -> None:
        """One disk less uses it; the last one closes the database."""
        self.users -= 1
        if not self.users:
            self.flush(is_last=True)
            self.db.close()


class Disk:
    """One RocksDB, and the write-ahead log that makes it durable. All methods are called from the loop's thread.

    `synced=False` leaves out the sync of all but votes, for `durability = "memory"`. `on_failure` is called once, in
    the loop, with the error that killed the disk. `has_guests`: others may share its write-ahead log. `beside`: the
    disk of the same process whose log may have its newest writes, and is to have them from now on if `shares_log`.
    `DiskUnreadable` if the database does not open, or has lost what it had synced.
    """

    def __init__(
        self,
        path: Path,
        loop: AbstractEventLoop,
        *,
        on_failure: Callable[[StoreFailed], None],
        reserve_bytes: int = 0,
        synced: bool = True,
        has_guests: bool = False,
        beside: Disk | None = None,
        shares_log: bool = False,
        memory: Memory = AMPLE,
    ) -> None:
        self.path = path
        self._loop = loop
        self._on_failure = on_failure
        self._reserve_bytes = reserve_bytes
        self._loads = Loads(self.scan, loop)
        self._redo: RedoLog | None = None
        self._own_syncs = 0
        try:
            make_private_folder(path)
            self._db = RocksDb(path, memory)
            try:
                if has_guests:
                    identify(self._db)
                self.log = self._open_log(beside, shares_log=shares_log, synced=synced)
            except BaseException:
                self._db.close()  # else it is locked for as long as somebody holds this half-made disk
                raise
        except (VersionTooNew, RedoMissing):
            raise
        except Exception as failure:  # rocksdict raises plain Exception for every failure
            if _NO_ROOM in str(failure):  # nothing is damaged, so nothing is to be moved away or restored
                raise StoreFailed(
                    f"the database {path} does not open, because its file system is full: nothing is lost; free some "
                    f"space and start again ({self._unreadable(failure)})",
                    outcome="not_applied",
                ) from failure
            raise self._unreadable(failure) from failure
        self.log.on_failure.append(on_failure)

    def _open_log(self, beside: Disk | None, *, shares_log: bool, synced: bool) -> GroupCommit:
        recover(self._db, beside.log.db if beside is not None else None)
        if beside is None or not shares_log:
            end_riding(self._db)
            self._db.syncs_each_write = synced
            return GroupCommit(self.path, self._db, self._loop, synced=synced)
        self._redo = RedoLog(self._db, beside.log.db)
        beside.log.store(_Item([self._redo.begin()], False, _nothing))
        beside.log.users += 1
        return beside.log

    @property
    def sync_count(self) -> int:
        """How many syncs were made of this database."""
        return self.log.sync_count if self._redo is None else self._own_syncs

    # durable writes

    def store(self, store: Store, then: Then, *, can_wait: bool = False) -> None:
        """Make `store.writes` durable, after all earlier ones; then call `then(store.then)` in the event loop.

        `can_wait`: see `Store.can_wait`.
        """
        writes = store.writes
        if self._redo is not None and writes:
            self.log.store(_Item([self._redo.row(writes)], store.is_vote, partial(self._apply, store, then)))
        else:
            done = partial(then, store.then) if store.then else _nothing
            self.log.store(_Item(writes, store.is_vote, done), can_wait=can_wait)

    def _apply(self, store: Store, then: Then) -> None:
        """The row of a guest's writes is durable."""
        assert self._redo is not None
        try:
            self._redo.apply(store.writes)
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception for every failure
            self.log.fail(error)
            return
        if store.then:
            then(store.then)
        if self._redo.is_long:
            self._redo.is_syncing = True
            self.log.run_in_thread(partial(self._sync_guest, self._redo, self._redo.applied))

    def _sync_guest(self, redo: RedoLog, until: int) -> None:
        """In the thread: rows of the redo log up to there are not needed any more."""
        redo.sync()
        self.log.tell(self._forget_rows, until)

    def _forget_rows(self, until: int) -> None:
        if self._redo is not None and not self.log.is_dead:
            self._own_syncs += 1
            self.log.store(_Item([self._redo.forget(until)], False, _nothing))

    def store_now(self, writes: Sequence[Put | Delete]) -> None:
        """Make the writes durable before returning. For starting up, when nothing else waits for the loop."""
        if self._redo is None:
            self.log.store_now(writes)
            return
        try:
            self._redo.catch_up()
            self._db.write(writes)
            self._db.sync()
        except Exception as error:  # rocksdict raises plain Exception for every failure
            raise self.log.failed(error) from error

    # reading

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`, synced or not."""
        self._catch_up()
        try:
            return self._db.get(key)
        except Exception as failure:  # rocksdict raises plain Exception for every failure
            raise self._unreadable(failure) from failure

    def scan(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) with `start <= key < stop`, ascending or descending, read as they are asked for."""
        self._catch_up()
        try:
            yield from self._db.scan(start, stop, backward=backward)
        except Exception as failure:
            raise self._unreadable(failure) from failure

    def _catch_up(self) -> None:
        """What is durable in the log of another disk is to be found here."""
        if self._redo is None:
            return
        try:
            self._redo.catch_up()
        except Exception as failure:  # rocksdict raises plain Exception for every failure
            self.log.fail(failure)
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

    def load(self, load: Load[object], then: Callable[[Loaded[object]], None]) -> None:
        """Carry out a `Load` and call `then` with what it found, in the order of asking: see `boki.host.loads`."""
        self._loads.begin(load, then)

    @property
    def free_bytes(self) -> int:
        """What the file system has left for us."""
        stat = os.statvfs(self.path)
        return stat.f_bavail * stat.f_frsize

    def find_room(self, *, had_room: bool = True) -> DiskRoom:
        """Whether records may be added. The last quarter of the reserve is for trims, metalogs and compaction alone.

        If it had no room before (`had_room`), somewhat more than the reserve must be free: else what comes in the next
        moment would touch it again.
        """
        free_bytes, reserve_bytes = self.free_bytes, self._reserve_bytes
        more_bytes = 0 if had_room else min(reserve_bytes // 8, _ROOM_AGAIN_BYTES)
        has_room = free_bytes > reserve_bytes + more_bytes
        return DiskRoom(has_room, free_bytes > reserve_bytes // 4, reserve_bytes)

    def close(self) -> None:
        """Write what is pending, stop the thread and close the database. Loads under way are not answered.

        A log that others share is closed by the last of them.
        """
        self._loads.clear()
        if self._redo is None:
            self.log.leave()
            return
        self.log.flush()
        redo, self._redo = self._redo, None
        if not self.log.is_dead:
            with contextlib.suppress(Exception):  # rocksdict raises plain Exception: the rows stay, for the next start
                redo.end()
        self._db.close()
        self.log.leave()


def _nothing() -> None:
    """Nobody waits."""
