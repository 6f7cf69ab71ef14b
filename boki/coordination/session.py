"""One ZooKeeper session for an event loop: kazoo's threads call back, the loop awaits.

**What a lost connection means.** A read is repeated. A write that was under way may have happened or not: `Unsure` is
raised, and whoever wrote looks. **What a lost session means.** The ephemeral nodes are gone, so others may already
count this process as dead: nothing is repeated, every later call raises `SessionEnded`, and the role begins again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
)
from kazoo.protocol.states import KazooState
from kazoo.security import make_digest_acl

from boki.config.loading import ZooKeeperAccess
from boki.coordination.tls import context_of, refusal_of
from boki.errors import Unavailable

_log = logging.getLogger("boki.launch.zookeeper")
# kazoo warns of each attempt to connect again, ten times a second; what has changed is told by the session here.
_kazoo_log = logging.getLogger("kazoo")
_kazoo_log.setLevel(logging.ERROR)
_OPEN = ZooKeeperAccess()
_SYSTEM = ("/", "/zookeeper", "/zookeeper/quota")
"""What every server has, and everybody may add to."""
_PROBE_S = 2.0
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_jitter": 0.4, "max_delay": 0.5}


class SessionState(StrEnum):
    """Whether ZooKeeper hears us."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """The connection is gone, the session may live on: what was known stays true for us, nothing new comes."""
    EXPIRED = "expired"
    """ZooKeeper has given this process up. There is no way back: begin again."""


class SessionEnded(Unavailable):
    """The session has expired or was closed; nothing more can be asked under it."""


class Unsure(Exception):
    """The connection was lost while a write was under way: it may have happened."""


@dataclass(frozen=True, slots=True)
class Node:
    """What stands at a path. `owner` is the session that an ephemeral node goes with, 0 for others."""

    data: bytes
    version: int
    owner: int


class ZooKeeperSession:
    """Calls under one root path. Made by `open`; all methods are called from the loop's thread."""

    def __init__(self, client: KazooClient, root: str, on_state: Callable[[SessionState], None]) -> None:
        self.state = SessionState.CONNECTED
        self.id = 0
        """The session's number: the owner of ephemeral nodes made under it."""
        self._client = client
        self._root = root
        self._loop = asyncio.get_running_loop()
        self._on_state = on_state
        self._acl: list[Any] | None = None
        self._owned: tuple[str, ...] = ()
        """Paths of the server that are this cluster's alone, as soon as there is an ACL."""

    @classmethod
    async def open(
        cls,
        hosts: str,
        root: str,
        *,
        session_s: float,
        timeout_s: float,
        on_state: Callable[[SessionState], None],
        access: ZooKeeperAccess = _OPEN,
    ) -> ZooKeeperSession:
        """Connect; `Unavailable` if no server of `hosts` answers within `timeout_s`. `root` is made if need be.

        With `access.digest` all that is made here is this cluster's alone.
        """
        name, _, password = access.digest.partition(":")
        acl = [make_digest_acl(name, password, all=True)] if access.digest else None
        tls = context_of(access) if access.tls else None
        client = KazooClient(
            hosts=hosts,
            timeout=session_s,
            connection_retry=_RECONNECT,
            logger=_kazoo_log,
            auth_data=[("digest", access.digest)] if access.digest else None,
            default_acl=acl,
            use_ssl=access.tls,
            check_hostname=access.tls and access.check_host,
            ca=access.ca or None,
            certfile=access.certificate or None,
            keyfile=access.key or None,
        )
        session = cls(client, root, on_state)
        session._acl = acl
        session._owned = (*_SYSTEM, root) if access.exclusive else (root,)
        client.add_listener(session._hear)
        try:
            await session._in_thread(client.start, timeout_s)
            session.id = client.client_id[0]
            await session.ensure("")
        except client.handler.timeout_exception:
            await session.close()
            why = await asyncio.to_thread(refusal_of, hosts, tls, _PROBE_S) if tls is not None else ""
            raise Unavailable(
                f"no ZooKeeper answers at {hosts} within {timeout_s:g} s"
                + (f": {why}" if why else "; start it, or name its servers with --zookeeper")
            ) from None
        except BaseException:
            await session.close()
            raise
        return session

    async def close(self) -> None:
        """End the session: its ephemeral nodes go at once, if ZooKeeper can be reached."""
        self.state = SessionState.EXPIRED
        self._client.remove_listener(self._hear)
        with contextlib.suppress(Exception):  # kazoo raises plain errors of threads and sockets that it lost
            await self._in_thread(self._client.stop)
        with contextlib.suppress(Exception):
            await self._in_thread(self._client.close)

    # reading: repeated until an answer comes or the session ends

    async def get(self, path: str, watch: Callable[[], None] | None = None) -> Node:
        """What stands at `path`; kazoo's NoNodeError if nothing does. `watch` is called in the loop at a change."""
        data, stat = await self._read(self._client.get_async, path, watch)
        return Node(data, stat.version, stat.ephemeralOwner)

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> list[str]:
        """The names below `path`, sorted."""
        names: list[str] = await self._read(self._client.get_children_async, path, watch)
        return sorted(names)

    async def sync(self, path: str) -> None:
        """Let the server that we talk to catch up with its leader: what is read next is not from the past."""
        await self._repeat(lambda: self._call(self._client.sync_async, self._root + path))

    # writing: once, and `Unsure` where nobody can know

    async def create(self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False) -> str:
        """Make a node; its name. kazoo's NodeExistsError if there is one."""
        made: str = await self._call(
            self._client.create_async, self._root + path, data, None, ephemeral=ephemeral, sequence=sequence
        )
        return made.rpartition("/")[2]

    async def set(self, path: str, data: bytes, version: int = -1) -> int:
        """Replace what stands there if it has that version; the new version. Else kazoo's BadVersionError."""
        stat = await self._call(self._client.set_async, self._root + path, data, version)
        new_version: int = stat.version
        return new_version

    async def delete(self, path: str, version: int = -1) -> None:
        """Remove a node if it has that version."""
        await self._call(self._client.delete_async, self._root + path, version)

    async def ensure(self, path: str) -> None:
        """Make a node and all above it, if they are not there."""
        await self._repeat(lambda: self._call(self._client.ensure_path_async, self._root + path))

    async def protect(self, paths: Sequence[str]) -> None:
        """Take what was made before there was a digest: these nodes, and the root last, are this cluster's alone. So
        are the server's own root and its system nodes if access is exclusive.
        """
        if self._acl is None:
            return
        for owned in self._owned:
            found, _ = await self._repeat(partial(self._call, self._client.get_acls_async, owned))
            if set(found) == set(self._acl):
                continue
            for path in (*(paths if owned == self._root else ()), ""):
                with contextlib.suppress(NoNodeError):
                    await self._repeat(partial(self._call, self._client.set_acls_async, owned + path, self._acl))

    # kazoo's threads and ours

    async def _read(self, method: Callable[..., Any], path: str, watch: Callable[[], None] | None) -> Any:
        # kazoo keeps watchers in a set: the same callable twice is called once
        return await self._repeat(lambda: self._call(method, self._root + path, _Watch(self, watch) if watch else None))

    async def _repeat(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        while True:
            try:
                return await attempt()
            except Unsure:
                await asyncio.sleep(0)  # the next attempt waits in kazoo's queue for a connection

    async def _call(self, method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if self.state is SessionState.EXPIRED:
            raise SessionEnded("the ZooKeeper session has ended")
        future: asyncio.Future[Any] = self._loop.create_future()
        method(*arguments, **options).rawlink(lambda result: self.later(_settle, future, result))
        try:
            return await future
        except (ConnectionLoss, OperationTimeoutError):
            raise Unsure from None
        except SessionExpiredError:
            raise SessionEnded("the ZooKeeper session has ended") from None

    def later(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call in the loop's thread, from any thread; not at all once the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *arguments)

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> None:
        await self._loop.run_in_executor(None, function, *arguments)

    def _hear(self, state: str) -> None:
        """In kazoo's thread, before it continues: a call that comes later must not run under the next session."""
        heard = {KazooState.CONNECTED: SessionState.CONNECTED, KazooState.SUSPENDED: SessionState.SUSPENDED}.get(
            state, SessionState.EXPIRED
        )
        if self.state is not SessionState.EXPIRED:
            self.state = heard
            self.later(self._on_state, heard)


async def quietly(write: Awaitable[Any]) -> None:
    """A write whose outcome the caller looks up afterwards."""
    try:
        await write
    except (NodeExistsError, NoNodeError, BadVersionError, Unsure):
        return


@dataclass(frozen=True, slots=True)
class _Watch:
    """What kazoo calls in its own thread when something has changed. Equal ones are one to kazoo."""

    session: ZooKeeperSession
    changed: Callable[[], None]

    def __call__(self, _event: Any) -> None:
        self.session.later(self.changed)


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if future.done():
        return
    if result.successful():
        future.set_result(result.get_nowait())
    else:
        future.set_exception(result.exception)
