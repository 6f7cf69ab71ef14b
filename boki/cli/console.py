"""What `boki dev` shows: a start screen, what happens to the system, its calls, and the lines of functions.

For people, or as one JSON object a line for programs; both carry the same facts. A start is announced by the event
`ready`, which has the address (`boki.child` waits for it). The form of a line is that of `boki.host.lines`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from boki.calls import FunctionInfo, ModuleInfo
from boki.cli.connection import tries
from boki.cli.signatures import command_of
from boki.cli.terminal import path_text, results
from boki.config import DevConfig, LogFormat
from boki.host.call_lines import CallLines
from boki.host.clock import now_us
from boki.host.lines import DayLine, console_lines, json_line, speaker
from boki.runtime.frames import ConsoleLine

_WHO = "boki"
_COLOURS = ((logging.ERROR, "\x1b[31m"), (logging.WARNING, "\x1b[33m"))
_CALL_COLUMNS = 60
"""A longer example of a call would not fit a line of the start screen."""
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
        console.print(f"[bold green]Boki[/] is listening on [bold]{url}[/]  (API: {url}/openapi.json)")
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

    def show_log(self, *, quiet: bool) -> None:
        """Show what Boki itself logs, from now on; `quiet`: nothing of modules that were loaded well."""
        logger = logging.getLogger("boki")
        logger.addHandler(_ScreenHandler(self))
        logger.setLevel(logging.INFO)
        logger.propagate = False
        if quiet:
            logging.getLogger("boki.functions").setLevel(logging.WARNING)

    def event(self, event: str, text: str, level: int = logging.INFO, **facts: Any) -> None:
        """Something happened to the system."""
        if self._as_json:
            self._json(level, event, text, **facts)
        else:
            self._lines(now_us(), _WHO, level, text, _colour(level) or _DIM)

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
        if colour and sys.stdout.isatty():
            lines = [f"{colour}{line}\x1b[0m" for line in lines]
        write_line(*lines)

    def _json(self, level: int, event: str, text: str, **facts: Any) -> None:
        write_line(json_line(now_us(), level, event, text, facts))


def function_json(line: ConsoleLine, **facts: Any) -> str:
    """Something that a function printed, logged or raised, for programs."""
    facts |= {
        "module": line.module,
        "function": line.function,
        "invocation": line.invocation,
        "logger": line.logger,
    }
    return json_line(line.time_us, line.level, line.stream, line.text, facts)


def write_line(*lines: str) -> None:
    """Write the lines to stdout at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


class _ScreenHandler(logging.Handler):
    """Shows what Boki itself logs."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.INFO)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        self._screen.event("log", self.format(record), record.levelno, logger=record.name)


def _commands(functions: Sequence[FunctionInfo]) -> list[str]:
    """Commands that work as they stand here; the shortest that calls a function is one of them."""
    calls = sorted(filter(None, map(command_of, functions)), key=lambda command: (len(command), command))
    calls = [call for call in calls if len(call) <= _CALL_COLUMNS]
    return [*calls[:1], "boki log books", "boki status"]


def _log_text(config: DevConfig) -> str:
    replicas = (
        "1 replica" if config.replicas == 1 else f"{config.replicas} replicas, write quorum {config.write_quorum}"
    )
    logs = "1 physical log" if config.logs == 1 else f"{config.logs} physical logs"
    durability = (
        "fsync before acknowledging" if config.durability == "fsync" else "MEMORY ONLY: a power cut loses appends"
    )
    return f"{replicas}, {logs}, {durability}"


def _colour(level: int) -> str:
    return next((colour for least, colour in _COLOURS if level >= least), "")


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))
