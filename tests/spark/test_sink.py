"""Writes: every row once, whatever is killed, repeated or started again, and nothing is left behind but the rows."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from boki.client import BlockingClient
from boki.launch.child import Child

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.xdist_group("spark")


def save(frame: DataFrame, system: Child, **options: str) -> None:
    frame.write.format("logbook").mode("append").options(**{"gateway": system.url} | options).save()


def records(client: BlockingClient, book: str, tag: str | None = None) -> list[tuple[bytes, tuple[str, ...]]]:
    found: list[tuple[bytes, tuple[str, ...]]] = []
    at = 0
    while (page := client.logbook(book).read(tag, start=at)).records:
        found += [
            (record.data, tuple(tag for tag in record.tags if not tag.startswith(("!spark:", "spark:untagged"))))
            for record in page.records
        ]
        at = page.next_start
    return found


def numbers(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    """Rows with data, and tags on every second of them."""
    frame = spark.range(0, count, 1, partitions)
    return frame.selectExpr(
        "cast(id as string) as data", "if(id % 2 = 0, array('even', concat('n:', id % 3)), array()) as tags"
    )


def expected(count: int) -> Counter[tuple[bytes, tuple[str, ...]]]:
    return Counter((b"%d" % n, ("even", f"n:{n % 3}") if n % 2 == 0 else ()) for n in range(count))


def test_a_dataframe_becomes_records(spark: SparkSession, system: Child, client: BlockingClient) -> None:
    """Every row is one record with its data and tags, in order within its partition, and there are no others."""
    save(numbers(spark, 20_000, 2), system, book="written")
    found = records(client, "written")
    assert Counter(found) == expected(20_000)
    first = [int(data) for data, _ in found if int(data) < 10_000]
    assert first == sorted(first)
    read = spark.read.format("logbook").options(gateway=system.url, book="written").load()
    assert read.count() == 20_000


def test_rows_name_their_book_and_may_be_json(spark: SparkSession, system: Child, client: BlockingClient) -> None:
    """With a column book each row goes to its own; as JSON a row is an object of its other columns."""
    frame = spark.range(10).selectExpr("concat('routed-', id % 2) as book", "id as n", "array('t') as tags", "'x' as s")
    save(frame, system, json="true")
    for number in range(2):
        found = records(client, f"routed-{number}", "t")
        assert sorted(msgspec.json.decode(data)["n"] for data, _ in found) == list(range(number, 10, 2))
        assert msgspec.json.decode(found[0][0]).keys() == {"n", "s"}


def dying(url: str, book: str, attempts: int, rows: int) -> Any:
    """A stage in front of the sink that kills its own worker, in the first attempts, after this many rows, when some
    are in the book: Spark holds back up to some twenty thousand rows between the two.
    """

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        left = rows if context.attemptNumber() < attempts else 1 << 60
        for batch in batches:
            left -= batch.num_rows
            yield batch
            if left <= 0:
                with BlockingClient(url) as client:
                    if client.logbook(book).read_next(min_seqnum=1, wait_s=20) is not None:
                        client.logbook(f"{book}.deaths").append(b"of a task that has written")
                os.kill(os.getpid(), signal.SIGKILL)

    return pass_on


@pytest.mark.parametrize("seed", range(2))
def test_tasks_that_are_killed_write_each_row_once(
    spark: SparkSession, system: Child, client: BlockingClient, seed: int
) -> None:
    """Workers die at drawn moments, up to three times each: what an attempt has appended, the next one continues
    from.
    """
    draw = random.Random(seed)
    book = f"killed-{seed}"
    frame = numbers(spark, 160_000, 2)
    deaths = dying(system.url, book, draw.randint(1, 3), draw.randint(30_000, 79_000))
    save(frame.mapInArrow(deaths, frame.schema), system, book=book)
    assert Counter(records(client, book)) == expected(160_000)
    assert records(client, f"{book}.deaths")


@pytest.mark.whole
def test_a_job_that_runs_again_adds_what_is_missing(spark: SparkSession, system: Child, client: BlockingClient) -> None:
    """Under one writeId a failed job is finished by the next, a finished one not repeated, other rows refused.

    One partition: of two the other might have written nothing yet, and would take the other rows for its first.
    """
    frame = numbers(spark, 100_000, 1)
    options = {"book": "again", "writeId": "nightly"}
    with pytest.raises(Exception, match=r"exited|crashed|Connection|Job aborted"):
        save(frame.mapInArrow(dying(system.url, "again", 99, 40_000), frame.schema), system, **options)
    started = len(records(client, "again"))
    assert 0 < started < 100_000
    with pytest.raises(Exception, match="of batch 0 has other rows than when it was written to book 'again'"):
        save(frame.selectExpr("concat('x', data) as data", "tags"), system, **options)
    for _ in range(2):
        save(frame, system, **options)
        assert Counter(records(client, "again")) == expected(100_000)
    with pytest.raises(Exception, match="has other rows than when it was written to book 'again'"):
        save(frame.limit(100), system, **options)
    assert len(records(client, "again")) == 100_000
    assert len(records(client, "spark:sinks", "!spark:nightly")) == 1


@pytest.mark.whole
def test_a_repeated_write_in_other_partitions_adds_nothing(
    spark: SparkSession, system: Child, client: BlockingClient
) -> None:
    """Under a writeId that is complete, the same rows in more partitions are refused before an append."""
    options = {"book": "parted", "writeId": "parted"}
    save(numbers(spark, 1000, 2), system, **options)
    with pytest.raises(Exception, match="the same rows in the same order, in as many partitions"):
        save(numbers(spark, 1000, 3), system, **options)
    assert Counter(records(client, "parted")) == expected(1000)


def tags_of_sinks(client: BlockingClient, book: str) -> set[str]:
    found: set[str] = set()
    at = 0
    while (page := client.logbook(book).read(start=at)).records:
        found.update(tag for record in page.records for tag in record.tags if tag.startswith("!spark:"))
        at = page.next_start
    return found


def test_writes_without_a_name_share_their_tags(spark: SparkSession, system: Child, client: BlockingClient) -> None:
    """One after the other they leave as many tags as one, and almost no row that trims by users would not take; also
    in a book that was deleted between.
    """
    frame = numbers(spark, 100, 2)
    for _ in range(3):
        save(frame, system, book="unnamed")
    assert Counter(records(client, "unnamed")) == expected(100) + expected(100) + expected(100)
    tags = tags_of_sinks(client, "unnamed")
    assert len(tags) == 2 * 2
    for tag in tags:
        assert len(records(client, "unnamed", tag)) == (0 if tag.endswith(":first") else 1)
    client.logbook("unnamed").delete()
    save(frame, system, book="unnamed")
    assert Counter(records(client, "unnamed")) == expected(100)
    assert tags_of_sinks(client, "unnamed") == tags


def test_a_write_that_fails_gives_its_tags_back(spark: SparkSession, system: Child, client: BlockingClient) -> None:
    """Its driver notes that it has failed."""
    with pytest.raises(Exception, match="a row has no data"):
        save(spark.range(10).selectExpr("if(id = 9, null, 'x') as data"), system, book="failing")
    notes = [data for data, _ in records(client, "spark:sinks") if b'"failed"' in data]
    assert notes == [b'{"type":"failed","batch":%d}' % msgspec.json.decode(notes[0])["batch"]]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["id"], {"book": "w"}, "the rows need a column data, binary or string"),
        (["'a' as data", "id"], {"book": "w"}, "a record has no id: the columns are data, tags and book"),
        (["'a' as data"], {}, "name the book: by the option book, or for each row by a column book"),
        (["'a' as data", "'t' as tags"], {"book": "w"}, "the column tags must be array<string>, not string"),
        (["cast(null as string) as data"], {"book": "w"}, "a row has no data"),
        (["'a' as data", "cast(null as string) as book"], {}, "a row has no book: the column book is null"),
        (["'a' as data"], {"book": "spark:sinks"}, "is the sinks' own ledger"),
        (["'a' as data"], {"book": "boki:calls"}, "belongs to the runtime"),
        (["'a' as data"], {"book": "w", "writeId": "!batch:0"}, "writeId must not begin with !"),
        (["'a' as data"], {"book": "w", "tag": "t"}, "there is no option tag to write a LogBook: there are gateway"),
        (["'a' as data"], {"book": "w", "gateway": "http://127.0.0.1:1"}, "nothing answers at http://127.0.0.1:1"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_rows_and_options_are_refused(
    spark: SparkSession,
    system: Child,
    client: BlockingClient,
    columns: list[str],
    options: dict[str, str],
    message: str,
) -> None:
    """The message names the column or the option, and what exists, and nothing is appended."""
    with pytest.raises(Exception, match=message):
        save(spark.range(1).selectExpr(*columns), system, **options)
    assert records(client, "w") == []


def test_a_query_whose_sink_answers_nothing_ends_soon(
    spark: SparkSession, system: Child, client: BlockingClient, tmp_path: Path
) -> None:
    """Its first batch does not wait for a gateway that nobody has seen, as later ones do for one that restarts: each of
    four tries of its task would wait a minute.
    """
    client.logbook("lonely").append(b"x")
    stream = spark.readStream.format("logbook").options(gateway=system.url, book="lonely").load().select("data")
    sink = stream.writeStream.format("logbook").options(gateway="http://127.0.0.1:1", book="w")
    query = sink.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"nothing answers at http://127\.0\.0\.1:1"):
        query.awaitTermination(90)


def copying(spark: SparkSession, url: str, checkpoint: Path, source: str, sink: str) -> StreamingQuery:
    """A query from one book to another, in small steps, which ends when all is copied."""
    stream = spark.readStream.format("logbook").options(gateway=url, book=source, maxRecordsPerBatch="4000").load()
    writer = stream.select("data", "tags").writeStream.format("logbook").options(gateway=url, book=sink)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def test_a_stream_that_is_stopped_anywhere_writes_each_row_once(
    spark: SparkSession, system: Child, client: BlockingClient, tmp_path: Path
) -> None:
    """From book to book, stopped whenever it has begun to write and started again from the checkpoint: each record
    once.
    """
    source = client.logbook("from")
    wanted = [(b"%d" % number, (f"t:{number % 4}",)) for number in range(20_000)]
    for at in range(0, len(wanted), 5000):
        source.append_many(wanted[at : at + 5000])
    target, seen = client.logbook("to"), 0
    for _ in range(3):
        query = copying(spark, system.url, tmp_path / "c", "from", "to")
        record = target.read_next(min_seqnum=seen + 1, wait_s=60)
        query.stop()
        assert record is not None
        there = target.check_tail(fresh=True)
        assert there is not None
        seen = there.seqnum
    assert len(records(client, "to")) < len(wanted), "it was never stopped before its end"
    query = copying(spark, system.url, tmp_path / "c", "from", "to")
    assert query.awaitTermination(120)
    assert Counter(records(client, "to")) == Counter(wanted)
    assert len(records(client, "spark:sinks", f"!spark:{query.id}")) == 1
