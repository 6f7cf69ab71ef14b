"""Imports a module of the functions folder, says what it registers, or where and why it is broken."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from collections.abc import Mapping
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from boki.api.registry import Registry
from boki.errors import ConfigError
from boki.protocol.calls import ModuleInfo
from boki.worker.frames import MAX_SOURCES_BYTES, Described


class Sources:
    """The files of the functions folder that this process imports, pinned to what they were in the version's first
    import if they are known from there. Without pinning, Python imports from the folder as from anywhere.
    """

    def __init__(self, folder: str, *, pinned: Mapping[str, bytes] | None) -> None:
        """`pinned`: what is known; empty: read everything and remember it; None: do not pin."""
        self.folder = folder
        self._contents = None if pinned is None else dict(pinned)

    def install(self) -> None:
        """Let modules of the folder be imported, by each other too."""
        sys.path.insert(0, self.folder)
        if self._contents is None:
            return
        sys.path_hooks.insert(0, self._finder_for)

    def _finder_for(self, path: str) -> FileFinder:
        if not _is_inside(path, self.folder):
            raise ImportError("only the functions folder is pinned", path=path)
        return FileFinder(path, (self._loader, SOURCE_SUFFIXES))  # type: ignore[arg-type]  # any factory will do

    def _loader(self, name: str, path: str) -> SourceFileLoader:
        return _PinnedLoader(name, path, self)

    def read(self, path: str) -> bytes:
        """The file as it was when this version was first imported."""
        contents = self._contents if self._contents is not None else {}
        if path not in contents:
            contents[path] = Path(path).read_bytes()
        return contents[path]

    def load(self, name: str, path: str) -> ModuleType:
        """Import the file as the module `name`. Raises what importing it raises, and `ConfigError` for a bad name."""
        if not name.isidentifier():
            raise ConfigError(f"{shown(path)}: {name!r} cannot be the name of a module: rename the file")
        if name in sys.modules or name in sys.stdlib_module_names:
            raise ConfigError(f"{shown(path)} would hide the module {name!r} that others import: rename the file")
        loader = SourceFileLoader(name, path) if self._contents is None else self._loader(name, path)
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        assert spec is not None and spec.loader is not None, "a loader was given"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    def registry(self, name: str, path: str) -> Registry | str:
        """The functions of the module, or its error with file and line."""
        try:
            return Registry.of(self.load(name, path))
        except BaseException as error:  # noqa: BLE001 - also a module that exits: it must not end this process unsaid
            return error_text(error, path, self.folder)

    def describe(self, name: str, path: str) -> Described:
        """What the module registers (or its error), and what its import has read."""
        found = self.registry(name, path)
        if isinstance(found, str):
            info = ModuleInfo(module=name, path=shown(path), error=found)
        else:
            info = ModuleInfo(module=name, path=shown(path), functions=found.infos)
        if self._contents is not None:
            sources = {path: b""} | self._contents
            if sum(map(len, sources.values())) <= MAX_SOURCES_BYTES:
                return Described(info, sources, True)
        files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        read = {path, *(file for file in files if file and _is_inside(file, self.folder))}
        return Described(info, dict.fromkeys(read, b""), False)


class _PinnedLoader(SourceFileLoader):
    """Compiles pinned sources. It neither reads nor writes bytecode, which may be of another version of the file."""

    def __init__(self, name: str, path: str, sources: Sources) -> None:
        super().__init__(name, path)
        self._sources = sources

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        return self.source_to_code(self._sources.read(path), path)


def error_text(error: BaseException, path: str, folder: str) -> str:
    """One line: the place in the user's own code that is to blame, and what happened there.

    A syntax error names its place; else it is the innermost line of the functions folder on the way to the error.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f"{shown(error.filename)}:{error.lineno or 0}: {type(error).__name__}: {error.msg}"
    place = shown(path)
    for frame in traceback.extract_tb(error.__traceback__):
        if _is_inside(frame.filename, folder):
            place = f"{shown(frame.filename)}:{frame.lineno}"
    return f"{place}: {type(error).__name__}: {error}"


def shown(path: str) -> str:
    """A path as people know it: relative to the working directory if it is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def _is_inside(file: str, folder: str) -> bool:
    return Path(file).is_relative_to(folder)
