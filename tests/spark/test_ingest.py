"""The pipeline from end to end: functions, the log, Parquet, the delay table; killed on the way, equal to pandas."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd
import pytest
from typer.testing import CliRunner

import boki.demo.flights
from boki.cli.app import app
from boki.client import BlockingClient
from boki.config.loading import DevConfig
from boki.errors import BokiError, ConfigError, Unavailable
from boki.launch.child import Child
from boki.spark import local_session
from boki.spark.analytics import mean_delays
from boki.spark.files import HadoopFiles, LocalFiles
from boki.spark.ingest import DATE, claimed, run
from boki.spark.lag import lags
from boki.spark.pipeline import Pipeline, load_pipeline
from boki.spark.progress import DONE_TAG, Done, Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from boki.spark.files import Files

pytestmark = pytest.mark.xdist_group("spark")

FUNCTIONS = Path(__file__).parents[2] / "functions"
FLIGHTS = 4000
COLUMNS = ["carrier", "hour", "dep_delay", "arr_delay", "flight"]
PIPELINE = """
name = "flights"
book = "flights"
schema = "carrier string, hour int, dep_delay double, arr_delay double, flight int"
output = "lake"
max_records_per_batch = 1500
trigger_s = 0.1
"""
MORTAL = """
import os, signal, sys
from boki.cli import main
from boki.spark.files import LocalFiles

place = sys.argv.pop(1)
move = LocalFiles.move

def mortal(self, source, target):
    done = move(self, source, target)
    if target.endswith(place):
        os.kill(os.getpid(), signal.SIGKILL)
    return done

LocalFiles.move = mortal
main()
"""
"""`boki`, but killed after it has moved a folder to that place."""


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


def ingest(file: Path, url: str, dies: str) -> tuple[int, list[int], str]:
    """`boki ingest run --once` in a process of its own, which dies there.

    How it ended, the batches that it told of, and what stood on its console.
    """
    command = [sys.executable, "-c", MORTAL, dies, "ingest", "run", str(file), "--json", "--once", "--url", url]
    command += ["--master", "local[1]"]
    batches: list[int] = []
    light = os.environ | {"JAVA_TOOL_OPTIONS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"}
    console = file.with_suffix(".log")
    with (
        console.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=light) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            batches.append(json.loads(line)["batch"])
        code = process.wait(120)
    return code, batches, console.read_text()


@contextmanager
def dying_before(place: str) -> Iterator[None]:
    """Runs in this process come to an end where they would move a folder to that place: on the disk all is as if they
    had been killed, and Spark need not start again for it.
    """
    move = LocalFiles.move

    def mortal(self: LocalFiles, source: str, target: str) -> bool:
        if target.endswith(place):
            raise Unavailable(f"died before {place}", retryable=False)
        return move(self, source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFiles, "move", mortal)
        yield


def noted(client: BlockingClient, name: str = "flights") -> list[Done]:
    records = client.logbook(f"ingest:{name}").read(DONE_TAG + name).records
    return [msgspec.json.decode(record.data, type=Done) for record in records]


def check_flights(lake: Path, seqnums: int) -> pd.DataFrame:
    """The rows of the lake are the first ones of the source table, in every column, each once; the table."""
    rows = pd.read_parquet(lake / "records").sort_values("seqnum", ignore_index=True)
    source = pd.read_csv(boki.demo.flights.table_path()).head(seqnums)
    assert rows["seqnum"].is_unique
    pd.testing.assert_frame_equal(rows[COLUMNS], source[COLUMNS], check_dtype=False, rtol=0)
    assert set(rows["book"]) == {"flights"}
    assert set(rows["date"].astype(str)) == set(rows["time"].dt.strftime("%Y-%m-%d"))
    assert rows["tags"].map(lambda tags: tags[0]).tolist() == [f"carrier:{carrier}" for carrier in source["carrier"]]
    return source


def test_flights_from_functions_to_the_delay_table_killed_twice(
    spark: SparkSession, flights: BlockingClient, tmp_path: Path
) -> None:
    """It ends with a batch that is written and not in its place, and then its process is killed, claim and all, with
    one that is there and not noted, its dead letters still inside: readers see whole batches in between, and in the end
    every flight once, in every column; what does not parse is a dead letter with its place, data and reason; the
    progress book and the lag agree; the mean delays per carrier and hour are those of pandas on the source table.
    """
    bad = flights.logbook("flights").append_many([b"no JSON", b'{"hour": "noon"}', b""])
    file, lake = tmp_path / "pipeline.toml", tmp_path / "lake"
    file.write_text(PIPELINE)
    pipeline = load_pipeline(file, {"gateway": flights.url})
    (lag,) = lags(pipeline)
    assert (lag.records, lag.behind) == (0, FLIGHTS + 3)
    assert lag.behind_s > 0

    with dying_before("records/batch=000000000"), pytest.raises(Unavailable, match="died before records/batch=0"):
        once(spark, pipeline)
    assert not list((lake / "records").glob("batch=*")), "nobody sees what is being written"
    assert list((lake / "_writing").rglob("*.parquet")), "killed in the midst of its work"
    assert noted(flights) == []

    code, told, console = ingest(file, flights.url, "records/batch=000000002")
    assert (code, told) == (-signal.SIGKILL, [0, 1]), console
    check_flights(lake, FLIGHTS)
    assert not (lake / "dead").exists()
    assert [done.batch.number for done in noted(flights)] == [0, 1], "killed before the note"
    assert lags(pipeline)[0].behind == FLIGHTS + 3 - 3000

    assert len(once(spark, pipeline)) == 1
    source = check_flights(lake, FLIGHTS)
    dead = pd.read_parquet(lake / "dead").sort_values("seqnum")
    assert dead["seqnum"].tolist() == bad
    assert [bytes(data) for data in dead["data"]] == [b"no JSON", b'{"hour": "noon"}', b""]
    assert set(dead["book"]) == {"flights"}
    assert all(word in reason for word, reason in zip(("object", "hour", "object"), dead["error"], strict=True))
    assert [done.batch.number for done in noted(flights)] == [0, 1, 2]
    (lag,) = lags(pipeline)
    assert (lag.records, lag.dead, lag.behind, lag.behind_s) == (FLIGHTS + 3, 3, 0, 0.0)
    assert sum(done.records for done in noted(flights)) == FLIGHTS + 3
    assert LocalFiles().names(str(lake / "_writing")) == []

    table = mean_delays(spark.read.parquet(str(lake / "records"))).toPandas()
    wanted = source.groupby(["carrier", "hour"]).agg(
        flights=("flight", "size"), mean_dep_delay_min=("dep_delay", "mean"), mean_arr_delay_min=("arr_delay", "mean")
    )
    found = table.set_index(["carrier", "hour"])
    found.index = found.index.set_levels(found.index.levels[1].astype("int64"), level=1)
    pd.testing.assert_frame_equal(found, wanted, check_dtype=False, rtol=1e-12)


# Runs in the session of the tests


class Running:
    """A pipeline that runs in another thread, until it is stopped."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark = spark
        self.pipeline = pipeline
        self.told = threading.Semaphore(0)
        self.error: BokiError | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with claimed(self.pipeline) as door:
                run(lambda: self._spark, self.pipeline, door, once=False, report=self._report)
        except BokiError as error:
            self.error = error

    def _report(self, _count: int, _progress: Progress) -> None:
        self.told.release()

    def stop(self) -> None:
        for query in self._spark.streams.active:
            if query.name == self.pipeline.name:
                query.stop()
        self._thread.join(60)


def once(spark: SparkSession, pipeline: Pipeline) -> list[int]:
    """A run that ends when everything is in; the records of each batch."""
    counts: list[int] = []
    with claimed(pipeline) as door:
        run(lambda: spark, pipeline, door, once=True, report=lambda count, _: counts.append(count))
    return counts


@pytest.mark.whole
def test_one_run_at_a_time_and_one_checkpoint(
    spark: SparkSession, client: BlockingClient, system: Child, tmp_path: Path
) -> None:
    """A second run is told who is at work, and the first continues as if nothing had been; the next one continues from
    there. Without its checkpoint, with another one, or with another input a lake is not gone on with, and is as before.
    """
    pipeline = Pipeline(
        name="one", book="one-*", schema="n int", output=str(tmp_path / "lake"), gateway=system.url, trigger_s=0
    )
    book = client.logbook("one-a")
    book.append_many([b'{"n": 1}'] * 5)
    running = Running(spark, pipeline)
    try:
        assert running.told.acquire(timeout=120), running.error
        with pytest.raises(Unavailable, match=rf"'one' is being run by process {os.getpid()} on"):
            once(spark, pipeline)
        client.logbook("one-b").append_many([b'{"n": 2}'] * 7)
        assert running.told.acquire(timeout=120), running.error
    finally:
        running.stop()
    assert running.error is None
    book.append_many([b'{"n": 3}'] * 2)
    assert once(spark, pipeline) == [2]
    assert once(spark, pipeline) == []
    table = pd.read_parquet(tmp_path / "lake" / "records")
    assert sorted(table["n"]) == [1] * 5 + [2] * 7 + [3] * 2
    assert [(lag.book, lag.records, lag.behind) for lag in lags(pipeline)] == [("one-a", 7, 0), ("one-b", 7, 0)]

    book.append(b'{"n": 4}')
    checkpoint, aside = tmp_path / "lake" / "_checkpoint", tmp_path / "aside"
    checkpoint.rename(aside)
    with pytest.raises(ConfigError, match=r"batches up to 2, and their checkpoint, .* is gone"):
        once(spark, pipeline)
    assert not checkpoint.exists()
    aside.rename(checkpoint)
    for changed, message in (
        ({"book": "one-a,one-b,two"}, "was begun with pipeline = 'one', book = 'one-[*]'"),
        ({"schema": "n string, m int"}, "schema: .* n is string now, and was int. Put these columns back"),
        ({"progress": "ingest:elsewhere"}, "not of this progress book: book 'ingest:elsewhere' at .* does not"),
    ):
        with pytest.raises(ConfigError, match=message):
            once(spark, Pipeline(**{name: getattr(pipeline, name) for name in pipeline.__struct_fields__} | changed))
    assert len(pd.read_parquet(tmp_path / "lake" / "records")) == 14
    assert once(spark, pipeline) == [1]


def test_rows_of_every_kind(spark: SparkSession, client: BlockingClient, system: Child, tmp_path: Path) -> None:
    """Nulls and members that are missing are null, others are left out, what is of another type is a dead letter; a
    pipeline over a prefix takes books that come later; all bad or all good batches are batches. A book for which there
    can be no folder stops nothing: its records are dead letters.
    """
    schema = "n int, x double, who string, at struct<a:int,b:array<string>>, `at.a` int"
    pipeline = Pipeline(name="kinds", book="kind-*", schema=schema, output=str(tmp_path / "lake"), gateway=system.url)
    good: dict[bytes, Any] = {
        b'{"n": 1, "x": 2, "who": "Ada", "more": [1, {"y": 2}]}': (1, 2.0, "Ada"),
        b'{"n": null, "who": null}': (None, None, None),
        b" ": None,
        b'{"at": {"a": 1, "b": ["x", null]}, "who": "\\u00e9\\n", "at.a": 7}': (None, None, "é\n"),
        b"{}": (None, None, None),
    }
    bad = [b" ", b'{"n": "1"}', b'{"n": 1.5}', b'{"n": 3000000000}', b"null", b'{"who": "\xff"}', b'{"n": 1} {}', b"{"]
    fits = [data for data, row in good.items() if row is not None]
    client.logbook("kind-a").append_many(bad)
    assert once(spark, pipeline) == [len(bad)]
    client.logbook("kind-b").append_many(fits)
    long = "kind-c" + ":" * 100
    client.logbook(long).append_many(fits[:2])
    assert once(spark, pipeline) == [len(fits) + 2]
    dead = pd.read_parquet(tmp_path / "lake" / "dead").sort_values("seqnum")
    homeless = dead[dead["book"] == long]
    assert [bytes(data) for data in homeless["data"]] == fits[:2]
    assert homeless["error"].str.startswith("the book's name is too long").all()
    dead = dead[dead["book"] != long]
    assert [bytes(data) for data in dead["data"]] == bad
    assert set(dead["book"]) == {"kind-a"}
    assert dead["error"].str.len().min() > 5
    rows = spark.read.parquet(str(tmp_path / "lake" / "records")).orderBy("seqnum").collect()
    assert [(row.n, row.x, row.who) for row in rows] == [good[data] for data in fits]
    assert rows[2]["at"].asDict() == {"a": 1, "b": ["x", None]}
    assert rows[2]["at.a"] == 7, "a dot in a name is a dot"
    assert {row.book for row in rows} == {"kind-b"}
    found = {lag.book: (lag.records, lag.dead, lag.behind) for lag in lags(pipeline)}
    assert found == {"kind-a": (len(bad), len(bad), 0), "kind-b": (len(fits), 0, 0), long: (2, 2, 0)}


def test_a_batch_of_which_rows_are_missing_is_not_placed(
    spark: SparkSession,
    client: BlockingClient,
    system: Child,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Executors of other machines have written them to disks of their own; the run says what to do, and can
    continue.
    """
    client.logbook("spread").append_many([b'{"n": 1}', b'{"n": 2}', b"dead"])
    pipeline = Pipeline(name="spread", book="spread", schema="n int", output=str(tmp_path / "lake"), gateway=system.url)
    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "rows", lambda self, folder: 1)
        with pytest.raises(Unavailable, match=r"of 2 rows that Spark has written to .*, 1 are on this machine"):
            once(spark, pipeline)
    assert LocalFiles().names(str(tmp_path / "lake" / "records")) == []
    assert once(spark, pipeline) == [3]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("n integre", "schema: that of pipeline 'p' cannot be read"),
        ("n int, Time string", "schema: it names time, which the pipeline writes itself"),
        ("n map<string,int>", "column n cannot be of type map<string,int>"),
        ("n int, s struct<l:array<struct<a:int,A:int>>>", r"the column s\.l\[\] has members a and A, and tables"),
        ("n struct<>", "column n is a struct of nothing"),
    ],
)
def test_a_schema_that_cannot_be(spark: SparkSession, system: Child, tmp_path: Path, schema: str, message: str) -> None:
    """It is refused before anything is written."""
    pipeline = Pipeline(name="p", book="any-*", schema=schema, output=str(tmp_path / "lake"), gateway=system.url)
    with pytest.raises(ValueError, match=message):
        once(spark, pipeline)
    assert not (tmp_path / "lake").exists()


def test_the_date_is_that_of_utc(spark: SparkSession) -> None:
    """Whatever the time zone of the session is, so that a batch that comes again has the same folders."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Kiritimati")
    try:
        moments = spark.sql("select timestamp_micros(m) as time from values (0L), (1700000000000000L) as t(m)")
        dates = [str(row[0]) for row in moments.selectExpr(DATE).collect()]
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert dates == ["1970-01-01", "2023-11-14"]


@pytest.mark.parametrize("kind", ["local", "hadoop"])
def test_files_of_both_kinds(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Folders move at once, to places that are free, and never into what exists."""
    root = f"file://{tmp_path}"
    files: Files = LocalFiles() if kind == "local" else HadoopFiles(spark, root)
    assert files.names(f"{root}/a") == []
    assert files.read(f"{root}/a/b/c.txt") is None
    files.remove(f"{root}/a")
    files.write(f"{root}/a/b/c.txt", b"one\x00\xff")
    assert files.read(f"{root}/a/b/c.txt") == b"one\x00\xff"
    for path in ("a/b/c.txt", "a", "a/gone"):
        files.keep(f"{root}/{path}")
    assert files.move(f"{root}/a/b", f"{root}/x/y/z")
    assert (tmp_path / "x" / "y" / "z" / "c.txt").read_bytes() == b"one\x00\xff"
    files.write(f"{root}/a/b/d.txt", b"two")
    assert not files.move(f"{root}/a/b", f"{root}/x/y/z"), "it is taken"
    assert [name for name in files.names(f"{root}/x/y/z") if name[0] != "."] == ["c.txt"]
    assert files.read(f"{root}/a/b/d.txt") == b"two", "it is where it was"
    with pytest.raises(FileNotFoundError):
        files.move(f"{root}/a/gone", f"{root}/x/free")
    files.remove(f"{root}/a")
    assert files.names(root) == ["x"]


def test_nothing_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no gateway, both commands say so before Spark is started."""
    monkeypatch.setattr(local_session, "session", None)
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE)
    for words in (["run", str(file), "--once"], ["run", str(file)], ["status", str(file)]):
        done = CliRunner().invoke(app, ["ingest", *words, "--url", "http://127.0.0.1:1"])
        assert (done.exit_code, "nothing answers at http://127.0.0.1:1" in done.output) == (1, True), done.output


def test_status_shows_the_backlog(client: BlockingClient, system: Child, tmp_path: Path) -> None:
    """`boki ingest status` counts what exists, book by book, for people and for programs."""
    for name, count in (("backlog-a", 3), ("backlog-b", 1200)):
        client.logbook(name).append_many([b"{}"] * count)
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.replace('book = "flights"', 'book = "backlog-*"'))
    words = ["ingest", "status", str(file), "--url", system.url]
    lines = CliRunner().invoke(app, words).stdout.splitlines()
    assert lines[0].split("\t") == ["book", "written", "dead letters", "behind", "behind s"]
    assert [line.split("\t")[:4] for line in lines[1:]] == [
        ["backlog-a", "0", "0", "3"],
        ["backlog-b", "0", "0", "1,200"],
    ]
    found = [json.loads(line) for line in CliRunner().invoke(app, [*words, "--json"]).stdout.splitlines()]
    assert [(lag["book"], lag["behind"]) for lag in found] == [("backlog-a", 3), ("backlog-b", 1200)]
