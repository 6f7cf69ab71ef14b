"""`boki start ROLE` and `boki start node`: one node of a cluster, in this process, with one role or several.

SIGTERM or Ctrl-C: drain with a limit, exit 0. A second one ends the process at once with 130. Exit code 1: its disk or
its code has failed, or it was refused; the last lines say why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

import typer

from boki.cli.console import function_json
from boki.cli.dev import INTERRUPTED, spare_the_collector
from boki.cli.flags import command_of, parameter_name
from boki.cli.help import Commands, examples
from boki.config.loading import LogFormat, settings
from boki.config.node import ALL_CONFIGS, CONFIGS, NodeConfig, load_host, load_node
from boki.host.lines import FACTS, SPEAKER, DayLine, console_lines, json_line, speaker
from boki.host.private_files import keep_private
from boki.host.process import prepare_process
from boki.log.membership import Role
from boki.node.console import FUNCTION_LINE
from boki.worker.frames import ConsoleLine

_HELP = {
    Role.GATEWAY: "Answer HTTP, hand calls and log operations to engines.",
    Role.ENGINE: "Run functions, hold the index, carry out log operations.",
    Role.STORAGE: "Keep records on this machine's disk.",
    Role.SEQUENCER: "Order records, as a primary or as a backup of one.",
    Role.CONTROLLER: "Watch over the cluster: end terms, move shards.\n\nOne leads, the others wait.",
}

_log = logging.getLogger("boki.node")

app = Commands("Run one node of a cluster, until SIGTERM.")


async def serve(config: NodeConfig, roles: Mapping[Role, NodeConfig]) -> int:
    """Run the node until a signal or a failure ends it; the exit code."""
    from boki.node.run import run_node

    keep_private()
    stop = asyncio.Event()

    def on_signal(name: str) -> None:
        if stop.is_set():
            os._exit(INTERRUPTED)
        _log.info("%s: %s: stopping; once more ends at once", config.name, name)
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number.name)
    spare_the_collector()
    exit_code = await run_node(config, roles, stop)
    _log.info("%s has %s", config.name, "failed" if exit_code else "stopped")
    return exit_code


def log_to(stream: TextIO, log_format: LogFormat, node: str) -> None:
    """Write what Boki and functions say, in the same form as `boki dev`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonLines(node) if log_format == "json" else _Lines(node))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])  # of libraries, too
    logging.getLogger("boki").setLevel(logging.INFO)


class _Lines(logging.Formatter):
    """For people. A line tells the date whenever it has changed, because a log is read days later."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node
        self._day = DayLine()

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line: ConsoleLine | None = getattr(record, FUNCTION_LINE, None)
        time_us = round(record.created * 1e6) if line is None else line.time_us
        day = self._day.before(time_us)
        lines = console_lines(time_us, self._node, logging.INFO, day) if day else []
        if line is not None:
            who, text = speaker(line.module, line.function, line.invocation), line.text
        else:
            who = getattr(record, SPEAKER, self._node)
            text = super().format(record).removeprefix(f"{self._node}: ")
        return "\n".join(lines + console_lines(time_us, who, record.levelno, text))


class _JsonLines(logging.Formatter):
    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line: ConsoleLine | None = getattr(record, FUNCTION_LINE, None)
        if line is not None:
            return function_json(line, node=self._node)
        facts: dict[str, Any] = {"node": self._node, "logger": record.name, **getattr(record, FACTS, {})}
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        event = "call" if hasattr(record, FACTS) else "log"
        text = record.getMessage().removeprefix(f"{self._node}: ")
        return json_line(round(record.created * 1e6), record.levelno, event, text, facts)


def _run(config: NodeConfig, roles: Mapping[Role, NodeConfig]) -> None:
    log_to(sys.stdout, config.log_format, config.name)
    import uvloop

    prepare_process()
    if exit_code := uvloop.run(serve(config, roles)):
        raise typer.Exit(exit_code)


_SHARED = (
    "Each flag can also be set as BOKI_NAME in the environment or as a key of boki.toml, which all nodes can share."
)


def _runner(role: Role) -> Callable[..., None]:
    names = {parameter_name(setting): setting.name for setting in settings(CONFIGS[role])}

    def run(**flags: Any) -> None:
        file = flags.pop("config")
        given = {names[name]: value for name, value in flags.items()}
        config = load_node(role, flags=given, environment=os.environ, file=file)
        _run(config, {role: config})

    run.__doc__ = f"{_HELP[role]}\n\n{_SHARED}"
    return examples(f"boki start {role} --name {role}-1", f"boki start {role} --name {role}-2 --config cluster.toml")(
        run
    )


@examples(
    "boki start node --name node-1",
    "boki start node --name node-2 --config cluster.toml",
    "boki start node --name node-3 --roles storage,sequencer",
)
def _run_host(**flags: Any) -> None:
    file = flags.pop("config")
    names = {parameter_name(setting): setting.name for kind in ALL_CONFIGS for setting in settings(kind)}
    given = {names[name]: value for name, value in flags.items()}
    config, roles = load_host(flags=given, environment=os.environ, file=file)
    _run(config, roles)


_run_host.__doc__ = (
    "Play several roles; three such nodes are a cluster.\n\n"
    f"Each role keeps the name and the directory that it has as a node of its own: node-1 is storage-1, sequencer-1, "
    f"and so on. {_SHARED}"
)
app.command("node")(command_of(_run_host, *ALL_CONFIGS))
for _role in CONFIGS:
    app.command(_role.value)(command_of(_runner(_role), CONFIGS[_role]))
