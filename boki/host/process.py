"""What this process may take of its machine: descriptors, and how it gives memory back."""

from __future__ import annotations

import ctypes
import gc
import resource
from contextlib import suppress
from threading import Thread
from time import monotonic
from typing import Final

from boki.log.limits import MIB

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MMAP_BYTES: Final = 1 * MIB
_TRIM_BYTES: Final = 8 * MIB
_MANY_FILES: Final = 8192
_GIVE_BACK_S: Final = 5.0


def prepare_process() -> None:
    """Before anything else in a process that serves: many files, and freed memory goes back."""
    _raise_file_limit()
    _give_back_memory()


def _raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one.

    The usual soft limit of 1,024 is there for `select`, which nothing here uses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # macOS: the kernel's own limit is lower than what it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def spare_the_collector() -> None:
    """Rows and batches live long and hold no cycles: a full collection of millions of them would only hold up calls."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 200)


def file_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def reserved_files() -> int:
    """How many of these connections from outside leave alone: for disks, links, workers, and the next accepts."""
    return 2048 if file_limit() >= _MANY_FILES else 512


def give_back_pages() -> None:
    """Have glibc return what is free between blocks that stay, such as where a cache was; elsewhere this does nothing.

    By itself it returns the end of its heap alone. It takes milliseconds, and may run in any thread.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class FreePages:
    """Of this process: given back in a thread when much was let go, and never more often than every few seconds.

    It has no timer, so a process that rests is not woken.
    """

    def __init__(self) -> None:
        self._not_before_s = 0.0

    def give_back(self) -> None:
        """Much was let go."""
        now_s = monotonic()
        if now_s >= self._not_before_s:
            self._not_before_s = now_s + _GIVE_BACK_S
            Thread(target=give_back_pages, name="free pages", daemon=True).start()


def _give_back_memory() -> None:
    """Have glibc return large blocks to the system when they are freed; elsewhere this does nothing.

    By itself it learns to keep blocks of up to 32 MiB, so one burst of large answers stays in the process permanently.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
