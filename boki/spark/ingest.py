"""Running a pipeline: micro-batches of LogBooks into Parquet, of which any reader sees whole ones only, each once.

One run at a time has the claim (`boki.spark.claim`). Each batch is brought to its place by one renaming
(`boki.spark.lake`) and noted in the progress book (`boki.spark.progress`), in this order: so the folder of a batch is
the proof that it is written, and a batch that comes again, because something was killed in between, finds it there. It
is on the disk before it is noted; still a note alone proves nothing, since a lake may be put back from a backup.

The checkpoint lies beside the records, so that one cannot be moved without the other. Renaming is at once on a local
disk and on HDFS; an object store copies, and its readers may see a batch come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from boki.errors import BokiError, ConfigError, Unavailable
from boki.spark.causes import cause_of
from boki.spark.claim import Claim, Doorkeeper, Run
from boki.spark.files import files_of
from boki.spark.gateway import Gateway
from boki.spark.lake import Lake, Manifest, Origin
from boki.spark.partitions import without_folder
from boki.spark.pipeline import Pipeline
from boki.spark.progress import (
    Batch,
    BookProgress,
    Progress,
    is_registered,
    note,
    read_progress,
    regain,
    register,
)
from boki.spark.schemas import ERROR_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType

Report = Callable[[int, Progress], None]
"""Called with the number of records of a batch that is written, and how far the pipeline is."""
_NAMED_S: Final = 60.0
_STOPPED_S: Final = 10.0
_GATHERING: Final = "4"
DATE: Final = "date_from_unix_date(cast(unix_micros(time) div 86400000000 as int))"
"""The date of the log's time in UTC, whatever the session's time zone is."""


@contextmanager
def claimed(pipeline: Pipeline, run: Run | None = None) -> Iterator[Doorkeeper]:
    """The right to run the pipeline, for as long as the block. `Unavailable` names the run that has it.

    Ask for it before Spark starts: who is refused, or finds no gateway, is told within seconds.
    """
    with closing(Gateway(pipeline.gateway, pipeline.token)) as gateway:
        claim = Claim(gateway, pipeline.progress_book, pipeline.name, run or Run.new())
        claim.take()
        door = Doorkeeper(claim, lambda: Gateway(pipeline.gateway, pipeline.token, is_known=True))
        try:
            yield door
        finally:
            door.close()
            # a gateway that is away is not waited for: the next run tries
            with suppress(BokiError), closing(Gateway(pipeline.gateway, pipeline.token)) as parting:
                claim.end(parting)


def run(
    open_session: Callable[[], SparkSession], pipeline: Pipeline, door: Doorkeeper, *, once: bool, report: Report
) -> None:
    """Run the pipeline: until there is nothing left if `once`, else until this thread is interrupted.

    Spark is asked by another thread: a call into its JVM that is interrupted would leave half an answer behind it, on
    which the next call of the same thread stumbles.
    """
    work = _Work(lambda: start(open_session(), pipeline, door.claim, once=once, report=report), door)
    work.thread.start()
    try:
        work.thread.join()
    finally:
        work.end()
    error = door.lost or work.error
    if error is None:
        return
    if isinstance(error, BokiError):
        raise error
    raise Unavailable(
        f"pipeline {pipeline.name!r} has ended: {cause_of(error)}", retryable=False, pipeline=pipeline.name
    ) from None


class _Work:
    """A query from its start to its end, in a thread of its own."""

    def __init__(self, start: Callable[[], StreamingQuery], door: Doorkeeper) -> None:
        self._start = start
        self._door = door
        self._query: StreamingQuery | None = None
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run, daemon=True, name="boki-ingest")

    def _run(self) -> None:
        try:
            self._query = self._start()
            self._door.when_lost(self._query.stop)
            self._query.awaitTermination()
        except Exception as error:  # noqa: BLE001 - whatever Spark raises has a reason inside
            self.error = error

    def end(self) -> None:
        """Stop the query, if it still runs."""
        if self._query is not None and self.thread.is_alive():
            self._query.stop()
            self.thread.join(_STOPPED_S)


def start(spark: SparkSession, pipeline: Pipeline, claim: Claim, *, once: bool, report: Report) -> StreamingQuery:
    """Start the pipeline, as the run that has the claim. `ConfigError` if what exists cannot be continued."""
    columns = _columns(pipeline)
    lake = Lake(files_of(spark, pipeline.output), pipeline.output, claim.run.id)
    origin = Origin(pipeline=pipeline.name, book=pipeline.book, tag=pipeline.tag, start=pipeline.start)
    try:
        lake.check(origin)
        lake.check_columns(columns)
        lake_id = lake.begin(origin)
        check_known(lake, lake_id, claim, pipeline)
        lake.recover()
    except OSError as error:
        raise ConfigError(f"output: {pipeline.output} cannot be used: {error}") from None
    progress = known_progress(lake, claim, pipeline)
    writer = _BatchWriter(lake, origin, claim, progress, columns, report)
    stream = spark.readStream.format("logbook").schema(pipeline.source_schema).options(**pipeline.source_options).load()
    output = stream.writeStream.foreachBatch(writer.write).queryName(pipeline.name)
    output = output.option("checkpointLocation", lake.checkpoint)
    trigger = (
        output.trigger(availableNow=True)
        if once
        else output.trigger(processingTime=f"{int(pipeline.trigger_s * 1000)} milliseconds")
    )
    query = trigger.start()
    writer.name(str(query.id))
    return query


def _columns(pipeline: Pipeline) -> dict[str, str]:
    """The columns of the JSON, with their types; `ConfigError` if the schema cannot be read, or is not such as a
    pipeline has.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    from boki.spark.schemas import layout

    try:
        schema = cast("StructType", StructType.fromDDL(pipeline.schema))
        pipeline.columns(schema.fieldNames())
        _check_members(schema)
        layout(cast("StructType", StructType.fromDDL(pipeline.source_schema)), is_json=True)
    except PySparkException as error:
        raise ConfigError(f"schema: that of pipeline {pipeline.name!r} cannot be read: {_first_line(error)}") from None
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def _check_members(kind: DataType, around: str = "") -> None:
    """`ConfigError` if members of a struct differ by capitals only: Spark writes them, and does not read them again."""
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        _check_members(kind.elementType, f"{around}[]")
    elif isinstance(kind, StructType):
        lower = [name.lower() for name in kind.fieldNames()]
        if around and (alike := [name for name in kind.fieldNames() if lower.count(name.lower()) > 1]):
            raise ConfigError(
                f"schema: the column {around} has members {' and '.join(alike)}, and tables make no difference between "
                "capitals and small letters: leave one out"
            )
        for field in kind.fields:
            _check_members(field.dataType, f"{around}.{field.name}".removeprefix("."))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def check_known(lake: Lake, lake_id: str, claim: Claim, pipeline: Pipeline) -> None:
    """Have the progress book know the lake before it has a checkpoint. `ConfigError` if it has one, and the book has
    never heard of it: then what the checkpoint stands for lies elsewhere, whatever pipelines are called so here.
    """
    if is_registered(claim, lake_id):
        return
    if lake.query() is not None:
        raise _strange(lake, pipeline)
    register(claim, lake_id)


def _strange(lake: Lake, pipeline: Pipeline) -> ConfigError:
    return ConfigError(
        f"{lake.checkpoint} is not of this system, or not of this progress book: book {pipeline.progress_book!r} at "
        f"{pipeline.gateway} does not know the lake in {pipeline.output}. Give the gateway and the progress book with "
        "which it was begun; if they are gone, begin again with another output"
    )


def known_progress(lake: Lake, claim: Claim, pipeline: Pipeline) -> Progress:
    """What the progress book describes the lake, which it knows. If another lake was begun meanwhile under the same
    name, or the lake was put back as it was earlier, it is what the batches themselves tell.
    """
    progress = read_progress(claim.gateway, pipeline.progress_book, pipeline.name)
    last = lake.last()
    own = lake.query()
    is_put_back = lake.planned() < progress.number(own)
    if last is None or last[1] is None:
        # it has no batch yet, or all of them were taken elsewhere, and then there is nothing to count
        is_begun_anew = own is not None and is_put_back
        return regain(claim, progress, Batch.of(own or "", -1, ""), {}) if is_begun_anew else progress
    query = last[1].batch.query
    is_other = progress.done is not None and progress.done.batch.query != query
    if not is_other and not is_put_back and last[0] <= progress.number(query) + 1:
        return progress  # each batch but the last one is noted
    if progress.done is None:
        raise _strange(lake, pipeline)  # it knows the lake, and has lost what it has noted of its batches
    return regain(claim, progress, last[1].batch, lake.books())


class _BatchWriter:
    """Writes the batches of one query."""

    def __init__(
        self, lake: Lake, origin: Origin, claim: Claim, progress: Progress, columns: dict[str, str], report: Report
    ) -> None:
        self._lake = lake
        self._origin = origin
        self._claim = claim
        self._progress = progress
        self._columns = columns
        self._report = report
        self._query = ""
        self._is_named = threading.Event()

    def name(self, query: str) -> None:
        """The query's own id, which it keeps from run to run. Batches wait for it."""
        self._query = query
        self._is_named.set()

    def write(self, frame: DataFrame, number: int) -> None:
        """Spark's callback: the batch, and its number in this checkpoint. `Unavailable` says why it is not written."""
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        if not self._is_named.wait(_NAMED_S):
            raise Unavailable("the query did not start")
        batch = Batch.of(self._query, number, self._lake.end(number))
        is_noted = self._progress.has(batch)
        there = self._lake.manifest(number) if is_noted else None
        if there is not None and there.batch == batch:
            return  # killed between its note and Spark's own
        try:
            manifest = self._written(frame, batch)
        except (OSError, PySparkException, Py4JJavaError) as error:
            raise Unavailable(
                f"batch {number} could not be written to {self._lake.root}: {cause_of(error)}", retryable=False
            ) from None
        if not is_noted:
            self._progress = note(self._claim, self._progress, batch, manifest.books)
        self._report(sum(book.records for book in manifest.books.values()), self._progress)

    def _written(self, frame: DataFrame, batch: Batch) -> Manifest:
        """What the lake has of the batch, once it has it."""
        frame = frame.persist()
        try:
            books = _count(frame)
            if reasons := without_folder(books):
                books |= {name: msgspec.structs.replace(books[name], dead=books[name].records) for name in reasons}
                frame = _all_dead(frame, reasons)
            manifest = Manifest(origin=self._origin, batch=batch, books=books)
            return self._place(frame, manifest) if manifest.books else manifest
        finally:
            frame.unpersist()

    def _place(self, frame: DataFrame, manifest: Manifest) -> Manifest:
        """Bring the batch into the lake; what the lake has of it."""
        from pyspark.sql import functions as f

        count = sum(book.records for book in manifest.books.values())
        dead_count = sum(book.dead for book in manifest.books.values())
        is_all_dead = dead_count == count

        def write_records(folder: str) -> None:
            # quoted: a dot in a name is a dot, and no member of a struct
            members = [f.col(f"`{name.replace('`', '``')}`") for name in self._columns]
            columns: list[Any] = ["seqnum", "time", "tags", *members, "book", "date"]
            good = frame.where(f.col(ERROR_COLUMN).isNull()).withColumn("date", f.expr(DATE))
            good.select(columns).write.mode("overwrite").partitionBy("book", "date").parquet(folder)
            self._lake.check_written(folder, count - dead_count)

        def write_dead(folder: str) -> None:
            error = f.col(ERROR_COLUMN).alias("error")
            dead = frame.where(f.col(ERROR_COLUMN).isNotNull())
            dead.select("seqnum", "book", "time", "tags", "data", error).write.mode("overwrite").parquet(folder)
            self._lake.check_written(folder, dead_count)

        columns = self._lake.columns() if is_all_dead else self._columns
        manifest = msgspec.structs.replace(manifest, columns=columns)
        return self._lake.place(
            manifest,
            records=None if is_all_dead else write_records,
            dead=write_dead if dead_count else None,
            check=self._claim.check,
        )


def _all_dead(frame: DataFrame, reasons: Mapping[str, str]) -> DataFrame:
    """The batch, in which no record of these books fits. Whoever writes the batch again finds the same ones."""
    from pyspark.sql import functions as f

    error = f.col(ERROR_COLUMN)
    for reason in sorted(set(reasons.values())):
        names = [name for name, why in reasons.items() if why == reason]
        error = f.when(f.col("book").isin(names), f.lit(reason)).otherwise(error)
    return frame.withColumn(ERROR_COLUMN, error)


def _count(frame: DataFrame) -> dict[str, BookProgress]:
    """What the batch has of each book."""
    from pyspark.sql import functions as f

    # of what is gathered here there is one row for each book, and streams have no plans that adapt
    frame.sparkSession.conf.set("spark.sql.shuffle.partitions", _GATHERING)
    counted = frame.groupBy("book").agg(
        f.count("*").alias("records"),
        f.count(ERROR_COLUMN).alias("dead"),
        f.max("seqnum").alias("last_seqnum"),
        f.max(f.unix_micros("time")).alias("last_time_us"),
    )
    rows: list[Any] = counted.collect()
    return {
        row.book: BookProgress(
            records=row.records, dead=row.dead, last_seqnum=row.last_seqnum, last_time_us=row.last_time_us
        )
        for row in rows
    }
