"""`boki bench floor`: the skeleton of an append counts as a quorum does, syncs, and leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from boki.bench.floor import Skeleton, floor
from boki.bench.floor_nodes import Counts, Primary, SyncedFile
from boki.bench.system import Options
from boki.cli.app import app


def test_the_primary_answers_what_two_of_three_have() -> None:
    """Its own copy is one of them, a slow replica is waited for by none, and nothing is answered twice."""
    answers: list[int] = []
    primary = Primary(answers.append, None)
    primary.store(b"0123456789")
    assert answers == []
    primary.note(1, 4)
    primary.note(2, 10)
    primary.note(1, 10)
    assert answers == [4, 10]
    primary.note(1, 20)
    primary.note(2, 15)
    assert answers == [4, 10, 15]


def test_counts_may_come_in_pieces_and_several_at_once() -> None:
    """The newest whole one counts."""
    counts = Counts()
    told = b"".join(number.to_bytes(8, "little") for number in (5, 700, 90_000))
    assert [counts.take(part) for part in (told[:3], told[3:17], told[17:])] == [0, 700, 90_000]


def test_a_file_is_synced_at_each_write_and_never_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer files would need their metadata synced, too."""
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    file = SyncedFile(tmp_path / "file", 10)
    for data in (b"aaaaaa", b"bb", b"cccccc"):
        file.write(data)
    assert (tmp_path / "file").read_bytes() == b"ccccccbb\0\0"
    assert len(synced) == 3


@pytest.mark.parametrize("durability", ["fsync", "memory"])
def test_records_are_in_two_files_when_they_are_answered(durability: str, tmp_path: Path) -> None:
    """In memory there are no files. A second round continues the counts of the first."""
    with Skeleton.running(tmp_path, "fsync" if durability == "fsync" else "memory") as skeleton:
        for _ in range(2):
            one = skeleton.run(4, 100, 0.05)
            assert one.op_count > 0
        files = [path for path in tmp_path.glob("*/*") if path.is_file()]
        begun = sum(path.read_bytes()[:100] == b"x" * 100 for path in files)
        assert (len(files), begun >= 2) == ((3, True) if durability == "fsync" else (0, False))


def test_each_number_in_flight_has_a_row_with_syncs_and_one_without(tmp_path: Path) -> None:
    """Neither processes nor files are left."""
    before = set(multiprocessing.active_children())
    options = Options(scratch=tmp_path, rounds=1, duration_s=0.05, inflight=(1, 8), size_bytes=64)
    found = list(floor(options, lambda _text: None))
    assert [(row.inflight, row.durability) for row in found] == [
        (inflight, durability) for inflight in (1, 8) for durability in ("fsync", "memory")
    ]
    assert all(row.ops_per_s and row.p50_ms and not row.errors for row in found)
    assert {row.system for row in found} == {"skeleton R3, fsync", "skeleton R3, memory"}
    assert set(multiprocessing.active_children()) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "remedy"), [(["--url", "http://127.0.0.1:9"], "--url"), (["--size-bytes", "0"], "1")]
)
def test_what_it_cannot_measure_is_refused(words: list[str], remedy: str) -> None:
    """Before anything starts."""
    done = CliRunner().invoke(app, ["bench", "floor", *words])
    assert done.exit_code == 2, done.output
    assert remedy in " ".join(done.output.split())
