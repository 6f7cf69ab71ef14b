"""Real clusters on both sides: one of Boki under a running stream, and one of Spark with executors of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest
from typer.testing import CliRunner

from boki.cli.app import app
from boki.client import BlockingClient
from boki.config.up import UpConfig
from boki.launch.child import Child
from boki.log.ids import split_seqnum
from tests.spark.test_stream_source import LOG_COUNTS, Collected, everything, run, start

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BOOKS = [f"moving-{number}" for number in range(4)]


class Appender:
    """Appends to all books, one after the other, until it is ended; what it was told is what must be there."""

    def __init__(self, client: BlockingClient) -> None:
        self._client = client
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[tuple[int, bytes]] = []
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            for book in BOOKS:
                data = b"%d" % number
                seqnum = self._client.logbook(book).append(data, key=f"{book}:{number}")
                self.acknowledged.append((seqnum, data))
            number += 1

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


@pytest.mark.whole
@pytest.mark.xdist_group("spark")
def test_ten_reconfigurations_of_a_cluster_under_a_running_stream(spark: SparkSession, tmp_path: Path) -> None:
    """`boki reconfigure` ten times, to other numbers of logs, while records are appended and read: each once.

    A second stream has missed all of these terms, and goes through them in small steps.
    """
    (tmp_path / "functions").mkdir()
    one = dict.fromkeys(("engines", "storage", "sequencers", "controllers", "replicas", "write_quorum"), 1)
    config = UpConfig(data=tmp_path / "data", functions=tmp_path / "functions", port=0, logs=LOG_COUNTS[0], **one)
    running, resumed = Collected(), Collected()
    with Child(config).start() as child, BlockingClient(child.url) as client:
        for book in BOOKS:
            client.logbook(book).append(b"first")
        run(spark, child.url, tmp_path / "c2", resumed, book="moving-*", maxRecordsPerBatch="100")
        query = start(spark, child.url, tmp_path / "c1", running, now=False, book="moving-*")
        appender = Appender(client)
        try:
            for logs in LOG_COUNTS[1:]:
                words = ["reconfigure", "--logs", str(logs), "--wait", "--data", str(config.data)]
                done = CliRunner().invoke(app, words)
                assert done.exit_code == 0, done.output
                assert query.isActive, query.exception()
                client.logbook(BOOKS[0]).append(b"in this term")
        finally:
            appender.end()
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        expected = everything(client, *BOOKS)
        assert running.rows == expected
        run(spark, child.url, tmp_path / "c2", resumed, book="moving-*", maxRecordsPerBatch="100")
        assert resumed.rows == expected
        assert max(map(len, resumed.batches.values())) <= 100
    assert [row for row in expected if row[1].isdigit()] == sorted(appender.acknowledged)
    assert len({split_seqnum(seqnum)[0] for seqnum, _ in expected}) >= len(LOG_COUNTS)


JOB = """
import sys
import boki.spark

small = {"spark.driver.memory": "500m", "spark.executor.memory": "500m"}
quick = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
options = {"spark.driver.extraJavaOptions": quick, "spark.executor.extraJavaOptions": quick}
spark = boki.spark.session("job", master="local-cluster[2,1,1024]", config=small | options)
rows = spark.range(0, 2000, 1, 4).selectExpr("cast(id as string) as data")
rows.write.format("logbook").mode("append").options(gateway=sys.argv[1], book="from-executors").save()
read = spark.read.format("logbook").options(gateway=sys.argv[1], book="from-executors", partitions=4).load()
found = read.selectExpr("cast(data as string) as data").toArrow()
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print("found", sorted(map(int, found["data"].to_pylist())) == list(range(2000)), "executors", executors)
spark.stop()
"""


def test_spark_with_executors_of_its_own(system: Child, tmp_path: Path) -> None:
    """`local-cluster[2,1,1024]`: tasks in other processes than the driver's write and read, with nothing registered."""
    job = tmp_path / "job.py"
    job.write_text(JOB)
    home = tmp_path / "spark"  # executors leave their folders below SPARK_HOME
    home.mkdir()
    for part in ("bin", "jars"):
        (home / part).symlink_to(Path(pyspark.__file__).parent / part)
    environment = os.environ | {"SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": str(tmp_path / "local")}
    done = subprocess.run(
        [sys.executable, str(job), system.url],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout.split("\n")[0] == "found True executors 2", done.stderr[-3000:]
