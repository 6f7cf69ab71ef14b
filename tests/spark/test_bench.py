"""The benchmark's own check: a record that is missing, twice or another is an error of its row."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import boki.spark
from boki.bench.spark import _Bench
from boki.bench.spark import spark as measure
from boki.bench.system import Options
from boki.launch.child import Child

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")


def test_the_benchmark_sees_what_is_missing_or_twice(spark: SparkSession, tmp_path: Path) -> None:
    """Also if the number is right; and in several batches together what is in none alone."""
    bench = _Bench(spark, Options(), "http://127.0.0.1:1", "", tmp_path)

    def wrong(*batches: str) -> int:
        frames = [spark.range(100).selectExpr(f"inline(array({batch}))") for batch in batches]
        return bench._wrong([bench._tally(frame) for frame in frames], 100)

    row = "named_struct('data', cast(lpad(cast(id as string), 100, '.') as binary))"
    other = row.replace("id as string", "if(id = 7, 8, id) as string")
    nothing = f"if(id = 7, null, {row})"
    assert wrong(row) == 0
    assert wrong(f"if(id < 50, {row}, null)", f"if(id < 50, null, {row})") == 0
    assert wrong(nothing) == 1
    assert wrong(other) == 1
    assert wrong(f"{row}, {row}") == 100
    assert wrong() == 100


@pytest.mark.whole
def test_spark_is_measured_in_every_mode(
    spark: SparkSession, system: Child, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row each for the sink, the batch and the streaming read, and the latency; every record came, once."""
    monkeypatch.setattr(boki.spark, "session", lambda *_, **__: spark)
    monkeypatch.setattr(spark, "stop", lambda: None)
    options = Options(url=system.url, rounds=1, duration_s=0.2, record_count=20_000, scratch=tmp_path)
    rows = list(measure(options, lambda _: None))
    assert [row.details["mode"] for row in rows] == ["sink", "batch-read", "stream-read", "latency"]
    assert all(row.details["records"] == 20_000 and row.ops_per_s for row in rows[:3])
    assert [row.errors for row in rows] == [0, 0, 0, 0]
