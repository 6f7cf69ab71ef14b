"""`boki ingest`: pipelines from LogBooks to Parquet, run by Spark in this process."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boki.cli.connection import AsJson, Token, running_here
from boki.cli.help import Commands, examples
from boki.cli.terminal import count_text, errors, path_text, print_json, print_table, progress, results

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from boki.spark.lag import Lag
    from boki.spark.pipeline import Pipeline
    from boki.spark.progress import Progress

app = Commands("Pipelines from LogBooks to Parquet.")

File = Annotated[Path, typer.Argument(metavar="PIPELINE.toml", help="What is to be read, and where it goes.")]
Gateway = Annotated[
    str, typer.Option("--url", envvar="BOKI_URL", metavar="URL", help="The gateway, if not the file's.")
]


@app.command()
@examples("boki ingest run visits.toml", "boki ingest run visits.toml --once")
def run(
    file: File,
    once: Annotated[
        bool, typer.Option("--once", help="Stop once everything currently in the log is ingested.")
    ] = False,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    url: Gateway = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Write LogBooks into Parquet, batch after batch.

    Each batch is written whole and once, however often this is killed and run again.
    """
    pipeline = _pipeline(file, url, token)
    from boki.spark.ingest import claimed
    from boki.spark.ingest import run as run_pipeline
    from boki.spark.lag import lags
    from boki.spark.local_session import session

    watch = Watch(pipeline, as_json=as_json)
    try:
        with claimed(pipeline) as door:
            if once:
                watch.begin(lags(pipeline))

            def open_session() -> SparkSession:
                spark = session(pipeline.name, master=master, said=said)
                spark.sparkContext.setLogLevel("OFF")
                ending.callback(spark.stop)
                watch.started()
                return spark

            with ExitStack() as ending, progress(counted=watch.behind is not None) as bar:
                said = ending.enter_context(tempfile.TemporaryFile())  # Spark's JVM writes over the bar otherwise
                watch.show(bar)
                run_pipeline(open_session, pipeline, door, once=once, report=watch.report)
    except KeyboardInterrupt:
        errors().print(f"stopped after {watch.batches()}; the next run continues there")
        raise
    (errors() if as_json else results()).print(watch.summary(), markup=False)


class Watch:
    """What a run has done so far: for the bar, for a line each batch with `as_json`, and for its last line."""

    def __init__(self, pipeline: Pipeline, *, as_json: bool) -> None:
        self.behind: int | None = None
        """Records to ingest, if they were counted."""
        self._name, self._as_json = pipeline.name, as_json
        self._place = pipeline.output if ":/" in pipeline.output else path_text(Path(pipeline.output))
        self._began_s = time.monotonic()
        self._before = (0, 0)
        self._count, self._records, self._dead = 0, 0, 0
        self._bar: Any = None
        self._task: Any = None

    def begin(self, found: Sequence[Lag]) -> None:
        """How far the pipeline is in each book before the run."""
        self.behind = None if any(lag.has_more for lag in found) else sum(lag.behind for lag in found)
        self._before = (sum(lag.records for lag in found), sum(lag.dead for lag in found))

    def show(self, bar: Any) -> None:
        """Report it by that bar."""
        self._bar, self._task = bar, bar.add_task(f"{self._name}: starting Spark", total=self.behind)

    def started(self) -> None:
        """Spark runs."""
        self._bar.update(self._task, description=f"{self._name}: reading")

    def report(self, count: int, so_far: Progress) -> None:
        """A batch is written."""
        assert so_far.done is not None, "a batch is done"
        number = so_far.done.batch.number
        records, dead = (sum(getattr(book, name) for book in so_far.books.values()) for name in ("records", "dead"))
        self._count += 1
        self._records, self._dead = records - self._before[0], dead - self._before[1]
        self._bar.update(
            self._task, advance=count, description=f"{self._name}: batch {number}, {count_text(count, 'record')}"
        )
        if self._as_json:
            print_json({"pipeline": self._name, "batch": number, "records": count, "records_in_all": records})

    def batches(self) -> str:
        """How many have been written."""
        return count_text(self._count, "batch", "batches")

    def summary(self) -> str:
        """The last line."""
        took = f"{time.monotonic() - self._began_s:,.0f} s"
        if not self._count:
            return f"{self._name}: nothing new ({took})"
        written = self._records - self._dead
        letters = f" and {count_text(self._dead, 'dead letter')}" if self._dead else ""
        return f"{self._name}: {self.batches()}, {count_text(written, 'record')}{letters} into {self._place} in {took}"


@app.command()
@examples("boki ingest status visits.toml")
def status(file: File, url: Gateway = "", token: Token = "", as_json: AsJson = False) -> None:
    """Show how far a pipeline is in each of its books.

    It is read from its progress book; the pipeline need not run. Dead letters are counted apart from what is written.
    """
    from boki.spark.lag import lags

    found = lags(_pipeline(file, url, token))
    if as_json:
        for lag in found:
            print_json(
                {
                    "book": lag.book,
                    "records": lag.records,
                    "written": lag.records - lag.dead,
                    "dead": lag.dead,
                    "behind": lag.behind,
                    "has_more": lag.has_more,
                    "behind_s": lag.behind_s,
                }
            )
        return
    rows = [
        (
            lag.book,
            f"{lag.records - lag.dead:,}",
            f"{lag.dead:,}",
            f">= {lag.behind:,}" if lag.has_more else f"{lag.behind:,}",
            f"{lag.behind_s:,.1f}",
        )
        for lag in found
    ]
    print_table(["book", "written>", "dead letters>", "behind>", "behind s>"], rows)


def _pipeline(file: Path, url: str, token: str) -> Pipeline:
    from boki.spark.options import DEFAULT_GATEWAY
    from boki.spark.pipeline import load_pipeline

    pipeline = load_pipeline(file, {"gateway": url, "token": token})
    is_named = url or pipeline.gateway != DEFAULT_GATEWAY
    here = "" if is_named else running_here(os.environ)
    return load_pipeline(file, {"gateway": here, "token": token}) if here else pipeline
