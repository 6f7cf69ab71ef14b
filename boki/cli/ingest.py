"""`boki ingest`: pipelines from LogBooks to Parquet, run by Spark in this process."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from boki.cli.connection import AsJson, Token
from boki.cli.help import Commands, examples
from boki.cli.terminal import errors, print_json, print_table, progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from boki.spark.ingest import Report
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
    from boki.spark.lag import backlog
    from boki.spark.local_session import session

    try:
        with claimed(pipeline) as door:
            behind = backlog(pipeline) if once else None

            def open_session() -> SparkSession:
                spark = session(pipeline.name, master=master)
                spark.sparkContext.setLogLevel("OFF")
                ending.callback(spark.stop)
                return spark

            with ExitStack() as ending, progress(counted=behind is not None) as bar:
                report = _reporting(bar, pipeline, behind, as_json=as_json)
                run_pipeline(open_session, pipeline, door, once=once, report=report)
    except KeyboardInterrupt:
        errors().print("stopped; the next run goes on from here")
        raise


def _reporting(bar: Any, pipeline: Pipeline, behind: int | None, *, as_json: bool) -> Report:
    """What tells of each batch: the bar, and with `as_json` a line."""
    task = bar.add_task(f"{pipeline.name}: waiting", total=behind)

    def report(count: int, so_far: Progress) -> None:
        assert so_far.done is not None, "a batch is done"
        number = so_far.done.batch.number
        bar.update(task, advance=count, description=f"{pipeline.name}: batch {number}, {count:,} records")
        if as_json:
            total = sum(book.records for book in so_far.books.values())
            print_json({"pipeline": pipeline.name, "batch": number, "records": count, "records_in_all": total})

    return report


@app.command()
@examples("boki ingest status visits.toml")
def status(file: File, url: Gateway = "", token: Token = "", as_json: AsJson = False) -> None:
    """Show how far a pipeline is in each of its books.

    It is read from its progress book; the pipeline need not run.
    """
    from boki.spark.lag import lags

    found = lags(_pipeline(file, url, token))
    if as_json:
        for lag in found:
            print_json(
                {
                    "book": lag.book,
                    "records": lag.records,
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
            f"{lag.records:,}",
            f"{lag.dead:,}",
            f">= {lag.behind:,}" if lag.has_more else f"{lag.behind:,}",
            f"{lag.behind_s:,.1f}",
        )
        for lag in found
    ]
    print_table(["book", "records>", "dead letters>", "behind>", "behind s>"], rows)


def _pipeline(file: Path, url: str, token: str) -> Pipeline:
    from boki.spark.pipeline import load_pipeline

    return load_pipeline(file, {"gateway": url, "token": token})
