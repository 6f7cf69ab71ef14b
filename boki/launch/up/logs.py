"""Log files that do not grow without bound. The processes write to them directly, so that none waits for another."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path
from typing import Final

from boki.host.clock import now_us
from boki.host.lines import console_lines
from boki.host.private_files import make_private_folder, open_private

MAX_BYTES: Final = 16 << 20
_TAIL_BYTES: Final = 16 << 10


def open_log(file: Path) -> int:
    """A descriptor that appends to the file, for a child's stdout and stderr."""
    make_private_folder(file.parent)
    return open_private(file, os.O_WRONLY | os.O_APPEND)


def append(file: Path, text: str) -> None:
    """Write a line of our own to the file, as an error of the process that writes there."""
    log = open_log(file)
    try:
        lines = console_lines(now_us(), file.stem, logging.ERROR, text)
        os.write(log, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(log)


def older(file: Path) -> Path:
    """Where the part before the last cut stands."""
    return file.with_name(file.name + ".1")


def bound(file: Path, max_bytes: int = MAX_BYTES) -> bool:
    """Once the file is larger, move what is in it to `older(file)` and begin again. Whether that was so.

    It is copied and emptied, not renamed: whoever writes has it open. A line that is written between the two is lost,
    and all of it if the disk has no room for a copy.
    """
    try:
        if file.stat().st_size <= max_bytes:
            return False
    except FileNotFoundError:
        return False
    try:
        os.close(open_private(older(file), os.O_WRONLY))
        shutil.copyfile(file, older(file))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        older(file).unlink(missing_ok=True)
    os.truncate(file, 0)
    return True


def last_lines(file: Path, count: int = 5) -> list[str]:
    """The last lines of the file, without empty ones; none if it is not there."""
    try:
        with file.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            lines = stream.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [line for line in lines if line.strip()][-count:]
