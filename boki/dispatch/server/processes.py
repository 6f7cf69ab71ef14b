"""The processes of an engine: forked by a zygote, each with its link, none forgotten and none left behind.

A process and its socket end together: who closes its socket without leave is killed, and whose socket stays open when
it is dead (something that it started has it) loses it. A zygote that dies takes its children with it; it is replaced,
and what is to be forked meanwhile waits for the new one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from typing import Final

from boki.dispatch.server.worker_link import LinkOwner, LogDoor, WorkerLink, ending_of
from boki.dispatch.server.zygote_link import Zygote
from boki.errors import BokiError
from boki.log.limits import Limits
from boki.worker.frames import Fork
from boki.worker.tally import Tally

_log = logging.getLogger("boki.functions")

_HEAR_OUT_S: Final = 1.0
"""How long what a dead process has said may take to arrive."""
_RETRY_S: Final = 1.0
_STOP_S: Final = 2.0


class Processes:
    """A zygote and all that it has forked, by the numbers that the owners choose."""

    def __init__(self, limits: Limits, log: LogDoor) -> None:
        self.links: dict[int, WorkerLink] = {}
        self._limits = limits
        self._log = log
        self._zygote: Zygote | None = None
        self._held: dict[int, tuple[Fork, socket.socket, int]] = {}
        """What a new zygote is to fork: plans, and the socket and tally of each."""
        self._connecting: set[asyncio.Task[None]] = set()
        self._replacing: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._loop: asyncio.AbstractEventLoop
        self._empty = asyncio.Event()

    @property
    def zygote_pid(self) -> int:
        """The zygote's process id; 0 while there is none."""
        return self._zygote.pid if self._zygote else 0

    async def start(self) -> None:
        """Start the zygote. `Unavailable` if it does not come up."""
        self._loop = asyncio.get_running_loop()
        self._zygote = await Zygote.start(self)

    async def stop(self) -> None:
        """Kill what is left, and the zygote; every owner has been told then. Also if nothing was started."""
        self._is_stopping = True
        if self._zygote is not None:
            await self._zygote.close()
            self._zygote = None
        for number in list(self._held):
            self._drop(number)
        for link in list(self.links.values()):
            link.end("was killed because the engine stopped")
            link.abort()
        if self.links:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), _STOP_S)
            except TimeoutError:  # writes of theirs that the log has not decided
                _log.warning("%d workers had writes under way when the engine stopped", len(self.links))
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.gather(self._replacing, return_exceptions=True)
        await asyncio.gather(*self._connecting)

    def spawn(self, plan: Fork, owner: LinkOwner) -> None:
        """Fork the process `plan.child`. Its owner is told when it is gone, also if it never was there."""
        try:
            ours, theirs, tally, tally_fd = _connection()
        except OSError as error:
            self._link(plan.child, owner, Tally(-1))
            self._loop.call_soon(self.forked, plan.child, 0, str(error))
            return
        link = self._link(plan.child, owner, tally)
        self._held[plan.child] = (plan, theirs, tally_fd)
        self._fork_held()
        task = self._loop.create_task(self._connect(link, ours))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _link(self, number: int, owner: LinkOwner, tally: Tally) -> WorkerLink:
        link = self.links[number] = WorkerLink(number, owner, self, self._limits, self._log, tally)
        return link

    async def _connect(self, link: WorkerLink, sock: socket.socket) -> None:
        transport, _ = await self._loop.create_unix_connection(lambda: link, sock=sock)
        if link.is_closed:  # it could not be forked; aborting any earlier, the loop would not drop the socket
            transport.abort()

    def _fork_held(self) -> None:
        while self._held and self._zygote is not None:  # a fork may be how its loss is found out
            plan, theirs, tally_fd = self._held.pop(next(iter(self._held)))
            self._zygote.fork(plan, theirs.detach(), tally_fd)

    def _drop(self, number: int) -> None:
        _, theirs, tally_fd = self._held.pop(number)
        os.close(tally_fd)
        theirs.close()

    def kill(self, number: int) -> None:
        """Kill the process and all that it has started."""
        if number in self._held:
            self._drop(number)
            self._loop.call_soon(self.forked, number, 0, "the process that forks workers has not been replaced yet")
        elif self._zygote is not None:
            self._zygote.kill(number)

    # what the zygote says

    def forked(self, child: int, pid: int, error: str) -> None:
        """See `ZygoteOwner.forked`."""
        link = self.links.get(child)
        if link is None:
            return
        link.pid = pid
        if pid == 0:
            link.end(f"could not be started: {error}")
            link.abort()

    def exited(self, child: int, status: int, *, was_killed: bool) -> None:
        """See `ZygoteOwner.exited`."""
        link = self.links.get(child)
        if link is not None:
            has_left = was_killed and status == -signal.SIGKILL and link.is_closed and not link.is_leaving
            link.end("closed its connection to the engine, and was killed for that" if has_left else ending_of(status))
            self._loop.call_later(_HEAR_OUT_S, link.abort)

    def zygote_lost(self, why: str) -> None:
        """See `ZygoteOwner.zygote_lost`."""
        lost, self._zygote = self._zygote, None
        _log.error("the process that forks workers is gone: %s; its workers are gone with it", why)
        for link in list(self.links.values()):
            if link.number not in self._held:
                link.is_innocent = not link.ending
                link.end("was killed because the process that forks workers ended")
                self._loop.call_later(_HEAR_OUT_S, link.abort)
        if not self._is_stopping:
            self._replacing = self._loop.create_task(self._replace(lost))

    async def _replace(self, lost: Zygote | None) -> None:
        if lost is not None:
            await lost.close()
        while self._zygote is None and not self._is_stopping:
            try:
                await self.start()
            except BokiError as error:
                _log.error("%s", error)
                await asyncio.sleep(_RETRY_S)
        self._fork_held()

    # what links say

    def link_closed(self, link: WorkerLink) -> None:
        """See `LinkKeeper.link_closed`."""
        if not link.ending and not link.is_leaving:
            self.kill(link.number)

    def link_gone(self, link: WorkerLink) -> None:
        """See `LinkKeeper.link_gone`."""
        del self.links[link.number]
        if not self.links:
            self._empty.set()


def _connection() -> tuple[socket.socket, socket.socket, Tally, int]:
    """Both ends of a socket, a tally and its descriptor. `OSError` if the process has no descriptors left."""
    ours, theirs = socket.socketpair()
    try:
        return ours, theirs, *Tally.create()
    except OSError:
        ours.close()
        theirs.close()
        raise
