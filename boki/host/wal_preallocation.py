"""Zeros ahead of the end of RocksDB's write-ahead log, so that a sync overwrites blocks and does not extend a file.

A sync of a file that has grown also commits the file system's journal (its size and its blocks). On a log of small
records that is half of the time of a sync: see docs/design/append-cost.md. So zeros are written behind the end of the
log now and then, and go to the disk with the next sync; RocksDB, which writes at an offset of its own, overwrites them.
It takes zeros at the end of a log for the end, and cuts a log that it closes.

**Why nothing can be misread.** The blocks of one sync reach the disk in any order. So after a power cut a record may
have a hole of zeros, which its checksums show, and it is dropped, as any torn record is. Two records that are not
synced yet must not stand there: the later one could survive the earlier one. That is why only a database whose every
write is synced before the next one does this.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from boki.host.write_ahead_log import log_files

_FROM_BYTES: Final = 1 << 20
"""A database gets zeros once this much has been written, so that small ones stay small."""
_CHUNK_BYTES: Final = 256 << 10
_LARGE_BYTES: Final = 10 << 10
"""Writes that are larger on the average gain nothing by zeros, which would be written only to be overwritten."""
_AVERAGED: Final = 8
"""About the number of writes in that average: in a log that two roles share small ones stand between large ones."""
_SPARE_BYTES: Final = 4 << 10
_ZEROS: Final = bytes(_CHUNK_BYTES)


class WalPreallocation:
    """Of the database in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written_bytes = 0
        self._left_bytes = 0
        """About how many zeros are left."""
        self._average_bytes = 0

    def before_write(self, size_bytes: int) -> None:
        """The next write has about this size. Nothing that has been written before it may be unsynced."""
        self._written_bytes += size_bytes
        self._average_bytes += (size_bytes - self._average_bytes) // _AVERAGED
        if (
            self._left_bytes < size_bytes + _SPARE_BYTES
            and self._average_bytes < _LARGE_BYTES
            and self._written_bytes >= _FROM_BYTES
            and self._extend()
        ):
            self._left_bytes += _CHUNK_BYTES
        self._left_bytes = max(0, self._left_bytes - size_bytes)

    def _extend(self) -> bool:
        """Write zeros behind the newest log. False if there is no room for them: records may have some."""
        logs = log_files(self._folder)
        if not logs:
            return False
        try:
            file = os.open(logs[-1], os.O_WRONLY)
        except FileNotFoundError:  # it was the newest a moment ago, and RocksDB has finished it
            return False
        try:
            os.pwrite(file, _ZEROS, os.fstat(file).st_size)
        except OSError:
            return False
        finally:
            os.close(file)
        return True
