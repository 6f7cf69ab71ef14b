"""What `boki doctor` thinks of measured facts: each line that is not good says what to do."""

from pathlib import Path

import pytest

from boki.doctor import findings
from boki.doctor.facts import Subject, examine
from boki.doctor.findings import Finding

GIB = 1 << 30
CASES: dict[str, tuple[Finding, str, str]] = {
    "python": (findings.python_finding((3, 11, 0), "3.11.0"), "ok", "3.11.0"),
    "old python": (findings.python_finding((3, 10, 9), "3.10.9"), "bad", "3.10.9"),
    "packages": (findings.packages_finding({"rich": ">=13,<16"}, {"rich": "15.0.0"}), "ok", "rich 15.0.0"),
    "no package": (
        findings.packages_finding({"rich": ">=13,<16"}, {"rich": None}),
        "bad",
        "rich is missing (needed: >=13,<16)",
    ),
    "new package": (
        findings.packages_finding({"rich": ">=13,<16"}, {"rich": "16.1"}),
        "bad",
        "rich 16.1 (needed: >=13,<16)",
    ),
    "java": (findings.java_finding(17, "bin/java", ()), "ok", "17 (bin/java)"),
    "no java": (findings.java_finding(None, "", ()), "note", "none"),
    "broken java": (
        findings.java_finding(None, "", ["bin/java (JAVA_HOME) does not run: 'x'; unset JAVA_HOME"]),
        "bad",
        "bin/java (JAVA_HOME) does not run: 'x'",
    ),
    "jars": (findings.jars_finding([Path("zookeeper-3.9.5.jar"), Path("x.jar")], ()), "ok", "zookeeper-3.9.5"),
    "no jars": (findings.jars_finding((), ["zookeeper", "log4j-api"]), "note", "no jars of zookeeper, log4j-api"),
    "sync": (
        findings.sync_finding("d", [0.004] * 3 + [0.02], False),
        "ok",
        "median 4.00 ms, slowest of 4 20.00 ms (d)",
    ),
    "slow sync": (findings.sync_finding("d", [0.08], False), "bad", "median 80.00 ms, slowest of 1 80.00 ms (d)"),
    "fast sync": (findings.sync_finding("d", [0.00001], False), "note", "median 0.01 ms, slowest of 1 0.01 ms (d)"),
    "memory disk": (findings.sync_finding("d", [0.0], True), "bad", "d is in memory"),
    "space": (findings.space_finding(9 * GIB, 64 << 20), "ok", "9.0 GiB free"),
    "low space": (findings.space_finding(GIB // 2, 64 << 20), "note", "0.5 GiB free"),
    "no space": (findings.space_finding(1, 64 << 20), "bad", "0.0 GiB free"),
    "files": (findings.files_finding(1024, 20_000), "ok", "20,000 (now 1,024, which Boki raises)"),
    "few files": (findings.files_finding(1024, 1024), "bad", "1,024"),
    "clock": (findings.clock_finding("t", 0.0, True), "ok", "t UTC, synchronized"),
    "unknown clock": (findings.clock_finding("t", 0.0, None), "ok", "t UTC, steady"),
    "free clock": (findings.clock_finding("t", 0.0, False), "note", "t UTC, not synchronized"),
    "stepped clock": (
        findings.clock_finding("t", -1.5, True),
        "bad",
        "t UTC, stepped by -1.500 s while this ran",
    ),
    "port": (findings.port_finding("h", 1, "", ""), "ok", "h:1 is free"),
    "own port": (findings.port_finding("h", 1, "", "http://h:2"), "ok", "http://h:2 is this folder's Boki, which runs"),
    "taken port": (
        findings.port_finding("h", 1, "address already in use", ""),
        "bad",
        "h:1: address already in use",
    ),
    "memory": (findings.memory_finding(4 * GIB, GIB // 2), "ok", "4.0 GiB available"),
    "some memory": (findings.memory_finding(GIB, GIB // 2), "note", "1.0 GiB available"),
    "no memory": (findings.memory_finding(GIB // 4, GIB // 2), "bad", "0.2 GiB available"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fact_is_judged_and_what_is_not_good_has_a_remedy(name: str) -> None:
    """State and words; a good line needs no remedy."""
    finding, state, found = CASES[name]
    assert (finding.state, finding.found) == (state, found)
    assert bool(finding.remedy) == (state != "ok")


def test_a_machine_is_measured_whole_and_left_as_it_was(tmp_path: Path) -> None:
    """Every check gives its line, in a fixed order, also where the data directory is not there yet; no file stays."""
    subject = Subject(
        data=tmp_path / "no/such/folder",
        host="127.0.0.1",
        port=8080,
        reserve_bytes=0,
        budget_bytes=0,
        port_refusal=lambda: "address already in use",
        running_url="",
    )
    found = {finding.check: finding for finding in examine(subject)}
    assert list(found) == [
        *("python", "packages", "java", "zookeeper", "disk sync", "disk space", "memory", "open files", "port", "clock")
    ]
    assert (found["packages"].state, found["port"].state) == ("ok", "bad")
    assert list(tmp_path.iterdir()) == []
