"""Nodes with real sockets in one event loop, and a log that can be waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import uvloop

from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.net.keys import load_keys, make_keys
from boki.net.zmq import ZmqLinks

LIMIT_S = 30.0
ROLES = {
    "engine-1": Role.ENGINE,
    "storage-1": Role.STORAGE,
    "storage-2": Role.STORAGE,
    "sequencer-1": Role.SEQUENCER,
    "controller-1": Role.CONTROLLER,
}


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run the test in a uvloop, which no test may keep busy forever."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await test

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


class Watcher:
    """Lets a test wait until something that it is told of holds."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self._changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()


class Node:
    """One node: its links, and what has come in."""

    def __init__(
        self, name: str, *, role: Role | None = None, incarnation: int = 1, cluster: str = "cluster", **settings: Any
    ) -> None:
        self.name = NodeId(name)
        self.role = role or ROLES[name]
        self.incarnation = incarnation
        self.inbox: list[tuple[NodeId, Any]] = []
        self._watcher = Watcher()
        loop = asyncio.get_running_loop()
        self.links = ZmqLinks(self.name, {self.name: self.role}, cluster, loop, **settings)
        self.links.join(self.name, incarnation)
        self.links.attach(self.name, self._deliver)

    def _deliver(self, sender: NodeId, message: Any) -> None:
        self.inbox.append((sender, message))
        self._watcher.tell()

    @property
    def member(self) -> Member:
        lanes, machine = dict(self.links.lanes), self.links.machine
        return Member(node=self.name, role=self.role, incarnation=self.incarnation, lanes=lanes, machine=machine)

    @property
    def messages(self) -> list[Any]:
        return [message for _, message in self.inbox]

    def send(self, to: str, message: Any, *, can_wait: bool = False) -> None:
        self.links.send(self.name, NodeId(to), message, can_wait=can_wait)

    async def received(self, count: int) -> list[Any]:
        """All messages, once there are this many."""
        await self._watcher.until(lambda: len(self.inbox) >= count)
        return self.messages


@contextmanager
def closing(*nodes: Node) -> Iterator[None]:
    """Let them know each other, and close them in the end."""
    try:
        for node in nodes:
            node.links.set_peers([other.member for other in nodes])
        yield
    finally:
        for node in nodes:
            node.links.close()


class Log(logging.Handler):
    """What the links write to the log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._watcher = Watcher()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self._watcher.tell()

    def find(self, *parts: str) -> list[str]:
        return [line for line in self.lines if all(part in line for part in parts)]

    async def says(self, *parts: str) -> None:
        """Wait for a line that holds all the parts."""
        await self._watcher.until(lambda: bool(self.find(*parts)))

    def __enter__(self) -> Self:
        logging.getLogger("boki.net").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("boki.net").removeHandler(self)


def keys_for(directory: Path, name: str) -> Any:
    """The keys of a node of a cluster whose keys are in that directory; they are made if they are not there."""
    make_keys(directory, ROLES)
    return load_keys(directory, NodeId(name))
