"""What people use today for durable workflows, beside Boki in `boki bench flow --peers`: Restate and DBOS.

Each runs on this machine, on loopback, over the same disk, and syncs every step before the next one begins: Restate is
one server and one service process (Python SDK, hypercorn), called over HTTP by this process; DBOS is a library over
SQLite or PostgreSQL, so that the load runs in its process. The workflow is the same everywhere: n steps, one after the
other.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any, Final, Protocol

import aiohttp

from boki import Unavailable
from boki.bench import postgres
from boki.bench.http_load import Post, post_load
from boki.bench.rows import Round, measured
from boki.launch.zookeeper.server import free_ports

_HOST: Final = "127.0.0.1"
_START_S: Final = 30.0
_PROGRAMS: Final = Path(__file__).parent / "peer_programs"
_RESTATE_PACKAGE: Final = Path("node_modules/@restatedev/restate-server-linux-x64/bin/restate-server")

Measure = Callable[[int, float, int], Round]
"""Callers, seconds and steps of each workflow: one round."""


class FlowPeer(Protocol):
    """A system that runs the same workflow."""

    name: str

    def lacks(self) -> str:
        """What is to be installed before it can be measured; "": nothing."""

    def running(self, scratch: Path) -> AbstractContextManager[Measure]:
        """The system over a temporary folder in `scratch`; both are gone at the end."""


class Restate:
    """Restate's server as its npm package has it, with the defaults, and a service behind it."""

    name = "Restate"

    def lacks(self) -> str:
        """See `FlowPeer`."""
        if _restate_server() is None:
            return "npm install --ignore-scripts @restatedev/restate-server-linux-x64"
        missing = [name for name in ("restate", "hypercorn") if importlib.util.find_spec(name) is None]
        return "pip install 'boki[peers]'" if missing else ""

    @contextmanager
    def running(self, scratch: Path) -> Iterator[Measure]:
        """See `FlowPeer`."""
        with self.serving("restate_steps", scratch) as ingress:
            yield lambda callers, duration_s, steps: asyncio.run(
                post_load(Post(f"{ingress}/Steps/run", str(steps)), callers=callers, duration_s=duration_s)
            )

    @contextmanager
    def serving(self, program: str, scratch: Path) -> Iterator[str]:
        """The server with that program's services behind it: the URL of its ingress."""
        server = _restate_server()
        assert server is not None, "it lacks nothing"
        ingress, admin, node, service = free_ports(4)
        addresses = {"": node, "INGRESS__": ingress, "ADMIN__": admin}
        env = os.environ | {f"RESTATE_{name}BIND_ADDRESS": f"{_HOST}:{port}" for name, port in addresses.items()}
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="boki-peer-", dir=scratch)))
            stack.enter_context(_process([str(server), "--base-dir", str(folder / "data")], folder, env))
            command = [sys.executable, "-m", "hypercorn", "--bind", f"{_HOST}:{service}", f"{program}:app"]
            stack.enter_context(_process(command, _PROGRAMS, None))
            asyncio.run(_register(f"http://{_HOST}:{admin}/deployments", f"http://{_HOST}:{service}"))
            yield f"http://{_HOST}:{ingress}"


class Dbos:
    """DBOS over SQLite. Each round has a process and a database of its own."""

    name = "DBOS (SQLite)"

    def lacks(self) -> str:
        """See `FlowPeer`."""
        return "" if importlib.util.find_spec("dbos") else "pip install 'boki[peers]'"

    @contextmanager
    def running(self, scratch: Path) -> Iterator[Measure]:
        """See `FlowPeer`."""
        with (
            tempfile.TemporaryDirectory(prefix="boki-peer-", dir=scratch) as folder,
            self.databases(Path(folder)) as urls,
        ):
            yield partial(_dbos_round, urls)

    @contextmanager
    def databases(self, folder: Path) -> Iterator[Iterator[str]]:
        """The URLs of new databases below `folder`."""
        yield (f"sqlite:///{folder}/round-{number}.sqlite" for number in count())


class DbosPostgres(Dbos):
    """DBOS over a PostgreSQL server of its own."""

    name = "DBOS (PostgreSQL)"

    def lacks(self) -> str:
        """See `FlowPeer`."""
        return super().lacks() or ("" if postgres.programs() else "apt-get install postgresql")

    @contextmanager
    def databases(self, folder: Path) -> Iterator[Iterator[str]]:
        """The URLs of new databases of one server, whose data is below `folder`."""
        with postgres.running(folder) as url:
            yield (url.format(name=f"round_{number}") for number in count())


FLOW_PEERS: Final[tuple[FlowPeer, ...]] = (Restate(), Dbos())
FLOW_PEERS_IF_INSTALLED: Final[tuple[FlowPeer, ...]] = (DbosPostgres(),)


def _dbos_round(urls: Iterator[str], callers: int, duration_s: float, steps: int) -> Round:
    arguments = [next(urls), str(callers), str(duration_s), str(steps)]
    command = [sys.executable, str(_PROGRAMS / "dbos_steps.py"), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=duration_s + 2 * _START_S)
    latencies_s: list[float] = json.loads(found.stdout.strip().splitlines()[-1])
    return measured(latencies_s, 0, max(duration_s, sum(latencies_s) / callers))


def _restate_server() -> Path | None:
    """On PATH, or where npm puts it in this folder."""
    found = shutil.which("restate-server")
    if found is not None:
        return Path(found)
    return _RESTATE_PACKAGE.resolve() if _RESTATE_PACKAGE.exists() else None


@contextmanager
def _process(command: list[str], folder: Path, env: dict[str, str] | None) -> Iterator[None]:
    quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, cwd=folder, env=env, **quiet)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def _register(admin: str, service: str) -> None:
    """Tell Restate where the service is, as soon as both answer."""
    until = monotonic() + _START_S
    async with aiohttp.ClientSession() as session:
        while monotonic() < until:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post(admin, json={"uri": service}) as response:
                    if response.status < 300:
                        return
            await asyncio.sleep(0.2)
    raise Unavailable(f"Restate did not take the service at {service} within {_START_S:g} s")
