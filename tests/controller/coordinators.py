"""Processes with a coordinator over a real ZooKeeper, and what they hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from boki.config.loading import ZooKeeperAccess
from boki.coordination.session import SessionState
from boki.coordination.zookeeper import ZooKeeperCoordinator
from boki.log.ids import NodeId
from boki.log.membership import Member, Role
from boki.protocol.messages import InstallMembership, InstallView

ENGINE = Member(node=NodeId("engine-1"), role=Role.ENGINE, incarnation=3)


class Process:
    """What one process hears from its coordinator. `until` waits for something to have been heard."""

    def __init__(self, coordinator: ZooKeeperCoordinator) -> None:
        self.coordinator = coordinator
        self.news: list[Any] = []
        self.is_leader = False
        self.states: list[SessionState] = []
        self.failures: list[Exception] = []
        self._changed = asyncio.Event()
        coordinator.tell = self._on_news
        coordinator.on_leadership = self._on_leadership
        coordinator.on_session = self._on_session
        coordinator.on_failure = self.on_failure

    def _on_news(self, message: Any) -> None:
        self.news.append(message)
        self._changed.set()

    def _on_leadership(self, is_leader: bool) -> None:
        self.is_leader = is_leader
        self._changed.set()

    def _on_session(self, state: SessionState) -> None:
        self.states.append(state)
        self._changed.set()

    def on_failure(self, error: Exception) -> None:
        self.failures.append(error)
        self._changed.set()

    def heard(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.news if isinstance(message, kind)]

    @property
    def names(self) -> set[str]:
        return {member.node for member in self.heard(InstallMembership)[-1].membership.members}

    @property
    def terms(self) -> list[int]:
        return [row.term for message in self.heard(InstallView) for row in message.views]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(15):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@asynccontextmanager
async def joined(
    hosts: str,
    chroot: str,
    *,
    home: str = "",
    follow: bool = True,
    election: bool = False,
    session_s: float = 5.0,
    digest: str = "",
) -> AsyncIterator[Process]:
    access = ZooKeeperAccess(digest=digest)
    coordinator = await ZooKeeperCoordinator.connect(hosts, chroot, home=home, session_s=session_s, access=access)
    try:
        process = Process(coordinator)
        if follow:
            await coordinator.follow(election=election)
        yield process
    finally:
        await coordinator.close()


async def expire(coordinator: ZooKeeperCoordinator, hosts: str) -> None:
    """End the session as ZooKeeper does when nothing was heard of it: another client takes it over and closes it."""
    theirs = coordinator._session._client.client_id

    def take_and_close() -> None:
        thief = KazooClient(hosts=hosts, client_id=theirs)
        thief.start(10)
        thief.stop()
        thief.close()

    await asyncio.get_running_loop().run_in_executor(None, take_and_close)


def lose_answers(process: Process, method: str, *, count: int = 1) -> None:
    """The next `count` writes happen, and the connection is said to be lost before their answer comes."""
    client = process.coordinator._session._client
    real = getattr(client, method)
    left = [count]

    def losing(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options)
        if not left[0]:
            return result
        left[0] -= 1
        lost = client.handler.async_result()
        result.rawlink(lambda _done: lost.set_exception(ConnectionLoss()))
        return lost

    setattr(client, method, losing)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))
