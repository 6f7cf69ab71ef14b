"""What a power cut, and a backup that is put back, take from a lake is written again, and counted once."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.errors import PySparkException

from boki.errors import Unavailable
from boki.spark import ingest
from boki.spark.claim import Claim, Run
from boki.spark.files import LocalFiles
from boki.spark.lake import Lake, Manifest, Origin
from boki.spark.pipeline import Pipeline
from boki.spark.progress import BookProgress, Progress, note, read_progress
from tests.spark.memory_gateway import MemorySystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORIGIN = Origin(pipeline="p", book="a", tag="", start="earliest")
BOOK = "ingest:p"


class Frame:
    """A batch, as far as it is counted and placed here."""

    def __init__(self, records: int, error: Exception | None = None) -> None:
        self.books = {"a": BookProgress(records=records, last_seqnum=records)} if records else {}
        self.error = error

    def persist(self) -> Frame:
        return self

    def unpersist(self) -> None:
        """It holds nothing."""


class World:
    """A lake with its checkpoint, and a run that writes into it without Spark."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.system = MemorySystem()
        self.told: list[int] = []
        patch.setattr(ingest, "_count", lambda frame: frame.books)
        patch.setattr(ingest._BatchWriter, "_place", self._place)
        (root / "_checkpoint/offsets").mkdir(parents=True)
        (root / "_checkpoint/metadata").write_text('{"id":"q"}')
        self.start()

    def start(self) -> None:
        """A run begins."""
        pipeline = Pipeline(name="p", book="a", schema="n int", output=str(self.root))
        self.claim = Claim(self.system.gateway(), BOOK, "p", Run.new())
        self.claim.take()
        self.lake = Lake(LocalFiles(), str(self.root), self.claim.run.id)
        progress = ingest.known_progress(self.lake, self.claim, pipeline)
        self.writer = ingest._BatchWriter(self.lake, ORIGIN, self.claim, progress, {"n": "int"}, self._report)
        self.writer.name("q")

    def batch(self, number: int, records: int, error: Exception | None = None) -> None:
        """Spark plans a batch, if it has not yet, and hands it over."""
        (self.root / f"_checkpoint/offsets/{number}").write_text(f"v1\nend {number}")
        self.writer.write(cast("DataFrame", Frame(records, error)), number)

    def counted(self) -> int:
        """What the status tells."""
        return sum(book.records for book in self.noted().books.values())

    def noted(self) -> Progress:
        return read_progress(self.system.gateway(), BOOK, "p")

    def batches(self) -> list[str]:
        return LocalFiles().names(str(self.root / "records"))

    def _place(self, frame: Any, manifest: Manifest) -> Manifest:
        def write(folder: str) -> None:
            if frame.error is not None:
                raise frame.error
            LocalFiles().write(f"{folder}/book=a/x.parquet", b"")

        return self.lake.place(manifest, records=write, dead=None, check=self.claim.check)

    def _report(self, count: int, _progress: Progress) -> None:
        self.told.append(count)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path / "lake", monkeypatch)


def test_a_batch_that_is_noted_and_not_there_is_written_again(world: World) -> None:
    """It is counted once. One that is there, and one that has no records, are left as they are."""
    world.batch(0, 5)
    world.batch(1, 3)
    world.batch(1, 3)
    assert (world.told, world.counted()) == ([5, 3], 8)
    LocalFiles().remove(str(world.root / "records/batch=000000001"))
    world.start()
    world.batch(1, 3)
    assert world.batches() == ["batch=000000000", "batch=000000001"]
    assert (world.told, world.counted()) == ([5, 3, 3], 8)
    world.batch(2, 0)
    seqnum = world.noted().seqnum
    world.start()
    world.batch(2, 0)
    assert (world.counted(), world.noted().seqnum) == (8, seqnum)


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "error", [FULL, PySparkException(f"An error\n\tat a.B\nCaused by: java.io.IOException: {FULL}")]
)
def test_a_batch_that_cannot_be_written_says_why(world: World, error: Exception) -> None:
    """By its number, the place, and what was thrown first of all; and it is neither there nor noted."""
    with pytest.raises(Unavailable, match=r"^batch 0 could not be written to /.*/lake: .*No space left on device$"):
        world.batch(0, 5, error)
    assert (world.batches(), world.told, world.noted()) == ([], [], Progress())


@pytest.mark.parametrize("kept", [0, 1, 2, 3])
def test_a_lake_that_is_put_back_is_counted_anew(world: World, tmp_path: Path, kept: int) -> None:
    """The status says what exists, with the first run that begins; batches that come again, with other ends, too, are
    counted once.
    """
    sizes, backup = [5, 0, 3, 2], tmp_path / "backup"
    for number, size in enumerate(sizes):
        if number == kept:
            shutil.copytree(world.root, backup)
        world.batch(number, size)
    world.start()
    assert world.counted() == 10, "nothing was put back yet"
    shutil.rmtree(world.root)
    backup.rename(world.root)
    world.start()
    assert world.counted() == sum(sizes[:kept])
    for number, size in enumerate((7, 1), start=kept):
        world.batch(number, size)
    assert world.counted() == sum(sizes[:kept]) + 8
    world.start()
    assert world.counted() == sum(sizes[:kept]) + 8


def test_what_a_batch_has_written_is_on_the_disk_before_its_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file, each folder, and what Spark has planned of it; and the name before the note. Once for each."""
    told: list[str] = []
    sync, rename = os.fsync, Path.rename

    def seen_sync(handle: int) -> None:
        told.append(str(Path(f"/proc/self/fd/{handle}").readlink()).removeprefix(str(world.root)).lstrip("/"))
        sync(handle)

    def seen_rename(self: Path, target: Path) -> Path:
        told.append("rename")
        return rename(self, target)

    def seen_note(*given: Any) -> Progress:
        told.append("note")
        return note(*given)

    monkeypatch.setattr(os, "fsync", seen_sync)
    monkeypatch.setattr(Path, "rename", seen_rename)
    monkeypatch.setattr(ingest, "note", seen_note)
    world.batch(0, 5)
    at = told.index("rename")
    fresh = f"_writing/{world.claim.run.id}/batch=000000000"
    names = ["", "/_batch.json", "/book=a", "/book=a/x.parquet"]
    assert {fresh + name for name in names} | {"_checkpoint/metadata", "_checkpoint/offsets/0"} <= set(told[:at])
    assert told[at:] == ["rename", "records", "", "note"]
    assert [told.count(fresh + name) for name in names] == [1] * 4
    del told[:]
    world.batch(0, 5)
    assert told == [], "it is there, and noted"


def test_a_batch_that_is_found_is_on_the_disk_before_it_is_noted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has brought it to its place may have been killed right behind the rename."""
    world.batch(0, 5)
    world.system.delete(BOOK)
    (world.root / "_checkpoint/metadata").unlink()
    kept: list[str] = []
    monkeypatch.setattr(LocalFiles, "keep", lambda self, path: kept.append(path))
    world.start()
    world.batch(0, 5)
    assert kept == [str(world.root / "records/batch=000000000")]
