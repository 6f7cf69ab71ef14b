"""Files and folders for their owner alone: data, logs, keys of a node hold what functions and callers have written.

A process that serves takes all rights from others by its umask, whatever that was, so that libraries that make files
(RocksDB) need not be told. Programs that are not ours get back what the user had: a function's files are the user's.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

PRIVATE_UMASK: Final = 0o077
_OTHERS: Final = 0o077

_log = logging.getLogger("boki.host")
_users_umask: int | None = None


def keep_private() -> None:
    """From now on, what this process makes is for its owner alone."""
    global _users_umask
    if _users_umask is None:
        _users_umask = os.umask(PRIVATE_UMASK)


def users_umask() -> int:
    """The umask for programs of the user; -1: that of this process."""
    return -1 if _users_umask is None else _users_umask


def make_private_folder(path: Path) -> None:
    """Make the folder, or take an existing one's rights from all but its owner, and say so."""
    try:
        path.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        if not path.is_dir():
            raise
    rights = path.stat().st_mode & 0o777
    if not rights & _OTHERS:
        return
    try:
        path.chmod(rights & ~_OTHERS)
    except PermissionError:
        _log.warning("%s is open to other users (%04o) and belongs to one: have its owner run chmod 700", path, rights)
    else:
        _log.warning("%s was open to other users (%04o): it is its owner's alone now", path, rights)


def open_private(path: Path, flags: int) -> int:
    """A descriptor of the file, which is its owner's alone, also if it was there before."""
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.fstat(descriptor).st_mode & _OTHERS:
        os.fchmod(descriptor, 0o600)
    return descriptor


def write_new_file(path: Path, text: str) -> None:
    """Write a file that nobody else has opened, in place of one of that name: for drafts that are renamed. It is on the
    disk before that, so that a power cut does not leave an empty file under the final name.
    """
    path.unlink(missing_ok=True)
    with os.fdopen(open_private(path, os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW), "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
