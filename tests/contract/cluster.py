"""A real cluster for the contract suite: every role a process of its own, as `boki up` starts them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boki.client import Client
from boki.launch.up.state import read_state
from tests.contract.live import FUNCTIONS, ClientLogs, LoopThread, Scenario

_TIMEOUT_S = 90


@contextmanager
def cluster(*flags: str) -> Iterator[tuple[LoopThread, str]]:
    """The cluster of `boki up` with these flags and the suite's functions: a loop, and the gateway's URL."""
    loop = LoopThread()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        try:
            _boki("up", "--detach", "--data", str(data), "--functions", str(FUNCTIONS), "--port", "0", *flags)
            state = read_state(data / "cluster")
            assert state is not None
            yield loop, state.url
        finally:
            _boki("down", "--data", str(data))
    loop.close()


def _boki(*words: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("BOKI_")}
    done = subprocess.run(
        [sys.executable, "-m", "boki", *words], env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0, f"boki {' '.join(words)}\n{done.stdout}\n{done.stderr}"


async def run_through_gateway(url: str, scenario: Scenario, book: str) -> None:
    """Run a scenario here, over HTTP."""
    async with Client(url) as client:
        await scenario(ClientLogs(client, book))


async def run_on_an_engine(url: str, function: str, scenario: str, book: str) -> None:
    """Run a scenario in a worker process of one of the engines; its traceback is the error."""
    async with Client(url) as client:
        said = await client.invoke(function, scenario, book=book, timeout_s=120, result_type=str)
        assert not said, said
