"""Commands whose flags are the fields of a configuration, so that a new one is written down in one place."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer

from boki.cli.help import examples, value_text
from boki.config.loading import Config, ConfigType, Setting, flag, load, settings


def file_parameter() -> inspect.Parameter:
    """`--config FILE`."""
    option = typer.Option(None, "--config", metavar="FILE", help="Read this file instead of boki.toml.")
    return inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=option, annotation=Path | None)


def command_of(
    run: Callable[..., None], *kinds: type[Config], more: Sequence[inspect.Parameter] = ()
) -> Callable[..., None]:
    """`run` as a command with one flag for each setting of `kinds`, after `--config` and the parameters in `more`."""
    parameters = [file_parameter(), *more]
    for setting in {setting.name: setting for kind in reversed(kinds) for setting in settings(kind)}.values():
        spelled = flag(setting.name)
        is_switch = isinstance(setting.default, bool)
        option = typer.Option(
            None,
            f"{spelled}/{spelled.replace('--', '--no-', 1)}" if is_switch else spelled,
            metavar=None if is_switch else _metavar(setting),
            help=setting.description or "One of the limits of every request.",
            show_default=_default_text(setting),
            hidden=setting.name.startswith("limits."),  # there to be set, but not what one looks for in the help text
        )
        # Values stay text: the configuration checks them, and lists every problem at once.
        annotation = bool | None if is_switch else str | None
        parameters.append(
            inspect.Parameter(
                parameter_name(setting), inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation
            )
        )
    command: Any = lambda **flags: run(**flags)  # noqa: E731 - `run` itself keeps its own signature
    command.__doc__ = run.__doc__
    examples(*getattr(run, "examples", ()))(command)
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command  # type: ignore[no-any-return]


def load_flags(
    kind: type[ConfigType], flags: dict[str, Any], file: Path | None, *, shares_with: type[Config]
) -> ConfigType:
    """The configuration that the flags of such a command, the environment and the file make.

    The file may be shared with the command that `shares_with` configures.
    """
    names = {parameter_name(setting): setting.name for setting in settings(kind)}
    return load(
        kind,
        flags={names[name]: value for name, value in flags.items()},
        environment=os.environ,
        file=file,
        others={setting.name for setting in settings(shares_with)},
    )


def parameter_name(setting: Setting) -> str:
    """What the setting is called where a dot cannot stand."""
    return setting.name.replace(".", "_")


def _metavar(setting: Setting) -> str:
    kind = get_args(setting.type)[0] if get_args(setting.type) else setting.type
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if setting.name.endswith("_bytes"):
        return "BYTES"
    return {int: "INTEGER", float: "SECONDS", Path: "PATH"}.get(kind, "TEXT")


def _default_text(setting: Setting) -> str:
    if isinstance(setting.default, bool):
        return "on" if setting.default else "off"
    return "none" if setting.default == "" else value_text(setting.name, setting.default)
