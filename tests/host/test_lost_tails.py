"""What a database had synced is missed when it is gone, whatever RocksDB makes of its log."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from boki.errors import VersionTooNew
from boki.host import synced_mark
from boki.host.rocksdb import RocksDb, SyncedWritesLost
from boki.host.synced_mark import SyncedMark
from boki.host.write_ahead_log import LogDamaged, follow_logs
from boki.protocol.effects import Delete, DiskUnreadable, Put

COUNT = 6


def killed(path: Path, size_bytes: int = 40) -> Path:
    """A directory as a `kill -9` leaves it after six synced writes."""
    (path / "live").mkdir(parents=True)
    database = RocksDb(path / "live")
    for number in range(COUNT):
        database.write([Put(b"%d" % number, b"v" * size_bytes)])
        database.sync()
    shutil.copytree(path / "live", path / "image")
    database.close()
    return path / "image"


def held(path: Path) -> int:
    """How many of the writes the database opens with."""
    database = RocksDb(path)
    count = sum(database.get(b"%d" % number) is not None for number in range(COUNT))
    database.close()
    return count


def log_of(path: Path) -> Path:
    (log,) = (log for log in path.glob("*.log") if log.stat().st_size)
    return log


def test_a_kill_loses_nothing_and_is_no_damage(tmp_path: Path) -> None:
    """The mark costs no sync of its own, and is exact after a kill."""
    assert held(killed(tmp_path)) == COUNT


@pytest.mark.parametrize("what", ["cut short", "deleted", "CURRENT deleted"])
def test_what_was_synced_and_is_gone_is_refused_again_and_again(tmp_path: Path, what: str) -> None:
    """A refusal is no repair: the next start refuses, too, and nothing was written meanwhile."""
    image = killed(tmp_path)
    match what:
        case "cut short":
            os.truncate(log_of(image), log_of(image).stat().st_size - 10)
        case "deleted":
            log_of(image).unlink()
        case _:
            (image / "CURRENT").unlink()
    for _ in range(2):
        with pytest.raises(SyncedWritesLost):
            RocksDb(image)


def test_whoever_removes_the_mark_goes_on_from_what_is_there(tmp_path: Path) -> None:
    """As docs/operations.md says it."""
    image = killed(tmp_path)
    os.truncate(log_of(image), log_of(image).stat().st_size - 10)
    with pytest.raises(SyncedWritesLost, match=r"had synced 6 writes, and only 5 are there.* the last 1 writes"):
        RocksDb(image)
    (image / synced_mark.FILE).unlink()
    assert held(image) == COUNT - 1


def test_a_torn_write_that_was_never_synced_is_dropped(tmp_path: Path) -> None:
    """That is what the log is for: what is written and not synced may be there in part."""
    image = killed(tmp_path)
    log = log_of(image)
    torn = log.read_bytes()[:30]
    with log.open("ab") as file:
        file.write(torn)
    assert held(image) == COUNT


def test_after_a_clean_stop_there_is_no_log_to_tear_and_none_is_tolerated(tmp_path: Path) -> None:
    """Everything is in tables then, which RocksDB checks."""
    killed(tmp_path)
    clean = tmp_path / "live"
    assert SyncedMark(clean).is_clean
    assert follow_logs(clean).last == 0
    assert all(log.stat().st_size == 0 for log in clean.glob("*.log"))
    (next(clean.glob("*.log"))).write_bytes(b"torn")
    with pytest.raises(Exception, match="Corruption"):
        RocksDb(clean)


def test_no_flipped_bit_in_a_log_loses_what_was_synced(tmp_path: Path) -> None:
    """Seeded flips, more of them in the headers of records: refused, or nothing is missing."""
    image = killed(tmp_path)
    log = log_of(image)
    whole = log.read_bytes()
    rng = Random(1)
    headers = [at + offset for at in range(0, len(whole), len(whole) // COUNT) for offset in (4, 5, 6)]
    for trial in range(40):
        folder = tmp_path / str(trial)
        shutil.copytree(image, folder)
        damaged = bytearray(whole)
        at = rng.choice(headers) if trial % 2 else rng.randrange(len(whole))
        damaged[at] ^= 1 << rng.randrange(8)
        (folder / log.name).write_bytes(damaged)
        try:
            assert held(folder) == COUNT, f"byte {at}"
        except Exception as error:  # noqa: BLE001 - rocksdict raises plain Exception for every failure
            assert isinstance(error, LogDamaged | SyncedWritesLost) or "Corruption" in str(error)


def test_a_log_is_followed_over_blocks_and_files(tmp_path: Path) -> None:
    """Fragments, padding at the end of blocks, several files; a file that is missing between two others is noticed."""
    image = killed(tmp_path, size_bytes=30_000)
    log = log_of(image)
    assert follow_logs(image).last == COUNT
    first, rest = image / "000001.log", image / "000003.log"
    shutil.copy(log, first)
    data = log.read_bytes()
    log.unlink()
    rest.write_bytes(data)
    with pytest.raises(LogDamaged, match=r"000003.log goes on with write 1 at byte 7, after write 6"):
        follow_logs(image)


def test_logs_are_followed_by_number_beyond_six_digits(tmp_path: Path) -> None:
    """By name alone the millionth log would come before the one that it continues, and a healthy disk be refused."""
    image = killed(tmp_path)
    log_of(image).rename(image / "999999.log")
    shutil.copy(image / "999999.log", image / "1000000.log")
    with pytest.raises(LogDamaged, match=r"^1000000.log goes on with write 1"):
        follow_logs(image)


def test_a_mark_survives_one_damaged_slot_and_newer_ones_are_refused(tmp_path: Path) -> None:
    """The other slot is one sync older; without any there is no claim. A later version is refused by name."""
    mark = SyncedMark(tmp_path)
    mark.begin(1)
    for sequence in (2, 3, 4):
        mark.advance(sequence)
    mark.close()
    assert (SyncedMark(tmp_path).sequence, SyncedMark(tmp_path).is_clean) == (4, False)
    data = bytearray(mark.path.read_bytes())
    whole = bytes(data)
    data[20] ^= 1
    mark.path.write_bytes(data)
    assert SyncedMark(tmp_path).sequence == 3
    mark.path.write_bytes(b"")
    assert SyncedMark(tmp_path).sequence == 0
    newer = synced_mark._SLOT.pack(b"bokimrk", 2, 9, 9, False)
    mark.path.write_bytes(newer + synced_mark._CHECK.pack(synced_mark.crc32(newer)) + whole[len(newer) + 4 :])
    with pytest.raises(VersionTooNew, match="synced has version 2, and this Boki knows 1: upgrade"):
        SyncedMark(tmp_path)


def test_the_mark_costs_one_sync_in_a_thousand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends pay for no further fsync: the mapped page is enough for a kill."""
    calls: list[int] = []
    mark = SyncedMark(tmp_path)
    mark.begin(0)
    monkeypatch.setattr(os, "fdatasync", calls.append)
    monkeypatch.setattr(os, "fsync", calls.append)
    for sequence in range(4096):
        mark.advance(sequence)
    assert len(calls) == 4
    mark.close()


def test_a_disk_says_which_one_it_is(tmp_path: Path) -> None:
    """No bare traceback: the path, and what is wrong."""
    import asyncio

    from boki.host.disk import Disk

    image = killed(tmp_path)
    log_of(image).unlink()

    async def body() -> None:
        with pytest.raises(DiskUnreadable, match=r"image: it had synced 6 writes, and only 0 are there"):
            Disk(image, asyncio.get_running_loop(), on_failure=pytest.fail)

    asyncio.run(body())


@pytest.mark.parametrize("seed", range(30))
def test_kills_right_after_a_start_are_no_damage(tmp_path: Path, seed: int) -> None:
    """What RocksDB recovers it writes to tables, without what has no effect any more: then it counts fewer writes."""
    random = Random(seed)
    live = tmp_path / "0"
    live.mkdir()
    for start in range(4):
        database = RocksDb(live)
        for _ in range(random.randint(0, 3)):
            first, last = sorted(b"%d" % random.randrange(6) for _ in range(2))
            database.write([Put(first, b"v"), Delete(first, last)][random.randrange(2) :])
            database.sync()
        image = tmp_path / str(start + 1)
        shutil.copytree(live, image)
        database.close()
        if random.random() < 0.7:
            live = image  # a kill; else that was a clean stop


def test_damage_before_the_last_write_is_no_torn_write(tmp_path: Path) -> None:
    """Without a mark, as after a power cut: the last write may be dropped, and one that others follow is refused."""
    image = killed(tmp_path)
    (image / synced_mark.FILE).unlink()
    log = log_of(image)
    whole = log.read_bytes()
    for number in range(COUNT):
        folder = tmp_path / str(number)
        shutil.copytree(image, folder)
        damaged = bytearray(whole)
        damaged[len(whole) // COUNT * (number + 1) - 5] ^= 1
        (folder / log.name).write_bytes(damaged)
        if number == COUNT - 1:
            assert held(folder) == COUNT - 1
            continue
        for _ in range(2):
            with pytest.raises(Exception, match="Corruption: checksum mismatch"):
                RocksDb(folder)
