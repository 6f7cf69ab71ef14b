"""Errors for people: what happened, whether it took effect, and what to do next."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

from boki.cli.terminal import errors, printable_lines
from boki.errors import BokiError, InvalidArgument, Unauthorized, Unavailable

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130


def exit_code_of(error: BokiError) -> int:
    """With what a process ends that the error has ended: it failed, or was asked wrongly."""
    return USAGE if isinstance(error, InvalidArgument) else FAILED


def explain(error: BokiError, words: Sequence[str] = (), command: Any = None) -> None:
    """Print the error for people: what happened, whether it took effect, what to do next.

    `words`: what was typed. `command`: the one that it names.
    """
    console = errors()
    options = {option for param in getattr(command, "params", ()) for option in param.opts}
    console.print(f"[bold red]error[/]: {escape(_of_options(error, options))}", highlight=False)
    if error.outcome == "unknown" and "call" not in error.details:
        console.print(_uncertain(words, takes_key="--key" in options))
    elif error.retryable:
        console.print("Nothing happened. The same command may work later.")
    if isinstance(error, Unauthorized):
        console.print("Give the server's token with --token or in BOKI_TOKEN.")
    elif isinstance(error, Unavailable) and not error.details:
        shows = "" if words[:1] == ["status"] else "`boki status` shows what is up; "
        console.print(f"{shows}`boki dev` or `boki up` starts a system on this machine.", highlight=False)
    if traceback := error.details.get("traceback"):
        console.print(escape(str(traceback).rstrip()), style="dim", highlight=False)


def _uncertain(words: Sequence[str], *, takes_key: bool) -> str:
    """What to do about a request whose outcome is unknown."""
    if any(word == "--key" or word.startswith("--key=") for word in words):
        return "It may have taken effect: the same command, under the same --key, does it once."
    advice = "It may have taken effect: look before you repeat it."
    if takes_key:
        advice += " Give it a --key next time: then it can be repeated without doing it twice."
    return advice


def _of_options(error: BokiError, options: Collection[str]) -> str:
    """The message, with the option that was typed in the place of the Python argument that it stands for."""
    field = str(error.details.get("field", ""))
    option = f"--{field.replace('_', '-')}"
    is_named = option in options and error.message.startswith(f"{field} ")
    return option + error.message.removeprefix(field) if is_named else error.message


def escape(text: str) -> str:
    """The text of an error, which may be a function's: neither markup nor control characters have a meaning in it."""
    return printable_lines(text).replace("[", r"\[")
