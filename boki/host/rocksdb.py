"""RocksDB through rocksdict: writing, syncing and reading apart, because durability is what `sync` alone gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from rocksdict import DBRecoveryMode, Options, Rdict, WriteBatch

from boki.effects import Delete, Put

_WRITE_BUFFER_BYTES = 64 << 20


class RocksDb:
    """An open database. A torn tail of its write-ahead log is what was never synced, and is dropped.

    What is read back after a crash is durable: RocksDB writes recovered records to a synced table before it opens.
    """

    def __init__(self, path: Path) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_paranoid_checks(True)
        options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
        options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
        options.set_max_total_wal_size(4 * _WRITE_BUFFER_BYTES)
        options.set_keep_log_file_num(2)
        options.set_max_open_files(256)
        self._db = Rdict(str(path), options)

    def write(self, writes: Iterable[Put | Delete]) -> None:
        """Carry out all writes, or none after a crash. They are readable at once, and durable after `sync`.

        Fast, and holds the GIL: the bytes go to the page cache.
        """
        batch = WriteBatch(raw_mode=True)
        for write in writes:
            if isinstance(write, Put):
                batch.put(write.key, write.value)
            else:
                batch.delete_range(write.start, write.stop)
        if not batch.is_empty():
            self._db.write(batch)

    def sync(self) -> None:
        """Everything written before is durable when this returns. Gives up the GIL while the disk works."""
        self._db.flush_wal(True)

    def get(self, key: bytes) -> bytes | None:
        """The value under `key`."""
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

    def close(self) -> None:
        """Close the files."""
        self._db.close()
