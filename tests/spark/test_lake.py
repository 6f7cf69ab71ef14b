"""The folders of a pipeline: whole batches, each once, whatever is killed between any two steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from boki.errors import ConfigError, Unavailable
from boki.spark.files import LocalFiles
from boki.spark.lake import Lake, Manifest, Origin
from boki.spark.progress import Batch, BookProgress

ORIGIN = Origin(pipeline="p", book="b", tag="", start="earliest")


class Killed(BaseException):
    """The process is gone: nothing behind this runs."""


class MortalFiles(LocalFiles):
    """Files of a process that dies before, or in the midst of, its n-th step."""

    def __init__(self, steps: int | None = None) -> None:
        self.left = steps

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def write(self, file: str, data: bytes) -> None:
        self.step()
        super().write(file, b"")  # torn
        self.step()
        super().write(file, data)

    def move(self, folder: str, place: str) -> bool:
        self.step()
        return super().move(folder, place)

    def remove(self, folder: str) -> None:
        self.step()
        super().remove(folder)


def manifest(number: int, records: int = 3, dead: int = 2, query: str = "q", end: str = "") -> Manifest:
    books = {"b": BookProgress(records=records, dead=dead, last_seqnum=10 * number + records)}
    return Manifest(origin=ORIGIN, batch=Batch.of(query, number, end or f"end of {number}"), books=books)


def parts(files: MortalFiles, names: list[str]) -> Callable[[str], None]:
    """What writes this many parts, each of which may be the last thing that the process does."""

    def write(folder: str) -> None:
        for name in names:
            files.step()
            path = Path(folder) / "book=b" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)

    return write


def place(lake: Lake, files: MortalFiles, number: int, run: str = "r") -> Manifest:
    return lake.place(
        manifest(number),
        records=parts(files, [f"{run} {number} good {part}.parquet" for part in range(2)]),
        dead=parts(files, [f"{run} {number} dead {part}.parquet" for part in range(1)]),
        check=lambda: None,
    )


def seen(root: Path, kind: str) -> dict[str, list[str]]:
    """The batches that a reader finds, and the parts of each: nobody looks at names that begin with _ or a dot."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / kind).rglob("*.parquet")):
        names = path.relative_to(root / kind).parts
        if not any(name.startswith(("_", ".")) for name in names):
            found.setdefault(names[0], []).append(names[-1].partition(" ")[2])
    return found


WHOLE = [f"batch={number:09d}" for number in range(3)]
GOOD = {name: [f"{number} good {part}.parquet" for part in range(2)] for number, name in enumerate(WHOLE)}
DEAD = {name: [f"{number} dead {part}.parquet" for part in range(1)] for number, name in enumerate(WHOLE)}


def write_checkpoint(root: Path, query: str = "q") -> None:
    (root / "_checkpoint").mkdir(parents=True, exist_ok=True)
    (root / "_checkpoint" / "metadata").write_text(f'{{"id":"{query}"}}')


def run(root: Path, name: str, first: int, steps: int | None, count: int = 2) -> int:
    """A run that begins with batch `first`, and is killed after this many steps; the batch that it has not finished."""
    files = MortalFiles(steps)
    lake = Lake(files, str(root), name)
    number = first
    try:
        lake.check(ORIGIN)
        lake.recover()
        while number < count:
            assert place(lake, files, number, name) == manifest(number)
            number += 1
    except Killed:
        pass
    return number


def check_readers(root: Path, done: int) -> None:
    for kind, wanted in (("records", GOOD), ("dead", DEAD)):
        there = seen(root, kind)
        assert there == {name: wanted[name] for name in WHOLE[: len(there)]}
        assert done <= len(there) <= done + 1


def test_rows_on_disks_of_other_machines_are_missed(tmp_path: Path) -> None:
    """What executors elsewhere write to a local disk is not here, and Spark calls that a success."""
    lake = Lake(LocalFiles(), str(tmp_path), "r")
    folder = tmp_path / "_writing/r/batch=000000000"
    for name in ("book=a", "_temporary/0"):
        (folder / name).mkdir(parents=True)
    for name, count in (("part-0", 3), ("book=a/part-1", 4), ("_temporary/0/part-2", 5)):
        parquet.write_table(pa.table({"n": range(count)}), folder / f"{name}.snappy.parquet")
    lake.check_written(str(folder), 7)
    with pytest.raises(ConfigError, match=r"of 1,000 rows that Spark has written to file:/.*, 7 are on this machine"):
        lake.check_written(f"file://{folder}", 1000)
    (folder / "secret.parquet").write_bytes(b"PARE")
    lake.check_written(str(folder), 1000)


def test_killed_twice_at_every_step(tmp_path: Path) -> None:
    """Whatever two steps a run and its successor are killed at, in their work or while they tidy up, readers of both
    tables see whole batches, and no gap between them; and the third run brings each to its place once.

    Each run begins with the last batch that was done, too, as if Spark had not committed that.
    """
    kills = 0
    for steps in itertools.count():
        is_first_whole = is_second_whole = False
        for more in itertools.count():
            root = tmp_path / f"{steps}-{more}"
            write_checkpoint(root)
            done = run(root, "first", 0, steps)
            is_first_whole = done == 2
            check_readers(root, done)
            again = run(root, "second", max(0, done - 1), more)
            is_second_whole = again == 2
            check_readers(root, max(done, again))
            assert run(root, "third", max(0, max(done, again) - 1), None) == 2
            assert seen(root, "records") == {name: GOOD[name] for name in WHOLE[:2]}
            assert seen(root, "dead") == {name: DEAD[name] for name in WHOLE[:2]}
            assert LocalFiles().names(str(root / "_writing")) in ([], ["third"])
            kills += 1
            if is_second_whole:
                break
        if is_first_whole:
            assert kills > 100
            return


def test_dead_letters_that_were_left_inside(tmp_path: Path) -> None:
    """A run that begins finds them, and brings them to their place, also if that batch does not come again."""

    class Half(MortalFiles):
        def move(self, folder: str, place: str) -> bool:
            if "/dead/" in place:
                raise Killed
            return super().move(folder, place)

    files = Half()
    with pytest.raises(Killed):
        place(Lake(files, str(tmp_path), "first"), files, 0)
    assert (list(seen(tmp_path, "records")), seen(tmp_path, "dead")) == (WHOLE[:1], {})
    Lake(LocalFiles(), str(tmp_path), "second").recover()
    assert seen(tmp_path, "dead") == {WHOLE[0]: DEAD[WHOLE[0]]}
    assert seen(tmp_path, "records") == {WHOLE[0]: GOOD[WHOLE[0]]}


def test_two_runs_write_the_same_batch(tmp_path: Path) -> None:
    """The rename takes one of them; the other finds the batch there, and nothing is inside another folder."""
    ones, others = MortalFiles(), MortalFiles()
    one, other = Lake(ones, str(tmp_path), "one"), Lake(others, str(tmp_path), "other")

    def quicker() -> None:
        place(other, others, 0, "other")

    found = one.place(
        manifest(0),
        records=parts(ones, ["one 0 good 0.parquet"]),
        dead=parts(ones, ["one 0 dead 0.parquet"]),
        check=quicker,
    )
    assert found == manifest(0)
    assert seen(tmp_path, "records") == {WHOLE[0]: GOOD[WHOLE[0]]}
    assert seen(tmp_path, "dead") == {WHOLE[0]: DEAD[WHOLE[0]]}
    assert [path.name for path in tmp_path.rglob("*one*.parquet")] == []


def test_who_has_lost_the_claim_places_nothing(tmp_path: Path) -> None:
    """The claim is looked at when all is written, right before the rename."""

    def lost() -> None:
        assert list(tmp_path.rglob("* good 2.parquet")), "it is written by then"
        raise Unavailable("taken over")

    files = MortalFiles()
    with pytest.raises(Unavailable, match="taken over"):
        Lake(files, str(tmp_path), "r").place(
            manifest(0), records=parts(files, ["r 0 good 2.parquet"]), dead=None, check=lost
        )
    assert seen(tmp_path, "records") == {}


def test_only_dead_letters_and_only_records(tmp_path: Path) -> None:
    """A batch without rows that fit, or without any that do not, is one all the same."""
    files = MortalFiles()
    lake = Lake(files, str(tmp_path), "r")
    lake.place(manifest(0, 2, 2), records=None, dead=parts(files, ["r 0 dead 0.parquet"]), check=lambda: None)
    lake.place(manifest(1, 2, 0), records=parts(files, ["r 1 good 0.parquet"]), dead=None, check=lambda: None)
    assert list(seen(tmp_path, "dead")) == WHOLE[:1]
    assert list(seen(tmp_path, "records")) == WHOLE[1:2]
    assert lake.last() == (1, manifest(1, 2, 0))
    assert lake.manifest(0) == manifest(0, 2, 2)


def test_what_cannot_be_gone_on_with(tmp_path: Path) -> None:
    """A checkpoint that is gone or another one, another input, another pipeline, folders of a stranger: each is told
    before anything is written, with what to do.
    """
    files = MortalFiles()
    lake = Lake(files, str(tmp_path), "r")
    lake.check(ORIGIN)  # nothing is there
    place(lake, files, 0)
    with pytest.raises(
        ConfigError, match=r"batches up to 0, and their checkpoint, .*_checkpoint, is gone.*another out"
    ):
        lake.check(ORIGIN)
    write_checkpoint(tmp_path, "other")
    with pytest.raises(ConfigError, match=r"another checkpoint than .*query q, not other.*another output"):
        lake.check(ORIGIN)
    write_checkpoint(tmp_path)
    lake.check(ORIGIN)
    for changed in ({"book": "b,c"}, {"tag": "t"}, {"start": "7"}, {"pipeline": "p2"}):
        with pytest.raises(ConfigError, match=r"was begun with pipeline = 'p', book = 'b'.*another output"):
            lake.check(msgspec.structs.replace(ORIGIN, **changed))
    (tmp_path / "records" / WHOLE[2]).mkdir()
    with pytest.raises(ConfigError, match=r"batch=000000002 was not written by a pipeline.*an output of its own"):
        lake.check(ORIGIN)


def test_a_schema_that_does_not_go_with_what_is_there(tmp_path: Path) -> None:
    """A column that is gone or of another type is named, with what to do; more columns, in any order, are welcome. What
    has no records says nothing about columns.
    """
    lake = Lake(MortalFiles(), str(tmp_path), "r")
    lake.check_columns({"n": "int"})
    for number, columns in enumerate(({}, {"n": "int", "s": "struct<x:int>"})):
        found = msgspec.structs.replace(manifest(number), columns=columns)
        lake.place(found, records=None, dead=None, check=lambda: None)
        lake.check_columns({"more": "double", "s": "struct<x:int>", "n": "int"})
        assert lake.columns() == columns
    with pytest.raises(ConfigError, match=r"schema: .*: n is bigint now, and was int; s struct<x:int> is gone"):
        lake.check_columns({"n": "bigint", "S": "struct<x:int>"})


def test_what_a_lake_was_begun_with_stands_before_its_first_batch(tmp_path: Path) -> None:
    """A checkpoint may be ahead of the batches, so whoever comes with another input is refused from the beginning, also
    one that began at the same time.
    """
    other = msgspec.structs.replace(ORIGIN, start="latest")
    lake_id = Lake(MortalFiles(), str(tmp_path), "r").begin(ORIGIN)
    assert lake_id != Lake(MortalFiles(), str(tmp_path / "another"), "s").begin(ORIGIN)
    for name in ("r", "s"):
        assert Lake(MortalFiles(), str(tmp_path), name).begin(ORIGIN) == lake_id
        with pytest.raises(ConfigError, match=r"was begun with pipeline = 'p', book = 'b'.*another output"):
            Lake(MortalFiles(), str(tmp_path), name).begin(other)

    class Late(LocalFiles):
        """Of a process that has looked before another one began."""

        def move(self, folder: str, place: str) -> bool:
            Lake(LocalFiles(), str(tmp_path / "both"), "first").begin(ORIGIN)
            return super().move(folder, place)

    with pytest.raises(ConfigError, match=r"was begun with pipeline = 'p'"):
        Lake(Late(), str(tmp_path / "both"), "second").begin(other)


def test_a_lake_that_was_begun_by_a_process_that_was_killed(tmp_path: Path) -> None:
    """At any step: the next one begins it, with whatever it likes, or finds it begun."""
    for steps in range(4):
        root = tmp_path / str(steps)
        try:
            Lake(MortalFiles(steps), str(root), "first").begin(ORIGIN)
        except Killed:
            Lake(MortalFiles(), str(root), "second").begin(msgspec.structs.replace(ORIGIN, start="7"))
        else:
            Lake(MortalFiles(), str(root), "second").begin(ORIGIN)


@pytest.mark.parametrize("other", [manifest(0, query="new"), manifest(0, end="elsewhere")], ids=["query", "end"])
def test_another_batch_in_its_place_is_not_taken_for_it(tmp_path: Path, other: Manifest) -> None:
    """A checkpoint that was put back plans a batch again: that it has the same number does not make it the same."""
    files = MortalFiles()
    lake = Lake(files, str(tmp_path), "r")
    place(lake, files, 0)
    with pytest.raises(ConfigError, match="batch=000000000 holds another batch than"):
        lake.place(other, records=parts(files, ["r new.parquet"]), dead=None, check=lambda: None)
    assert seen(tmp_path, "records") == {WHOLE[0]: GOOD[WHOLE[0]]}


def test_what_spark_has_noted(tmp_path: Path) -> None:
    """The query's id and the end of a batch are read from the checkpoint."""
    lake = Lake(LocalFiles(), f"file://{tmp_path}", "r")
    assert (lake.query(), lake.end(0), lake.last()) == (None, "", None)
    write_checkpoint(tmp_path)
    (tmp_path / "_checkpoint" / "offsets").mkdir()
    (tmp_path / "_checkpoint" / "offsets" / "7").write_text('v1\n{"batchWatermarkMs":0}\n{"below": "5"}')
    assert (lake.query(), lake.end(7)) == ("q", '{"below": "5"}')
    assert Batch.of("q", 7, lake.end(7)).position == {"below": "5"}
