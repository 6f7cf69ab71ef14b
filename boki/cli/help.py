"""What `-h` prints, the same for every command: usage, text, arguments and options, groups of commands, examples.

The parser's own screens depend on its version, name types instead of what to type, and cut summaries. These need only
what all versions know of a command: its parameters, their names, their help.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from boki.cli.terminal import bytes_text, duration_text

_F = TypeVar("_F", bound=Callable[..., Any])

LEFT_COLUMNS: Final = 30
"""Longer names of options stand on a line of their own."""
_METAVARS: Final = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
_UNITS: Final = (("_s", "SECONDS"), ("_bytes", "BYTES"))


def examples(*lines: str) -> Callable[[_F], _F]:
    """Give a command example lines, which end its help: each as one would type it, maybe with a `# comment` behind."""

    def give(command: _F) -> _F:
        command.__dict__["examples"] = lines
        return command

    return give


def examples_of(command: Any) -> tuple[str, ...]:
    """The example lines of a command; of a group without some of its own, the first of each of its commands."""
    own: tuple[str, ...] = getattr(command.callback, "examples", ())
    if own or not isinstance(command, TyperGroup):
        return own
    return tuple(line for sub in command.commands.values() if not sub.hidden for line in examples_of(sub)[:1])


class Screen:
    """The methods that print help, for commands and groups alike."""

    callback: Any
    get_params: Any
    help: str | None

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What follows the command's name: `[OPTIONS] NAME [PAYLOAD]`."""
        arguments = [param for param in self.get_params(ctx) if param.param_type_name == "argument"]
        pieces = ["[OPTIONS]", *map(_usage, arguments)]
        if isinstance(self, TyperGroup):
            pieces.append("[COMMAND ...]" if self.invoke_without_command else "COMMAND ...")
        return pieces

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the whole screen."""
        pieces = " ".join(self.collect_usage_pieces(ctx))
        formatter.write(f"Usage: {ctx.command_path} {pieces}\n")
        for paragraph in inspect.cleandoc(self.help or "").split("\n\n"):
            formatter.write("\n")
            _write_lines(formatter, _wrapped(" ".join(paragraph.split()), formatter.width - 2), indent=2)
        if isinstance(self, Group):
            _write_commands(formatter, self)
        types = _types_of(self.callback)
        shown = [param for param in self.get_params(ctx) if not getattr(param, "hidden", False)]
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            rows = [
                (_name(param, types), _text(param)) for param in shown if param.param_type_name == kind and param.help
            ]
            _write_rows(formatter, title, rows)
        if lines := examples_of(self):
            formatter.write("\nExamples:\n")
            _write_lines(formatter, lines, indent=2)


class Command(Screen, TyperCommand):
    """A command with such a screen."""


class Group(Screen, TyperGroup):
    """A group of commands with such a screen."""

    order: tuple[str, ...] = ()
    """The names of commands in the order in which help shows them; those that are not in it come last."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the parser's own signature
        """In the order in which help shows them."""
        return [name for rows in _by_panel(self).values() for name in rows]


class Commands(typer.Typer):
    """A group to which commands are added, all with such screens."""

    def __init__(self, help: str, **options: Any) -> None:  # noqa: A002 - the parser's own name
        options = {
            "cls": Group,
            "no_args_is_help": True,
            "add_completion": False,
            "rich_markup_mode": None,
            "pretty_exceptions_enable": False,
            "context_settings": {"help_option_names": ["-h", "--help"]},
            **options,
        }
        super().__init__(help=help, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[_F], _F]:
        """See `typer.Typer.command`."""
        return super().command(name, **{"cls": Command, **options})


def _by_panel(group: Group) -> dict[str, dict[str, Any]]:
    """The commands of each group in which help shows them, in the order of the first of each."""
    found: dict[str, dict[str, Any]] = {}
    place = {name: at for at, name in enumerate(group.order)}
    for name, command in sorted(group.commands.items(), key=lambda item: place.get(item[0], len(place))):
        if not command.hidden:
            found.setdefault(getattr(command, "rich_help_panel", None) or "Commands", {})[name] = command
    return found


def summary_of(command: Any) -> str:
    """The first sentence of a command's help, without its full stop."""
    text = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
    return text.partition(". ")[0].removesuffix(".")


def _write_commands(formatter: Any, group: Group) -> None:
    width = max(map(len, group.commands))
    for title, commands in _by_panel(group).items():
        _write_rows(formatter, title, [(f"{n:<{width}}", summary_of(command)) for n, command in commands.items()])


def _types_of(callback: Any) -> dict[str, Any]:
    """The type of each parameter of a command's function, without `None` and `list`."""
    try:
        hints = get_type_hints(callback)
    except (NameError, TypeError):
        return {}
    return {name: _bare(hint) for name, hint in hints.items()}


def _bare(hint: Any) -> Any:
    inner = [kind for kind in get_args(hint) if kind is not type(None)]
    return _bare(inner[0]) if inner and get_origin(hint) is not None else hint


def _metavar(param: Any, types: dict[str, Any]) -> str:
    """What stands for the value: a unit, a type, or the name of an argument."""
    if param.metavar:
        return str(param.metavar)
    if param.param_type_name == "argument":
        return str(param.name.upper())
    unit = next((unit for suffix, unit in _UNITS if param.name.endswith(suffix)), None)
    return unit or _METAVARS.get(types.get(param.name, str), "TEXT")


def _name(param: Any, types: dict[str, Any]) -> str:
    """The left column: `-n, --limit INTEGER`, or an argument's name."""
    if param.param_type_name == "argument":
        return _metavar(param, types)
    names = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        return f"{names} / {param.secondary_opts[0]}"
    return names if param.is_flag else f"{names} {_metavar(param, types)}"


def _usage(param: Any) -> str:
    name = _metavar(param, {}) + ("..." if param.nargs != 1 else "")
    return name if param.required or name.startswith("[") else f"[{name}]"


def _text(param: Any) -> str:
    """The right column: the help, the default for people, the variable that sets it."""
    default = default_text(param)
    extras = [f"default: {default}"] if default else []
    extras += [f"env: {param.envvar}"] if param.envvar else []
    return f"{param.help} [{'; '.join(extras)}]" if extras else str(param.help)


def default_text(param: Any) -> str:
    """The default for people: `24h`, `256 MiB`; empty if there is nothing to say."""
    if isinstance(param.show_default, str):
        return param.show_default
    default = param.default
    if not param.show_default or default in (None, "", 0.0) or isinstance(default, bool) or callable(default):
        return ""
    if isinstance(default, list | tuple):
        return ", ".join(map(str, default))
    return value_text(param.name, default)


def value_text(name: str, value: Any) -> str:
    """The value of a setting for people, in the unit that its name ends in.

    >>> value_text("keep_calls_s", 86400.0), value_text("cache_bytes", 268435456), value_text("port", 8080)
    ('24h', '256 MiB', '8080')
    >>> value_text("repair_bytes_per_s", 67108864)
    '64 MiB a second'
    """
    if name.endswith("_bytes_per_s"):
        return f"{value_text('_bytes', int(value))} a second"
    if name.endswith("_s") and isinstance(value, int | float):
        return duration_text(value)
    if name.endswith("_bytes") and isinstance(value, int):
        return bytes_text(value).replace(".0 ", " ")
    return str(value)


def _write_rows(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    """A section in two columns. Words stay whole, however narrow the screen is."""
    if not rows:
        return
    formatter.write(f"\n{title}:\n")
    left = 2 + min(max(len(name) for name, _ in rows), LEFT_COLUMNS)
    for name, text in rows:
        lines = _wrapped(text, max(formatter.width - left - 2, 20))
        fits = len(name) <= LEFT_COLUMNS and bool(lines)
        formatter.write(f"  {name:<{left}}{lines.pop(0)}\n" if fits else f"  {name}\n")
        _write_lines(formatter, lines, indent=left + 2)


def _write_lines(formatter: Any, lines: Iterable[str], *, indent: int) -> None:
    for line in lines:
        formatter.write(f"{'':{indent}}{line}\n")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
