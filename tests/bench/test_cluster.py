"""Benchmarks of clusters: what is taken from a status and a timeline, and one that runs on a real cluster."""

import json
import subprocess
import sys
from typing import Any

import pytest

from boki.bench.faults import _last_change, _victim
from boki.bench.flow_takeover import is_gone, row_of_kill, stall_s
from boki.bench.load_functions.load import Timeline
from boki.bench.system import Options
from boki.bench.timeline import compared, copy_rates, sample
from boki.errors import ConfigError

LEADER = {
    "node": "controller-2",
    "term": 4,
    "sequencers": ["sequencer-1", "sequencer-2", "sequencer-3"],
    "primaries": ["sequencer-2"],
    "changes": [{"term": 4, "reason": "old", "duration_ms": 9.0}],
}
STATUS: dict[str, Any] = {"nodes": {"controller-2": {"leader": True, "controller": LEADER}, "engine-1": None}}


@pytest.mark.parametrize(
    ("kind", "engine", "expected"),
    [
        ("primary", "engine-1", "sequencer-2"),
        ("backup", "engine-1", "sequencer-1"),
        ("controller", "engine-1", "controller-2"),
        ("engine", "engine-1", "engine-2"),
        ("engine", "engine-2", "engine-1"),
        ("storage", "engine-1", "storage-2"),
    ],
)
def test_the_victim_is_what_was_asked_for(kind: str, engine: str, expected: str) -> None:
    """The engine that is killed is never the one with the load."""
    assert _victim(LEADER, kind, 1, engine) == expected


def test_a_change_of_terms_is_that_which_came_after() -> None:
    """Not one of before the kill; and nothing is told where there was none."""
    after = json.loads(json.dumps(STATUS))
    changes = after["nodes"]["controller-2"]["controller"]["changes"]
    assert _last_change(after, STATUS) == {}
    changes.append({"term": 5, "reason": "its primary does not answer", "duration_ms": 31.26})
    assert _last_change(after, STATUS) == {"seal_to_install_ms": 31.3, "reason": "its primary does not answer"}


def test_a_pause_counts_from_the_event_until_the_next_append_that_ends() -> None:
    """Also if appends that had begun before end after it; failures are counted."""
    quiet = [(at, 1_000) for at in range(0, 3_000_000, 10_000)]
    after = [(3_000_000 - 500, 700_500), (3_700_000, 2_000)]
    starts, latencies = zip(*(quiet + after), strict=True)
    found = compared(Timeline(list(starts), list(latencies), ["x"]), 3_000_000)
    assert (found["p50_before_ms"], found["max_ms"], found["stall_ms"], found["failed"]) == (1.0, 700.5, 700.0, 1)


def test_the_stall_of_a_workflow_is_from_the_kill_to_the_next_beat_without_its_sleep() -> None:
    """However long before the kill the last beat was; one that ended before the kill has none."""
    assert stall_s([0, 200_000, 2_600_000, 2_800_000], 300_000) == pytest.approx(2.1)
    assert stall_s([0, 299_000, 2_600_000], 300_000) == pytest.approx(2.1)
    assert stall_s([200_000, 400_000], 300_000) == 0.0
    assert stall_s([0, 200_000], 300_000) is None
    assert stall_s([], 300_000) is None


def test_the_row_of_a_kill_has_no_rate_and_counts_workflows_without_a_stall_apart() -> None:
    """Those that had ended before it beside those that lack beats; with nothing left there is nothing to tell."""
    times = [[0, 2_600_000], [0, 3_600_000], [0, 200_000], []]
    row = row_of_kill(Options(is_cluster=True), "engine-1", times, 300_000, 1.5)
    assert (row.ops_per_s, row.p50_ms, row.p99_ms, row.errors, row.inflight) == (None, None, None, 1, 4)
    assert row.details == {
        "killed": "engine-1",
        "detected_s": 1.5,
        "stall_p50_s": 2.6,
        "stall_longest_s": 3.1,
        "longest_after_detection_s": 1.6,
        "ended_before": 1,
    }
    none = row_of_kill(Options(is_cluster=True), "engine-1", times[2:], 300_000, 1.5).details
    assert (none["stall_p50_s"], none["stall_longest_s"], none["longest_after_detection_s"]) == (None, None, None)


def test_an_engine_is_gone_when_its_incarnation_is_in_no_membership() -> None:
    """A status that does not tell the members says nothing; another incarnation is another engine."""
    member = {"node": "engine-1", "incarnation": 7}
    assert not is_gone({}, "engine-1", 7)
    assert not is_gone({"members": [member]}, "engine-1", 7)
    assert is_gone({"members": [member]}, "engine-1", 6)
    assert is_gone({"members": []}, "engine-1", 7)


def test_a_rate_of_repair_under_load_ends_with_the_load() -> None:
    """What is copied after the load counts for itself: one rate over both was 35 MB/s where 8.4 are allowed, because
    the load was over long before the copying.
    """
    timeline = Timeline([0, 19_999_000], [1_000, 1_000], [])
    under = [(at * 1_000_000, at * 8_400_000) for at in range(21)]
    after = [(21_000_000 + at * 1_000_000, 200_000_000 + at * 67_000_000) for at in range(13)]
    assert copy_rates(under + after, timeline.until_us) == {"mb_per_s": 8.4, "mb_per_s_after_load": 67.0}
    assert copy_rates(under, timeline.until_us) == {"mb_per_s": 8.4, "mb_per_s_after_load": None}
    assert copy_rates(after, timeline.until_us) == {"mb_per_s": None, "mb_per_s_after_load": 67.0}


def test_a_status_without_an_answer_is_no_sample() -> None:
    """It counted as nothing copied: one at the end of the load, and the rate was below zero."""
    samples: list[tuple[int, int]] = []
    for at_s, repair in enumerate(({"copied_bytes": 0}, {"copied_bytes": 8_000_000}, {}, {})):
        sample(samples, repair, at_s * 1_000_000)
    assert copy_rates(samples, 9_000_000)["mb_per_s"] == 8.0


def test_what_needs_a_cluster_is_refused_without_one() -> None:
    """And a cluster of one's own is not the one behind a URL."""
    with pytest.raises(ConfigError, match="--cluster"):
        Options().check(["failover"])
    with pytest.raises(ConfigError, match="leave --url out"):
        Options(url="http://x", is_cluster=True).check(["append"])
    Options(is_cluster=True, replicas=3).check(["failover", "append"])


def test_appends_are_measured_on_a_real_cluster() -> None:
    """The same rows as of one process, and the row says which it was."""
    words = ["append", "--cluster", "--inflight", "4", "--rounds", "1", "--duration-s", "0.2", "--json"]
    command = [sys.executable, "-m", "boki", "bench", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["system"], row["replicas"], row["errors"]) for row in found} == {("cluster", 3, 0)}
    assert all(row["ops_per_s"] for row in found)
