"""Watches the functions folder: which modules are there, which files each has read, and what has changed since.

No module is imported in this process: a module is described by a forked one, which may fail in any way it likes. A
module is described again if any file of the folder that its import has read is another one now, so that a change in
what modules share reaches all of them, and no others. Modules are described independently: an import that hangs keeps
no other module from being taken over, and ends when its file changes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from boki.books.functions.folder import overlooked_files
from boki.errors import ConfigError
from boki.protocol.calls import ModuleInfo
from boki.worker.frames import Described

_AT_ONCE: Final = 4
"""Modules whose import begins at the same time."""
_SLOW_S: Final = 1.0
"""An import that takes longer no longer keeps others from beginning, nor from being taken over."""

Signature = tuple[int, int, int] | None
"""What tells one content of a file from another: its time, size and inode; None: no such file."""

Describe = Callable[[str, str], Awaitable[Described]]
"""Describes the module of that name in that file; never raises."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module's latest description, and the files that it came from as they were before."""

    described: Described
    files: dict[str, Signature]


@dataclass(slots=True)
class Running:
    """A module that is being described."""

    path: str
    files: dict[str, Signature]
    """What it is known to read, as it was: if one of them changes, the description is of no use."""
    task: asyncio.Task[Described]
    is_slow: bool = False
    """It has been waited for without result."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What has changed since the last look."""

    described: list[ModuleInfo]
    gone: list[str]
    slow: list[str]
    """Files whose import still runs, each said once."""
    overlooked: list[str]
    """Files of subfolders that decorate functions, without effect; each said once."""


class Modules:
    """The modules of one folder, by name. Those whose name starts with `_` are for others to import."""

    def __init__(self, folder: Path, describe: Describe) -> None:
        self.folder = folder
        self._describe = describe
        self._modules: dict[str, Module] = {}
        self._running: dict[str, Running] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._overlooked: set[str] = set()

    def sources(self, module: str) -> dict[str, bytes] | None:
        """The sources that belong to the module's latest description; None if they are not pinned."""
        described = self._modules[module].described
        return described.sources if described.is_pinned else None

    async def refresh(self, timeout_s: float | None = None) -> Refreshed:
        """Look at the folder, describe what is new or has changed, and wait for it, `timeout_s` at most.

        An import that takes longer continues; a later look finds it, or gives it up if one of its files has changed.
        """
        gone = self._begin_changed(_scan(self.folder))
        awaited = [running.task for running in self._running.values() if not running.is_slow]
        if awaited:
            await asyncio.wait(awaited, timeout=timeout_s)
        described = [self._take(name) for name in [*self._running] if self._running[name].task.done()]
        slow = [running for running in self._running.values() if not running.is_slow]
        for running in slow:
            running.is_slow = True
        overlooked = [file for file in overlooked_files(self.folder) if file not in self._overlooked]
        self._overlooked.update(overlooked)
        return Refreshed(described, gone, [running.path for running in slow], overlooked)

    def forget_broken(self) -> None:
        """Let the next look describe again what could not be loaded, although its files are the same."""
        for name in [name for name, module in self._modules.items() if module.described.module.error]:
            del self._modules[name]

    def stop(self) -> None:
        """Give up what is being described."""
        for name in [*self._running]:
            self._running.pop(name).task.cancel()

    def _begin_changed(self, found: dict[str, str]) -> list[str]:
        """Begin to describe what is not what it was; the names of modules that are gone."""
        gone = [name for name in self._modules if name not in found]
        for name in gone:
            del self._modules[name]
        for name, running in [*self._running.items()]:
            if name not in found or _have_changed(running.files):
                self._running.pop(name).task.cancel()
        for name, path in found.items():
            known = self._modules.get(name)
            if name not in self._running and (known is None or _have_changed(known.files)):
                shared = _shared_files(self.folder)  # the import may hang in one that no import has been seen to read
                files = {file: _signature(file) for file in {path, *shared, *(known.files if known else ())}}
                task = asyncio.get_running_loop().create_task(self._described(name, path))
                self._running[name] = Running(path, files, task)
        return gone

    async def _described(self, name: str, path: str) -> Described:
        async with self._slots:
            describing = asyncio.ensure_future(self._describe(name, path))
            try:
                await asyncio.wait([describing], timeout=_SLOW_S)
            except asyncio.CancelledError:
                describing.cancel()
                raise
        return await describing

    def _take(self, name: str) -> ModuleInfo:
        running = self._running.pop(name)
        described = running.task.result()
        before = running.files
        files = {
            file: before[file]
            if file in before and not described.is_pinned
            else _signature_of(file, described, before.get(file))
            for file in described.sources
        }
        known = self._modules.get(name)
        looked_at = {running.path, *(known.files if known else ())}
        self._modules[name] = Module(described, files or {file: before[file] for file in looked_at if file in before})
        return described.module


def _have_changed(files: dict[str, Signature]) -> bool:
    return any(_signature(path) != before for path, before in files.items())


def _shared_files(folder: Path) -> list[str]:
    return [str(path) for path in folder.glob("_*.py")]


def _scan(folder: Path) -> dict[str, str]:
    """The modules of the folder and their files, by name."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(
                entry.name
                for entry in entries
                if entry.name.endswith(".py") and not entry.name.startswith(("_", ".")) and entry.is_file()
            )
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"the functions folder {folder} cannot be read: {error.strerror or error}") from None
    return {name.removesuffix(".py"): str(folder / name) for name in names}


def _signature(path: str) -> Signature:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _signature_of(path: str, described: Described, before: Signature) -> Signature:
    """Of what the import has read, which a save after the last look may have written: else it would be imported, and
    told of, twice. What was there `before` if it has changed since it was read.
    """
    found = _signature(path)
    try:
        is_same = not described.is_pinned or Path(path).read_bytes() == described.sources[path]
    except OSError:
        is_same = False
    return found if is_same else before
