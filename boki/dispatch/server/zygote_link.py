"""The engine's end of a zygote: starts it, has it fork and kill, hears how its children end.

If the zygote itself dies, its children die with it (see `boki.worker.confine`); the owner is told, and starts another.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from boki.config.loading import ENV_PREFIX
from boki.errors import CorruptData, Unavailable, VersionTooNew
from boki.host.private_files import users_umask
from boki.log.limits import KIB
from boki.worker.frames import VERSION, Exited, Fork, Forked, Kill, Up, encode_frame, from_zygote

_READ_BYTES: Final = 64 * KIB
_START_S: Final = 30.0
_END_S: Final = 2.0


class ZygoteOwner(Protocol):
    """Who is told the outcome of the zygote's children."""

    def forked(self, child: int, pid: int, error: str) -> None:
        """The child runs; or, with pid 0, it could not be forked."""

    def exited(self, child: int, status: int, *, was_killed: bool) -> None:
        """The child exited with that status, or was killed by signal `-status`; `was_killed`: by the zygote."""

    def zygote_lost(self, why: str) -> None:
        """The zygote is gone without having been told to go, and with it all children."""


class Zygote:
    """A running zygote. Make it with `start`."""

    def __init__(self, owner: ZygoteOwner, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._loop = loop
        self._decoder = from_zygote()
        self._unsent: deque[tuple[bytes, Sequence[int]]] = deque()
        self._up: asyncio.Future[None] = loop.create_future()
        self._is_closed = False
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            # BOKI_* are Boki's own settings, such as the token: no function needs them.
            # -P: what lies in the working directory must not hide what workers import.
            command = [sys.executable, "-P", "-m", "boki.worker.zygote", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__ if _has_descriptor() else subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
                start_new_session=True,
                umask=users_umask(),  # files that functions make are the user's
            )
        loop.add_reader(self._socket, self._read)

    @staticmethod
    async def start(owner: ZygoteOwner) -> Zygote:
        """A zygote that has imported what it needs. `Unavailable` if it does not come up."""
        try:
            zygote = Zygote(owner, asyncio.get_running_loop())
        except OSError as error:
            raise Unavailable(f"the process that forks workers could not be started: {error}") from None
        try:
            await asyncio.wait_for(zygote._up, _START_S)
        except BaseException as error:
            await zygote.close()
            if isinstance(error, TimeoutError | ConnectionError):
                raise Unavailable("the process that forks workers did not start: see what it wrote to stderr") from None
            raise
        return zygote

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def fork(self, plan: Fork, sock: int, tally: int) -> None:
        """Fork a child with these descriptors, which are closed when they are sent."""
        self._send(encode_frame(plan), (sock, tally))

    def kill(self, child: int) -> None:
        """Kill the child and all that it has started."""
        self._send(encode_frame(Kill(child)), ())

    async def close(self) -> None:
        """Let it kill its children and go; after two seconds it is killed."""
        self._close()
        try:
            await self._loop.run_in_executor(None, self._process.wait, _END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await self._loop.run_in_executor(None, self._process.wait)

    def _close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        for _, fds in self._unsent:
            _close_all(fds)
        self._unsent.clear()
        if not self._up.done():
            self._up.set_exception(ConnectionResetError("the zygote is gone"))

    def _send(self, frame: bytes, fds: Sequence[int]) -> None:
        if self._is_closed:
            _close_all(fds)
            return
        self._unsent.append((frame, fds))
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                frame, fds = self._unsent[0]
                sent = socket.send_fds(self._socket, [frame], fds)
                _close_all(fds)
                if sent < len(frame):
                    self._unsent[0] = (frame[sent:], ())
                    continue
                self._unsent.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._flush)
        except OSError as error:
            self._lose(f"it no longer listens ({error})")
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose("it ended")
            return
        try:
            frames = self._decoder.feed(data)
        except CorruptData as error:
            self._lose(error.message)
            return
        for frame in frames:
            match frame:
                case Up(version):
                    self._came_up(version)
                case Forked(child, pid, error_text):
                    self._owner.forked(child, pid, error_text)
                case Exited(child, status, was_killed):
                    self._owner.exited(child, status, was_killed=was_killed)

    def _came_up(self, version: int) -> None:
        if self._up.done():
            return
        if version == VERSION:
            self._up.set_result(None)
        else:
            self._up.set_exception(
                VersionTooNew(f"the zygote speaks version {version}, this engine {VERSION}: restart the engine")
            )

    def _lose(self, why: str) -> None:
        was_up = self._up.done() and not self._is_closed
        self._close()
        self._process.kill()
        if was_up:
            self._owner.zygote_lost(why)


def _has_descriptor() -> bool:
    try:
        return sys.__stderr__ is not None and sys.__stderr__.fileno() >= 0
    except (OSError, ValueError):
        return False


def _close_all(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
