"""Streaming reads: every record once, in steps, across restarts, terms and trims."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from boki.client import BlockingClient
from boki.launch.child import Child

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")


class Collected:
    """What the batches of a query had, by batch id: a batch that is run again replaces itself."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, bytes]]] = {}

    def take(self, frame: DataFrame, batch_id: int) -> None:
        self.batches[batch_id] = [(row.seqnum, bytes(row.data)) for row in frame.collect()]

    @property
    def rows(self) -> list[tuple[int, bytes]]:
        return sorted(row for batch in self.batches.values() for row in batch)


def start(
    spark: SparkSession, url: str, checkpoint: Path, taken: Collected, *, now: bool = True, **options: str
) -> StreamingQuery:
    stream = spark.readStream.format("logbook").options(**{"gateway": url} | options).load()
    writer = stream.writeStream.foreachBatch(taken.take).option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")).start()


def run(spark: SparkSession, url: str, checkpoint: Path, taken: Collected, **options: str) -> None:
    """One query that takes what exists, to its end."""
    query = start(spark, url, checkpoint, taken, **options)
    assert query.awaitTermination(120), "the query did not end"


def everything(client: BlockingClient, *books: str, tag: str | None = None) -> list[tuple[int, bytes]]:
    found = []
    for book in books:
        at = 0
        while (page := client.logbook(book).read(tag, start=at)).records:
            found += [(record.seqnum, record.data) for record in page.records]
            at = page.next_start
    return sorted(found)


def test_available_now_in_steps_and_on_from_the_checkpoint(
    spark: SparkSession, system: Child, client: BlockingClient, tmp_path: Path
) -> None:
    """No micro-batch is over the limit, a query that starts again continues behind the last one, and one without news
    runs no batch.
    """
    for name in ("step-a", "step-b"):
        client.logbook(name).append_many([b"%d" % number for number in range(400)])
    taken = Collected()
    options = {"book": "step-*", "maxRecordsPerBatch": "250"}
    run(spark, system.url, tmp_path / "c", taken, **options)
    assert taken.rows == everything(client, "step-a", "step-b")
    assert max(map(len, taken.batches.values())) <= 250
    batch_count = len(taken.batches)
    run(spark, system.url, tmp_path / "c", taken, **options)
    assert len(taken.batches) == batch_count
    client.logbook("step-c").append_many([(b"new", ["t"])] * 3)  # a book that was not there
    run(spark, system.url, tmp_path / "c", taken, **options)
    assert taken.rows == everything(client, "step-a", "step-b", "step-c")
    assert len(taken.batches) == batch_count + 1


def test_a_running_stream_takes_what_comes(
    spark: SparkSession, system: Child, client: BlockingClient, tmp_path: Path
) -> None:
    """From now on, by tag, while other books of the same log grow; each record once."""
    book = client.logbook("live")
    book.append_many([(b"before", ["t"])] * 10)
    taken = Collected()
    query = start(spark, system.url, tmp_path / "c", taken, now=False, book="live", tag="t", start="latest")
    try:
        query.processAllAvailable()
        assert taken.rows == []
        expected: list[Any] = []
        for turn in range(3):
            seqnums = book.append_many([(b"%d" % turn, ["t"]), (b"other", ["u"])])
            client.logbook("live.neighbour").append(b"x")
            expected.append((seqnums[0], b"%d" % turn))
            query.processAllAvailable()
            assert taken.rows == expected
    finally:
        query.stop()


class Killed(Collected):
    """A sink that fails once with what it was given, as a process that is killed: the batch comes again."""

    def __init__(self) -> None:
        super().__init__()
        self.first_time: dict[int, list[tuple[int, bytes]]] = {}

    def take(self, frame: DataFrame, batch_id: int) -> None:
        super().take(frame, batch_id)
        if batch_id not in self.first_time:
            self.first_time[batch_id] = self.batches.pop(batch_id)
            raise RuntimeError("killed")


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_a_batch_that_comes_again_has_the_same_rows(
    spark: SparkSession, system: Child, client: BlockingClient, tmp_path: Path, begin: str
) -> None:
    """The query dies in each batch, its first one too; records and books that come meanwhile are of later batches."""
    taken = Killed()
    books = [f"again.{begin}-{number}" for number in range(2)]
    before = client.logbook(books[0]).append(b"before")
    for book in books:
        with pytest.raises(Exception, match="killed"):
            run(spark, system.url, tmp_path / "c", taken, book=f"again.{begin}-*", start=begin)
        client.logbook(book).append_many([b"%d" % number for number in range(5)])
    for _ in books:
        with contextlib.suppress(Exception):
            run(spark, system.url, tmp_path / "c", taken, book=f"again.{begin}-*", start=begin)
    assert len(taken.first_time) >= 2
    assert taken.batches == taken.first_time
    expected = everything(client, *books)
    assert taken.rows == [row for row in expected if begin == "earliest" or row[0] != before]


LOG_COUNTS = (1, 3, 2, 4, 1, 2, 3, 1, 4, 2, 3)
"""Ten changes of the number of physical logs, each a new term."""


def test_what_is_trimmed_before_it_is_read(
    spark: SparkSession, system: Child, client: BlockingClient, tmp_path: Path
) -> None:
    """A stream fails and names the gap, or skips it if it was told to; trims of what it has read are nothing to it."""
    book = client.logbook("trimmed")
    seqnums = book.append_many([b"%d" % number for number in range(50)])
    book.trim(seqnums[10])
    failing, skipping = Collected(), Collected()
    for name, taken in (("f", failing), ("s", skipping)):
        run(spark, system.url, tmp_path / name, taken, book="trimmed")
        assert [seqnum for seqnum, _ in taken.rows] == seqnums[10:]
    more = book.append_many([b"more"] * 20)
    book.trim(seqnums[30])  # read by both
    run(spark, system.url, tmp_path / "s", skipping, book="trimmed")
    assert len(skipping.rows) == 60
    last = book.append_many([b"last"] * 5)
    book.trim(last[2])
    with pytest.raises(Exception, match=rf"book 'trimmed': records with \d+ <= seqnum < {last[2]} were trimmed"):
        run(spark, system.url, tmp_path / "f", failing, book="trimmed")
    run(spark, system.url, tmp_path / "s", skipping, book="trimmed", onTrimmed="skip")
    assert [seqnum for seqnum, _ in skipping.rows] == [*seqnums[10:], *more, *last[2:]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"book": "nowhere"}, "there is no book 'nowhere'"),
        ({"book": "live", "stop": "7"}, "no option stop to stream from a LogBook: there are"),
        ({"book": "live", "maxRecordsPerBatch": "none"}, "maxRecordsPerBatch must be a whole number"),
        ({"book": "live", "gateway": "http://127.0.0.1:1"}, "nothing answers at http://127.0.0.1:1"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_input_ends_the_stream(
    spark: SparkSession, system: Child, tmp_path: Path, options: dict[str, str], message: str
) -> None:
    """The query fails at its start, with the reason."""
    with pytest.raises(Exception, match=message):
        run(spark, system.url, tmp_path / "c", Collected(), **options)
