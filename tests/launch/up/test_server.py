"""The supervisor with real processes, which are small scripts: restarts, logs, stops, and that nothing outlives it."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from boki.cli import up
from boki.config.up import UpConfig
from boki.errors import CorruptData, Unavailable
from boki.launch.up import identity, logs
from boki.launch.up.core import Process
from boki.launch.up.server import Supervisor, end_leftovers
from boki.launch.up.state import ProcessState, SupervisorState, read_state, write_state

SLEEPER = "import signal; print('up', flush=True); signal.pause()"
HERALD = "import signal; print('up', flush=True); open({!r}, 'w').write('up'); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({!r}, 'w').write('up'); signal.pause()"
FAILING = "import sys; sys.exit('no such disk')"

HOLDER = """
import asyncio, os, sys
from pathlib import Path
from boki.launch.up.core import Process
from boki.launch.up.identity import start_mark
from boki.launch.up.server import Supervisor
from boki.launch.up.state import SupervisorState

command = (sys.executable, "-c", "import signal; signal.pause()")
about = SupervisorState(pid=os.getpid(), mark=start_mark(os.getpid()), url="", zookeeper="", chroot="")
started = lambda event, text, facts: print(event, facts.get("pid"), flush=True)
processes = [Process("storage-1", "storage", command)]
supervisor = Supervisor(Path(sys.argv[1]), processes, about, environment={}, on_event=started)
asyncio.run(supervisor.run())
"""


def role(node: str, source: str, *, rank: int = 0, stop_us: int = 5_000_000) -> Process:
    return Process(node, node.partition("-")[0], (sys.executable, "-c", source), rank, stop_us)


def about() -> SupervisorState:
    return SupervisorState(
        pid=os.getpid(), mark=identity.start_mark(os.getpid()), url="http://x", zookeeper="z:1", chroot="/boki"
    )


class Watched:
    """A running supervisor and what it has said."""

    def __init__(self, folder: Path, *processes: Process) -> None:
        self.events: asyncio.Queue[tuple[str, dict[str, Any]]] = asyncio.Queue()
        self.unwritable: list[str] = []
        """The files that were told as such."""
        self.supervisor = Supervisor(
            folder,
            processes,
            about(),
            environment=os.environ,
            on_event=self._hear,
        )

    def _hear(self, event: str, _text: str, facts: dict[str, Any]) -> None:
        if event == "unwritable":
            self.unwritable.append(facts["file"])
        else:
            self.events.put_nowait((event, facts))

    async def until(self, event: str, node: str) -> dict[str, Any]:
        """The facts of the next such event."""
        while True:
            found, facts = await self.events.get()
            if (found, facts["node"]) == (event, node):
                return facts


@contextlib.asynccontextmanager
async def watched(folder: Path, *processes: Process) -> AsyncIterator[Watched]:
    one = Watched(folder, *processes)
    async with asyncio.timeout(30):
        task = asyncio.create_task(one.supervisor.run())
        try:
            yield one
        finally:
            if not one.supervisor.core.is_stopping:
                one.supervisor.stop()
            await task


@pytest.fixture
def horn(tmp_path: Path) -> Path:
    """A pipe that a process opens when it is up: reading it waits for that."""
    os.mkfifo(tmp_path / "horn")
    return tmp_path / "horn"


def test_a_killed_process_is_started_again_and_told_in_the_file(tmp_path: Path, horn: Path) -> None:
    """A new process of the same name, one restart, how the last one ended, and what it said in its log."""

    async def play() -> None:
        herald = role("storage-1", HERALD.format(str(horn)))
        async with watched(tmp_path, herald, role("engine-1", SLEEPER)) as one:
            first = await one.until("started", "storage-1")
            await asyncio.to_thread(horn.read_text)
            os.kill(first["pid"], signal.SIGKILL)
            assert (await one.until("exited", "storage-1"))["exit_code"] == -9
            second = await one.until("started", "storage-1")
            assert second["pid"] != first["pid"]
            assert second["restarts"] == 1
            await asyncio.to_thread(horn.read_text)
            assert (tmp_path / "logs/storage-1.log").read_text() == "up\nup\n"
        state = read_state(tmp_path)
        assert state is not None
        assert state.is_stopping
        found = {process.node: (process.state, process.restarts) for process in state.processes}
        assert found == {"storage-1": ("stopped", 1), "engine-1": ("stopped", 0)}

    asyncio.run(play())


def test_a_process_that_cannot_run_is_tried_again_and_does_not_stop_the_others(tmp_path: Path) -> None:
    """Neither a program that fails nor one that is not there; the log says why."""
    missing = Process("engine-2", "engine", (str(tmp_path / "no such program"),))

    async def play() -> None:
        async with watched(tmp_path, role("engine-1", FAILING), missing, role("storage-1", SLEEPER)) as one:
            for _ in range(2):
                assert (await one.until("exited", "engine-1"))["exit_code"] == 1
            await one.until("failed", "engine-2")
            assert one.supervisor.core.rows["storage-1"].restarts == 0
        assert "no such disk" in (tmp_path / "logs/engine-1.log").read_text()
        assert "cannot be started" in (tmp_path / "logs/engine-2.log").read_text()

    asyncio.run(play())


def test_a_stop_ends_all_in_order_and_kills_who_does_not_listen(tmp_path: Path, horn: Path) -> None:
    """The stubborn gateway is killed when its time is over, and only then is storage told to stop."""

    async def play() -> None:
        stubborn = role("gateway-1", STUBBORN.format(str(horn)), rank=0, stop_us=1)
        async with watched(tmp_path, role("storage-1", SLEEPER, rank=1), stubborn) as one:
            await asyncio.to_thread(horn.read_text)
            one.supervisor.stop()
            assert (await one.until("stopped", "gateway-1"))["exit_code"] == -signal.SIGKILL
            assert (await one.until("stopped", "storage-1"))["exit_code"] == -signal.SIGTERM

    asyncio.run(play())


def test_one_that_is_halted_stops_too(tmp_path: Path) -> None:
    """SIGSTOP holds up no stop."""

    async def play() -> None:
        async with watched(tmp_path, role("storage-1", SLEEPER)) as one:
            pid = (await one.until("started", "storage-1"))["pid"]
            os.kill(pid, signal.SIGSTOP)
            one.supervisor.stop()
            assert (await one.until("stopped", "storage-1"))["exit_code"] == -signal.SIGTERM

    asyncio.run(play())


def test_a_full_disk_does_not_end_the_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file that cannot be written is told once, and that of the supervisor is right again once it can be."""
    blocker = tmp_path / "supervisor.json.new"
    missing = Process("engine-2", "engine", (str(tmp_path / "no such program"),))

    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def play() -> None:
        monkeypatch.setattr(logs, "bound", full)
        monkeypatch.setattr(logs, "append", full)
        async with watched(tmp_path, role("storage-1", SLEEPER), role("engine-1", SLEEPER), missing) as one:
            storage = (await one.until("started", "storage-1"))["pid"]
            blocker.mkdir()  # it is no file that could be removed, and no new one can be made there
            for _ in range(2):
                os.kill((await one.until("started", "engine-1"))["pid"], signal.SIGKILL)
                await one.until("exited", "engine-1")
            await one.until("started", "engine-1")
            assert one.supervisor.core.rows["storage-1"].pid == storage
            assert identity.start_mark(storage)
            blocker.rmdir()
        names = sorted(Path(file).name for file in one.unwritable)
        expected = ["engine-1.log", "engine-2.log", "storage-1.log", "supervisor.json", "supervisor.log", "zygote.log"]
        assert names == expected
        state = read_state(tmp_path)
        assert state is not None
        assert {process.state for process in state.processes} == {"stopped"}

    asyncio.run(play())


def test_the_file_is_written_only_when_something_has_changed(tmp_path: Path) -> None:
    """It is synced to the disk each time, which is too much to do every two seconds."""

    async def play() -> None:
        async with watched(tmp_path, role("storage-1", SLEEPER)) as one:
            await one.until("started", "storage-1")
            one.supervisor._tell()
            written = (tmp_path / "supervisor.json").stat().st_ino
            one.supervisor._tell()
            assert (tmp_path / "supervisor.json").stat().st_ino == written

    asyncio.run(play())


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    """The kernel ends its children; the file that it leaves behind names nobody who runs."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        event, pid = holder.stdout.readline().split()
        assert event == "started"
        mark = identity.start_mark(int(pid))
        assert mark
        holder.kill()
    assert identity.wait_gone(int(pid), mark, 10)
    state = read_state(tmp_path)
    assert state is None or not state.is_running
    assert end_leftovers(tmp_path) == []


def left_behind(folder: Path, change: Callable[[str], str]) -> tuple[subprocess.Popen[bytes], list[str]]:
    """A process that the file of a supervisor names, which is no more; and whose end was found necessary."""
    orphan = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.DEVNULL)
    row = ProcessState(
        node="storage-1", role="storage", state="running", pid=orphan.pid, mark=change(identity.start_mark(orphan.pid))
    )
    gone = SupervisorState(pid=orphan.pid, mark="another", url="", zookeeper="", chroot="", processes=(row,))
    write_state(folder, gone)
    return orphan, end_leftovers(folder)


def test_what_a_killed_supervisor_left_is_ended(tmp_path: Path) -> None:
    """Where the kernel did not do it, the next start does."""
    orphan, ended = left_behind(tmp_path, lambda mark: mark)
    assert ended == ["storage-1"]
    assert orphan.wait(60) == -signal.SIGKILL


def test_a_process_that_has_got_the_number_of_another_is_left_alone(tmp_path: Path) -> None:
    """The number alone means nothing: the moment of the start must be the same, too."""
    stranger, ended = left_behind(tmp_path, lambda mark: f"{mark}0")
    try:
        assert ended == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("text", ["", "{", '{"pid": "x"}'])
def test_a_damaged_file_is_told_as_such(tmp_path: Path, text: str) -> None:
    """Nobody is left to guess why."""
    (tmp_path / "supervisor.json").write_text(text)
    with pytest.raises(CorruptData, match=r"supervisor\.json .*`boki up` writes it again"):
        read_state(tmp_path)


@pytest.mark.parametrize("text", ["", "{", '{"pid": "x"}'])
def test_a_file_that_a_power_cut_has_damaged_holds_up_neither_start_nor_stop(tmp_path: Path, text: str) -> None:
    """Its supervisor has ended with the machine; the lock on the data directory refuses a second one all the same."""
    config = UpConfig(data=tmp_path)
    config.folder.mkdir()
    (config.folder / "supervisor.json").write_text(text)
    up.refuse_second(config)
    assert end_leftovers(config.folder) == []
    with pytest.raises(Unavailable, match="no cluster runs"):
        up.down(tmp_path)
