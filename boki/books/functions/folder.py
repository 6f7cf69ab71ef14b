"""A functions folder as a bundle.

Paths that start with a dot, `__pycache__` and compiled files are left out. Links are refused, because what they stand
for may be anything of the machine that deploys.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from boki.books.functions.bundle import MAX_BUNDLE_BYTES, MAX_FILES, File, pack_files, too_large
from boki.errors import InvalidArgument, TooLarge

_SKIPPED: Final = ("__pycache__",)
_COMPILED: Final = (".pyc", ".pyo")
_DECORATOR: Final = re.compile(rb"^@(\w+\.)*(function|consume)\b", re.MULTILINE)


def pack_folder(folder: Path) -> bytes:
    """The folder's files as a bundle. `InvalidArgument` or `TooLarge` if it cannot be deployed."""
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is no folder: name the one that holds the modules", field="folder")
    files = []
    size = 0
    for path in _walk(folder, folder):
        relative = path.relative_to(folder).as_posix()
        size += path.stat().st_size  # before it is read: a stray data file must not fill the memory
        if size > MAX_BUNDLE_BYTES:
            raise too_large(f"with {relative} ")
        try:
            files.append(File(relative, path.read_bytes()))
        except OSError as error:
            raise InvalidArgument(f"{path} cannot be read: {error.strerror or error}", field="folder") from None
        if len(files) > MAX_FILES:
            raise TooLarge(f"a bundle may have at most {MAX_FILES:,} files: {folder} has more", field="folder")
    return pack_files(files)


def _walk(folder: Path, root: Path) -> list[Path]:
    found = []
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be read: {error.strerror or error}", field="folder") from None
    for entry in entries:
        if entry.name.startswith(".") or entry.name in _SKIPPED or entry.name.endswith(_COMPILED):
            continue
        path = Path(entry.path)
        if entry.is_symlink():
            raise InvalidArgument(
                f"{path.relative_to(root)} is a link: put the file itself into the folder, or leave it out",
                field="folder",
            )
        if entry.is_dir():
            found += _walk(path, root)
        elif entry.is_file():
            found.append(path)
        else:
            raise InvalidArgument(f"{path.relative_to(root)} is neither a file nor a folder", field="folder")
        if len(found) > MAX_FILES:
            break
    return found


def overlooked_files(folder: Path) -> list[str]:
    """Python files of its subfolders that decorate functions, by their paths: nothing registers them."""
    found: list[str] = []
    seen = 0
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "_")))
        for name in sorted(names) if Path(path) != folder else ():
            file = Path(path, name)
            seen += 1
            if seen > MAX_FILES:
                return found
            if name.endswith(".py") and _decorates(file):
                found.append(file.relative_to(folder).as_posix())
    return found


def _decorates(file: Path) -> bool:
    try:
        return _DECORATOR.search(file.read_bytes()) is not None
    except OSError:
        return False
