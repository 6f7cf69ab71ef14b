"""A `boki dev` with few descriptors under a flood of connections, and one whose disk takes no more."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from boki.config.loading import DevConfig
from boki.launch.child import arguments

MIB = 1 << 20
WAIT_S = 30.0


@contextmanager
def limited_dev(folder: Path, ulimit: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A `boki dev` under that limit of the shell, and its URL."""
    (folder / "functions").mkdir()
    config = DevConfig(data=folder / "data", functions=folder / "functions", port=0, reload=False, log_format="json")
    words = [sys.executable, "-m", "boki", *arguments(config)]
    shell = ["/bin/sh", "-c", f'ulimit {ulimit}; exec "$@"', "sh", *words]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            events = (json.loads(line) for line in process.stdout)
            yield process, next(event["url"] for event in events if event["event"] == "ready")
        finally:
            process.kill()


def ask(url: str, body: bytes | None = None) -> int:
    """The status of the answer to a new connection's request."""
    try:
        with urlopen(Request(url, data=body, method="GET" if body is None else "POST"), timeout=WAIT_S) as answer:
            status: int = answer.status
    except HTTPError as error:
        return error.code
    return status


def test_silent_connections_cost_no_disk_its_descriptors(tmp_path: Path) -> None:
    """1,100 connections took all of 1,024 descriptors, and the next file of a RocksDB could not be opened: the log
    stalled permanently (found.md, H2). Now probes and requests are answered while they stand, files are opened, and
    everything works when they are gone."""
    with limited_dev(tmp_path, "-n 700") as (process, url), ExitStack() as flood:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(800):
            flood.enter_context(socket.create_connection(address))
        assert ask(f"{url}/healthz") == 200
        assert ask(f"{url}/readyz") == 200
        record = bytes(MIB)
        assert {ask(f"{url}/logbook/b/append?tag={n}", record) for n in range(70)} == {200}  # a write-ahead log is full
        flood.close()
        assert ask(f"{url}/logbook/b/append", b"after") == 200
        assert ask(f"{url}/readyz") == 200
        assert process.poll() is None


def test_a_dead_disk_ends_boki_dev_with_the_reason(tmp_path: Path) -> None:
    """It answered appends with timeouts forever and called itself ready (found.md, H2)."""
    with limited_dev(tmp_path, "-f 8192") as (process, url):
        with pytest.raises((OSError, AssertionError)):
            for _ in range(20):
                assert ask(f"{url}/logbook/b/append", bytes(MIB)) == 200
        said = process.stdout.read() if process.stdout is not None else ""
        assert process.wait(WAIT_S) == 1
    assert "a write or sync failed" in said
    assert "stopped, and the log cannot go on without" in said
