"""Spark on a log of this machine, both on the same cores: how fast LogBooks are read and written, and how fresh it is.

A first, small round warms everything up, as it is for the other benchmarks. What is written for the sink's figure is
what the reads then read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from boki.bench.rows import Row, median, quantile
from boki.bench.system import Options, target
from boki.client import BlockingClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES: Final = 2
RECORD_BYTES: Final = 100
BOOK: Final = "bench.spark"
_WARM_UP_RECORDS: Final = 50_000
_STEP_RECORDS: Final = 1_000_000
_FRESH_EVERY_S: Final = 0.05
_FRESH_ROUNDS: Final = 4
"""The latency is measured for so many times the length of a round."""
_PARTITIONS: Final = 8
_TIMEOUT_S: Final = 600


def spark(options: Options, step: Callable[[str], None]) -> Iterator[Row]:
    """Sink, batch read, streaming read, and how old a record is when a micro-batch has put it out."""
    from boki.spark import session

    with target(options) as system, TemporaryDirectory(prefix="boki-bench-", dir=options.folder) as folder:
        step("starting Spark")
        started = session("boki bench", master=f"local[{CORES}]", config={"spark.sql.warehouse.dir": folder})
        started.sparkContext.setLogLevel("OFF")
        try:
            bench = _Bench(started, options, system.url, system.token, Path(folder))
            step("warming up")
            bench.write("warm-up", min(_WARM_UP_RECORDS, options.record_count))
            bench.read("warm-up")
            count = options.record_count
            step(f"sink, {count:,} records")
            yield bench.row("sink", bench.write(BOOK, count), count)
            yield bench.row("batch-read", *bench.rounds(step, "batch read", lambda: bench.read(BOOK)))
            yield bench.row("stream-read", *bench.rounds(step, "streaming read", lambda: bench.stream(BOOK)))
            step("latency of a stream")
            yield bench.latency("bench.fresh")
        finally:
            started.stop()


class _Bench:
    """The measurements of one session on one system."""

    def __init__(self, session: SparkSession, options: Options, url: str, token: str, folder: Path) -> None:
        self._session = session
        self._options = options
        self._gateway = {"gateway": url, "token": token}
        self._folder = folder
        self._queries = 0

    def rounds(
        self, step: Callable[[str], None], what: str, measure: Callable[[], tuple[int, float]]
    ) -> tuple[float, int]:
        """The median rate of the rounds, and how many records each had."""
        rates: list[float | None] = []
        count = 0
        for number in range(self._options.rounds):
            step(f"{what}, round {number + 1}")
            count, elapsed_s = measure()
            rates.append(count / elapsed_s)
        return median(rates) or 0.0, count

    def write(self, book: str, count: int) -> float:
        """Records a second of a DataFrame of so many rows, durable."""
        rows = self._session.range(0, count, 1, CORES).selectExpr(
            f"lpad(cast(id as string), {RECORD_BYTES}, '.') as data", "array('all', concat('k:', id % 100)) as tags"
        )
        began = time.perf_counter()
        rows.write.format("logbook").mode("append").options(**self._gateway, book=book).save()
        return count / (time.perf_counter() - began)

    def read(self, book: str) -> tuple[int, float]:
        """A batch read of all columns to nowhere: the records, and seconds."""
        began = time.perf_counter()
        frame = self._session.read.format("logbook").options(**self._gateway, book=book, partitions=_PARTITIONS).load()
        frame.write.format("noop").mode("overwrite").save()
        elapsed_s = time.perf_counter() - began
        return self._options.record_count if book == BOOK else frame.count(), elapsed_s

    def stream(self, book: str) -> tuple[int, float]:
        """A streaming read of all there is, in steps, to nowhere."""
        stream = self._stream(book, maxRecordsPerBatch=_STEP_RECORDS, partitions=_PARTITIONS)
        began = time.perf_counter()
        query = stream.writeStream.format("noop").option("checkpointLocation", self._checkpoint())
        running = query.trigger(availableNow=True).start()
        if not running.awaitTermination(_TIMEOUT_S):
            running.stop()
        elapsed_s = time.perf_counter() - began
        return sum(progress["numInputRows"] for progress in running.recentProgress), elapsed_s

    def _stream(self, book: str, **more: Any) -> DataFrame:
        return self._session.readStream.format("logbook").options(**self._gateway, book=book, **more).load()

    def _checkpoint(self) -> str:
        self._queries += 1
        return str(self._folder / f"checkpoint-{self._queries}")

    def latency(self, book: str) -> Row:
        """How long after its append, by the log's time, a record is in a micro-batch's output."""
        count = max(1, round(_FRESH_ROUNDS * self._options.duration_s / _FRESH_EVERY_S))
        with BlockingClient(self._gateway["gateway"], token=self._gateway["token"]) as client:
            client.logbook(book).append(b"first")
            ages_s: list[float] = []
            all_there = threading.Event()

            def take(frame: DataFrame, _batch: int) -> None:
                times = [row.us for row in frame.selectExpr("unix_micros(time) as us").collect()]
                now = time.time()
                ages_s.extend(now - us / 1e6 for us in times)
                if len(ages_s) >= count + 1:
                    all_there.set()

            writer = self._stream(book).writeStream.foreachBatch(take).option("checkpointLocation", self._checkpoint())
            query = writer.trigger(processingTime="0 seconds").start()
            query.processAllAvailable()
            for number in range(count):
                client.logbook(book).append(b"%d" % number)
                time.sleep(_FRESH_EVERY_S)
            is_complete = all_there.wait(_TIMEOUT_S)
            query.stop()
        ages = sorted(ages_s[1:])
        return self._row(
            "latency",
            None,
            len(ages),
            p50_ms=_ms(quantile(ages, 0.5)),
            p99_ms=_ms(quantile(ages, 0.99)),
            errors=0 if is_complete else 1,
        )

    def row(self, mode: str, rate: float, count: int) -> Row:
        """A row that tells of a rate."""
        return self._row(mode, round(rate, 1), count)

    def _row(
        self,
        mode: str,
        rate: float | None,
        count: int,
        *,
        p50_ms: float | None = None,
        p99_ms: float | None = None,
        errors: int = 0,
    ) -> Row:
        options = self._options
        return Row(
            bench="spark",
            inflight=CORES,
            size_bytes=RECORD_BYTES,
            replicas=options.replicas,
            durability=options.durability,
            system="cluster" if options.is_cluster else "one process",
            ops_per_s=rate,
            p50_ms=p50_ms,
            p99_ms=p99_ms,
            errors=errors,
            details={"mode": mode, "records": count},
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)
