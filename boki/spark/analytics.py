"""Questions that come with it: what the flights and the queues of a system say, asked by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame


def mean_delays(flights: DataFrame) -> DataFrame:
    """Per carrier and hour of the scheduled departure: how many flights, and the mean delays in minutes.

    `flights` needs the columns carrier, hour, dep_delay and arr_delay. Flights without a delay count for no mean.
    """
    from pyspark.sql import functions as f

    return (
        flights.groupBy("carrier", "hour")
        .agg(
            f.count("*").alias("flights"),
            f.avg("dep_delay").alias("mean_dep_delay_min"),
            f.avg("arr_delay").alias("mean_arr_delay_min"),
        )
        .orderBy("carrier", "hour")
    )


QUEUE_EVENTS = "shard int, kind string, consumers string, time timestamp, messages bigint, age_s double"
"""What `queue_events` gives: of a push how many messages, of a delivery one message and how old it was."""


def queue_events(records: DataFrame, queue: str) -> DataFrame:
    """What happened in a queue, from the records of its LogBook: pushes, and deliveries with the message's age.

    Each shard's records are folded as the queue itself does it, those of each book by themselves. Ages are right from
    where its records begin: a queue trims what all groups have passed, unless its settings retain it.
    """
    from pyspark.sql import functions as f

    prefix = f"!q:{queue}:"
    tag = f.try_element_at(f.filter("tags", lambda tag: tag.startswith(prefix)), f.lit(1))
    streams = records.where(tag.isNotNull()).select(
        "book",
        f.substring_index(tag, ":", -1).cast("int").alias("shard"),
        "seqnum",
        f.unix_micros("time").alias("time_us"),
        "data",
    )
    return streams.groupBy("book", "shard").applyInPandas(_fold, QUEUE_EVENTS)


def _fold(rows: pd.DataFrame) -> pd.DataFrame:
    """The events of one shard. Runs on an executor."""
    import pandas as pd

    from boki import Record
    from boki.libs.bokiqueue.records import Act, Push, sound
    from boki.libs.bokiqueue.state import ShardState

    rows = rows.sort_values("seqnum")
    shard = int(rows["shard"].iloc[0])
    state = ShardState(shard)
    events: list[tuple[str, str, int, int, float | None]] = []
    for seqnum, time_us, data in zip(rows["seqnum"], rows["time_us"], rows["data"], strict=True):
        record = sound(Record(int(seqnum), (), bytes(data), None, int(time_us)))
        if record is None or record.shard != shard:
            continue  # not a record of this shard, whoever appended it
        given = state.apply(int(seqnum), int(time_us), record)
        if isinstance(record, Push):
            events.append(("push", "", time_us, len(record.bodies), None))
        handed = [(one.group, one.deliveries) for one in state.handed]  # any record may have standing takes served
        if isinstance(record, Act) and given is not None:
            handed += [(take.group, some or []) for take, some in zip(record.takes, given.takes, strict=True)]
        for group, deliveries in handed:
            for delivery in deliveries:
                events.append(("delivery", group, time_us, 1, (time_us - delivery.spot.time_us) / 1e6))
    found = pd.DataFrame(events, columns=["kind", "consumers", "time_us", "messages", "age_s"])
    found["time"] = pd.to_datetime(found.pop("time_us"), unit="us", utc=True)  # else it is of the session's time zone
    found["shard"] = shard
    return found[["shard", "kind", "consumers", "time", "messages", "age_s"]]


def queue_ages(events: DataFrame) -> DataFrame:
    """Of each consumer group ("": the only one): deliveries, and how long messages had waited, in seconds."""
    from pyspark.sql import functions as f

    return (
        events.where("kind = 'delivery'")
        .groupBy("consumers")
        .agg(
            f.count("*").alias("deliveries"),
            f.percentile("age_s", 0.5).alias("p50_s"),
            f.percentile("age_s", 0.99).alias("p99_s"),
            f.max("age_s").alias("max_s"),
        )
        .orderBy("consumers")
    )


def queue_rates(events: DataFrame, every: str = "1 minute") -> DataFrame:
    """Messages pushed and delivered in each window of that length in which anything happened."""
    from pyspark.sql import functions as f

    window = f.window("time", every).alias("window")
    counted = events.groupBy(window).agg(
        f.sum(f.when(f.col("kind") == "push", f.col("messages")).otherwise(0)).alias("pushed"),
        f.sum(f.when(f.col("kind") == "delivery", f.col("messages")).otherwise(0)).alias("delivered"),
    )
    return counted.select(f.col("window.start").alias("start"), "pushed", "delivered").orderBy("start")
