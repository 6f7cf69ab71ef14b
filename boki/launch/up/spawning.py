"""How a supervisor gets its processes: forked by a zygote where that is possible, else started as programs.

All of them are children of this process, so one `waitpid` sees every end.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from boki.errors import Unavailable
from boki.host.private_files import PRIVATE_UMASK, users_umask
from boki.launch.up import zygote
from boki.launch.up.core import Process
from boki.launch.up.logs import last_lines, open_log
from boki.worker.confine import IS_LINUX, adopt_orphans, die_with_parent

_READ_BYTES: Final = 65_536
REST_S: Final = 4.0
"""How long a zygote stays that has nothing to fork: what it has imported is memory, and saves half a second."""
_MARK: Final = "_BOKI_SUPERVISOR"
"""In the environment of all that we start, and of all that those fork."""

OnStarted = Callable[[str, int, str], None]
"""(node, pid, error): it runs; or, with pid 0, it could not be started."""


class Spawner:
    """Starts processes and sees them end. To be used in a loop that runs, in a process without threads."""

    def __init__(
        self,
        environment: Mapping[str, str],
        on_started: OnStarted,
        zygote_log: Path,
        zygote_program: Sequence[str] = zygote.PROGRAM,
    ) -> None:
        """`zygote_program`: see `zygote.command`."""
        self._pid = os.getpid()
        self._environment = {**environment, _MARK: str(self._pid)}
        self._on_started = on_started
        self._zygote_log = zygote_log
        self._zygote_program = zygote_program
        self.zygote_pid = 0
        """The process that forks; 0: there is none now."""
        self._link: socket.socket | None = None
        self._heard = b""
        self._ordered: dict[str, bytes] = {}
        """What the zygote has been told and has not answered."""
        self._ordered_at_s: float | None = None
        """When `rest` last saw any of it, or a new zygote; None: it has seen none."""
        self._is_proven = False
        """Whether this zygote has ever answered."""
        self._early: dict[int, int] = {}
        """Ends of processes that nobody has told us of yet; of strangers that came to us, too."""
        self._pids: set[int] = set()
        try:
            adopt_orphans()
        except OSError:
            raise Unavailable("this process cannot become the reaper of its children's children") from None

    def start(self, process: Process, log_file: Path) -> None:
        """Start it; `on_started` tells the outcome of that, perhaps before this returns."""
        if process.is_boki and IS_LINUX:
            order = zygote.Order(process.node, process.command, str(log_file))
            self._order(process.node, msgspec.json.encode(order) + b"\n")
            return
        command = (sys.executable, "-P", "-m", "boki", *process.command) if process.is_boki else process.command
        try:
            umask = users_umask() if process.is_boki else PRIVATE_UMASK  # nodes see to theirs
            pid = self._execute(command, log_file, umask=umask)
        except (OSError, subprocess.SubprocessError) as error:
            self._on_started(process.node, 0, str(error))
        else:
            self._pids.add(pid)
            self._on_started(process.node, pid, "")

    def reap(self) -> list[tuple[int, int]]:
        """(pid, exit code) of those that were told to have started and have ended since the last time."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._early[pid] = os.waitstatus_to_exitcode(status)
        if self.zygote_pid in self._early:
            self._lose_zygote()
        ended = [(pid, self._early.pop(pid)) for pid in list(self._early) if pid in self._pids]
        self._pids.difference_update(pid for pid, _ in ended)
        if not self._ordered:
            self._early.clear()
        return ended

    def rest(self, now_s: float) -> None:
        """Let a zygote go that has had nothing to fork for a while; the next fork brings another one."""
        if self._link is None:
            self._ordered_at_s = None
        elif self._ordered or self._ordered_at_s is None:
            self._ordered_at_s = now_s
        elif now_s - self._ordered_at_s >= REST_S:
            self._ordered_at_s = None
            self.close()

    def close(self) -> None:
        """End the zygote; who waits for a fork is refused. What it has forked stays."""
        self._is_proven = False
        if self.zygote_pid:
            os.kill(self.zygote_pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        self._lose_zygote()

    def _execute(
        self, command: tuple[str, ...] | list[str], log_file: Path, keep: tuple[int, ...] = (), *, umask: int
    ) -> int:
        log = open_log(log_file)
        try:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                pass_fds=keep,
                umask=umask,
                start_new_session=True,  # Ctrl-C is for the supervisor, which stops the others in order
                preexec_fn=self._confine,
            )
        finally:
            os.close(log)
        child.returncode = 0  # `reap` waits for it
        return child.pid

    def _confine(self) -> None:
        die_with_parent(self._pid)

    def _order(self, node: str, order: bytes) -> None:
        self._ordered[node] = order
        try:
            if self._link is None:
                self._link = self._start_zygote()
            self._link.sendall(order)
        except (OSError, subprocess.SubprocessError):
            self._lose_zygote()

    def _start_zygote(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            command = zygote.command(self._zygote_program, theirs.fileno(), self._pid)
            self.zygote_pid = self._execute(command, self._zygote_log, (theirs.fileno(),), umask=users_umask())
        asyncio.get_running_loop().add_reader(ours, self._hear)
        return ours

    def _hear(self) -> None:
        if self._link is None:
            return
        try:
            heard = self._link.recv(_READ_BYTES)
        except OSError:
            heard = b""
        if not heard:
            self._lose_zygote()
            return
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            told = msgspec.json.decode(line, type=zygote.Forked)
            self._is_proven = True
            self._ordered.pop(told.node, None)
            if told.pid:
                self._pids.add(told.pid)
            self._on_started(told.node, told.pid, told.error)

    def _lose_zygote(self) -> None:
        """It is gone. Who waits for a fork is given to a new one, or, if this one has never forked, is refused."""
        if self._link is not None:
            asyncio.get_running_loop().remove_reader(self._link)
            self._link.close()
            self._end_strangers()
        lost, self._ordered = self._ordered, {}
        was_proven, self._is_proven = self._is_proven, False
        self._link, self.zygote_pid, self._heard = None, 0, b""
        said = "".join(last_lines(self._zygote_log, 1))
        for node, order in lost.items():
            if was_proven:
                self._order(node, order)
            else:
                self._on_started(node, 0, f"the process that was to fork it has ended ({said})")

    def _end_strangers(self) -> None:
        """End children that nobody has told us of: the zygote may have been killed between a fork and its word."""
        for task in Path("/proc/self/task").iterdir():
            for pid in map(int, (task / "children").read_text(encoding="ascii").split()):
                if pid not in self._pids and pid != self.zygote_pid and self._is_marked(pid):
                    os.kill(pid, signal.SIGKILL)

    def _is_marked(self, pid: int) -> bool:
        try:
            return f"{_MARK}={self._pid}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
