"""A cluster of `boki start` on machines that exist as names only: processes that are stopped, killed and replaced."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from boki.client import Client
from boki.errors import BokiError
from boki.launch.zookeeper.server import free_ports
from boki.log.membership import Role
from boki.net.keys import make_keys, roles_text
from boki.verify.chaos import target as targets
from boki.verify.chaos.faults import becomes_so

FUNCTIONS = Path(__file__).parent / "functions"
WITHIN_S = 60.0
SEPARATE: Mapping[int, tuple[Role, ...]] = {
    1: tuple(Role),
    2: tuple(Role),
    3: (Role.STORAGE, Role.SEQUENCER),
}
"""Per machine the roles of `boki up --separate`, and a second gateway: clients of one that stops need another one."""
ALL_ROLES = ",".join(Role)


class Machines:
    """The processes by name. Use it in `async with`, at whose end all are killed."""

    def __init__(self, folder: Path, zookeeper: str, chroot: str, *, has_keys: bool) -> None:
        self.folder = folder
        self._keys = folder / "keys" if has_keys else None
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._ports = dict(zip((1, 2, 3), free_ports(3), strict=True))
        functions = folder / "functions"
        functions.mkdir()
        for file in (*targets.FUNCTIONS, *FUNCTIONS.glob("*.py")):
            shutil.copy(file, functions)
        settings = {"zookeeper": zookeeper, "chroot": chroot, "data": str(folder / "nodes"), "session_s": 4.0}
        settings |= {"functions": str(functions), "drain_s": 5.0, "log_format": "json"}
        settings |= {"keys": str(self._keys)} if self._keys else {}
        (folder / "boki.toml").write_text(
            "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.returncode is None:
                process.kill()
        await asyncio.gather(*(process.wait() for process in self._processes.values()))

    @property
    def url(self) -> str:
        """The addresses of all gateways that there are or will be."""
        return ",".join(f"http://127.0.0.1:{port}" for port in self._ports.values())

    def url_of(self, machine: int) -> str:
        """The address of one."""
        return f"http://127.0.0.1:{self._ports[machine]}"

    def names(self, machine: int) -> list[str]:
        """The processes of a machine."""
        return [name for name in self._processes if name.endswith(f"-{machine}")]

    async def start_separate(self) -> None:
        """Every role as a process of its own."""
        names = {f"{role}-{machine}": role for machine, roles in SEPARATE.items() for role in roles}
        self._make_keys({name: role.value for name, role in names.items()})
        for name, role in names.items():
            await self._start(role, name, int(name[-1]))

    async def start_node(self, machine: int) -> None:
        """One process with all roles, over the directories that this machine has."""
        name = f"node-{machine}"
        self._make_keys({name: roles_text(Role)})
        await self._start("node", name, machine, "--roles", ALL_ROLES)

    def _make_keys(self, owners: Mapping[str, str]) -> None:
        if self._keys is not None:
            make_keys(self._keys, owners)

    async def _start(self, role: str, name: str, machine: int, *words: str) -> None:
        command = [sys.executable, "-P", "-m", "boki", "start", role, "--name", name, *words]
        if role in (Role.GATEWAY, "node"):
            command += ["--port", str(self._ports[machine])]
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = await asyncio.create_subprocess_exec(
                *command,
                "--config",
                str(self.folder / "boki.toml"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def stop(self, names: Iterable[str]) -> dict[str, int | None]:
        """SIGTERM to all of them at once; their exit codes."""
        ending = {name: self._processes.pop(name) for name in names}
        for process in ending.values():
            process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(*(process.wait() for process in ending.values())), WITHIN_S)
        return {name: process.returncode for name, process in ending.items()}

    async def kill(self, name: str) -> None:
        """SIGKILL."""
        process = self._processes.pop(name)
        process.kill()
        await process.wait()

    async def until_said(self, name: str, text: str) -> None:
        """Until that process has written the text to its log."""

        async def is_so() -> bool:
            return text in (self.folder / f"{name}.log").read_text()

        assert await becomes_so(is_so, WITHIN_S), f"{name} has not said {text!r}"

    async def all_at_work(self, machines: Iterable[int] = ()) -> None:
        """Until all that run have registered and are at work, all roles of `machines` among them, and hold every record
        that they should.
        """
        wanted = {name for name in self._processes if not name.startswith("node")}
        wanted |= {f"{role}-{machine}" for machine in machines for role in Role}
        wanted = {name for name in wanted if not name.startswith(Role.GATEWAY)}
        left: list[str] = []

        async def is_so() -> bool:
            nodes = (await self.status()).get("nodes", {})
            left[:] = sorted(name for name in wanted if not _is_whole(nodes.get(name)))
            return bool(nodes) and not left

        assert await becomes_so(is_so, WITHIN_S), f"not at work: {left}"

    async def status(self) -> dict[str, Any]:
        """What a gateway says of all; empty if none answers."""
        try:
            async with asyncio.timeout(5), Client(self.url) as client:
                return await client.status()
        except (BokiError, TimeoutError):
            return {}


def _is_whole(told: Any) -> bool:
    if not told or not told.get("at_work"):
        return False
    return told.get("is_caught_up", True) and not told.get("repair", {}).get("lacking_shards")
