"""Every benchmark runs, on a small scale, and prints rows that programs can read. No figure is asserted."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from boki.bench import queue_peers, store
from boki.bench.rows import Row
from boki.bench.runs import BENCHMARKS
from boki.bench.system import Options
from boki.cli.app import app
from boki.cli.bench import NAMES
from boki.host.file_systems import file_system_of

FIELDS = {"bench", "inflight", "size_bytes", "replicas", "durability", "ops_per_s", "p50_ms", "p99_ms", "errors"}
FLOWS = [("queue", 64), ("queue", 64), ("queue", 16), ("queue-offered", 64)]
MEMORY = {"bytes_per_record", "worker_bytes_per_object"}
TWO_OBJECTS = [("store-two-objects", callers) for callers in (1, 64, 256)]
STORE_ROWS = [
    *[(f"store-increment{how}", callers) for callers in (1, 64) for how in ("", "-http")],
    *[("store-read", 1), ("store-read-only", 1)],
    *TWO_OBJECTS,
    *[("store-conflicts", 16), ("store-open", 1), ("store-fork", 1)],
    *[("store-retwis", 64), ("store-memory", 1)],
]
EMPTY: dict[str, Any] = {
    "size_bytes": 0,
    "replicas": 1,
    "durability": "fsync",
    "ops_per_s": None,
    "p50_ms": None,
    "p99_ms": None,
    "errors": 0,
}
SMALL = ["--rounds", "1", "--duration-s", "0.1", "--records", "20000"]


def rows(*words: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "boki", "bench", words[0], "--json", *SMALL, *words[1:]],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(row.keys() >= FIELDS and row["errors"] == 0 for row in found)
    return found


def is_measured(row: dict[str, object]) -> bool:
    """Whether something was done in the time that the row measured."""
    return bool(row["ops_per_s"] or row["p50_ms"] or set(row) & MEMORY)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["append", "--inflight", "4"], [("append", 4), ("append_many", 1), ("append_many", 4)]),
        (["read"], [("read_next", 1), ("read_next_anywhere", 1), ("subscribe", 1)]),
        (["invoke", "--inflight", "2"], [("invoke", 2)]),
        (["cold-start"], [("cold-start", 1)]),
        (["restart"], [("restart", 1), ("restart", 1)]),
        (["memory"], [("memory", 1), ("memory", 1)]),
        (
            ["store", "--duration-s", "0.2"],
            [
                *STORE_ROWS,
            ],
        ),
        (["flow", "--apps", "--duration-s", "0.3"], [("flow-travel", 100), ("flow-movie", 100)]),
        pytest.param(
            ["flow", "--duration-s", "0.5"],
            [
                *[(f"flow-steps{how}", callers) for callers in (1, 64) for how in ("", "-http")],
                *[("flow-pure-steps", 1), ("flow-first-step", 1), ("flow-recovery", 1_000), ("flow-asleep", 2_000)],
            ],
            marks=pytest.mark.whole,
        ),
        pytest.param(
            ["queue", "--duration-s", "0.5"],
            [
                *(flow for flow in FLOWS for _ in ("boki", *queue_peers.installed())),
                *[("queue-wake", 1), ("queue-wake", 1), ("queue-push-many", 4)],
            ],
            marks=pytest.mark.whole,
        ),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else None,
)
def test_every_benchmark_prints_its_rows(words: list[str], expected: list[tuple[str, int]]) -> None:
    """One object a line with all fields; what was measured is there."""
    found = rows(*words)
    if "--duration-s" in words and not all(map(is_measured, found)):  # on a busy machine nothing may come through
        found = rows(*words[:-1], "3")
    assert [(row["bench"], row["inflight"]) for row in found] == expected
    for row in found:
        assert is_measured(row), row


def test_each_number_that_is_wanted_of_objects_has_its_target_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster some are others; a peer's row has none."""
    made = [Row(bench=bench, inflight=callers, **EMPTY) for bench, callers in STORE_ROWS]
    made.append(Row(bench="store-increment", inflight=64, system="Restate", **EMPTY))
    monkeypatch.setattr(store, "_rows", lambda _options, _step: iter(made))
    *ours, peer = store.store(Options(), print)
    bare = [(row.bench, row.inflight) for row in ours if "target" not in row.details]
    assert bare == [("store-increment-http", 1), ("store-increment-http", 64), *TWO_OBJECTS[1:]]
    assert "target" not in peer.details
    on_cluster = {
        row.bench: row.details["target"] for row in store.store(Options(is_cluster=True), print) if row.details
    }
    assert on_cluster["store-two-objects"] == ">= 4,000/s"


def test_replicas_and_durability_are_those_that_were_asked_for() -> None:
    """The row says what was measured."""
    (row, *_) = rows("append", "--inflight", "1", "--replicas", "3", "--durability", "memory")
    assert (row["replicas"], row["durability"]) == (3, "memory")


def test_the_command_knows_every_benchmark() -> None:
    """Names on the command line are those that can be run."""
    assert set(NAMES) == set(BENCHMARKS)


@pytest.mark.parametrize(
    "words", [["nothing"], ["append", "--durability", "maybe"], ["restart", "--url", "http://127.0.0.1:9"]]
)
def test_what_cannot_be_measured_is_refused(words: list[str]) -> None:
    """Before anything is started."""
    done = CliRunner().invoke(app, ["bench", *words])
    assert done.exit_code == 2, done.output
    assert "error" in done.output


def test_options_are_checked_before_a_system_is_started() -> None:
    """What no system could run with is refused, and a running system is taken as it is."""
    Options(url="http://127.0.0.1:9", replicas=99).check(["append"])


def test_the_file_system_of_a_path_is_known() -> None:
    """Figures with fsync on a file system in memory mean nothing, so the kind of it is looked at."""
    assert file_system_of(Path("/proc")) == "proc"
