"""Imports a module of the functions folder, says what it registers, or where and why it is broken."""

from __future__ import annotations

import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from boki.calls import ModuleInfo
from boki.errors import ConfigError
from boki.runtime.function import Registry


def prepare_path(folder: str, *, write_bytecode: bool) -> None:
    """Let modules of the folder import each other. Without bytecode, the very source on disk is what runs: a compiled
    file cannot be told from a newer source of the same second and size.
    """
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = not write_bytecode


def load_module(name: str, path: str) -> ModuleType:
    """Import the file as the module `name`. Raises whatever importing it raises, and `ConfigError` for a bad name."""
    if not name.isidentifier():
        raise ConfigError(f"{shown(path)}: {name!r} cannot be the name of a module: rename the file")
    if name in sys.modules or name in sys.stdlib_module_names:
        raise ConfigError(f"{shown(path)} would hide the module {name!r} that others import: rename the file")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{shown(path)} is not a Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load_registry(name: str, path: str, folder: str) -> Registry | str:
    """The functions of the module, or its error with file and line."""
    try:
        return Registry.of(load_module(name, path))
    except BaseException as error:  # noqa: BLE001 - also a module that exits: nothing in it may end this process unsaid
        return error_text(error, path, folder)


def describe(name: str, path: str, folder: str) -> tuple[ModuleInfo, tuple[str, ...]]:
    """What the module registers (or its error), and the files of the folder that its import has loaded."""
    found = load_registry(name, path, folder)
    if isinstance(found, str):
        info = ModuleInfo(module=name, path=shown(path), error=found)
    else:
        info = ModuleInfo(module=name, path=shown(path), functions=found.infos)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return info, tuple({path, *(file for file in files if file and _is_inside(file, folder))})


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
