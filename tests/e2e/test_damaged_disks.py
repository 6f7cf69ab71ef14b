"""Flipped bits, cut and deleted files on the disks of a whole log: every acknowledged record, or a refusal by name.

`DISK_TRIALS=1000 pytest tests/e2e/test_damaged_disks.py` runs a longer matrix than the test run does.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from boki import BokiError, StoreFailed
from boki.config.loading import DevConfig
from boki.host import redo
from boki.log.ids import NodeId
from boki.log.metalog import split_position
from boki.node import local_log
from boki.node.local_log import LocalLog
from boki.storage.core import StorageCore
from tests.e2e.test_bad_disks import book_of, in_loop

TRIALS = int(os.environ.get("DISK_TRIALS", "24"))
THREE: dict[str, Any] = {"replicas": 3, "write_quorum": 2, "sequencers": 3}
IGNORED = ("LOCK", "LOG", "IDENTITY", "OPTIONS", "rocksdict")
"""What RocksDB never reads back."""

Records = dict[int, bytes]


async def make_image(data: Path, image: Path, *, is_killed: bool, appends: int = 60, **config: Any) -> Records:
    """A log of three runs, the second of which was killed, and perhaps the last. → what was acknowledged"""
    acknowledged: Records = {}
    for run in range(3):
        log = await LocalLog.start(DevConfig(data=data, **config))
        book = book_of(log.port)
        for number in range(appends):
            payload = b"%d" % number + b"x" * (number * 7 % 300)
            acknowledged[await book.append(payload, tags=["all"])] = payload
        if run == 2 and not is_killed:
            await log.stop()
            shutil.copytree(data, image)
        elif run > 0:
            shutil.copytree(data, image)
            log.close()
            if run == 1:
                shutil.rmtree(data)
                shutil.move(image, data)
        else:
            await log.stop()
    return acknowledged


def damage(rng: Random, folder: Path) -> str:
    """Do something to one file, mostly a write-ahead log. → what"""
    files = sorted(file for file in folder.glob("*/*") if not file.name.startswith(IGNORED))
    logs = [file for file in files if file.suffix == ".log" and file.stat().st_size]
    file = rng.choice(logs if logs and rng.random() < 0.6 else files)
    size = file.stat().st_size
    name = str(file.relative_to(folder))
    match rng.choice(("flip", "flip", "flip", "cut", "delete")):
        case "flip" if size:
            data = bytearray(file.read_bytes())
            at = rng.randrange(max(0, size - 32768), size)
            data[at] ^= 1 << rng.randrange(8)
            file.write_bytes(data)
            return f"{name}: byte {at}"
        case "cut" if size:
            os.truncate(file, rng.randrange(size))
            return f"{name}: cut"
    file.unlink()
    return f"{name}: deleted"


async def read_all(log: LocalLog) -> Records:
    found: Records = {}
    start = 0
    while (page := await asyncio.wait_for(book_of(log.port).read("all", start=start), 10)).records:
        found |= {record.seqnum: record.data for record in page.records}
        start = page.next_start
    return found


async def outcome(folder: Path, acknowledged: Records, **config: Any) -> str:
    """Start it and read everything. "whole", or the words of the refusal."""
    try:
        log = await LocalLog.start(DevConfig(data=folder, **config))
    except BokiError as error:
        return str(error)
    try:
        assert await read_all(log) == acknowledged
        await book_of(log.port).append(b"and on")
        return "whole"
    except BokiError as error:
        return str(error)
    finally:
        log.close()


@pytest.mark.parametrize(
    ("is_killed", "config"), [(True, {}), (False, {}), (True, THREE)], ids=["killed", "stopped", "three replicas"]
)
def test_every_damage_ends_with_all_records_or_with_a_refusal_by_name(
    tmp_path: Path, is_killed: bool, config: dict[str, Any]
) -> None:
    """A refusal names the node whose disk it is. With three replicas only the engine and the coordinator can refuse."""
    acknowledged = uvloop.run(make_image(tmp_path / "data", tmp_path / "image", is_killed=is_killed, **config))
    counts: Counter[str] = Counter()
    for seed in range(TRIALS):
        folder = tmp_path / f"trial-{seed}"
        shutil.copytree(tmp_path / "image", folder)
        what = damage(Random(seed), folder)
        said = uvloop.run(asyncio.wait_for(outcome(folder, acknowledged, **config), 40))
        node = what.split("/")[0]
        assert said == "whole" or node in said, f"seed {seed}: {what}: {said}"
        if config:
            assert said == "whole" or node.startswith(("engine", "coordinator")), f"seed {seed}: {what}: {said}"
        counts["whole" if said == "whole" else "refused"] += 1
        shutil.rmtree(folder)
    assert counts["whole"] and counts["refused"]


def cut_log(folder: Path, node: str, count_bytes: int, *, with_mark: bool = True) -> None:
    """The end of a node's write-ahead log is gone, as after a power cut on a disk that lies."""
    (log,) = (log for log in (folder / node).glob("*.log") if log.stat().st_size)
    os.truncate(log, log.stat().st_size - count_bytes)
    if not with_mark:
        (folder / node / "synced").unlink()


@pytest.fixture
def separate_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage node and sequencer have a write-ahead log each, as on machines of their own."""
    monkeypatch.setattr(local_log, "shares_log", lambda _config: False)


@pytest.mark.usefixtures("separate_logs")
def test_a_sequencer_that_has_less_than_storage_has_applied_is_refused(tmp_path: Path) -> None:
    """Where the mark is older than the damage the others bear witness: no term begins that would forget records."""

    async def make() -> None:
        log = await LocalLog.start(DevConfig(data=tmp_path / "data"))
        storage = log.hosts[NodeId("storage-1")].core
        assert isinstance(storage, StorageCore)
        while split_position(storage.applied[0])[1] < 40:  # it hears of cuts every ten milliseconds
            await book_of(log.port).append(b"x")
        await book_of(log.port).append(b"the batch that carries it")
        shutil.copytree(tmp_path / "data", tmp_path / "image")
        log.close()

    uvloop.run(make())
    (file,) = (file for file in (tmp_path / "image" / "sequencer-1").glob("*.log") if file.stat().st_size)
    entry_bytes = 40  # at least, so that fewer than 30 are left
    cut_log(tmp_path / "image", "sequencer-1", file.stat().st_size - 30 * entry_bytes, with_mark=False)
    with pytest.raises(StoreFailed, match=r"storage-1 has applied \d+ entries of log 0 in term 1, and .* only \d+"):
        uvloop.run(LocalLog.start(DevConfig(data=tmp_path / "image")))


@pytest.mark.usefixtures("separate_logs")
def test_a_storage_node_that_lacks_ordered_records_is_refused_at_once(tmp_path: Path) -> None:
    """The error says how many records of which shard are nowhere, and not that a minute has passed."""
    uvloop.run(make_image(tmp_path / "data", tmp_path / "image", is_killed=True))
    cut_log(tmp_path / "image", "storage-1", 1000, with_mark=False)
    with pytest.raises(
        StoreFailed, match=r"\d+ ordered records of shard \d+ \(term 3, log 0, local ids .*\) are on none .*storage-1"
    ):
        uvloop.run(LocalLog.start(DevConfig(data=tmp_path / "image")))


@pytest.mark.parametrize("lost_bytes", [10, 2000])
def test_what_a_sequencer_lacks_is_in_the_log_that_it_shares(tmp_path: Path, lost_bytes: int) -> None:
    """Its own log is written and synced seldom, so a power cut may take much of its end: nothing is lost."""
    appends = 3 * redo.TOGETHER
    acknowledged = uvloop.run(make_image(tmp_path / "data", tmp_path / "image", is_killed=True, appends=appends))
    cut_log(tmp_path / "image", "sequencer-1", lost_bytes)
    assert uvloop.run(outcome(tmp_path / "image", acknowledged)) == "whole"


def test_after_a_kill_a_log_of_one_replica_goes_on_with_three_and_back(tmp_path: Path) -> None:
    """What the sequencer kept in the log that it shared is its own from then on, and shared again later."""

    async def body() -> None:
        image = tmp_path / "image"
        acknowledged = await make_image(tmp_path / "data", image, is_killed=True)
        for number, config in enumerate((THREE, {}, THREE)):
            log = await LocalLog.start(DevConfig(data=image, **config))
            assert await read_all(log) == acknowledged
            payload = b"start %d" % number
            acknowledged[await book_of(log.port).append(payload, tags=["all"])] = payload
            shutil.copytree(image, tmp_path / "copy")
            log.close()
            shutil.rmtree(image)
            (tmp_path / "copy").rename(image)

    in_loop(body())


@pytest.mark.usefixtures("separate_logs")
def test_without_its_mark_a_lone_sequencer_goes_on_from_what_it_has(tmp_path: Path) -> None:
    """The deliberate way on that docs/operations.md names: the last record is lost, the others are there."""
    acknowledged = uvloop.run(make_image(tmp_path / "data", tmp_path / "image", is_killed=True))
    cut_log(tmp_path / "image", "sequencer-1", 10)
    with pytest.raises(StoreFailed, match=r"sequencer-1: it had synced .* the last 1 writes"):
        uvloop.run(LocalLog.start(DevConfig(data=tmp_path / "image")))
    (tmp_path / "image" / "sequencer-1" / "synced").unlink()

    async def body() -> None:
        log = await LocalLog.start(DevConfig(data=tmp_path / "image"))
        assert await read_all(log) == dict(list(acknowledged.items())[:-1])
        await log.stop()

    in_loop(body())


def test_of_three_replicas_a_bad_one_stays_away_and_is_filled_from_an_empty_directory(tmp_path: Path) -> None:
    """One bad storage node and one bad sequencer stop nobody; two bad storage nodes may have been the write quorum."""
    acknowledged = uvloop.run(make_image(tmp_path / "data", tmp_path / "image", is_killed=True, **THREE))
    image = tmp_path / "image"
    for node in ("storage-2", "sequencer-3"):
        (image / node / "CURRENT").unlink()

    async def read() -> list[str]:
        log = await LocalLog.start(DevConfig(data=image, **THREE))
        assert await read_all(log) == acknowledged
        nodes: list[str] = sorted(log.status()["nodes"])
        await log.stop()
        return nodes

    assert uvloop.run(read()) == ["engine-1", "sequencer-1", "sequencer-2", "storage-1", "storage-3"]
    for node in ("storage-2", "sequencer-3"):
        shutil.rmtree(image / node)
    assert len(uvloop.run(read())) == 7
    for node in ("storage-1", "storage-3"):
        (image / node / "CURRENT").unlink()
    with pytest.raises(StoreFailed, match=r"2 of 3 storage nodes are away.*storage-1: its disk.*storage-3: its disk"):
        uvloop.run(LocalLog.start(DevConfig(data=image, **THREE)))


def test_directories_that_are_not_those_of_the_last_term_are_named(tmp_path: Path) -> None:
    """A sequencer's directory that was replaced, and a coordinator's that is empty."""
    uvloop.run(make_image(tmp_path / "data", tmp_path / "image", is_killed=False))
    shutil.copytree(tmp_path / "image", tmp_path / "other")
    shutil.rmtree(tmp_path / "image" / "sequencer-1")
    with pytest.raises(StoreFailed, match="sequencer-1 is not the directory that it had in term 3"):
        uvloop.run(LocalLog.start(DevConfig(data=tmp_path / "image")))
    shutil.rmtree(tmp_path / "other" / "coordinator")
    with pytest.raises(StoreFailed, match=r"the coordinator knows of no term: .*coordinator is empty"):
        uvloop.run(LocalLog.start(DevConfig(data=tmp_path / "other")))
