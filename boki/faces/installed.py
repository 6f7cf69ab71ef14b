"""Registry of the libraries that are installed: Boki's own ones, and those that other packages bring.

A package brings a library by an entry point of the group `boki.libraries`, which names a `Face`::

    [project.entry-points."boki.libraries"]
    visits = "visits.face:FACE"
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final

from boki.errors import ConfigError
from boki.faces.face import Face
from boki.protocol.calls import FunctionInfo

BUILT_IN: Final = tuple(f"boki.libs.{name}.face" for name in ("bokiqueue", "bokistore", "bokiflow"))
"""Modules that have a `FACE`. They are named here and imported when a face is asked for.

The first parts of their paths stand in `boki.protocol.routes.OWN_PATHS`, their packages in the import contract that
hides them.
"""
GROUP: Final = "boki.libraries"


@dataclass(frozen=True, slots=True)
class Installed:
    """The faces, in the order in which the CLI lists them, and what is wrong with others."""

    faces: tuple[Face, ...]
    problems: tuple[str, ...]
    """One sentence for each library that cannot be loaded."""
    built_in: frozenset[str]
    """The names of Boki's own libraries."""


@cache
def installed() -> Installed:
    """The libraries of this Python environment, looked for once a process."""
    own = [Loader(module, _of_module(module)) for module in BUILT_IN]
    others = [Loader(f"{one.name} ({one.value})", one.load) for one in entry_points(group=GROUP)]
    return find([*own, *others], built_in=len(own))


@dataclass(frozen=True, slots=True)
class Loader:
    """A library that is not loaded yet. `name` is for messages."""

    name: str
    load: Callable[[], Any]


def find(loaders: Iterable[Loader], *, built_in: int = 0) -> Installed:
    """Load faces. The first `built_in` are Boki's own: there an error is a bug, and raised."""
    faces: list[Face] = []
    problems: list[str] = []
    for number, loader in enumerate(loaders):
        try:
            face = loader.load()
        except Exception as error:
            if number < built_in:
                raise
            problems.append(f"library {loader.name} cannot be loaded: {type(error).__name__}: {error}")
            continue
        if problem := _problem_of(face, faces):
            problems.append(f"library {loader.name} cannot be used: {problem}")
        else:
            faces.append(face)
    return Installed(tuple(faces), tuple(problems), frozenset(face.library for face in faces[:built_in]))


def all_faces() -> tuple[Face, ...]:
    """The faces. `ConfigError` if a library cannot be loaded: its routes and consumers would be missing silently."""
    found = installed()
    if found.problems:
        raise ConfigError(f"{'; '.join(found.problems)}: repair or uninstall it")
    return found.faces


def check_uses(info: FunctionInfo) -> None:
    """Raise the `BokiError` of a library whose settings for this function cannot be its decorator's."""
    for face in installed().faces:
        settings = info.settings_of(face.library)
        if settings is not None and face.check_settings is not None:
            face.check_settings(settings)


def _of_module(module: str) -> Callable[[], Any]:
    return lambda: import_module(module).FACE


def _problem_of(face: Any, others: list[Face]) -> str:
    """Why it cannot be one more face; "" if it can."""
    if not isinstance(face, Face):
        return f"its entry point names {type(face).__name__}, not a boki.faces.Face"
    if any(face.library == other.library for other in others):
        return f"there is another library {face.library}"
    groups = [other.commands.name for other in others if other.commands is not None]
    if face.commands is not None and face.commands.name in groups:
        return f"another library has the commands `boki {face.commands.name}`"
    return ""
