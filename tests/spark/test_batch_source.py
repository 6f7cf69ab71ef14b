"""Batch reads: the same rows as `read()`, at the position of their planning, and bad input that says what is wrong."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from boki.client import BlockingClient
from boki.config.loading import DevConfig
from boki.demo.flights import flights, table_path
from boki.errors import ConditionFailed, Unauthorized
from boki.launch.child import Child
from boki.log.record import Expect, Record
from boki.spark.gateway import Gateway

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def load(spark: SparkSession, system: Child, schema: str | None = None, **options: str) -> DataFrame:
    reader = spark.read.format("logbook").options(**{"gateway": system.url} | options)
    return (reader.schema(schema) if schema else reader).load()


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Of each row seqnum, time in microseconds, tags and data, by seqnum."""
    found = frame.selectExpr("seqnum", "unix_micros(time) as us", "tags", "data").collect()
    return sorted((row.seqnum, row.us, tuple(row.tags), bytes(row.data)) for row in found)


def read(client: BlockingClient, book: str, tag: str | None = None) -> list[tuple[Any, ...]]:
    """The same by `read()`."""
    found: list[Record] = []
    start = 0
    while True:
        page = client.logbook(book).read(tag, start=start)
        if not page.records:
            return [(record.seqnum, record.time, record.tags, record.data) for record in found]
        found += page.records
        start = page.next_start


@pytest.fixture(scope="session")
def orders(system: Child) -> str:
    """A book with all that a reader must get right: single appends and bulk, keys, failed conditions, trims by tag."""
    with BlockingClient(system.url) as client:
        book = client.logbook("orders")
        for number in range(30):
            book.append(b"single %d" % number, ["single", f"n:{number % 3}"])
        book.append_many([(b"bulk %d" % number, ["bulk", f"n:{number % 7}"]) for number in range(3000)])
        book.append_many([b"bare %d" % number for number in range(100)])
        book.append_many([(b"keyed %d" % number, ["keyed"]) for number in range(60)], key="once")
        with pytest.raises(ConditionFailed):
            book.append_many([(b"never", ["bulk"])] * 50, when=Expect("bulk", 1))
        book.append(b"", ["ünï", "empty"])
        book.trim(book.read("n:0", limit=5).next_start, tag="n:0")
        book.trim(book.read("single", limit=12).next_start, tag="single")
        for other in ("orders.other", "orders.third"):
            client.logbook(other).append_many([(b"%d" % number, ["other"]) for number in range(40)])
    return "orders"


def test_a_batch_read_has_the_rows_of_read(spark: SparkSession, system: Child, orders: str) -> None:
    """Failed conditions, keys, trims by tag, other books of the log: nothing differs, whatever the partitions."""
    with BlockingClient(system.url) as client:
        expected = read(client, orders)
        assert len(expected) > 3000
        assert rows(load(spark, system, book=orders)) == expected
        assert rows(load(spark, system, book=orders, partitions="5")) == expected
        assert rows(load(spark, system, book=orders, tag="n:0")) == read(client, orders, "n:0")
        assert rows(load(spark, system, book=orders, tag="absent")) == []


def test_books_are_one_a_list_or_a_prefix(spark: SparkSession, system: Child, orders: str) -> None:
    """Each row names its book."""
    listed = load(spark, system, book=f"{orders}, orders.third").groupBy("book").count().collect()
    assert {row.book for row in listed} == {orders, "orders.third"}
    counts = {row.book: row["count"] for row in load(spark, system, book="orders.*").groupBy("book").count().collect()}
    assert counts == {"orders.other": 40, "orders.third": 40}


def test_start_and_stop_are_seqnums_or_times(spark: SparkSession, system: Child, orders: str) -> None:
    """Both bounds hold exactly, in either form: start belongs to the range, stop does not."""
    with BlockingClient(system.url) as client:
        everything = read(client, orders)
    first, last = everything[20], everything[-100]
    expected = [row for row in everything if first[0] <= row[0] < last[0]]
    assert rows(load(spark, system, book=orders, start=str(first[0]), stop=str(last[0]))) == expected
    since, until = (
        datetime.fromtimestamp(row[1] // 10**6, UTC).replace(microsecond=row[1] % 10**6) for row in (first, last)
    )
    expected = [row for row in everything if first[1] <= row[1] < last[1]]
    assert rows(load(spark, system, book=orders, start=since.isoformat(), stop=until.isoformat())) == expected


def test_a_read_ends_where_it_was_planned(spark: SparkSession, system: Child, client: BlockingClient) -> None:
    """What is appended after the planning is not seen, even by a task that has not begun."""
    book = client.logbook("growing")
    book.append_many([b"%d" % number for number in range(50)])
    planned = load(spark, system, book="growing").rdd  # this plans, and runs nothing
    assert planned.getNumPartitions() == 1
    book.append_many([b"late"] * 50)
    assert planned.count() == 50
    assert load(spark, system, book="growing").count() == 100


def test_plain_timestamps_may_mean_something_else(spark: SparkSession, system: Child, orders: str) -> None:
    """A session may take them for such without a zone; those of records have one all the same."""
    expected = load(spark, system, book=orders).select("time").collect()
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert load(spark, system, book=orders).select("time").collect() == expected
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_flights_as_json_columns(spark: SparkSession, system: Child, client: BlockingClient) -> None:
    """The members of each record's JSON become columns, missing values nulls, as the table has them."""
    table = list(itertools.islice(flights(table_path()), 3000))
    book = client.logbook("flights")
    book.append_many([(msgspec.json.encode(flight), [f"carrier:{flight['carrier']}"]) for flight in table])
    frame = load(
        spark, system, "carrier string, flight bigint, dep_delay double, seqnum bigint", book="flights", json="true"
    )
    found = [(row.carrier, row.flight, row.dep_delay) for row in frame.orderBy("seqnum").collect()]
    assert found == [(flight["carrier"], flight["flight"], flight["dep_delay"]) for flight in table]
    assert any(delay is None for _, _, delay in found)


def test_json_that_does_not_fit(spark: SparkSession, system: Child, client: BlockingClient) -> None:
    """Without `_error` such a record ends the read and is named; with it, it is a row of nulls that says why."""
    book = client.logbook("mixed")
    good = [b'{"n": 1}', b'{\n "n": 2,\n "extra": [1]\n}', b"{}"]
    bad = [b"", b"[1]", b'{"n": "x"}', b'{"n": 3}{"n": 4}', b"\xff", b'{"n": 5']
    seqnums = book.append_many([*good, *bad, b'{"n": 6}'])
    kept = load(spark, system, "n int, _error string", book="mixed", json="true").collect()
    assert [row.n for row in kept] == [1, 2, None, *[None] * len(bad), 6]
    assert [row._error is None for row in kept] == [True] * 3 + [False] * len(bad) + [True]
    with pytest.raises(Exception, match=rf"record {seqnums[3]} of book 'mixed' does not fit"):
        load(spark, system, "n int", book="mixed", json="true").collect()


BAD_INPUT = [
    ({"book": "nowhere"}, None, r"there is no book 'nowhere': there are"),
    ({}, None, r"the option book is missing"),
    ({"book": "orders", "tags": "a"}, None, r"no option tags to read a LogBook: there are gateway, token, book, tag"),
    ({"book": "orders", "start": "9", "stop": "3"}, None, r"start is after stop"),
    ({"book": "orders", "partitions": "0"}, None, r"partitions must be a whole number, 1 to"),
    ({"book": "orders", "gateway": "http://127.0.0.1:1"}, None, r"nothing answers at http://127.0.0.1:1"),
    ({"book": "orders"}, "seqnum string", r"the column seqnum is of type bigint, not string"),
    ({"book": "orders"}, "carrier string", r"a LogBook has no column carrier: .*json=true"),
]


@pytest.mark.parametrize(("options", "schema", "message"), BAD_INPUT, ids=lambda value: str(value)[:40])
def test_bad_input_says_what_is_wrong(
    spark: SparkSession, system: Child, orders: str, options: dict[str, str], schema: str | None, message: str
) -> None:
    """The message names the option or the column, and what exists; `test_options` has the others."""
    with pytest.raises(Exception) as caught:
        load(spark, system, schema, **options).count()
    assert re.search(message, str(caught.value)), str(caught.value)


@pytest.mark.parametrize(("token", "message"), [("", "needs a token"), ("wrong", "does not take the token")])
def test_a_wrong_token_is_told_by_the_name_of_the_option(tmp_path: Path, token: str, message: str) -> None:
    """Not by that of a header, which nobody sets here."""
    config = DevConfig(data=tmp_path / "data", functions=tmp_path, port=0, token="s" * 20, reload=False)
    with Child(config).start() as child:
        gateway = Gateway(child.url, token)
        with pytest.raises(Unauthorized, match=f"{message}.*: pass it in the option 'token'"):
            gateway.some_books("", 1)
        gateway.close()
