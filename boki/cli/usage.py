"""What the parser refuses, said as all other errors are: the thing, the limit, what to do."""

from __future__ import annotations

import re
from typing import Any, Final

import typer

_MRO: Final = typer.BadParameter.__mro__
PARSER_ERROR: Final[type[Exception]] = next(kind for kind in _MRO if kind.__name__ == "ClickException")
"""The base of all errors of the parser; the package that it is in depends on the parser's version."""

_WORDS: Final = {
    "int_parsing": "must be a whole number, not {given!r}",
    "int_from_float": "must be a whole number, not {given!r}",
    "float_parsing": "must be a number, not {given!r}",
    "greater_than_equal": "must be at least {ge:.15g}, not {given}",
    "less_than_equal": "must be at most {le:.15g}, not {given}",
}


def is_help(error: Any) -> bool:
    """Whether it is no mistake, but a group without a command, for which its help is printed."""
    return type(error).__name__ == "NoArgsIsHelpError"


def message_of(error: Any) -> str:
    """One sentence for the error."""
    text = str(error.format_message()).removesuffix(".")
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return _no_such_option(error)
    if kind == "MissingParameter" and error.param is not None:
        return f"{_name(error.param)} is missing"
    if kind == "BadParameter" and error.param is not None:
        return f"{_name(error.param)} {_reason(error)}"
    if kind == "BadParameter" and error.param_hint is not None:
        return f"{error.param_hint}: {error.message}"
    if match := re.fullmatch(r"No such command '(.*)'(?:\. Did you mean (.*)\?)?", text):
        near = f"; did you mean {' or '.join(match[2].replace(chr(39), '').split(', '))}?" if match[2] else ""
        return f"there is no command {match[1]!r}{near}"
    if match := re.fullmatch(r"Option '(.*)' requires an argument", text):
        return f"{match[1]} needs a value"
    if match := re.fullmatch(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)", text):
        return f"too many arguments: {match[1]}"
    return text[:1].lower() + text[1:]


def hint_of(error: Any) -> str:
    """Where to look for what is allowed."""
    return f"`{error.ctx.command_path} -h` shows how it is used." if getattr(error, "ctx", None) is not None else ""


def _no_such_option(error: Any) -> str:
    name = str(error.option_name)
    if re.fullmatch(r"-\d.*", name):
        return f"there is no option {name}; to pass it as a value, write -- {name}"
    near = f"; did you mean {' or '.join(sorted(error.possibilities))}?" if error.possibilities else ""
    return f"there is no option {name}{near}"


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return str(max(param.opts, key=len))


def _reason(error: Any) -> str:
    """Why a value is refused. Newer parsers give a list of causes, older ones a text."""
    causes = getattr(error.__cause__, "errors", None)
    if callable(causes):
        cause = causes()[0]
        if words := _WORDS.get(cause["type"]):
            return words.format(given=cause["input"], **cause.get("ctx", {}))
    text = str(error.message).removesuffix(".")
    return f"is refused: {text}"
