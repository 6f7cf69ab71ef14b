"""`boki completion`: shell completion of commands, options, and what a running system knows: functions, books, queues.

The scripts hand what was typed to `boki completion SHELL -- WORDS...`, which prints one candidate a line. It walks the
same commands that the parser does, and needs nothing else of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from boki.cli.connection import connect
from boki.cli.help import examples, summary_of
from boki.cli.terminal import count_text
from boki.errors import BokiError, InvalidArgument
from boki.faces.installed import installed

ASK_S: Final = 1.0
"""A system that does not answer by then completes nothing: a person waits at the keyboard."""
MAX_NAMES: Final = 200
_BREAKS: Final = frozenset("=:")
"""Where bash breaks words, and completes only what follows."""
_BASH: Final = """\
# bash completion for boki:  eval "$(boki completion bash)"  in ~/.bashrc
_boki_completion() {
    local IFS=$'\\n'
    COMPREPLY=($(boki completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _boki_completion boki
"""
_ZSH: Final = """\
#compdef boki
# zsh completion for boki:  eval "$(boki completion zsh)"  in ~/.zshrc, or a file _boki in a folder of $fpath
_boki() {
    local -a found
    found=("${(@f)$(boki completion zsh -- "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then _describe boki found; else _files; fi
}
if [[ $funcstack[1] == _boki ]]; then
    _boki "$@"
else
    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
    compdef _boki boki
fi
"""
_FISH: Final = """\
# fish completion for boki:  boki completion fish > ~/.config/fish/completions/boki.fish
function __boki_completion
    set --local found (boki completion fish -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null)
    if set --query found[1]
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete --command boki --no-files --arguments '(__boki_completion)'
"""
SCRIPTS: Final[Mapping[str, str]] = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

Candidate = tuple[str, str]
"""What can stand there, and what it is; the second may be empty."""
Source = Callable[[Any, Mapping[str, str]], list[Candidate]]
"""Asks the system at the other end of a client, for the parameters that were given."""


@examples(
    "boki completion bash >> ~/.bashrc",
    "boki completion zsh >> ~/.zshrc",
    "boki completion fish > ~/.config/fish/completions/boki.fish",
)
def command(
    context: typer.Context,
    shell: Annotated[str, typer.Argument(metavar="bash|zsh|fish", help="Whose script to print.", show_default=False)],
    words: Annotated[list[str] | None, typer.Argument(metavar="WORD", hidden=True)] = None,
) -> None:
    """Print a script that completes commands in your shell.

    Commands, options and choices are completed, and the functions, LogBooks and queues of the system that runs here.
    """
    if shell not in SCRIPTS:
        raise InvalidArgument(f"there is no completion for {shell!r}: there is one for {', '.join(SCRIPTS)}")
    if words is None or not words:
        print(SCRIPTS[shell], end="")
        return
    root = context.find_root().command
    words, head = joined(words) if shell == "bash" else (words, "")
    for value, about in candidates(root, words):
        print(_line(shell, value.removeprefix(head), about))


def _line(shell: str, value: str, about: str) -> str:
    if shell == "zsh":
        return value.replace(":", r"\:") + (f":{about}" if about else "")
    return f"{value}\t{about}" if shell == "fish" and about else value


def joined(words: Sequence[str]) -> tuple[list[str], str]:
    """The words as they were typed, where bash has broken them; and what of the last one it does not replace.

    >>> joined(["log", "read", "a", ":", "b"]), joined(["dev", "--durability", "="])
    ((['log', 'read', 'a:b'], 'a:'), (['dev', '--durability='], '--durability='))
    """
    found: list[str] = []
    is_open = False
    for word in words:
        is_break = bool(word) and set(word) <= _BREAKS
        if found and (is_break or is_open):
            found[-1] += word
        else:
            found.append(word)
        is_open = is_break
    last = "" if is_open else words[-1]
    return found, found[-1][: len(found[-1]) - len(last)]


def candidates(root: Any, words: Sequence[str]) -> list[Candidate]:
    """What can stand in place of the last word, which may be empty."""
    *typed, last = words
    command, path, place, is_plain = root, tuple[str, ...](), 0, False
    pending: Any = None
    given: dict[str, str] = {}
    for word in typed:
        if pending is not None:
            given[pending.name] = word
            pending = None
        elif word == "--" and not is_plain:
            is_plain = True
        elif word.startswith("-") and not is_plain:
            name, has_value, value = word.partition("=")
            option = next((one for one in _options(command) if name in (*one.opts, *one.secondary_opts)), None)
            if option is None:
                continue
            given[option.name] = value
            pending = None if has_value or option.is_flag else option
        elif subcommands := getattr(command, "commands", None):
            if word not in subcommands:
                return []
            command, path = subcommands[word], (*path, word)
        else:
            arguments = _arguments(command)
            if arguments:
                given[arguments[min(place, len(arguments) - 1)].name] = word
            place += 1
    name, has_value, _ = last.partition("=")
    if pending is not None:
        found = _values(path, pending, given)
    elif has_value and name.startswith("--") and not is_plain:
        option = next((one for one in _options(command) if name in one.opts), None)
        values = [] if option is None else _values(path, option, given)
        found = [(f"{name}={value}", about) for value, about in values]
    elif last.startswith("-") and not is_plain:
        found = _option_names(command, given)
    elif subcommands := getattr(command, "commands", None):
        found = [(name, summary_of(one)) for name, one in subcommands.items() if not one.hidden]
    else:
        arguments = _arguments(command)
        is_there = arguments and (place < len(arguments) or arguments[-1].nargs == -1)
        found = _values(path, arguments[min(place, len(arguments) - 1)], given) if is_there else []
    return [(value, about) for value, about in found if value.startswith(last)]


def _options(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "option"]


def _arguments(command: Any) -> list[Any]:
    return [param for param in command.params if param.param_type_name == "argument"]


def _option_names(command: Any, given: Mapping[str, str]) -> list[Candidate]:
    """Those that were not given yet, or may be repeated."""
    found = [
        (max(option.opts, key=len), str(option.help or "").partition(". ")[0])
        for option in _options(command)
        if not option.hidden and (option.name not in given or option.multiple)
    ]
    return [*found, ("--help", "Show how it is used.")]


def _values(path: tuple[str, ...], param: Any, given: Mapping[str, str]) -> list[Candidate]:
    """Choices that the parameter names itself, or what the system knows."""
    metavar = str(param.metavar or "")
    if "|" in metavar and metavar.islower():
        return [(choice, "") for choice in metavar.split("|")]
    source = _SOURCES.get((*path, param.name)) or _of_library(path, metavar) or _SOURCES.get((metavar or param.name,))
    return [] if source is None else _asked(source, given)


def _of_library(path: tuple[str, ...], metavar: str) -> Source | None:
    """What the library of these commands completes, if it is one's."""
    for face in installed().faces:
        if face.commands is not None and path[:1] == (face.commands.name,) and metavar in face.commands.completions:
            names = face.commands.completions[metavar]
            return lambda client, given: [(name, "") for name in names(client.url, _token(given), given)]
    return None


def _asked(source: Source, given: Mapping[str, str]) -> list[Candidate]:
    """What the system says, if it says so soon enough."""
    found: list[Candidate] = []

    def ask() -> None:
        try:
            url, token = given.get("url") or os.environ.get("BOKI_URL", ""), _token(given)
            with connect(url, token) as client:
                found.extend(source(client, given))
        except BokiError:
            pass  # nothing runs here, or it wants a token: there is nothing to complete

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ASK_S)
    return found


def _token(given: Mapping[str, str]) -> str:
    return given.get("token") or os.environ.get("BOKI_TOKEN", "")


def _functions(client: Any, _given: Mapping[str, str]) -> list[Candidate]:
    return [(info.name, info.doc.partition("\n")[0]) for info in client.functions()]


def _books(client: Any, _given: Mapping[str, str]) -> list[Candidate]:
    return [(book.name, count_text(book.record_count, "record")) for book in client.books(limit=MAX_NAMES)]


def _nodes(client: Any, _given: Mapping[str, str]) -> list[Candidate]:
    return [(member["node"], member["role"]) for member in client.status().get("members", ())]


def _benchmarks(_client: Any, _given: Mapping[str, str]) -> list[Candidate]:
    from boki.cli.bench import NAMES

    return [(name, "") for name in (*NAMES, "all")]


_SOURCES: Final[Mapping[tuple[str, ...], Source]] = {
    ("invoke", "name"): _functions,
    ("book",): _books,
    ("drain", "node"): _nodes,
    ("undrain", "node"): _nodes,
    ("logs", "node"): _nodes,
    ("bench", "names"): _benchmarks,
}
"""By the words of a command and a parameter of it, or by what a parameter is called everywhere."""
