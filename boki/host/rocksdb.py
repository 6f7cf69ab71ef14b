"""RocksDB through rocksdict: writing, syncing and reading apart, because durability is what `sync` alone gives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from weakref import WeakSet

from rocksdict import AccessType, BlockBasedOptions, Cache, DBRecoveryMode, Options, Rdict, WriteBatch

from boki.host.synced_mark import SyncedMark
from boki.host.wal_preallocation import WalPreallocation
from boki.host.write_ahead_log import Reach, follow_logs
from boki.protocol.effects import Delete, Put


class Memory(NamedTuple):
    """What a database holds in memory, at most."""

    written_bytes: int = 64 << 20
    """Until it is this much, what is written stays there; twice that, while the first half is written to a table, and
    up to four times that if the disk is slow.
    """
    cached_bytes: int = 32 << 20
    """Blocks that were read."""


AMPLE: Final = Memory()
_OF_INDEX: Final = Memory(4 << 20, 4 << 20)


def memory_of(role: str, write_buffer_bytes: int) -> Memory:
    """Of a role's database. An engine's is small, because what stands there is in its index, too, as far as the budget
    of that allows; a sequencer writes little.
    """
    if role == "engine":
        return _OF_INDEX
    return Memory(write_buffer_bytes if role == "storage" else write_buffer_bytes // 4)


_MEMTABLES: Final = 4
_SLOWDOWN_TABLES: Final = 40
_STOP_TABLES: Final = 60
"""RocksDB holds up writes when this many memtables wait for their flush, or level 0 has this many tables. rocksdict
keeps the GIL in a write, so the whole process stalls then: a slow disk should come to that late.
"""
_PIN_KEY: Final = b"\xffpin"
"""Behind every key of a node."""


class SyncedWritesLost(Exception):
    """A database holds less than it had synced."""


class _Scan:
    """An iterator of RocksDB's. The database stays open and locked as long as one lives."""

    __slots__ = ("__weakref__", "rows")

    def __init__(self, rows: Any) -> None:
        self.rows = rows


class _ClosedRows:
    """Of a scan that somebody still holds when the database is closed."""

    def __getattr__(self, _name: str) -> Any:
        # No end: that would say that all rows were read.
        raise RuntimeError("the database was closed before this scan had ended")


class RocksDb:
    """An open database. A torn write at the end of its write-ahead log was never synced, and is dropped: nothing else.

    What had been synced is missed: `boki.host.synced_mark` knows how much that was, and the log is looked at before
    RocksDB replaces it (`boki.host.write_ahead_log`). A clean stop leaves no log: what is torn after one
    is refused, too.

    What is read back after a crash is durable: RocksDB writes recovered records to a synced table before it opens.
    """

    def __init__(self, path: Path, memory: Memory = AMPLE) -> None:
        self._memory = memory
        self.syncs_each_write = False
        """For the owner to set: `sync` follows each `write` before the next one. Then syncs are made cheaper."""
        self._preallocation = WalPreallocation(path)
        self._mark = SyncedMark(path)
        self._has_failed = False
        self._scans: WeakSet[_Scan] = WeakSet()
        if self._mark.sequence and not (path / "CURRENT").exists():
            raise SyncedWritesLost("the file CURRENT is missing, without which RocksDB would begin an empty database")
        reach = follow_logs(path)
        self._require(reach.last or self._mark.sequence)
        self._db = self._open(path, reach)
        found = self._db.latest_sequence_number()
        try:
            self._require(found)
        except SyncedWritesLost:
            self._db.close()
            raise
        if found and not self._mark.is_clean:
            self._pin()
            self._db.flush_wal(True)
        self._pinned = self._db.latest_sequence_number()
        self._mark.begin(self._pinned)

    def _require(self, found: int) -> None:
        """Nothing that was synced may be missing."""
        if found < self._mark.sequence:
            raise SyncedWritesLost(
                f"it had synced {self._mark.sequence} writes, and only {found} are there: its write-ahead log is "
                f"damaged, cut short or gone, and with it the last {self._mark.sequence - found} writes"
            )

    def _open(self, path: Path, reach: Reach) -> Rdict:
        """Open it. If the log is damaged, and not just cut short, then only where its last write is torn.

        That is looked at first, without a change: what is refused once must be refused by the next start, too.
        """
        is_clean = self._mark.is_clean
        mode = DBRecoveryMode.absolute_consistency if is_clean else DBRecoveryMode.tolerate_corrupted_tail_records
        try:
            return Rdict(str(path), self._options(mode()))
        except Exception:  # rocksdict raises plain Exception for every failure
            if is_clean or not reach.last:
                raise
            before_damage = Rdict(
                str(path), self._options(DBRecoveryMode.point_in_time()), access_type=AccessType.read_only()
            )
            found = before_damage.latest_sequence_number()
            before_damage.close()
            if found < max(reach.before_last, self._mark.sequence):
                raise
        return Rdict(str(path), self._options(DBRecoveryMode.point_in_time()))

    def _options(self, mode: DBRecoveryMode) -> Options:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_paranoid_checks(True)
        options.set_wal_recovery_mode(mode)
        options.set_write_buffer_size(self._memory.written_bytes)
        options.set_max_write_buffer_number(_MEMTABLES)
        options.set_level_zero_slowdown_writes_trigger(_SLOWDOWN_TABLES)
        options.set_level_zero_stop_writes_trigger(_STOP_TABLES)
        options.set_max_total_wal_size(4 * self._memory.written_bytes)
        options.set_keep_log_file_num(2)
        options.set_max_open_files(256)
        table = BlockBasedOptions()
        table.set_block_cache(Cache(self._memory.cached_bytes))
        options.set_block_based_table_factory(table)
        return options

    def write(self, writes: Iterable[Put | Delete]) -> None:
        """Carry out all writes, or none after a crash. They are readable at once, and durable after `sync`.

        Fast, and holds the GIL: the bytes go to the page cache.
        """
        batch = WriteBatch(raw_mode=True)
        for write in writes:
            if isinstance(write, Put):
                batch.put(write.key, write.value)
            elif write.stop == write.start + b"\x00":
                batch.delete(write.start)  # cheaper than a range, which every read has to check
            elif write.start < write.stop:  # an empty one counts as a write until it is replayed, and not from then on
                batch.delete_range(write.start, write.stop)
        if not batch.is_empty():
            if self.syncs_each_write:
                self._preallocation.before_write(batch.size_in_bytes())
            self._db.write(batch)

    def _pin(self) -> None:
        """Write something that stays, so that the tables reach as far as the number of writes says.

        RocksDB leaves out of a table what has no effect any more, such as a deleted range with nothing in it. If that
        was the last write, the database opens with a lower number the next time, although nothing was lost.
        """
        self.write([Put(_PIN_KEY, b"")])

    def sync(self) -> None:
        """Everything written before is durable when this returns. Gives up the GIL while the disk works."""
        sequence = self._db.latest_sequence_number()
        try:
            self._db.flush_wal(True)
        except Exception:
            self._has_failed = True
            raise
        self._mark.advance(sequence)

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""
        value: bytes | None = self._db.get(key)
        return value

    def scan(self, start: bytes, stop: bytes, *, backward: bool = False) -> Iterator[tuple[bytes, bytes]]:
        """All (key, value) with `start <= key < stop`, ascending or descending, read as they are asked for."""
        scan = _Scan(self._db.iter())
        self._scans.add(scan)
        if backward:
            scan.rows.seek_for_prev(stop)
            if scan.rows.valid() and scan.rows.key() == stop:
                scan.rows.prev()
        else:
            scan.rows.seek(start)
        while scan.rows.valid() and start <= (key := scan.rows.key()) < stop:
            yield key, scan.rows.value()
            if backward:
                scan.rows.prev()
            else:
                scan.rows.next()
        scan.rows.status()

    def close(self) -> None:
        """Write what is in memory to tables, so that no log is left to be torn, and close the files.

        Scans under way end with an error: it can be opened again at once, whoever holds them.
        """
        for scan in list(self._scans):
            scan.rows = _ClosedRows()
        sequence: int | None = None
        with contextlib.suppress(Exception):  # rocksdict raises plain Exception: what was synced stays in the log
            if not self._has_failed:
                if self._db.latest_sequence_number() != self._pinned:
                    self._pin()
                self._db.flush()
                sequence = self._db.latest_sequence_number()
        with contextlib.suppress(Exception):  # an error of the background work, which a damaged table causes
            self._db.close()
        self._mark.close(sequence)
