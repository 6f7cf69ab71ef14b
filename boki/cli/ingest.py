"""`boki ingest`: pipelines from LogBooks to Parquet, run by Spark in this process."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from boki.cli.connection import AsJson, Token
from boki.cli.terminal import errors, print_json, print_table, progress
from boki.errors import BokiError, Unavailable

if TYPE_CHECKING:
    from boki.spark.pipeline import Pipeline, Progress

app = typer.Typer(help="Pipelines from LogBooks to Parquet.", no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="PIPELINE.toml", help="What is to be read, and where it goes.")]
Gateway = Annotated[
    str, typer.Option("--url", envvar="BOKI_URL", metavar="URL", help="The gateway, if not the file's.")
]


@app.command()
def run(
    file: File,
    once: Annotated[bool, typer.Option("--once", help="End when everything is in that is there now.")] = False,
    master: Annotated[str, typer.Option(help="Where Spark runs.")] = "local[*]",
    url: Gateway = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Write LogBooks into Parquet, batch after batch: each whole, and once, whenever it is killed and run again."""
    pipeline = _pipeline(file, url, token)
    from boki.spark.local_session import session

    spark = session(pipeline.name, master=master)
    spark.sparkContext.setLogLevel("OFF")
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _run(spark, pipeline, once=once, as_json=as_json)
    finally:
        spark.stop()


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _run(spark: Any, pipeline: Pipeline, *, once: bool, as_json: bool) -> None:
    from boki.spark.causes import cause_of
    from boki.spark.ingest import lags, start

    behind = sum(lag.behind for lag in lags(pipeline))
    with progress(counted=once) as bar:
        task = bar.add_task(f"{pipeline.name}: waiting", total=behind if once else None)

        def report(count: int, done: Progress) -> None:
            bar.update(task, advance=count, description=f"{pipeline.name}: batch {done.batch}, {count:,} records")
            if as_json:
                total = sum(book.records for book in done.books.values())
                print_json({"pipeline": pipeline.name, "batch": done.batch, "records": count, "records_in_all": total})

        query = start(spark, pipeline, once=once, report=report)
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
            errors().print("stopped; the next run goes on from here")
        except BokiError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever Spark raises has a reason inside
            raise Unavailable(
                f"pipeline {pipeline.name} has ended: {cause_of(error)}", retryable=False, pipeline=pipeline.name
            ) from None


@app.command()
def status(file: File, url: Gateway = "", token: Token = "", as_json: AsJson = False) -> None:
    """How far a pipeline is in each of its books, from its progress book; it need not run."""
    from boki.spark.ingest import MOST_COUNTED, lags

    found = lags(_pipeline(file, url, token))
    if as_json:
        for lag in found:
            print_json(
                {
                    "book": lag.book,
                    "records": lag.records,
                    "dead": lag.dead,
                    "behind": lag.behind,
                    "behind_s": lag.behind_s,
                }
            )
        return
    rows = [
        (
            lag.book,
            f"{lag.records:,}",
            f"{lag.dead:,}",
            f"{lag.behind:,}" if lag.behind < MOST_COUNTED else f">= {MOST_COUNTED:,}",
            f"{lag.behind_s:,.1f}",
        )
        for lag in found
    ]
    print_table(["book", "records>", "dead letters>", "behind>", "behind s>"], rows)


def _pipeline(file: Path, url: str, token: str) -> Pipeline:
    from boki.spark.pipeline import load_pipeline

    return load_pipeline(file, {"gateway": url, "token": token})
