"""The page about Spark is true: its snippets run, one after the other, in the session of the tests."""

from __future__ import annotations

import itertools
import re
import threading
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from boki.cli.app import app
from boki.launch.child import Child
from boki.spark import ingest_job
from boki.spark.pipeline import Pipeline, load_pipeline
from boki.spark.schemas import JSON_TYPES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")

PAGE = Path(__file__).parents[2] / "docs/spark.md"


def prose() -> str:
    """The page as one line, wherever its lines end."""
    return " ".join(PAGE.read_text().split())


def snippets(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_every_snippet_runs(spark: SparkSession, system: Child) -> None:
    """What a reader copies works; `boki.spark.session()` gives back the session that runs."""
    names: dict[str, object] = {}
    for snippet in snippets("python"):
        exec(snippet.replace("http://127.0.0.1:8080", system.url), names)
    assert names["spark"] is spark
    assert len(snippets("python")) == 4


def test_another_thread_writes_as_the_page_says(spark: SparkSession) -> None:
    """It does not find the format before, and after that it does: it is told by Boki that an option is none."""
    (remedy,) = re.findall(r"`(spark\._jvm\.[^`]*)`\. Reads", prose())
    rows, told = spark.sql("select 'a' as data"), list[str]()

    def write() -> None:
        for before in ("", remedy):
            exec(before, {"spark": spark})
            try:
                rows.write.format("logbook").mode("append").options(book="any", nonsense=1).save()
            except Exception as error:  # noqa: BLE001 - of whatever class Spark makes it
                told.append(str(error))

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert ["DATA_SOURCE_NOT_FOUND" in message for message in told] == [True, False]
    assert "nonsense" in told[1]


def test_the_types_of_members_are_listed() -> None:
    """All that a schema may name, and no more."""
    (listed,) = re.findall(r"Members are of the types (.*?), or arrays and structs", prose())
    assert set(re.findall(r"`(\w+)`", listed)) == JSON_TYPES


def test_the_pipeline_is_one(tmp_path: Path) -> None:
    """The example of a pipeline is complete, and the page names all other keys, and no more."""
    file = tmp_path / "pipeline.toml"
    file.write_text(snippets("toml")[0])
    assert load_pipeline(file, {}).progress_book == "ingest:flights"
    example = set(tomllib.loads(snippets("toml")[0]))
    (others,) = re.findall(r"Other keys: (.*?)\. ", prose())
    assert example | set(re.findall(r"`(\w+)`", others)) == set(Pipeline.__struct_fields__)


def test_the_commands_are_there() -> None:
    """Every line of a console that calls `boki` or a job of it names a command, and a file, that there is."""
    lines = [line for snippet in snippets("console") for line in snippet.splitlines()]
    commands = [line.split() for line in lines if line.startswith("boki ")]
    assert len(commands) >= 4
    for _, *words in commands:
        names = list(itertools.takewhile(lambda word: word.isalpha(), words))
        done = CliRunner().invoke(app, [*names, "--help"])
        assert done.exit_code == 0, names
        assert all(word in done.output for word in words if word.startswith("--"))
    assert any("boki.spark.ingest_job" in line for line in lines)
    with pytest.raises(SystemExit, match=r"usage: spark-submit ingest_job.py PIPELINE.toml \[--once\]"):
        ingest_job.main(["--once"])
    with pytest.raises(SystemExit, match=r"error: .*missing.toml cannot be read"):
        ingest_job.main(["missing.toml", "--once"])
