"""Running a pipeline: micro-batches of LogBooks into Parquet, of which any reader sees whole ones only, each once.

A batch is written into a folder whose name no reader looks at, and renamed to its place when it is complete; a batch
that comes again, because something was killed in between, finds its place taken. So the folder of a batch is the proof
that it is written, and the record in the progress book follows it.

The checkpoint lies beside the records, so that one cannot be moved without the other. Renaming is at once on a local
disk and on HDFS; an object store copies, and its readers may see a batch come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from boki.client import BlockingClient
from boki.errors import ConfigError, Unavailable
from boki.log.record import Record
from boki.spark.pipeline import PROGRESS_TAG, BookProgress, Pipeline, Progress
from boki.spark.schemas import ERROR_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Report = Callable[[int, Progress], None]
"""Called with the number of records of a batch that is written, and how far the pipeline is."""
_RECORDS: Final = "records"
_DEAD: Final = "dead"
_CHECKPOINT: Final = "_checkpoint"
_NAMED_S: Final = 60.0


def start(spark: SparkSession, pipeline: Pipeline, *, once: bool, report: Report) -> StreamingQuery:
    """Start the pipeline: until there is nothing left if `once`, else until the query is stopped."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        json_columns = cast("StructType", StructType.fromDDL(pipeline.schema)).fieldNames()
    except PySparkException as error:
        raise ConfigError(f"the schema of pipeline {pipeline.name!r} cannot be read: {_first_line(error)}") from None
    writer = _BatchWriter(spark, pipeline, pipeline.columns(json_columns), report)
    stream = spark.readStream.format("logbook").schema(pipeline.source_schema).options(**pipeline.source_options).load()
    output = stream.writeStream.foreachBatch(writer.write).queryName(pipeline.name)
    output = output.option("checkpointLocation", f"{pipeline.output}/{_CHECKPOINT}")
    trigger = (
        output.trigger(availableNow=True)
        if once
        else output.trigger(processingTime=f"{int(pipeline.trigger_s * 1000)} milliseconds")
    )
    query = trigger.start()
    writer.name(str(query.id))
    return query


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


class _BatchWriter:
    """Writes the batches of one query."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, json_columns: list[str], report: Report) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._columns = json_columns
        self._report = report
        self._query = ""
        self._is_named = threading.Event()

    def name(self, query: str) -> None:
        """The query's own id, which it keeps from run to run. Batches wait for it."""
        self._query = query
        self._is_named.set()

    def write(self, frame: DataFrame, batch: int) -> None:
        """Spark's callback: the batch, and its number in this checkpoint."""
        from pyspark.sql import functions as f

        if not self._is_named.wait(_NAMED_S):
            raise Unavailable("the query did not start")
        frame = frame.persist()
        try:
            books = _count(frame)
            dead_count = sum(book.dead for book in books.values())
            dead = frame.where(f.col(ERROR_COLUMN).isNotNull())
            good = frame.where(f.col(ERROR_COLUMN).isNull()).withColumn("date", f.to_date("time"))
            if dead_count:
                error = f.col(ERROR_COLUMN).alias("error")
                self._place(dead.select("seqnum", "book", "time", "tags", "data", error), _DEAD, batch, [])
            if sum(book.records for book in books.values()) > dead_count:
                columns = ["seqnum", "time", "tags", *self._columns, "book", "date"]
                self._place(good.select(columns), _RECORDS, batch, ["book", "date"])
        finally:
            frame.unpersist()
        progress = note_progress(self._pipeline, self._query, batch, books)
        self._report(sum(book.records for book in books.values()), progress)

    def _place(self, rows: DataFrame, kind: str, batch: int, partition_by: list[str]) -> None:
        """Write the rows to where that batch belongs, unless they are there."""
        name = f"batch={batch:09d}"
        place = f"{self._pipeline.output}/{kind}/{name}"
        fresh = f"{self._pipeline.output}/{kind}/_writing/{name}"
        files, path = self._files(place)
        if files.exists(path(place)):
            return
        rows.write.mode("overwrite").partitionBy(*partition_by).parquet(fresh)
        if not files.rename(path(fresh), path(place)):
            raise ConfigError(f"{fresh} could not be renamed to {place}: is {self._pipeline.output} writable?")

    def _files(self, where: str) -> tuple[Any, Callable[[str], Any]]:
        """Hadoop's file system for that path, as Spark itself uses it."""
        jvm: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - there is no other way to Hadoop's file systems
        path = jvm.org.apache.hadoop.fs.Path
        configuration = self._spark.sparkContext._jsc.hadoopConfiguration()  # noqa: SLF001
        return path(where).getFileSystem(configuration), path


def _count(frame: DataFrame) -> dict[str, BookProgress]:
    """What the batch has of each book."""
    from pyspark.sql import functions as f

    counted = frame.groupBy("book").agg(
        f.count("*").alias("records"),
        f.count(ERROR_COLUMN).alias("dead"),
        f.max("seqnum").alias("last_seqnum"),
        f.max(f.unix_micros("time")).alias("last_time_us"),
    )
    return {
        row.book: BookProgress(
            records=row.records, dead=row.dead, last_seqnum=row.last_seqnum, last_time_us=row.last_time_us
        )
        for row in counted.collect()
    }


# Progress


def read_progress(client: BlockingClient, pipeline: Pipeline) -> tuple[Record | None, Progress]:
    """The last record of the pipeline's progress, and what it says."""
    record = client.logbook(pipeline.progress_book).check_tail(PROGRESS_TAG + pipeline.name, fresh=True)
    if record is None:
        return None, Progress(pipeline=pipeline.name, query="", batch=-1)
    return record, msgspec.json.decode(record.data, type=Progress)


def note_progress(pipeline: Pipeline, query: str, batch: int, books: dict[str, BookProgress]) -> Progress:
    """Write the batch into the progress book, once: under a key, and not at all if a later record stands there."""
    with BlockingClient(pipeline.gateway, token=pipeline.token) as client:
        _, before = read_progress(client, pipeline)
        progress = before.after(query, batch, books)
        if progress is not before:
            client.logbook(pipeline.progress_book).append(
                msgspec.json.encode(progress),
                [PROGRESS_TAG + pipeline.name],
                key=f"ingest:{pipeline.name}:{query}:{batch}",
            )
        return progress


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """How far the pipeline is behind in one book."""

    book: str
    records: int
    dead: int
    behind: int
    """Records that are not in the Parquet yet; counted up to `MOST_COUNTED`."""
    behind_s: float
    """Between the last record that is and the last one there is, by the log's time."""


MOST_COUNTED: Final = 1_000_000


def lags(pipeline: Pipeline) -> list[Lag]:
    """The lag of each book, by name."""
    from boki.spark.gateway import Gateway
    from boki.spark.options import read_options
    from boki.spark.planning import Planner

    with BlockingClient(pipeline.gateway, token=pipeline.token) as client:
        _, progress = read_progress(client, pipeline)
    options = read_options(pipeline.source_options, is_stream=True)
    gateway = Gateway(pipeline.gateway, pipeline.token)
    try:
        planner = Planner(options, gateway)
        tail = planner.tail()
        names = sorted({name for name, _ in planner.books()} | set(progress.books))
        found: list[Lag] = []
        for name in names:
            done = progress.books.get(name, BookProgress())
            behind, last_us = gateway.count(name, options.tag, done.last_seqnum + 1, tail.bound(name), MOST_COUNTED)
            first_us = done.last_time_us or last_us
            found.append(
                Lag(
                    book=name,
                    records=done.records,
                    dead=done.dead,
                    behind=behind,
                    behind_s=max(0, last_us - first_us) / 1e6 if behind else 0.0,
                )
            )
        return found
    finally:
        gateway.close()
