"""Spark on a log of this machine, both on the same cores: how fast LogBooks are read and written, and how fresh it is.

A first, small round warms everything up, as it is for the other benchmarks. What is written for the sink's figure is
what the reads then read. Beside the clock, each kind of read is made once more to see that every record came, once.
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
"""The latency is measured for this many times the length of a round."""
_PARTITIONS: Final = 8
_TIMEOUT_S: Final = 600
_ID: Final = "cast(trim(leading '.' from cast(data as string)) as bigint) as id"
"""The number of the row that a record was."""
_TALLY: Final = ("count(id) as records", "sum(id) as ids", "bit_xor(xxhash64(id)) as hashes")
"""Rows that are the same in these three are the same, whatever their order: none is missing, and none came twice."""


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
            rate = bench.write(BOOK, count)
            step("counting what is in the log")
            wrong = bench.wrong_in_batch(BOOK, count)
            yield bench.row("sink", rate, count, errors=wrong)
            rate = bench.rounds(step, "batch read", lambda: count / bench.read(BOOK))
            yield bench.row("batch-read", rate, count, errors=wrong)
            rate = bench.rounds(step, "streaming read", lambda: count / bench.stream(BOOK, count))
            step("counting what streams")
            yield bench.row("stream-read", rate, count, errors=bench.missed + bench.wrong_in_stream(BOOK, count))
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
        self.missed = 0
        """Records that streams ended without."""

    def rounds(self, step: Callable[[str], None], what: str, measure: Callable[[], float]) -> float:
        """The median rate of the rounds."""
        rates: list[float | None] = []
        for number in range(self._options.rounds):
            step(f"{what}, round {number + 1}")
            rates.append(measure())
        return median(rates) or 0.0

    def write(self, book: str, count: int) -> float:
        """Records a second of a DataFrame of this many rows, durable."""
        rows = self._session.range(0, count, 1, CORES).selectExpr(
            f"lpad(cast(id as string), {RECORD_BYTES}, '.') as data", "array('all', concat('k:', id % 100)) as tags"
        )
        began = time.perf_counter()
        rows.write.format("logbook").mode("append").options(**self._gateway, book=book).save()
        return count / (time.perf_counter() - began)

    def read(self, book: str) -> float:
        """A batch read of all columns to nowhere, in seconds."""
        began = time.perf_counter()
        self._batch(book).write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    def stream(self, book: str, count: int) -> float:
        """A streaming read of all there is, in steps, to nowhere, in seconds."""
        stream = self._stream(book, maxRecordsPerBatch=_STEP_RECORDS, partitions=_PARTITIONS)
        began = time.perf_counter()
        running = self._run(stream.writeStream.format("noop"))
        elapsed_s = time.perf_counter() - began
        self.missed += abs(count - sum(progress["numInputRows"] for progress in running.recentProgress))
        return elapsed_s

    def wrong_in_batch(self, book: str, count: int) -> int:
        """How many records a batch read has too few or too many; at least one, if it has others than were written."""
        return self._wrong([self._tally(self._batch(book))], count)

    def wrong_in_stream(self, book: str, count: int) -> int:
        """The same of a streaming read."""
        tallies: list[Any] = []
        stream = self._stream(book, maxRecordsPerBatch=_STEP_RECORDS, partitions=_PARTITIONS)
        self._run(stream.writeStream.foreachBatch(lambda frame, _: tallies.append(self._tally(frame))))
        return self._wrong(tallies, count)

    def _tally(self, frame: DataFrame) -> Any:
        return frame.selectExpr(_ID).selectExpr(*_TALLY).first()

    def _wrong(self, tallies: list[Any], count: int) -> int:
        expected = self._session.range(0, count).selectExpr(*_TALLY).first()
        assert expected is not None, "an aggregate has a row"
        records, ids, hashes = 0, 0, 0
        for tally in tallies:
            records, ids, hashes = records + tally.records, ids + (tally.ids or 0), hashes ^ (tally.hashes or 0)
        return 0 if (records, ids, hashes) == tuple(expected) else max(1, abs(records - count))

    def _batch(self, book: str) -> DataFrame:
        return self._session.read.format("logbook").options(**self._gateway, book=book, partitions=_PARTITIONS).load()

    def _run(self, writer: Any) -> Any:
        """Run a stream until it has taken what exists."""
        query = writer.option("checkpointLocation", self._checkpoint()).trigger(availableNow=True).start()
        if not query.awaitTermination(_TIMEOUT_S):
            query.stop()
        return query

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
            seen: list[bytes] = []
            all_there = threading.Event()

            def take(frame: DataFrame, _batch: int) -> None:
                rows = frame.selectExpr("unix_micros(time) as us", "data").collect()
                now = time.time()
                ages_s.extend(now - row.us / 1e6 for row in rows)
                seen.extend(bytes(row.data) for row in rows)
                if len(seen) >= count + 1:
                    all_there.set()

            writer = self._stream(book).writeStream.foreachBatch(take).option("checkpointLocation", self._checkpoint())
            query = writer.trigger(processingTime="0 seconds").start()
            query.processAllAvailable()
            for number in range(count):
                client.logbook(book).append(b"%d" % number)
                time.sleep(_FRESH_EVERY_S)
            all_there.wait(_TIMEOUT_S)
            query.stop()
        expected = sorted([b"first", *(b"%d" % number for number in range(count))])
        ages = sorted(ages_s[1:])
        return self._row(
            "latency",
            None,
            len(ages),
            p50_ms=_ms(quantile(ages, 0.5)),
            p99_ms=_ms(quantile(ages, 0.99)),
            errors=0 if sorted(seen) == expected else max(1, abs(len(seen) - len(expected))),
        )

    def row(self, mode: str, rate: float, count: int, *, errors: int = 0) -> Row:
        """A row that describes a rate."""
        return self._row(mode, round(rate, 1), count, errors=errors)

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
