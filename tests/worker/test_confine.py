"""Worker processes end with their engine, however that ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.host import HEAD, is_alive, wait_for_end

FUNCTIONS = """
@function
async def hang(ctx: Context, gate: str) -> None:
    wait_at(gate)

@function
def hang_blocking(ctx: boki.blocking.Context, gate: str) -> None:
    wait_at(gate)

@function
async def idle(ctx: Context) -> None:
    pass
"""

ENGINE = """
import asyncio
import sys
from pathlib import Path

import uvloop

import pytest

from tests.engine.host import Gate, Host

async def main():
    host = Host(Path(sys.argv[1]))
    await host.start()
    await host.result("idle")
    gate = Gate(Path(sys.argv[2]))
    calls = [host.begin("hang", gate.path), host.begin("hang_blocking", gate.path)]
    await gate.arrived(2)
    print(host._processes.zygote_pid, *(link.pid for link in host._processes.links.values()), flush=True)
    await asyncio.Event().wait()

uvloop.run(main())
"""

WATCHER = """
import os, socket, sys, threading
from boki.worker.confine import die_with_peer
die_with_peer(int(sys.argv[1]))
print("watching", flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("is_zygote_stopped", [False, True], ids=["obeying", "stopped"])
def test_no_worker_outlives_an_engine_that_was_killed(tmp_path: Path, is_zygote_stopped: bool) -> None:
    """SIGKILL of the engine ends its zygote and its workers: the idle one, and those that user code blocks; also when
    the zygote cannot do anything about it any more.
    """
    folder = tmp_path / "functions"
    folder.mkdir()
    (folder / "m.py").write_text(HEAD + FUNCTIONS)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(folder), str(tmp_path / "gate")],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as engine:
        assert engine.stdout is not None
        pids = [int(pid) for pid in engine.stdout.readline().split()]
        assert len(pids) == 3
        assert all(map(is_alive, pids))
        if is_zygote_stopped:
            os.kill(pids[0], signal.SIGSTOP)
        engine.send_signal(signal.SIGKILL)
        engine.wait()
        wait_for_end(pids)


def test_a_process_can_end_with_the_other_end_of_its_socket() -> None:
    """Where the kernel does not end children with their parents, a thread watches the socket, whatever else blocks."""
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        subprocess.Popen(
            [sys.executable, "-c", WATCHER, str(theirs.fileno())], stdout=subprocess.PIPE, pass_fds=[theirs.fileno()]
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == b"watching\n"
        theirs.close()
        assert process.poll() is None
        ours.close()
        assert process.wait(30) == 0
