"""What `boki dev` shows: a start screen, what happens to the system, and the lines of functions.

For people, or as one JSON object a line for programs; both carry the same facts. A start is announced by the event
`ready`, which has the address (`boki.child` waits for it).
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from boki.calls import ModuleInfo
from boki.cli.connection import needed_flags
from boki.cli.terminal import results
from boki.config import DevConfig, LogFormat
from boki.runtime.frames import ConsoleLine

_ID_DIGITS = 8
_COLOURS = ((logging.ERROR, "\x1b[31m"), (logging.WARNING, "\x1b[33m"))


class Screen:
    """Writes lines to stdout in one of the two formats. Used from the event loop's thread only."""

    def __init__(self, log_format: LogFormat) -> None:
        self._as_json = log_format == "json"

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
        console.print(f"  data       {config.data.resolve()}", markup=False)
        console.print(f"  log        {_log_text(config)}", markup=False)
        self._modules(config, modules)
        console.print(_hint(modules, needed_flags(url, config.token)), style="dim", markup=False)

    def _modules(self, config: DevConfig, modules: Sequence[ModuleInfo]) -> None:
        console = results()
        missing = " (there is no such folder)" if not config.functions.is_dir() else "" if modules else " (none found)"
        console.print(f"  functions  {config.functions.resolve()}{missing}", markup=False)
        for module in modules:
            if module.error:
                console.print(f"             [bold red]{module.module} is broken[/]")
                console.print(_indented(module.error.rstrip(), 15), style="red", markup=False)
            else:
                names = ", ".join(sorted(function.name for function in module.functions)) or "no functions"
                console.print(f"             {module.module}: {names}", markup=False)

    def show_log(self) -> None:
        """Show what Boki itself logs, from now on."""
        logger = logging.getLogger("boki")
        logger.addHandler(_ScreenHandler(self))
        logger.setLevel(logging.INFO)
        logger.propagate = False

    def event(self, event: str, text: str, level: int = logging.INFO, **facts: Any) -> None:
        """Something happened to the system."""
        if self._as_json:
            self._json(level, event, text, **facts)
        else:
            _write_line(text, _colour(level))

    def line(self, line: ConsoleLine) -> None:
        """Something that a function printed, logged or raised."""
        if self._as_json:
            self._json(
                line.level,
                line.stream,
                line.text,
                time_us=line.time_us,
                module=line.module,
                function=line.function,
                invocation=line.invocation,
                logger=line.logger,
            )
            return
        who = f"{line.function}[{line.invocation[:_ID_DIGITS]}]" if line.function else line.module
        clock = datetime.fromtimestamp(line.time_us / 1e6).astimezone().strftime("%H:%M:%S.%f")[:-3]
        level = "" if line.stream in ("stdout", "stderr") else f"{logging.getLevelName(line.level)} "
        for text in line.text.rstrip("\n").split("\n"):
            _write_line(f"{clock} {who} {level}{text}", _colour(line.level))

    def _json(self, level: int, event: str, text: str, *, time_us: int | None = None, **facts: Any) -> None:
        now = datetime.now(UTC) if time_us is None else datetime.fromtimestamp(time_us / 1e6, UTC)
        head = {"time": now.isoformat(), "level": logging.getLevelName(level).lower(), "event": event, "text": text}
        sys.stdout.write(json.dumps(head | facts, ensure_ascii=False, default=str) + "\n")
        sys.stdout.flush()


class _ScreenHandler(logging.Handler):
    """Shows what Boki itself logs."""

    def __init__(self, screen: Screen) -> None:
        super().__init__(logging.INFO)
        self._screen = screen

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler.emit`."""
        self._screen.event("log", self.format(record), record.levelno, logger=record.name)


def _hint(modules: Sequence[ModuleInfo], flags: str) -> str:
    """Commands that work as they stand here; a function is among them if it is known what it takes."""
    functions = [function for module in modules for function in module.functions]
    if not functions:
        return "Try: boki new hello && cd hello && boki dev"
    tries = [f"boki log books{flags}", f"boki status{flags}"]
    if simple := sorted(function.name for function in functions if function.payload_encoding == "text"):
        tries.insert(0, f"boki invoke {simple[0]} Ada{flags}")
    return f"Try: {'   '.join(tries)}"


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


def _write_line(text: str, colour: str) -> None:
    """Plainly, because functions may print thousands of lines a second in front of the loop that serves them."""
    sys.stdout.write(f"{colour}{text}\x1b[0m\n" if colour and sys.stdout.isatty() else f"{text}\n")
    sys.stdout.flush()


def _indented(text: str, width: int) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))
