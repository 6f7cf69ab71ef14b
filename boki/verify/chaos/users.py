"""Processes that use a library on a cluster under fault, and are killed and halted themselves.

Their faults are a schedule of their own beside that of the cluster: a process that dies loses what it was about to do
at any moment, whatever else is going on. Each obeys words on its standard input, and says on its standard output that
it has done so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

import msgspec

_CALM_S: Final = (1.5, 6.0)
_STOPPED_S: Final = (0.5, 5.0)
"""Longer than a lease, now and then."""


class Users:
    """The processes of one library in one run. `orders`: by name, what each is given as JSON.

    `what` names them in the faults `kill-…` and `stop-…`, which `faults` counts.
    """

    def __init__(
        self, module: str, what: str, orders: Mapping[str, msgspec.Struct], random: Random, tell: Callable[[str], None]
    ) -> None:
        self.faults: Counter[str] = Counter()
        self._module = module
        self._kill_name, self._stop_name = f"kill-{what}", f"stop-{what}"
        self._orders = orders
        self._random = random
        self._tell = tell
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        self._is_calm = asyncio.Event()

    async def start(self) -> None:
        """Start all of them."""
        for name in self._orders:
            await self._spawn(name)

    async def _spawn(self, name: str) -> None:
        self._processes[name] = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", self._module, msgspec.json.encode(self._orders[name]).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def hurt(self) -> None:
        """Kill one of them, halt another, and continue like that, one at a time, until `calm`: then all run."""
        first, second, *_ = self._orders
        await self._kill(first)
        await self._stop(second)
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._random.uniform(*_CALM_S)):
                    await self._is_calm.wait()
            if self._is_calm.is_set():
                return
            name = self._random.choice(sorted(self._processes))
            await (self._kill(name) if self._random.random() < 0.5 else self._stop(name))

    def calm(self) -> None:
        """Hurt them no more."""
        self._is_calm.set()

    async def _kill(self, name: str) -> None:
        process = self._processes[name]
        process.kill()
        await process.wait()
        await self._spawn(name)
        self.faults[self._kill_name] += 1
        self._tell(f"{self._kill_name}: {name} was killed and started again")

    async def _stop(self, name: str) -> None:
        process = self._processes[name]
        os.kill(process.pid, signal.SIGSTOP)
        hold_s = self._random.uniform(*_STOPPED_S)
        try:
            await asyncio.sleep(hold_s)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        self.faults[self._stop_name] += 1
        self._tell(f"{self._stop_name}: {name} stood still for {hold_s:.1f} s")

    async def order(self, word: str) -> None:
        """Say a word to all of them, and wait until each has done so."""
        for process in self._processes.values():
            assert process.stdin is not None
            process.stdin.write(f"{word}\n".encode())
            await process.stdin.drain()
        for process in self._processes.values():
            assert process.stdout is not None
            await process.stdout.readline()

    async def close(self) -> None:
        """Leave no process behind."""
        for process in self._processes.values():
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def word_on_stdin(expected: str) -> None:
    """Wait for that word; the end of the input means that nobody wants this process any more."""
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        if line.strip() == expected:
            return
    raise SystemExit(1)
