"""One Spark session and one system for all tests of this folder: both take seconds to start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import boki.spark
from boki.client import BlockingClient
from boki.config.loading import DevConfig
from boki.launch.child import Child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIGHT = {
    "spark.driver.memory": "700m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.pollingDelay": "5ms",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A real session on two cores. Its warehouse is a temporary folder."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ["SPARK_LOCAL_DIRS"] = str(folder / "local")
    # tasks that are killed are started again: "local[2, 20]" allows four tries of each
    config = LIGHT | {"spark.sql.warehouse.dir": str(folder / "warehouse")}
    session = boki.spark.session("tests", master="local[2,4]", config=config)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A `boki dev` with two physical logs."""
    folder = tmp_path_factory.mktemp("boki")
    functions: Path = folder / "functions"
    functions.mkdir()
    config = DevConfig(data=folder / "data", functions=functions, port=0, logs=2, reload=False)
    with Child(config) as child:
        yield child.start()


@pytest.fixture
def client(system: Child) -> Iterator[BlockingClient]:
    """A client of it."""
    with BlockingClient(system.url) as found:
        yield found
