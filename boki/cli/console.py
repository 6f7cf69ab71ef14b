"""What `boki dev` shows: a start screen, what happens to the system, its calls, and the lines of functions.

For people, or as one JSON object a line for programs; both carry the same facts. A start is announced by the event
`ready`, which has the address (`boki.launch.child` waits for it). The form of a line is that of `boki.host.lines`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from boki.cli.connection import tries
from boki.cli.signatures import command_of
from boki.cli.table import cut
from boki.cli.terminal import Nowhere, count_text, has_colour, path_text, results
from boki.config.loading import DevConfig, LogFormat
from boki.host.call_lines import CallLines
from boki.host.clock import now_us
from boki.host.lines import FACTS, SPEAKER, DayLine, console_lines, json_line, speaker
from boki.node.console import function_json
from boki.protocol.calls import FunctionInfo, ModuleInfo
from boki.worker.frames import ConsoleLine

_WHO = "boki"
_COLOURS = ((logging.ERROR, "\x1b[31m"), (logging.WARNING, "\x1b[33m"))
_CALL_COLUMNS = 60
"""A longer example of a call would not fit a line of the start screen."""
_ROUTES = 8
"""More routes than this would push the rest of the start screen away."""
_DIM = "\x1b[2m"


class Screen:
    """Writes lines to stdout in one of the two formats. Used from the event loop's thread only."""

    def __init__(self, log_format: LogFormat) -> None:
        self._as_json = log_format == "json"
        self._day = DayLine(datetime.now(UTC).date())

    def started(self, url: str, config: DevConfig, modules: Sequence[ModuleInfo]) -> None:
        """The system answers: where, on which data, with which functions, and which modules are broken."""
        functions = sorted(function.name for module in modules for function in module.functions)
        broken = {module.module: module.error for module in modules if module.error}
        if self._as_json:
            self._json(
                logging.INFO,
                "ready",
                f"listening on {url}",
                url=url,
                data=str(config.data.resolve()),
                functions=functions,
                broken=broken,
                replicas=config.replicas,
                logs=config.logs,
                durability=config.durability,
            )
            return
        console = results()
        console.print(f"[bold green]Boki[/] is listening on [bold]{url}[/]")
        console.print(f"  API        {url}/openapi.json", markup=False)
        console.print(f"  data       {path_text(config.data)}", markup=False)
        console.print(f"  log        {_log_text(config)}", markup=False)
        self._modules(config, modules)
        commands = _commands([function for module in modules for function in module.functions])
        console.print(tries(commands, url, config.token), style="dim", markup=False)

    def _modules(self, config: DevConfig, modules: Sequence[ModuleInfo]) -> None:
        console = results()
        console.print(f"  functions  {path_text(config.functions)}", markup=False)
        if not modules:
            file = path_text(config.functions / "hello.py")
            console.print(f"             none yet: write one in {file}, it is loaded at once", markup=False)
        for module in modules:
            if module.error:
                console.print(f"             [bold red]{module.module} is broken[/]")
                console.print(_indented(module.error.rstrip(), 15), style="red", markup=False)
            else:
                names = ", ".join(sorted(function.name for function in module.functions)) or "no functions"
                console.print(f"             {module.module}: {names}", markup=False)
        for line in _route_lines([function for module in modules for function in module.functions]):
            console.print(cut(line, console.width) if console.is_terminal else line, markup=False)

    def show_log(self, *, quiet: bool) -> None:
        """Show what Boki itself logs, from now on; `quiet`: nothing of modules that were loaded well."""
        logger = logging.getLogger("boki")
        logger.addHandler(_ScreenHandler(self))
        logger.setLevel(logging.INFO)
        logger.propagate = False
        if quiet:
            logging.getLogger("boki.functions").setLevel(logging.WARNING)

    def event(self, event: str, text: str, level: int = logging.INFO, *, who: str = _WHO, **facts: Any) -> None:
        """Something happened to the system, or to a call: `who` is what it is about."""
        if self._as_json:
            self._json(level, event, text, **facts)
        else:
            self._lines(now_us(), who, level, text, _colour(level) or _DIM)

    def call_lines(self) -> CallLines:
        """What writes a line for each call and each refusal, as long as they are few."""
        return CallLines(self._call, who=_WHO)

    def _call(self, is_problem: bool, who: str, text: str, facts: Mapping[str, Any]) -> None:
        level = logging.WARNING if is_problem else logging.INFO
        if self._as_json:
            self._json(level, "call", text, **facts)
        else:
            self._lines(now_us(), who, level, text, _DIM)

    def line(self, line: ConsoleLine) -> None:
        """Something that a function printed, logged or raised."""
        if self._as_json:
            write_line(function_json(line))
            return
        who = speaker(line.module, line.function, line.invocation)
        self._lines(line.time_us, who, line.level, line.text, _colour(line.level))

    def _lines(self, time_us: int, who: str, level: int, text: str, colour: str) -> None:
        """Plainly, because functions may print thousands of lines a second in front of the loop that serves them."""
        if day := self._day.before(time_us):
            write_line(*console_lines(time_us, _WHO, logging.INFO, day))
        lines = console_lines(time_us, who, level, text)
        if colour and has_colour(sys.stdout):
            lines = [f"{colour}{line}\x1b[0m" for line in lines]
        write_line(*lines)

    def _json(self, level: int, event: str, text: str, **facts: Any) -> None:
        write_line(json_line(now_us(), level, event, text, facts))


def write_line(*lines: str) -> None:
    """Write the lines to stdout at once; nowhere from then on if nobody reads it any more. A call whose line cannot be
    written must be answered all the same.
    """
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except (OSError, ValueError):
        sys.stdout = Nowhere()


class _ScreenHandler(logging.Handler):
    """Shows what Boki itself logs."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.INFO)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        text, facts = self.format(record), {"logger": record.name, **getattr(record, FACTS, {})}
        self._screen.event("log", text, record.levelno, who=getattr(record, SPEAKER, _WHO), **facts)


def _commands(functions: Sequence[FunctionInfo]) -> list[str]:
    """Commands that work as they stand here; the shortest that calls a function is one of them."""
    calls = sorted(filter(None, map(command_of, functions)), key=lambda command: (len(command), command))
    calls = [call for call in calls if len(call) <= _CALL_COLUMNS]
    return [*calls[:1], "boki log books", "boki status"]


def _route_lines(functions: Sequence[FunctionInfo]) -> list[str]:
    """The functions' own routes, one a line."""
    routes = sorted((route, function.name) for function in functions for route in function.http)
    width = max((len(route) for route, _ in routes[:_ROUTES]), default=0)
    lines = [f"             {route:<{width}}  {name}" for route, name in routes[:_ROUTES]]
    if len(routes) > _ROUTES:
        lines.append(f"             and {len(routes) - _ROUTES} more: boki functions lists them")
    return [line.replace("             ", "  routes     ", 1) for line in lines[:1]] + lines[1:]


def _log_text(config: DevConfig) -> str:
    replicas = (
        "1 replica" if config.replicas == 1 else f"{config.replicas} replicas, write quorum {config.write_quorum}"
    )
    logs = count_text(config.logs, "physical log")
    durability = (
        "fsync before acknowledging" if config.durability == "fsync" else "MEMORY ONLY: a power cut loses appends"
    )
    return f"{replicas}, {logs}, {durability}"


def _colour(level: int) -> str:
    return next((colour for least, colour in _COLOURS if level >= least), "")


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))
