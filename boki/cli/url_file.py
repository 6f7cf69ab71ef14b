"""Where a running `boki dev` listens: a file in the folder of its lock, for commands in the same folder.

The file names the process, too: after a kill it stays behind, and counts for nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from boki.launch.up.identity import is_same, start_mark

FILE_NAME: Final = "url"


class _Listening(msgspec.Struct, frozen=True):
    url: str
    pid: int
    mark: str


@contextlib.contextmanager
def announced(data: Path, url: str) -> Iterator[None]:
    """Say where this process listens, for as long as the block lasts. A disk that is full is no reason not to serve."""
    file = data / FILE_NAME
    new = file.with_name(f"{FILE_NAME}.new")
    with contextlib.suppress(OSError):
        new.write_bytes(msgspec.json.encode(_Listening(url, os.getpid(), start_mark(os.getpid()))) + b"\n")
        new.replace(file)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def url_of(data: Path) -> str:
    """Where the `boki dev` of that data directory listens; empty if none runs."""
    try:
        told = msgspec.json.decode((data / FILE_NAME).read_bytes(), type=_Listening)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return told.url if is_same(told.pid, told.mark) else ""
