"""From what `boki up` is told to what its supervisor runs: keys, the nodes' configuration, ZooKeeper, the processes.

```
<data>/cluster/boki.toml        of all nodes, written at each start      nodes/<name>/     each node's own data
              /keys/            made once                                logs/<name>.log   what each process says
              /zookeeper/       of the one that is started here          supervisor.json   who runs, as which process
```
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from boki.config.loading import ENV_PREFIX, Address, settings
from boki.config.up import UpConfig
from boki.host.private_files import make_private_folder, write_new_file
from boki.launch.up.core import Process
from boki.launch.up.identity import start_mark
from boki.launch.up.state import SupervisorState
from boki.launch.zookeeper.parts import find_parts
from boki.launch.zookeeper.server import Ports, ZooKeeperServer, free_ports
from boki.log.ids import NodeId
from boki.log.membership import Role, role_name
from boki.net.keys import make_digest, make_keys, roles_text
from boki.node.stopping import AFTER_DRAIN_S

ZOOKEEPER: Final = "zookeeper"
_STOP_RANKS: Final = {
    Role.GATEWAY: 0,
    Role.ENGINE: 1,
    Role.CONTROLLER: 2,  # before those whose end it would take for a loss
    Role.STORAGE: 3,
    Role.SEQUENCER: 3,
}
_LAST_RANK: Final = 4
_DRAINING: Final = frozenset({Role.GATEWAY, Role.ENGINE})
_STOP_S: Final = 10.0
"""Seconds in which roles without calls have stopped."""

# What `boki up` decides by itself: the counts of nodes, and where they are.
_OWN: Final = frozenset({"data", "port", "separate", "engines", "storage", "controllers", "zookeeper"})
_NODE: Final = "node"


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to run. `facts` are for people."""

    processes: tuple[Process, ...]
    about: SupervisorState
    environment: Mapping[str, str]
    facts: Mapping[str, str]


def prepare(config: UpConfig) -> Launch:
    """Write what the processes need. `ConfigError` if something that must be installed is not."""
    folder = config.folder
    nodes = list(_nodes(config)) if config.separate else list(_hosts(config))
    processes: list[Process] = []
    parts = None if config.zookeeper else find_parts()  # refused before anything is made
    if config.separate:
        _separate(folder / "nodes")
    make_private_folder(folder)
    keys = folder / "keys"
    make_keys(keys, {node: roles_text(Role) if role == _NODE else role for role, node, _ in nodes})
    values: dict[str, Any] = {"keys": str(keys), "data": str(folder / "nodes"), "reuse_port": not config.separate}
    hosts = config.zookeeper
    if parts is not None:
        digest = values["zookeeper_access.digest"] = make_digest(keys)
        values["zookeeper_access.exclusive"] = True
        server = ZooKeeperServer(parts, folder / ZOOKEEPER, [Ports(free_ports(1)[0])], digest=digest)
        hosts = server.address
        processes.append(Process(ZOOKEEPER, ZOOKEEPER, tuple(server.prepare()), _LAST_RANK))
    port = config.port or free_ports(1)[0]
    file = folder / "boki.toml"
    _write_config(file, config, values | {"zookeeper": hosts, "port": port})
    processes += [_process(role, node, plays, file, config) for role, node, plays in nodes]
    url = Address(host=config.host, port=port).url
    return Launch(
        processes=tuple(processes),
        about=SupervisorState(
            pid=os.getpid(),
            mark=start_mark(os.getpid()),
            url=url,
            zookeeper=hosts,
            chroot=config.chroot,
            stop_s=_stop_s(processes),
        ),
        environment={name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)},
        facts={
            "address": url,
            "ZooKeeper": hosts + ("" if config.zookeeper else " (started here)"),
            "data": str(folder),
            "functions": str(config.functions),
        },
    )


def _separate(nodes: Path) -> None:
    """Let roles that shared a node start as processes, also if that node did not stop in good order."""
    if _seen(nodes, Role.SEQUENCER) and _seen(nodes, Role.STORAGE):
        subprocess.run([sys.executable, "-P", "-m", "boki.node.separating", str(nodes)], check=False)


def _stop_s(processes: list[Process]) -> float:
    """How long it takes at most until all have stopped, rank by rank, if each must be killed in the end."""
    ranks = {process.stop_rank for process in processes}
    slowest_us = (max(one.stop_us for one in processes if one.stop_rank == rank) for rank in ranks)
    return sum(slowest_us) / 1e6


def _nodes(config: UpConfig) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
    """(role, name, nothing) of the nodes that are wanted, and of the storage nodes and sequencers that were here
    before: they may hold what others lack.
    """
    for role, names in _played(config).items():
        for name in names:
            yield role, name, ()


def _hosts(config: UpConfig) -> Iterator[tuple[str, str, tuple[Role, ...]]]:
    """("node", name, roles) of nodes that play together what is wanted, and what was here before."""
    hosts: dict[str, list[Role]] = {}
    for role, names in _played(config).items():
        for name in names:
            hosts.setdefault(name.replace(role, _NODE, 1), []).append(role)
    for host, roles in sorted(hosts.items(), key=lambda item: (len(item[0]), item[0])):
        yield _NODE, host, tuple(roles)


def _played(config: UpConfig) -> dict[Role, list[str]]:
    """The names under which each role is played."""
    found: dict[Role, list[str]] = {}
    for role, count in config.counts.items():
        names = found[role] = [f"{role}-{number}" for number in range(1, count + 1)]
        if role in (Role.STORAGE, Role.SEQUENCER):
            names += sorted(_seen(config.folder / "nodes", role) - set(names), key=lambda name: (len(name), name))
    return found


def _seen(folder: Path, role: Role) -> set[str]:
    return {entry.name for entry in folder.glob(f"{role}-*") if entry.is_dir()}


def _process(role: str, node: str, plays: tuple[Role, ...], file: Path, config: UpConfig) -> Process:
    command: tuple[str, ...] = ("start", role, "--name", node, "--config", str(file))
    if plays:
        command += ("--roles", ",".join(plays))
    roles = plays or (Role(role),)
    stop_s = _STOP_S + (config.drain_s + AFTER_DRAIN_S if _DRAINING.intersection(roles) else 0.0)
    names = tuple(role_name(NodeId(node), one) for one in plays)
    rank = min(_STOP_RANKS[one] for one in roles)
    return Process(node, role, command, rank, round(stop_s * 1e6), is_boki=True, plays=names)


def _write_config(file: Path, config: UpConfig, values: Mapping[str, Any]) -> None:
    """One file for all nodes: each reads the keys of its role. It may hold a token, so it is for its owner alone."""
    found = dict(values)
    for setting in settings(UpConfig):
        owner: Any = config
        *groups, name = setting.name.split(".")
        for group in groups:
            owner = getattr(owner, group)
        if setting.name not in _OWN and setting.name not in values:
            found[setting.name] = getattr(owner, name)
    lines = [f"{name} = {_toml(value)}\n" for name, value in found.items()]
    text = "# Written by `boki up` at each start, for all nodes of this cluster: changes are lost.\n" + "".join(lines)
    new = file.with_name(f"{file.name}.new")
    write_new_file(new, text)
    new.replace(file)


def _toml(value: Any) -> str:
    r"""A value as TOML writes it; its texts are spelled like JSON's, and a dotted name stands for a table.

    >>> _toml(True), _toml(0.5), _toml("a\nb"), _toml(3)
    ('true', '0.5', '"a\\nb"', '3')
    """
    if isinstance(value, Path):
        value = str(value.resolve())
    return json.dumps(value, ensure_ascii=False)
