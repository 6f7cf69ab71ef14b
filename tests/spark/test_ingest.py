"""The pipeline from end to end: functions, the log, Parquet, the delay table; killed on the way, equal to pandas."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pytest

import boki.demo.flights
from boki.child import Child
from boki.client import BlockingClient
from boki.config import DevConfig
from boki.errors import ConfigError
from boki.spark.analytics import mean_delays
from boki.spark.ingest import lags
from boki.spark.pipeline import load_pipeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

FUNCTIONS = Path(__file__).parents[2] / "functions"
FLIGHTS = 4000
PIPELINE = """
name = "flights"
book = "flights"
schema = "carrier string, hour int, dep_delay double, arr_delay double, flight int"
output = "lake"
max_records_per_batch = 1500
"""


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BlockingClient]:
    """A system whose functions have recorded the first flights of the table."""
    folder = tmp_path_factory.mktemp("flights")
    config = DevConfig(data=folder / "data", functions=FUNCTIONS, port=0, reload=False)
    with Child(config) as child, BlockingClient(child.start().url) as client:
        table = boki.demo.flights.flights(boki.demo.flights.table_path())
        for _ in range(FLIGHTS // 1000):
            client.invoke("record_flights", list(itertools.islice(table, 1000)))
        yield client


def ingest(file: Path, url: str, *, kill_after: int | None) -> list[int]:
    """`boki ingest run --once` in a process of its own, killed when so many batches are in; the batches it told of."""
    command = [sys.executable, "-m", "boki", "ingest", "run", str(file), "--once", "--json", "--url", url]
    command += ["--master", "local[1]"]
    batches: list[int] = []
    light = os.environ | {"JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"}
    console = file.with_suffix(".log")
    with (
        console.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=light) as run,
    ):
        assert run.stdout is not None
        for line in run.stdout:
            batches.append(json.loads(line)["batch"])
            if len(batches) == kill_after:
                run.kill()
                return batches
        assert run.wait(120) == 0, console.read_text()
    return batches


def test_flights_from_functions_to_the_delay_table_killed_twice(
    spark: SparkSession, flights: BlockingClient, tmp_path: Path
) -> None:
    """After two kills every flight is in the Parquet once, what does not parse is a dead letter, the progress book and
    the lag agree, and the mean delays per carrier and hour are those of pandas on the source table.
    """
    bad = flights.logbook("flights").append_many([b"no JSON", b'{"hour": "noon"}', b""])
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE)
    pipeline = load_pipeline(file, {"gateway": flights.url})
    assert [(lag.book, lag.records, lag.behind) for lag in lags(pipeline)] == [("flights", 0, FLIGHTS + 3)]
    killed = [ingest(file, flights.url, kill_after=1) for _ in range(2)]
    told = ingest(file, flights.url, kill_after=None)
    assert killed[0] == [0]
    assert killed[1][0] in {0, 1}, "what was killed is done again, if Spark had not noted it"
    assert told[-1] == FLIGHTS // 1500

    lake = pd.read_parquet(tmp_path / "lake" / "records")
    source = pd.read_csv(boki.demo.flights.table_path()).head(FLIGHTS)
    assert lake["seqnum"].is_unique
    rows = lake.sort_values("seqnum")
    assert rows["flight"].tolist() == source["flight"].tolist()
    assert set(lake["book"]) == {"flights"}
    assert lake["date"].nunique() >= 1
    assert lake.groupby("batch", observed=True).size().max() <= 1500
    dead = pd.read_parquet(tmp_path / "lake" / "dead")
    assert sorted(dead["seqnum"]) == bad
    assert dead["error"].notna().all()

    (lag,) = lags(pipeline)
    assert (lag.records, lag.dead, lag.behind, lag.behind_s) == (FLIGHTS + 3, 3, 0, 0.0)
    noted = flights.logbook("ingest:flights").read("pipeline:flights").records
    assert [record.json()["batch"] for record in noted] == list(range(told[-1] + 1))

    table = mean_delays(spark.read.parquet(str(tmp_path / "lake" / "records"))).toPandas()
    wanted = source.groupby(["carrier", "hour"]).agg(
        flights=("flight", "size"), mean_dep_delay_min=("dep_delay", "mean"), mean_arr_delay_min=("arr_delay", "mean")
    )
    found = table.set_index(["carrier", "hour"])
    found.index = found.index.set_levels(found.index.levels[1].astype("int64"), level=1)
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'a'", "Object missing required field"),
        (PIPELINE + "sink = 'x'", "unknown field `sink`.*The keys are name, book"),
        (PIPELINE.replace('"flights"\nschema', '"a/b"\nschema'), "book must be 1 to 128 characters"),
        (PIPELINE + "max_records_per_batch = 5", "is not TOML"),
        ("", "Object missing required field"),
    ],
)
def test_a_bad_pipeline_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file, the key and what may stand there."""
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_pipeline(file, {})
