"""A look at RocksDB's write-ahead log before RocksDB replays it: is it one unbroken chain, and how far does it reach?

RocksDB checks the bytes of each record. What it does not do, as we open it (9.8): it takes a length that points beyond
the end of the file for a torn write and drops the rest, it loops forever on some record types that it never wrote
here, and it does not notice that a whole file is missing between two others. It also deletes the log that it has
replayed, and with it what could be looked at. So the chain of record headers is followed first, without checksums:
every write batch carries its sequence number and its count, and each must follow the last one.

The format: blocks of 32 KiB; fragments in them of checksum (4), length (2), type (1), bytes; a fragment never crosses a
block. A fragment that ends beyond the file is a torn write: what is known to be synced decides (`synced_mark`).
"""

from __future__ import annotations

from mmap import ACCESS_READ, mmap
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

_BLOCK_BYTES: Final = 32 << 10
_HEADER: Final = Struct("<IHB")
_BATCH: Final = Struct("<QI")
"""The sequence number of a batch's first write, and how many there are."""
_PADDING, _FULL, _FIRST, _MIDDLE, _LAST = range(5)


class LogDamaged(Exception):
    """The log is not what was written: no torn write can have left it like this."""


class Reach(NamedTuple):
    """How far the logs of a database reach, in sequence numbers; 0 where there is nothing."""

    before_last: int
    """Until before the last write. What came before it was whole when that began."""
    last: int
    """Until the last write whose headers are whole. Its bytes may be torn."""


def log_files(folder: Path) -> list[Path]:
    """The logs of a database, the oldest first. RocksDB pads their numbers to six digits, so length counts first."""
    return sorted(folder.glob("*.log"), key=lambda path: (len(path.name), path.name))


def follow_logs(folder: Path) -> Reach:
    """Follow all logs of a database, in order. `LogDamaged` if they are not one chain."""
    reach = Reach(0, 0)
    for path in log_files(folder):
        reach = _follow(path, reach)
    return reach


def _follow(path: Path, reach: Reach) -> Reach:
    """Follow one file from the last write before it, if there was one."""
    if path.stat().st_size == 0:
        return reach
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        return _follow_records(path.name, data, reach)


def _follow_records(name: str, data: mmap, reach: Reach) -> Reach:
    before, sequence = reach
    head = b""
    at = 0
    while at + _HEADER.size <= len(data):
        room = _BLOCK_BYTES - at % _BLOCK_BYTES - _HEADER.size
        if room < 0:
            at += room + _HEADER.size
            continue
        _, length, kind = _HEADER.unpack_from(data, at)
        if kind == _PADDING and length == 0:
            break
        if not _FULL <= kind <= _LAST or length > room:
            raise LogDamaged(f"{name} is damaged at byte {at}: there is no record of kind {kind}, length {length}")
        start, at = at + _HEADER.size, at + _HEADER.size + length
        if at > len(data):
            break
        head = (b"" if kind in (_FULL, _FIRST) else head) + data[start : min(at, start + _BATCH.size)]
        if kind not in (_FULL, _LAST):
            continue
        if len(head) < _BATCH.size:
            raise LogDamaged(f"{name} is damaged at byte {start}: the record is shorter than any write")
        first, count = _BATCH.unpack_from(head)
        if sequence and first != sequence + 1:
            raise LogDamaged(f"{name} goes on with write {first} at byte {start}, after write {sequence}")
        before, sequence = sequence, first + count - 1
    return Reach(before, sequence)
