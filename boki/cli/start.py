"""`boki start ROLE` and `boki start node`: one node of a cluster, in this process, with one role or several.

SIGTERM or Ctrl-C: drain with a limit, exit 0. A second one ends the process at once with 130. Exit code 1: its disk or
its code has failed, or it was refused; the last lines say why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import typer

from boki.cli.flags import command_of, parameter_name
from boki.cli.help import Commands, examples
from boki.config.loading import settings
from boki.config.node import ALL_CONFIGS, CONFIGS, NodeConfig, load_host, load_node
from boki.log.membership import Role

_HELP = {
    Role.GATEWAY: "Answer HTTP, hand calls and log operations to engines.",
    Role.ENGINE: "Run functions, hold the index, carry out log operations.",
    Role.STORAGE: "Keep records on this machine's disk.",
    Role.SEQUENCER: "Order records, as a primary or as a backup of one.",
    Role.CONTROLLER: "Watch over the cluster: end terms, move shards.\n\nOne leads, the others wait.",
}

app = Commands("Run one node of a cluster, until SIGTERM.")


def _run(config: NodeConfig, roles: Mapping[Role, NodeConfig]) -> None:
    from boki.node.process import run_process

    if exit_code := run_process(config, roles):
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
    "By default a node is no gateway: --roles storage,sequencer,engine,controller,gateway adds one. Each role keeps "
    "the name and the directory that it has as a node of its own: node-1 is storage-1, sequencer-1, "
    f"and so on. {_SHARED}"
)
app.command("node")(command_of(_run_host, *ALL_CONFIGS))
for _role in CONFIGS:
    app.command(_role.value)(command_of(_runner(_role), CONFIGS[_role]))
