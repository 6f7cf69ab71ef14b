"""What people see of a cluster: the screen of `boki up`, and that of `boki status`."""

import errno
import io
import json
import os
import sys
from typing import Any

import pytest

from boki.cli import cluster_status, up_screen
from boki.cli.up_screen import UpScreen, rows
from boki.launch.up.core import Process, SupervisorCore
from boki.launch.up.identity import start_mark
from boki.launch.up.state import ProcessState, SupervisorState

LEADER = {
    "node": "controller-1",
    "term": 3,
    "sequencers": ["sequencer-1"],
    "primaries": ["sequencer-1"],
    "repair": {"draining": {}},
}
STATUS: dict[str, Any] = {
    "version": "9.9",
    "url": "http://x",
    "ready": True,
    "node": "gateway-1",
    "pid": 1,
    "members": [
        {"node": "gateway-1", "role": "gateway", "incarnation": 1},
        {"node": "controller-1", "role": "controller", "incarnation": 2},
        {"node": "sequencer-1", "role": "sequencer", "incarnation": 3},
        {"node": "storage-1", "role": "storage", "incarnation": 4},
        {"node": "engine-1", "role": "engine", "incarnation": 5},
    ],
    "draining": [],
    "functions": ["greet"],
    "modules": [{"module": "broken", "path": "broken.py", "error": "SyntaxError"}],
    "nodes": {
        "controller-1": {"role": "controller", "pid": 11, "leader": True, "controller": LEADER},
        "sequencer-1": {
            "role": "sequencer",
            "pid": 12,
            "leads": [0],
            "logs": {"0": {"entries": 1234, "committed": 1233}},
        },
        "storage-1": {"role": "storage", "pid": 13, "shards": 5, "open_shards": 2, "disk": {"free_bytes": 3 << 30}},
        "engine-1": {
            "role": "engine",
            "pid": 14,
            "ready": True,
            "logs": {"0": {"applied": 1000, "lag": 233}},
            "calls": {"running": 7, "waiting": 8},
            "engine": {"index_bytes": 2048, "cache_bytes": 4096, "appended_records": 99},
        },
    },
}


def running_core() -> SupervisorCore:
    core = SupervisorCore([Process("gateway-1", "gateway", ("x",)), Process("engine-1", "engine", ("x",))])
    core.tick(0)
    core.started("gateway-1", os.getpid(), 0)
    return core


def test_the_table_says_which_processes_run() -> None:
    """What the supervisor knows; of a process that does not run, no old facts."""
    first, second = rows(running_core())
    assert first[:5] == ("gateway", "gateway-1", "running", str(os.getpid()), "0")
    assert first[5].endswith("MiB")
    assert second == ("engine", "engine-1", "starting", "", "0", "")


def test_programs_get_one_object_for_each_event(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing else on stdout."""
    screen = UpScreen("json", running_core(), {"data": "here"})
    screen.start()
    screen.event("ready", "listening", {"url": "http://x"})
    screen.refresh()
    screen.stop()
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line).items() >= {"event": "ready", "text": "listening", "url": "http://x"}.items()


def test_a_pipe_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Facts first, then what happens."""
    screen = UpScreen("console", running_core(), {"data": "here"})
    screen.start()
    screen.event("started", "engine-1 started", {"node": "engine-1"})
    first, second = capsys.readouterr().out.splitlines()
    assert first == "data: here"
    assert second.endswith("engine-1 started")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_output_that_nobody_takes_stops_nothing(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> None:
    """A pipe whose reader has ended, or a closed terminal: the cluster continues, and so does what is left to do."""
    from rich.console import Console

    class Closed(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stdout", Closed())
    if is_terminal:
        console = Console(force_terminal=True, width=120)
        monkeypatch.setattr(up_screen, "results", lambda: console)
    screen = UpScreen("console", running_core(), {"data": "here"})
    screen.start()
    screen.event("exited", "engine-1 was ended by SIGKILL", {})
    screen.refresh()
    screen.stop()
    screen.event("stopped", "the cluster has stopped", {})
    print("nor anything else")


def test_a_file_on_a_full_disk_takes_lines_again_when_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the log of a cluster that outlives a full disk would end there."""

    class Full(io.StringIO):
        is_full = True

        def write(self, text: str) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    file = Full()
    monkeypatch.setattr(sys, "stdout", file)
    screen = UpScreen("console", running_core(), {})
    screen.event("unwritable", "cannot write supervisor.json", {})
    file.is_full = False
    screen.event("started", "engine-1 started again", {})
    assert file.getvalue().endswith("engine-1 started again\n")


def test_a_terminal_gets_a_screen_with_troubles_and_what_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    """State, term, everybody, what is wrong in words, restarts; not each first start."""
    from rich.console import Console

    console = Console(force_terminal=True, width=120, record=True, file=io.StringIO())
    monkeypatch.setattr(up_screen, "results", lambda: console)
    screen = UpScreen("console", running_core(), {"data": "here"})
    screen.start()
    assert screen.is_live
    screen.event("started", "engine-1 started", {"restarts": 0})
    screen.event("exited", "engine-1 was ended by SIGKILL", {})
    screen.is_ready = True
    screen.status = STATUS
    screen.stop()
    text = console.export_text()
    last = text[text.rindex("Boki ") :]
    for words in ("Boki ready, term 3", "here", "engine-1 was ended by SIGKILL", "233 entries behind", "running"):
        assert words in last
    assert "engine-1 started" not in last


def test_the_status_of_a_cluster_names_nodes_logs_and_troubles(capsys: pytest.CaptureFixture[str]) -> None:
    """Each table has its facts; a broken module and a lag are told."""
    assert cluster_status.is_cluster(STATUS)
    assert not cluster_status.is_cluster({"log": {}})
    gone = ProcessState(node="engine-2", role="engine", state="waiting", restarts=4)
    here = ProcessState(
        node="engine-1", role="engine", state="running", pid=os.getpid(), mark=start_mark(os.getpid()), restarts=1
    )
    supervisor = SupervisorState(pid=1, mark="", url="", zookeeper="", chroot="", processes=(here, gone))
    cluster_status.show(STATUS, supervisor)
    lines = capsys.readouterr().out.splitlines()
    assert "Boki 9.9 at http://x is ready, term 3" in lines
    cells = [line.split("\t") for line in lines]
    assert ["sequencer", "sequencer-1", "up, primary of 0", "12", "", ""] in cells
    assert ["controller", "controller-1", "up, leads", "11", "", ""] in cells
    assert ["engine", "engine-2", "waiting", "", "4", ""] in cells
    assert ["0", "sequencer-1", "1,234", "1,233", "engine-1 233"] in cells
    assert ["storage-1", "5", "2", "0", "", "3.0 GiB"] in cells
    assert ["engine-1", "7", "8", "2.0 KiB", "4.0 KiB", "99"] in cells
    assert "broken is broken: SyntaxError" in lines
    assert "engine-1 is 233 entries behind in log 0" in lines
    assert "All is well." not in lines


def test_a_silent_node_is_told_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """It is registered, and says nothing."""
    cluster_status.show({**STATUS, "nodes": {**STATUS["nodes"], "storage-1": {"error": "no answer"}}}, None)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("storage\tstorage-1\tsilent") for line in lines)
    assert "storage-1 is registered and does not answer: no answer" in lines
