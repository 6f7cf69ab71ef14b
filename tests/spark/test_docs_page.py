"""The page about Spark is true: its snippets run, one after the other, in the session of the tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from boki.child import Child
from boki.spark.pipeline import load_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

PAGE = Path(__file__).parents[2] / "docs/spark.md"


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_every_snippet_runs(spark: SparkSession, system: Child) -> None:
    """What a reader copies works; `boki.spark.session()` gives back the session that runs."""
    names: dict[str, object] = {}
    for snippet in snippets("python"):
        exec(snippet.replace("http://127.0.0.1:8080", system.url), names)
    assert names["spark"] is spark
    assert len(snippets("python")) == 4


def test_the_pipeline_is_one(tmp_path: Path) -> None:
    """The example of a pipeline is complete."""
    file = tmp_path / "pipeline.toml"
    file.write_text(snippets("toml")[0])
    assert load_pipeline(file, {}).progress_book == "ingest:flights"
