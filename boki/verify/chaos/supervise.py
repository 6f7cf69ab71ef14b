"""The supervisor of a cluster under fault, as a process of its own: `boki up` with flags for each node.

A node's links go through its proxy, its database stands behind `boki.verify.chaos.disks`. What is to run comes as JSON
in the one argument; SIGTERM stops everything.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from boki.config.up import UpConfig
from boki.launch.up.core import Process
from boki.launch.up.launch import prepare
from boki.launch.up.server import Supervisor


class Ward(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster that is to be hurt. `port` is the gateway's. `flags`: by process, what is added to its `boki start`."""

    data: str
    functions: str
    zookeeper: str
    port: int
    storage: int
    separate: bool
    speculates: bool
    drain_s: float
    faults: str
    flags: dict[str, list[str]]

    @property
    def config(self) -> UpConfig:
        """As `boki up` is told."""
        return UpConfig(
            data=Path(self.data),
            functions=Path(self.functions),
            zookeeper=self.zookeeper,
            storage=self.storage,
            separate=self.separate,
            speculative_cuts=self.speculates,
            drain_s=self.drain_s,
            port=self.port,
            log_format="json",
        )


async def supervise(ward: Ward) -> None:
    """Run it until SIGTERM."""
    config = ward.config
    launch = prepare(config)
    supervisor = Supervisor(
        config.folder,
        [_exposed(process, ward) for process in launch.processes],
        launch.about,
        environment=launch.environment,
        on_event=lambda _name, text, _facts: print(text, flush=True),
        zygote_program=("boki.verify.chaos.disks", ward.faults),
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, supervisor.stop)
    await supervisor.run()


def _exposed(process: Process, ward: Ward) -> Process:
    for name in process.plays or (process.node,):  # each role has a disk of its own
        Path(ward.faults, name).mkdir(parents=True, exist_ok=True)
    return replace(process, command=(*process.command, *ward.flags[process.node]))


if __name__ == "__main__":
    asyncio.run(supervise(msgspec.json.decode(sys.argv[1], type=Ward)))
