"""Commands of libraries: a group in the list of commands, imported when one of them, or their help, is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from typing import Any

import typer

from boki.cli.help import Commands, Group
from boki.cli.terminal import errors
from boki.faces import CommandGroup
from boki.faces.installed import installed


def groups_besides(own: Collection[str]) -> list[CommandGroup]:
    """The groups of all libraries but those that are named as one of Boki's own commands."""
    groups = [face.commands for face in installed().faces if face.commands is not None]
    return [group for group in groups if group.name not in own]


def say_problems(own: Collection[str]) -> None:
    """Say on stderr which libraries are missing here, and why."""
    hidden = [
        f"library {face.library} has no commands here: `boki {face.commands.name}` is one of Boki's own"
        for face in installed().faces
        if face.commands is not None and face.commands.name in own
    ]
    for problem in (*installed().problems, *hidden):
        errors().print(problem, style="yellow", markup=False, highlight=False)


def commands_of(group: CommandGroup) -> Commands:
    """The group, to be added to the parser's."""

    class OfLibrary(Group):
        order = group.order

        def __init__(self, **options: Any) -> None:
            super().__init__(**options | {"commands": _LateCommands(group.load)})

    return Commands(group.help, cls=OfLibrary)


class _LateCommands(Mapping[str, Any]):
    """The commands by name, as they were added. The first look at them imports them."""

    def __init__(self, load: Callable[[], typer.Typer]) -> None:
        self._load = load

    @cached_property
    def _loaded(self) -> Mapping[str, Any]:
        return typer.main.get_group(self._load()).commands

    def __getitem__(self, name: str) -> Any:
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded)

    def __len__(self) -> int:
        return len(self._loaded)
