"""The cluster that a benchmark hurts: its processes by name, its state, more nodes for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import uvloop

from boki.bench.load_functions.load import BOOK, Timeline, Watch
from boki.bench.outside_load import append_from_outside
from boki.bench.system import Target
from boki.errors import BokiError, Unavailable
from boki.launch.up.health import leader_of
from boki.launch.up.state import SupervisorState, read_state
from boki.log.membership import Role
from boki.net.keys import make_keys, roles_text

_POLL_S: Final = 0.05
_HEALTHY_S: Final = 60.0
Status = Mapping[str, Any]


class Cluster:
    """A running cluster of one's own. Use it in a `with` block, at whose end added nodes are killed."""

    def __init__(self, target: Target) -> None:
        assert target.child is not None, "a cluster of one's own"
        self.client = target.client
        self.folder = Path(target.child.config.data) / "cluster"
        self._target = target
        self._added: list[subprocess.Popen[bytes]] = []
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="bench")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._added:
            process.kill()
            process.wait()
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def state(self) -> SupervisorState:
        """What its supervisor tells."""
        state = read_state(self.folder)
        assert state is not None, "it runs"
        return state

    def pid(self, node: str) -> int:
        """The node's process now; 0 if it does not run."""
        return self.state.pid_of(node)

    def engine_of(self, pid: int) -> str:
        """The engine in that process. `Unavailable` if it is none of the supervisor's, or has no engine."""
        names = next((row.names for row in self.state.processes if row.pid == pid), ())
        for name in names:
            if name.startswith(Role.ENGINE):
                return name
        raise Unavailable(f"process {pid} runs no engine of this cluster any more: run the benchmark again")

    def kill(self, node: str) -> int:
        """SIGKILL; the time of it, in microseconds since the epoch."""
        pid = self.pid(node)
        at_us = time.time_ns() // 1000
        os.kill(pid, signal.SIGKILL)
        return at_us

    def status(self) -> Status:
        """What its gateway says; empty if it does not answer."""
        try:
            return self.client.status()
        except BokiError:
            return {}

    def wait_for(self, what: str, is_so: Callable[[Status], bool], timeout_s: float = _HEALTHY_S) -> Status:
        """Look until it is so; what the gateway said then. `Unavailable` if it takes too long."""
        deadline = time.monotonic() + timeout_s
        while not is_so(status := self.status()):
            if time.monotonic() > deadline:
                raise Unavailable(f"the cluster was not {what} after {timeout_s:g} s")
            time.sleep(_POLL_S)
        return status

    def wait_healthy(self) -> Status:
        """Until every process is registered, every node says that it is at work, and a controller leads."""

        def is_healthy(status: Status) -> bool:
            names = {name for row in self.state.processes if row.plays or row.role in set(Role) for name in row.names}
            members = {member["node"] for member in status.get("members", ())}
            nodes = status.get("nodes", {}).values()
            answer = all(told and "error" not in told and told.get("ready", True) for told in nodes)
            lacking = any((told or {}).get("repair", {}).get("lacking_records") for told in nodes)
            is_led = bool(leader_of(status).get("primaries"))
            return bool(status.get("ready")) and is_led and names <= members and answer and not lacking

        return self.wait_for("healthy", is_healthy)

    def load(self, watch: Watch) -> tuple[Future[Timeline], str]:
        """Begin a watched load: its future, and the engine that it runs on, once it has begun.

        It has a key, and so an answer from another gateway if the one that was asked is killed.
        """
        future = self._threads.submit(self._watched, watch)
        deadline = time.monotonic() + _HEALTHY_S
        while time.monotonic() < deadline and not future.done():
            record = self.client.logbook(BOOK).read_next(f"where:{watch.name}", wait_s=1.0)
            if record is not None:
                return future, self.engine_of(int(record.data))
        raise _not_begun(future)

    def load_from_outside(
        self, watch: Watch, book: str, avoided: Collection[str]
    ) -> tuple[Future[Timeline], tuple[str, ...]]:
        """Begin a load of HTTP clients in this process: its future, and the gateways of their connections once all of
        them append. No connection is to one of the `avoided` gateways.
        """
        gateways: Future[tuple[str, ...]] = Future()
        load = append_from_outside(self._target.url, watch, book, avoided, gateways.set_result)
        future = self._threads.submit(uvloop.run, load)
        either: tuple[Future[Any], ...] = (future, gateways)
        wait(either, _HEALTHY_S, FIRST_COMPLETED)
        if not gateways.done():
            raise _not_begun(future)
        return future, gateways.result()

    def _watched(self, watch: Watch) -> Timeline:
        self._target.run("watched_load", watch, type(None), key=watch.name)
        book, told, start = self.client.logbook(BOOK), b"", 0
        while records := (page := book.read(f"timeline:{watch.name}", start=start)).records:
            told += b"".join(record.data for record in records)
            start = page.next_start
        return msgspec.msgpack.decode(told, type=Timeline)

    def add(self, node: str) -> None:
        """Start one more node beside those of the supervisor: its name says its role, "node-4" plays several."""
        role = node.partition("-")[0]
        make_keys(self.folder / "keys", {node: roles_text(Role) if role == "node" else role})
        command = [sys.executable, "-P", "-m", "boki", "start", role, "--name", node]
        log = (self.folder / "logs" / f"{node}.log").open("ab")
        with log:
            self._added.append(
                subprocess.Popen(
                    [*command, "--config", str(self.folder / "boki.toml")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def boki(self, *words: str) -> subprocess.Popen[bytes]:
        """An operator's command against this cluster."""
        command = [sys.executable, "-P", "-m", "boki", *words, "--data", str(self.folder.parent)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def _not_begun(load: Future[Any]) -> BokiError:
    """Why a load has not begun: raises what has ended it."""
    if load.done():
        load.result()
    return Unavailable(f"the load did not begin within {_HEALTHY_S:g} s")
