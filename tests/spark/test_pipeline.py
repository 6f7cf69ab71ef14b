"""What a pipeline's file may say: each mistake is named by its key, with what may stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from boki.errors import ConfigError
from boki.spark.pipeline import Pipeline, load_pipeline

PIPELINE = """
name = "flights"
book = "flights"
schema = "carrier string, hour int"
output = "lake"
"""
KEYS = ", ".join(Pipeline.__struct_fields__)


def load(tmp_path: Path, text: str, **overrides: str) -> Pipeline:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    return load_pipeline(file, overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing required field `name`"),
        ("name = 'a'", "missing required field `book`"),
        (PIPELINE + "sink = 'x'", "unknown field `sink`"),
        (PIPELINE + "max_records_per_batch = '5'", "Expected `int`, got `str` - at `$.max_records_per_batch`"),
        (PIPELINE + "max_records_per_batch = 0", "max_records_per_batch: must be at least 1"),
        (PIPELINE + "trigger_s = -1", "trigger_s: must be 0 to 86,400 seconds"),
        (PIPELINE + "trigger_s = nan", "trigger_s: must be 0 to 86,400 seconds"),
        (PIPELINE + "on_trimmed = 'ignore'", "on_trimmed: onTrimmed must be fail or skip, not 'ignore'"),
        (PIPELINE + "start = 'yesterday'", "start: start must be a seqnum in digits or a time"),
        (PIPELINE + 'tag = "a\\u0001"', "tag: a tag must not hold control characters"),
        (PIPELINE + "gateway = 'nowhere'", "gateway: "),
        (PIPELINE + "progress = 'notes'", "progress: must begin with 'ingest:'"),
        (PIPELINE + "progress = 'ingest:a/b'", "progress: book must be 1 to 128 characters"),
        (PIPELINE.replace('"flights"\nbook', '"a/b"\nbook'), "name: a name must be 1 to 128 characters"),
        (PIPELINE.replace('"flights"\nbook', f'"{"n" * 125}"\nbook'), "name: book must be 1 to 128 characters"),
        (PIPELINE.replace('"flights"\nschema', '"a/b"\nschema'), "book: book must be 1 to 128 characters"),
        (PIPELINE.replace('"flights"\nschema', '"a*b"\nschema'), "book: a * stands behind a single prefix"),
        (PIPELINE.replace('"lake"', '""'), "output: must not be empty"),
        (PIPELINE.replace('"carrier string, hour int"', '" "'), "schema: must not be empty"),
        (PIPELINE.replace('"flights"\nschema', '"ingest:*"\nschema'), "name: 'ingest:flights' is also among the input"),
        (
            PIPELINE.replace('"flights"\nschema', '"a,ingest:x"\nschema') + "progress = 'ingest:x'",
            "progress: 'ingest:x' is also among the input",
        ),
    ],
)
def test_a_bad_pipeline_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """The message names the file, the key and what may stand there, and the keys that there are."""
    with pytest.raises(ConfigError, match=re.escape(message)) as told:
        load(tmp_path, text)
    assert told.value.message.startswith(str(tmp_path / "pipeline.toml"))
    assert told.value.message.endswith(f"The keys are {KEYS}")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """What is no TOML, no text, or not there, is told as that."""
    with pytest.raises(ConfigError, match=r"is not TOML: .*max_records_per_batch|is not TOML: Cannot overwrite"):
        load(tmp_path, "max_records_per_batch = 1\nmax_records_per_batch = 5")
    with pytest.raises(ConfigError, match=r"is not TOML: .*digits"):
        load(tmp_path, "max_records_per_batch = " + "9" * 5000)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is not TOML"):
        load_pipeline(tmp_path / "binary.toml", {})
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_pipeline(tmp_path / "missing.toml", {})
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load_pipeline(tmp_path, {})


def test_paths_and_overrides(tmp_path: Path) -> None:
    """A path is relative to the file, unless it is a URL; what the command line says wins, if it says anything."""
    found = load(tmp_path, PIPELINE, gateway="http://elsewhere:1", token="")
    assert (found.output, found.gateway, found.token) == (str(tmp_path / "lake"), "http://elsewhere:1", "")
    for url in ("hdfs://host/lake", "file:/lake", "s3a://bucket/lake"):
        assert load(tmp_path, PIPELINE.replace("lake", url)).output == url


def test_every_book_but_its_own(tmp_path: Path) -> None:
    """A pipeline over all books is one: the progress books of pipelines are not among its input."""
    found = load(tmp_path, PIPELINE.replace('"flights"\nschema', '"*"\nschema'))
    assert found.progress_book == "ingest:flights"


def test_columns_that_the_pipeline_writes(tmp_path: Path) -> None:
    """A member of the JSON cannot be called as one of its own columns, in whatever case: Spark makes no difference."""
    found = load(tmp_path, PIPELINE)
    assert found.columns(["carrier", "hour"]) == ["carrier", "hour"]
    with pytest.raises(ConfigError, match="schema: it names book, time, which the pipeline writes itself"):
        found.columns(["carrier", "Time", "BOOK"])
    with pytest.raises(ConfigError, match="schema: it names X and x, and tables make no difference between capitals"):
        found.columns(["X", "carrier", "x"])
