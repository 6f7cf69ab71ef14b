"""Watches the functions folder: which modules are there, which files each has read, and what has changed since.

No module is imported in this process: a module is described by a forked one, which may fail in any way it likes. A
module is described anew if any file of the folder that its import has read is another one now, so that a change in what
modules share reaches all of them, and no others.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from boki.calls import ModuleInfo
from boki.errors import ConfigError
from boki.runtime.frames import Described

_AT_ONCE: Final = 4
"""Modules that are described at the same time."""

Signature = tuple[int, int, int] | None
"""What tells one content of a file from another: its time, size and inode; None: no such file."""

Describe = Callable[[str, str], Awaitable[Described]]
"""Describes the module of that name in that file; never raises."""


@dataclass(frozen=True, slots=True)
class Module:
    """A module's latest description, and the files that it came from as they were before."""

    described: Described
    files: dict[str, Signature]


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What has changed since the last look."""

    described: list[ModuleInfo]
    gone: list[str]


class Modules:
    """The modules of one folder, by name. Those whose name starts with `_` are for others to import."""

    def __init__(self, folder: Path, describe: Describe) -> None:
        self.folder = folder
        self._describe = describe
        self._modules: dict[str, Module] = {}
        self._slots = asyncio.Semaphore(_AT_ONCE)

    def sources(self, module: str) -> dict[str, bytes] | None:
        """The sources that belong to the module's latest description; None if they are not pinned."""
        described = self._modules[module].described
        return described.sources if described.is_pinned else None

    async def refresh(self) -> Refreshed:
        """Look at the folder, and describe what is new or has changed."""
        found = _scan(self.folder)
        gone = [name for name in self._modules if name not in found]
        for name in gone:
            del self._modules[name]
        changed = [(name, path) for name, path in found.items() if self._has_changed(name)]
        described = await asyncio.gather(*(self._describe_one(name, path) for name, path in changed))
        return Refreshed(described, gone)

    def _has_changed(self, name: str) -> bool:
        module = self._modules.get(name)
        return module is None or any(_signature(path) != before for path, before in module.files.items())

    async def _describe_one(self, name: str, path: str) -> ModuleInfo:
        async with self._slots:
            known = self._modules.get(name)
            before = {file: _signature(file) for file in {path, *(known.files if known else ())}}
            described = await self._describe(name, path)
        files = {file: before[file] if file in before else _signature_of(file, described) for file in described.sources}
        self._modules[name] = Module(described, files or before)
        return described.module


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


def _signature_of(path: str, described: Described) -> Signature:
    """Of a file that nobody had looked at before it was read: none if it has changed since then."""
    found = _signature(path)
    try:
        is_same = not described.is_pinned or Path(path).read_bytes() == described.sources[path]
    except OSError:
        is_same = False
    return found if is_same else None
