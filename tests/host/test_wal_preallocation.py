"""Zeros ahead of a write-ahead log: syncs overwrite them, and no kill, power cut or damage is told less of for it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from random import Random

import pytest

from boki.host import synced_mark, wal_preallocation
from boki.host.rocksdb import RocksDb, SyncedWritesLost
from boki.host.write_ahead_log import follow_logs
from boki.protocol.effects import Put

VALUE_BYTES = 9_000


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros from the first write on."""
    monkeypatch.setattr(wal_preallocation, "_FROM_BYTES", 0)


def opened(path: Path) -> RocksDb:
    database = RocksDb(path)
    database.syncs_each_write = True
    return database


def put(database: RocksDb, number: int, size_bytes: int = VALUE_BYTES) -> None:
    database.write([Put(b"%06d" % number, Random(number).randbytes(size_bytes))])
    database.sync()


def held(path: Path) -> int:
    """How many writes a database opens with, the first ones, each as it was written."""
    database = RocksDb(path)
    rows = list(database.scan(b"0", b"9"))
    database.close()
    assert [key for key, _ in rows] == [b"%06d" % number for number in range(len(rows))]
    assert all(value == Random(number).randbytes(len(value)) for number, (_, value) in enumerate(rows))
    return len(rows)


def zeros_of(path: Path) -> int:
    """How many zeros the newest log ends with."""
    data = max(path.glob("*.log")).read_bytes()
    return len(data) - len(data.rstrip(b"\0"))


def test_a_kill_at_any_write_loses_nothing(tmp_path: Path) -> None:
    """Sizes on both sides of what is filled for, so that zeros run out, are overwritten, and are written again."""
    rng = Random(1)
    database = opened(tmp_path / "live")
    had_zeros = False
    for number in range(60):
        put(database, number, rng.choice((10, 10, 3_000, 3_000, VALUE_BYTES, 40_000)))
        if number % 6 == 0:
            image = tmp_path / f"image-{number}"
            shutil.copytree(tmp_path / "live", image)
            had_zeros |= zeros_of(image) > 4096
            assert follow_logs(image).last == number + 1
            assert held(image) == number + 1
    database.close()
    assert had_zeros
    assert held(tmp_path / "live") == 60


def test_a_record_with_a_hole_was_never_synced_and_is_dropped(tmp_path: Path) -> None:
    """A power cut during its sync: any of its blocks may be zeros still. Those before it are whole."""
    database = opened(tmp_path / "live")
    for number in range(4):
        put(database, number)
    mark = (tmp_path / "live" / synced_mark.FILE).read_bytes()
    log = max((tmp_path / "live").glob("*.log"))
    end = log.stat().st_size - zeros_of(tmp_path / "live")
    put(database, 4, 3 * VALUE_BYTES)
    for number, page in enumerate(range(end // 4096, (end + 3 * VALUE_BYTES) // 4096 + 1)):
        image = tmp_path / f"image-{number}"
        shutil.copytree(tmp_path / "live", image)
        (image / synced_mark.FILE).write_bytes(mark)
        start = max(page * 4096, end)
        with (image / log.name).open("r+b") as file:
            file.seek(start)
            file.write(bytes((page + 1) * 4096 - start))
        assert held(image) == 4, f"page {page}"
    database.close()


def test_what_was_synced_and_is_gone_is_refused(tmp_path: Path) -> None:
    """Zeros in its place are no end of the log."""
    database = opened(tmp_path / "live")
    for number in range(4):
        put(database, number)
    log = max((tmp_path / "live").glob("*.log"))
    end = log.stat().st_size - zeros_of(tmp_path / "live")
    for number, (start, size_bytes) in enumerate([(end - 10, 10), (end - VALUE_BYTES, 4096), (VALUE_BYTES, 4096)]):
        image = tmp_path / f"image-{number}"
        shutil.copytree(tmp_path / "live", image)
        with (image / log.name).open("r+b") as file:
            file.seek(start)
            file.write(bytes(size_bytes))
        for _ in range(2):
            with pytest.raises(Exception, match=r"Corruption|had synced 4 writes") as refused:
                RocksDb(image)
            assert isinstance(refused.value, SyncedWritesLost) or "Corruption" in str(refused.value)
    database.close()


def test_the_next_log_gets_zeros_too(tmp_path: Path) -> None:
    """RocksDB begins a new log when it writes a table."""
    database = opened(tmp_path / "live")
    put(database, 0)
    first = max((tmp_path / "live").glob("*.log"))
    database._db.flush()
    for number in range(1, 30):
        put(database, number)
    assert max((tmp_path / "live").glob("*.log")) != first
    assert zeros_of(tmp_path / "live") > 4096
    shutil.copytree(tmp_path / "live", tmp_path / "image")
    assert held(tmp_path / "image") == 30
    database.close()


def test_a_database_that_syncs_seldom_gets_none(tmp_path: Path) -> None:
    """Of two records that are not synced the later one could survive the earlier one."""
    database = RocksDb(tmp_path / "live")
    for number in range(4):
        put(database, number)
    assert zeros_of(tmp_path / "live") < 4096
    database.close()


def test_large_writes_get_none_nor_do_small_ones_between_them(tmp_path: Path) -> None:
    """In a shared log cuts stand between batches: zeros for each would double the bytes of large batches."""
    database = opened(tmp_path / "live")
    for number in range(40):
        put(database, number, 100 if number % 2 else 60_000)
    size_bytes = sum(log.stat().st_size for log in (tmp_path / "live").glob("*.log"))
    assert size_bytes < 20 * 60_000 + (256 << 10) + 40_000, "zeros at most once, at the start"
    for number in range(40, 80):
        put(database, number, 100 if number % 2 else 16_000)
    assert zeros_of(tmp_path / "live") > 4096
    database.close()


def test_a_small_one_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most databases of most roles are small."""
    monkeypatch.setattr(wal_preallocation, "_FROM_BYTES", 10 * VALUE_BYTES)
    database = opened(tmp_path / "live")
    for number in range(4):
        put(database, number)
    assert zeros_of(tmp_path / "live") < 4096
    database.close()


def test_without_room_for_zeros_records_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last room of a disk is for records."""

    def full(_file: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    database = opened(tmp_path / "live")
    for number in range(4):
        put(database, number)
    database.close()
    assert held(tmp_path / "live") == 4
