"""The data directory: one process at a time, one version, a folder for each node.

The lock is an `flock`, so it goes with the process that holds it, however that ends. The version is written before
anything else, and what a newer Boki wrote is refused by name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from boki.errors import ConfigError, DataDirectoryInUse, Unavailable, VersionTooNew
from boki.host.private_files import make_private_folder, open_private

VERSION: Final = 1
_VERSION_FILE: Final = "version"
_LOCK_FILE: Final = "lock"


@contextlib.contextmanager
def starting_on(path: Path) -> Iterator[None]:
    """Part of a start on that data directory. An `OSError` in it is `Unavailable`, as of a disk that has no room."""
    try:
        yield
    except OSError as error:
        file = f" ({error.filename})" if error.filename else ""
        raise Unavailable(f"cannot start with {path}: {error.strerror or error}{file}", errno=error.errno) from error


class DataDirectory:
    """An open data directory. Made if it is not there; refused if it is in use, newer, or something else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if path.is_dir():
                self._check_kind()  # before there is a lock: what is refused is left as it was
            make_private_folder(path)
            self._lock = open_private(path / _LOCK_FILE, os.O_RDWR)
        except OSError as error:
            is_file = path.exists() and not path.is_dir()
            why = " is a file, and must be a directory: " if is_file else f": {error.strerror}; "
            raise ConfigError(f"data directory {path}{why}choose another with --data") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.pread(self._lock, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._lock)
            raise DataDirectoryInUse(
                f"data directory {path} is in use by process {owner}: stop it, or choose another with --data"
            ) from None
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
            self._check_version()
        except BaseException:
            self.close()
            raise

    def _check_version(self) -> None:
        """Under the lock: another process may have made the directory its own since the first look. An empty version
        alone is what a full disk or a power cut has left of a first start.
        """
        self._check_kind()
        file = self.path / _VERSION_FILE
        if file.exists() and file.read_text().strip():
            return
        if others := self._others():
            raise ConfigError(
                f"data directory {self.path} holds {', '.join(others[:3])} and an empty version file: it is damaged, "
                "or not Boki's. Choose another one with --data"
            )
        self._write_durably(file, f"{VERSION}\n")

    def _others(self) -> list[str]:
        """Names of what the directory holds besides the files of this class."""
        return sorted(entry.name for entry in self.path.iterdir() if entry.name not in (_LOCK_FILE, _VERSION_FILE))

    def _check_kind(self) -> None:
        """Refuse what is not Boki's, or a newer Boki's. Reads only, and is right while another process starts there:
        the version is written before anything else, so it is looked for after the others; empty, it is being written.
        """
        others = self._others()
        file = self.path / _VERSION_FILE
        if not file.exists():
            if others:
                raise ConfigError(
                    f"data directory {self.path} holds {', '.join(others[:3])} and no version file: it is not Boki's. "
                    "Choose an empty one with --data"
                )
            return
        text = file.read_text(errors="replace").strip()
        if text and not text.isdecimal():
            raise ConfigError(f"data directory {self.path}: its version file says {text[:20]!r}, which is no version")
        if text and int(text) > VERSION:
            raise VersionTooNew(
                f"data directory {self.path} was written by data version {text}, and this Boki knows {VERSION}: upgrade"
            )

    def _write_durably(self, file: Path, text: str) -> None:
        with os.fdopen(open_private(file, os.O_WRONLY | os.O_TRUNC), "w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        folder = os.open(self.path, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def nodes(self, role: str) -> list[str]:
        """The names of nodes of a role that have been here, in order of their numbers."""
        names = [entry.name for entry in self.path.iterdir() if entry.name.startswith(f"{role}-") and entry.is_dir()]
        return sorted(names, key=lambda name: (len(name), name))

    def close(self) -> None:
        """Let other processes have it."""
        os.close(self._lock)
