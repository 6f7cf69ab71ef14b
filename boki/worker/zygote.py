"""A warm process that forks workers: what they need is imported once, here, so that a worker is there in a millisecond.

It does nothing else. It has one thread and starts no loop, because only such a process may be forked safely; it never
imports a user's module, so nothing of a user's can break it. It obeys its engine over an inherited socket, reports how
each of its children ended, and when the socket closes it kills them all and goes.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

import boki.blocking  # noqa: F401 - what functions import is imported here, once for all workers
from boki.log.limits import KIB
from boki.worker.blocking_worker import BlockingWorker
from boki.worker.confine import IS_LINUX, adopt_orphans, child_pids, confine, die_with_parent, die_with_peer, quiet
from boki.worker.event_loop import new_loop
from boki.worker.frames import (
    VERSION,
    Exited,
    Fork,
    Forked,
    Frame,
    Kill,
    Up,
    encode_frame,
    to_zygote,
)
from boki.worker.loading import Sources
from boki.worker.tally import Tally
from boki.worker.worker import AsyncWorker

_FDS_PER_FORK: Final = 2
_EXITING: Final = 0x4
"""PF_EXITING, among the flags in /proc/PID/stat."""
_MAX_FDS: Final = 16
_END_S: Final = 1.0
_END_STEP_S: Final = 0.002
_CRASHED: Final = 70
"""The exit status of a child that failed before it could say why over its socket (EX_SOFTWARE)."""


class Zygote:
    """The loop that forks, kills and reaps."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._decoder = to_zygote()
        self._fds: deque[int] = deque()
        """Received with the frames that are still to come."""
        self._children: dict[int, int] = {}
        """pid -> the engine's number for it."""
        self._killed: set[int] = set()
        """Numbers of children that were to be killed and have not been reaped."""
        self._woken, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)

    def run(self) -> None:
        """Until the engine closes its end."""
        self._send(Up(VERSION))
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._reap()
            if self._control.fileno() in ready and not self._obey():
                return

    def _obey(self) -> bool:
        data, fds, _, _ = socket.recv_fds(self._control, 64 * KIB, _MAX_FDS)
        self._fds.extend(fds)
        for frame in self._decoder.feed(data):
            match frame:
                case Fork():
                    self._fork(frame, self._fds.popleft(), self._fds.popleft())
                case Kill(child):
                    self._reap()  # what is dead already was not killed by this
                    for pid in [pid for pid, number in self._children.items() if number == child]:
                        if not _is_exiting(pid):
                            self._killed.add(child)
                        _kill(pid)
        return bool(data)

    def _fork(self, plan: Fork, sock: int, tally: int) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._send(Forked(plan.child, 0, f"{type(error).__name__}: {error}"))
        else:
            if pid == 0:
                _become(plan, sock, tally, parent)
            self._children[pid] = plan.child
            self._send(Forked(plan.child, pid))
        os.close(sock)
        os.close(tally)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            _kill_session(pid)
            child = self._children.pop(pid, None)
            self._kill_orphans()
            if child is not None:
                self._send(Exited(child, os.waitstatus_to_exitcode(status), child in self._killed))
                self._killed.discard(child)

    def _kill_orphans(self) -> None:
        """Kill what dead workers have left: those that live adopt their own orphans, so that no other comes here."""
        for pid in child_pids():
            if pid not in self._children:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill all children and what they have started, generation after generation, as far as a second suffices."""
        for pid in self._children:
            _kill(pid)
        until_s = time.monotonic() + _END_S
        while child_pids() and time.monotonic() < until_s:
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            self._children.clear()
            self._kill_orphans()
            time.sleep(_END_STEP_S)

    def _send(self, frame: Frame) -> None:
        self._control.sendall(encode_frame(frame))


def _is_exiting(pid: int) -> bool:
    """Whether it is ending already (Linux): its connection closes a moment before it can be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return bool(int(stat.rpartition(")")[2].split()[6]) & _EXITING)


def _kill(pid: int) -> None:
    """Kill the child, which has not been reaped, and those of its session."""
    _kill_session(pid)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # it may not lead its session yet


def _kill_session(pid: int) -> None:
    """Kill what a child has started: it leads a session of its own, which bears its pid."""
    with suppress(ProcessLookupError, PermissionError):  # macOS says so of what is dead and not reaped
        os.killpg(pid, signal.SIGKILL)


def _become(plan: Fork, sock: int, tally: int, parent: int) -> NoReturn:
    """In the fork: be a worker, or describe a module. Never returns into the zygote's loop."""
    try:
        die_with_parent(parent)
        adopt_orphans()
        confine((sock, tally), plan.memory_bytes)
        if not IS_LINUX:
            die_with_peer(sock)
        _serve(plan, socket.socket(fileno=sock), Tally(tally))
    except BaseException:  # noqa: BLE001 - nothing may unwind into the zygote's own frames
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(_CRASHED)


def _serve(plan: Fork, sock: socket.socket, tally: Tally) -> NoReturn:
    sources = Sources(plan.folder, pinned=plan.sources if plan.pin_sources else None)
    sources.install()
    if plan.kind == "async":
        worker = AsyncWorker(plan, tally, new_loop())
        worker.console.install(plan.log_level)
        found = sources.registry(plan.module, plan.path)
        if isinstance(found, str):
            worker.fail(sock, found)
        worker.serve(sock, found.functions)
    blocking = BlockingWorker(plan, tally, sock)
    blocking.console.install(plan.log_level)
    if plan.kind == "describe":
        sock.sendall(encode_frame(sources.describe(plan.module, plan.path)))
        os._exit(0)
    found = sources.registry(plan.module, plan.path)
    if isinstance(found, str):
        blocking.fail(found)
    blocking.serve(found.functions)


def main() -> None:
    """`python -m boki.worker.zygote FD`: FD is this end of the control socket."""
    # Not SIGKILL: it sees its socket closed, also if it had been stopped, and ends what its workers have started.
    die_with_parent(os.getppid(), signal.SIGCONT)
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet()
    assert threading.active_count() == 1, "only a process with one thread may be forked"
    zygote = Zygote(socket.socket(fileno=int(sys.argv[1])))
    gc.collect()
    gc.freeze()  # so that no collection in a child touches, and so copies, the pages that all share
    try:
        zygote.run()
    except OSError:
        return  # the engine is gone
    finally:
        zygote.end()


if __name__ == "__main__":
    main()
