"""Questions that come with it: what the flights and the queues of a system say, asked by Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
