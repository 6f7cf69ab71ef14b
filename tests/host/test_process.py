"""What a process that serves takes of its machine (found.md part 2, H2 and H3), tried in processes of their own."""

from __future__ import annotations

import resource
import subprocess
import sys
from queue import Queue
from threading import Thread
from typing import ClassVar

import pytest

from boki.host import process

FILES = """
import resource
from boki.host.process import file_limit, prepare_process
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
prepare_process()
print(file_limit())
"""
MEMORY = """
import os
from boki.host.process import prepare_process
prepare_process()
large = bytes(30 << 20)  # from its end on, glibc by itself keeps blocks of up to its size
del large
blocks = []
for _ in range(40):
    blocks.append((b"x" * (6 << 20), b"y" * 100_000))
between = [small for _, small in blocks]
del blocks
print(int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20)
"""

PAGES = """
import os
from boki.host.process import give_back_pages, prepare_process
prepare_process()
blocks = [(bytes(bytearray(100_000)), b"y" * number) for number in range(1_000, 2_000)]
between = [small for _, small in blocks]
del blocks
before = int(open("/proc/self/statm").read().split()[1])
give_back_pages()
print((before - int(open("/proc/self/statm").read().split()[1])) * os.sysconf("SC_PAGE_SIZE") >> 20)
"""


def said(program: str) -> int:
    """The number that the program prints."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_the_soft_limit_of_open_files_is_raised_to_the_hard_one() -> None:
    """The usual 1,024 are soon taken by silent connections, and then disks have none."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert said(FILES) == (hard if hard != resource.RLIM_INFINITY else 1 << 20)


def test_large_blocks_go_back_to_the_system() -> None:
    """Of a burst of large answers nothing stays, though small blocks lie between them: all of its 240 MiB did."""
    assert said(MEMORY) < 100


def test_pages_between_blocks_that_stay_go_back_when_asked() -> None:
    """Most of the 95 MiB of a cache that has gone, of which glibc by itself keeps all."""
    assert said(PAGES) > 70


class Kept(Thread):
    """A thread that a test can wait for."""

    all: ClassVar[list[Thread]] = []

    def start(self) -> None:
        self.all.append(self)
        super().start()


def test_pages_go_back_when_much_was_let_go_but_not_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loaded engine saves its index many times a minute, and each time what has left its cache is free."""
    given_back: Queue[None] = Queue()
    times = iter((100.0, 101.0, 104.9, 105.0, 109.9))
    monkeypatch.setattr(process, "monotonic", lambda: next(times))
    monkeypatch.setattr(process, "give_back_pages", lambda: given_back.put(None))
    monkeypatch.setattr(process, "Thread", Kept)
    pages = process.FreePages()
    for _ in range(5):
        pages.give_back()
    for thread in Kept.all:
        thread.join(30)
    assert given_back.qsize() == 2
