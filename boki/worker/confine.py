"""What a forked process does to itself before it runs anything of a user's.

It must not outlive its engine, not even one that was killed with SIGKILL, and not while user code blocks it. Linux
kills it together with its parent, the zygote (`die_with_parent`), which ends when the engine's end of its socket is
closed. Elsewhere a thread watches the engine's end of the worker's own socket and ends the process (`die_with_peer`).

What it has started must not outlive it either. A child that double-forks and leaves its session stays a descendant of
the worker (`adopt_orphans`), and when that ends of the zygote, which kills it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_FIRST_FREE_FD: Final = 3
IS_LINUX: Final = sys.platform == "linux"

# Loaded here and not in the fork, where only what cannot fail should happen.
_prctl: Final = ctypes.CDLL(None, use_errno=True).prctl if IS_LINUX else None


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel kill this process when its parent ends, or send it another signal. Does nothing where the kernel
    cannot (not on Linux).
    """
    if _prctl is None:
        return
    if _prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent_pid:
        os._exit(0)  # it ended before we asked


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, as init would; Linux only. Forks do not inherit it."""
    if _prctl is not None and _prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def child_pids() -> list[int]:
    """The children of this process, which has one thread; none where the system does not list them (not on Linux)."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def die_with_peer(fd: int) -> None:
    """End this process when the other end of the socket closes, whatever its other threads do."""

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, 0)  # hang-ups are always reported
        poll.poll()
        os._exit(0)

    Thread(target=watch, daemon=True, name="boki-die-with-peer").start()


def confine(keep: Iterable[int], memory_bytes: int) -> None:
    """Make the forked process independent of the zygote: signals, session, file descriptors, limits.

    Only the descriptors in `keep` stay open, beside stdin (empty), stdout and stderr (the engine's stderr, for what is
    written past Python). Memory is bounded at twice `memory_bytes`, as a backstop for growth that is too fast to be
    seen: an allocation beyond it fails with `MemoryError`.
    """
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    os.setsid()
    quiet()
    close_all_but(keep)
    # RLIMIT_DATA counts private writable memory, so that address space which is only reserved costs nothing.
    kind = resource.RLIMIT_DATA if IS_LINUX else resource.RLIMIT_AS
    _, hard = resource.getrlimit(kind)
    wanted = 2 * memory_bytes
    if hard == resource.RLIM_INFINITY or wanted < hard:
        resource.setrlimit(kind, (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def quiet() -> None:
    """Nothing to read on stdin; stdout goes where stderr goes, because the engine's own stdout is for its results."""
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)


def close_all_but(keep: Iterable[int]) -> None:
    """Close all file descriptors above stderr except these: other processes wait for them to be closed."""
    kept = set(keep)
    for fd in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        if fd >= _FIRST_FREE_FD and fd not in kept:
            with suppress(OSError):  # the one that listed them is closed already
                os.close(fd)
