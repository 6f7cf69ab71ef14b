"""Queues as Spark sees them: the ages and rates that follow from a queue's records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from boki.client import BlockingClient
from boki.launch.child import Child
from boki.libs.bokiqueue.records import GIVE_BACK, Act, Credit, Grant, Push, Settle, Take, encode, stream_tag
from boki.spark.analytics import _fold, queue_ages, queue_events, queue_rates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture
def far_east(spark: SparkSession) -> Iterator[None]:
    """A session whose time of day is hours off from UTC, and from this machine's."""
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    yield
    spark.conf.unset("spark.sql.session.timeZone")


def test_times_are_no_time_of_day() -> None:
    """What is folded has the log's times in UTC, and says so: else Spark takes them for those of its time zone."""
    columns = {
        "shard": [0],
        "seqnum": [7],
        "time_us": [1_700_000_000_000_000],
        "data": [encode(Push(0, b"\x00", [b"a"]))],
    }
    (moment,) = _fold(pd.DataFrame(columns))["time"]
    assert moment == pd.Timestamp("2023-11-14T22:13:20", tz="UTC")


def test_what_standing_takes_are_given_is_delivered() -> None:
    """By whatever record: a push, an act that takes itself, and one that gives a message back."""
    act = {"shard": 0, "taker": b"me"}
    history: list[Push | Act] = [
        Push(0, b"\0", [b"a"]),
        Grant(**act, number=1, takes=[Take("", 1, 9_000_000)], credits=[Credit("", 9_000_000, 2)]),
        Push(0, b"\0", [b"b"]),
        Act(**act, number=2, settles=[Settle("", GIVE_BACK, [(0, 2_000)])]),
    ]
    columns: dict[str, list[Any]] = {"shard": [0] * 4, "seqnum": [1_000, 2_000, 3_000, 4_000]}
    columns["time_us"] = [1_000_000, 3_000_000, 4_000_000, 9_000_000]
    columns["data"] = [encode(record) for record in history]
    found = _fold(pd.DataFrame(columns))
    deliveries = found[found["kind"] == "delivery"]
    assert list(deliveries["age_s"]) == [2.0, 0.0, 8.0]
    assert list(deliveries["messages"]) == [1, 1, 1]
    assert list(deliveries["consumers"]) == ["", "", ""]


@pytest.mark.whole
@pytest.mark.usefixtures("far_east")
def test_ages_and_rates_are_those_of_the_records(spark: SparkSession, system: Child, client: BlockingClient) -> None:
    """Each delivery is as old as the log's time between its push and its take; what is not taken has no age. Queues of
    several books are folded each by itself. All that in a session that has another time of day.
    """
    book = client.logbook("mail")
    tag = stream_tag("letters", 0)
    records: list[Push | Act] = [
        Push(0, b"\0", [b"a", b"b", b"c"]),
        Act(0, b"me", 1, takes=[Take("", 2, 1_000_000)]),
        Push(0, b"\0", [b"d"]),
        Act(0, b"me", 2, takes=[Take("", 1, 1_000_000), Take("unknown", 1)]),
    ]
    for record in records:
        book.append(encode(record), [tag])
    book.append(b"something else", ["!q:other:0"])
    client.logbook("mail.too").append(encode(Push(0, b"\0", [b"e"])), [tag])  # a queue of the same name elsewhere
    push, first, _, second = (record.time for record in book.read(tag).records)
    frame = spark.read.format("logbook").options(gateway=system.url, book="mail*").load()
    events = queue_events(frame, "letters").cache()
    deliveries = events.where("kind = 'delivery'").selectExpr("age_s", "unix_micros(time) as time_us").collect()
    assert sorted(row.time_us for row in deliveries) == [first, first, second]
    ages = sorted(row.age_s for row in deliveries)
    expected = sorted([(first - push) / 1e6] * 2 + [(second - push) / 1e6])
    assert ages == pytest.approx(expected)
    (row,) = queue_ages(events).collect()
    assert (row.consumers, row.deliveries, row.max_s) == ("", 3, pytest.approx(expected[-1]))
    rates = queue_rates(events, "1 day").collect()
    assert (sum(row.pushed for row in rates), sum(row.delivered for row in rates)) == (5, 3)
