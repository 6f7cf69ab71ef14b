"""How much of a database is known to be synced: a lower bound, kept in a file of its own beside the database.

RocksDB takes whatever does not parse at the end of its write-ahead log for a torn write, and drops it. After a flipped
bit in a record's length, a shortened or a deleted log that may be what had been synced and acknowledged, and nothing in
the database tells. This file does: it holds the sequence number that the last returned sync covered, so a database
that opens with less has lost acknowledged writes.

**It costs no sync.** The number is written into a mapped page after each sync of the database, and the kernel keeps the
page when the process dies. The page itself is synced at every start, every `_PERSIST_EVERY` syncs and at a clean stop,
so after a power cut it may be older than the database, never newer. Two slots are written in turn: one is always whole.

A clean stop leaves no log behind and says so here; then nothing of a log may be torn at the next start.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from struct import Struct
from typing import Final
from zlib import crc32

from boki.errors import VersionTooNew

FILE: Final = "synced"
VERSION: Final = 1
_MAGIC: Final = b"bokimrk"
_SLOT: Final = Struct(">7sBQQ?")
"""magic, version, how often a slot has been written, sequence number, whether the stop was clean"""
_CHECK: Final = Struct(">I")
_SLOT_BYTES: Final = 512
_FILE_BYTES: Final = 2 * _SLOT_BYTES
_PERSIST_EVERY: Final = 1024


class SyncedMark:
    """The mark of one database. `sequence` and `is_clean` are what the file says; 0 and False without one.

    A damaged mark counts as none: it is evidence, and losing it loses no data.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self._number, self.sequence, self.is_clean = self._read()
        self._file = -1
        self._page: mmap.mmap | None = None
        self._unpersisted = 0

    def _read(self) -> tuple[int, int, bool]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return 0, 0, False
        newest = (0, 0, False)
        for offset in range(0, _FILE_BYTES, _SLOT_BYTES):
            slot = data[offset : offset + _SLOT.size]
            check = data[offset + _SLOT.size : offset + _SLOT.size + _CHECK.size]
            if len(check) < _CHECK.size or not slot.startswith(_MAGIC) or _CHECK.unpack(check)[0] != crc32(slot):
                continue
            _, version, number, sequence, is_clean = _SLOT.unpack(slot)
            if version > VERSION:
                raise VersionTooNew(f"{self.path} has version {version}, and this Boki knows {VERSION}: upgrade")
            newest = max(newest, (number, sequence, is_clean))
        return newest

    def begin(self, sequence: int) -> None:
        """The database is open, and this much of it may be required. From now on the stop is not a clean one."""
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._file, _FILE_BYTES)
        self._page = mmap.mmap(self._file, _FILE_BYTES)
        self._write(sequence, is_clean=False)
        os.fsync(self._file)
        folder = os.open(self.path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def advance(self, sequence: int) -> None:
        """A sync has returned that covered all writes up to that number."""
        self._write(sequence, is_clean=False)
        self._unpersisted += 1
        if self._unpersisted >= _PERSIST_EVERY:
            self._unpersisted = 0
            os.fdatasync(self._file)

    def close(self, clean_sequence: int | None = None) -> None:
        """Drop the file. With a number: the stop is clean, and the database holds all up to it without a log."""
        if self._page is None:
            return
        if clean_sequence is not None:
            self._write(clean_sequence, is_clean=True)
            os.fdatasync(self._file)
        self._page.close()
        os.close(self._file)
        self._page = None

    def _write(self, sequence: int, *, is_clean: bool) -> None:
        assert self._page is not None, "the mark is written between begin and close"
        self._number += 1
        slot = _SLOT.pack(_MAGIC, VERSION, self._number, sequence, is_clean)
        offset = self._number % 2 * _SLOT_BYTES
        self._page[offset : offset + _SLOT.size + _CHECK.size] = slot + _CHECK.pack(crc32(slot))
