"""`boki start ROLE`: one node of a cluster, in this process.

SIGTERM or Ctrl-C: drain with a limit, exit 0. A second one ends the process at once with 130. Exit code 1: its disk or
its code has failed, or it was refused; the last lines say why.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import typer

from boki.cli.dev import INTERRUPTED, spare_the_collector
from boki.cli.flags import command_of, parameter_name
from boki.cli.help import Commands, examples
from boki.cluster_config import CONFIGS, NodeConfig, load_node
from boki.config import LogFormat, settings
from boki.log.membership import Role

_HELP = {
    Role.GATEWAY: "Answer HTTP, hand calls and log operations to engines.",
    Role.ENGINE: "Run functions, hold the index, carry out log operations.",
    Role.STORAGE: "Keep records on this machine's disk.",
    Role.SEQUENCER: "Order records, as a primary or as a backup of one.",
    Role.CONTROLLER: "Watch over the cluster: end terms, move shards.\n\nOne leads, the others wait.",
}

_log = logging.getLogger("boki.node")

app = Commands("Run one node of a cluster, until SIGTERM.")


async def serve(role: Role, config: NodeConfig) -> int:
    """Run the node until a signal or a failure ends it; the exit code."""
    from boki.node.run import run_node

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
    exit_code = await run_node(role, config, stop)
    _log.info("%s has %s", config.name, "failed" if exit_code else "stopped")
    return exit_code


def log_to_stdout(log_format: LogFormat) -> None:
    """Write what Boki logs, a line each: for people, or one JSON object."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        _JsonLine() if log_format == "json" else logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler])  # of libraries, too
    logging.getLogger("boki").setLevel(logging.INFO)


class _JsonLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "event": "log",
            "logger": record.name,
            "text": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


def _runner(role: Role) -> Callable[..., None]:
    names = {parameter_name(setting): setting.name for setting in settings(CONFIGS[role])}

    def run(**flags: Any) -> None:
        file = flags.pop("config")
        given = {names[name]: value for name, value in flags.items()}
        config = load_node(role, flags=given, environment=os.environ, file=file)
        log_to_stdout(config.log_format)
        import uvloop

        if exit_code := uvloop.run(serve(role, config)):
            raise typer.Exit(exit_code)

    run.__doc__ = (
        f"{_HELP[role]}\n\nEach flag can also be set as BOKI_NAME in the environment or as a key of boki.toml, which "
        "all roles can share."
    )
    return examples(f"boki start {role} --name {role}-1", f"boki start {role} --name {role}-2 --config cluster.toml")(
        run
    )


for _role in CONFIGS:
    app.command(_role.value)(command_of(_runner(_role), CONFIGS[_role]))
