"""What `boki ingest run` says of its work: a last line that stays, and a line for each batch for programs."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from boki.cli.ingest import Watch
from boki.spark.lag import Lag
from boki.spark.progress import BookProgress

PIPELINE: Any = SimpleNamespace(name="visits", output="lake")


class Bar:
    """Takes what a progress bar is told."""

    def __init__(self) -> None:
        self.descriptions: list[str] = []
        self.total: int | None = None

    def add_task(self, description: str, total: int | None) -> int:
        self.descriptions.append(description)
        self.total = total
        return 1

    def update(self, _task: int, *, description: str, advance: int = 0) -> None:
        self.descriptions.append(description)


def progress(number: int, **books: tuple[int, int]) -> Any:
    """This many records and dead letters of each book since the pipeline began."""
    return SimpleNamespace(
        done=SimpleNamespace(batch=SimpleNamespace(number=number)),
        books={name: BookProgress(records=records, dead=dead) for name, (records, dead) in books.items()},
    )


def watched(*, as_json: bool = False) -> tuple[Watch, Bar]:
    watch, bar = Watch(PIPELINE, as_json=as_json), Bar()
    watch.begin([Lag(book="a", records=10, dead=1, behind=102, behind_s=0.0)])
    watch.show(bar)
    watch.started()
    return watch, bar


def test_a_run_leaves_a_line_that_counts_dead_letters_apart() -> None:
    """Of this run alone, whatever earlier ones have written."""
    watch, bar = watched()
    assert watch.summary() == "visits: nothing new (0 s)"
    watch.report(100, progress(3, a=(110, 3)))
    assert watch.summary() == "visits: 1 batch, 98 records and 2 dead letters into lake in 0 s"
    watch.report(2, progress(4, a=(112, 3)))
    assert watch.summary() == "visits: 2 batches, 100 records and 2 dead letters into lake in 0 s"
    assert bar.total == 102
    assert bar.descriptions == [
        "visits: starting Spark",
        "visits: reading",
        "visits: batch 3, 100 records",
        "visits: batch 4, 2 records",
    ]


def test_programs_get_a_line_for_each_batch(capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout, where nothing else stands."""
    watch, _ = watched(as_json=True)
    watch.report(100, progress(3, a=(110, 3)))
    said = json.loads(capsys.readouterr().out)
    assert said == {"pipeline": "visits", "batch": 3, "records": 100, "records_in_all": 110}
