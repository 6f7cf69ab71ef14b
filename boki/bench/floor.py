"""`boki bench floor`: what three replicas cost on this machine before any protocol.

A client, a primary and two backups are four Python processes that pass records on by Unix sockets in the order in which
an append goes through three nodes; each of the three writes and syncs, and the primary answers when two of them have a
record. That is about what three replicas cost here; what a cluster takes beyond is its own. It is no lower bound: the
primary syncs in its event loop, so both backups may have a record before the primary can answer.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

from boki.bench.floor_nodes import run_backup, run_client, run_primary
from boki.bench.rows import Round, Row, summary
from boki.bench.system import Options
from boki.bench.turns import Step, in_turns
from boki.config.loading import Durability

INFLIGHT: Final = (1, 16, 256)
DURABILITIES: Final[tuple[Durability, ...]] = ("fsync", "memory")
_REPLICAS: Final = 3


def floor(options: Options, step: Step) -> Iterator[Row]:
    """Records through the skeleton, with syncs and without them in turns, at each number in flight."""
    with contextlib.ExitStack() as stack:
        running = {which: stack.enter_context(Skeleton.running(options.folder, which)) for which in DURABILITIES}
        for inflight in options.inflight or INFLIGHT:
            load = (inflight, options.size_bytes, options.duration_s)
            runs: dict[str, Callable[[], Round]] = {which: partial(one.run, *load) for which, one in running.items()}
            rounds = in_turns(options, step, f"records, {inflight} in flight", runs)
            for which in DURABILITIES:
                yield _row(options, which, inflight, rounds[which])


class Skeleton:
    """The running processes."""

    def __init__(self, address: str, clients: ProcessPoolExecutor) -> None:
        self._address = address
        self._clients = clients
        self._sent_bytes = 0

    @classmethod
    @contextlib.contextmanager
    def running(cls, scratch: Path, durability: Durability) -> Iterator[Skeleton]:
        """Its processes, with their files in a folder below `scratch`; both are gone at the end."""
        context = multiprocessing.get_context("spawn")
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="boki-floor-", dir=scratch)))
            names = ("primary", *(f"backup-{number}" for number in range(1, _REPLICAS)))
            sockets = {name: stack.enter_context(_listening(folder / f"{name}.sock")) for name in names}
            backups = [str(folder / f"{name}.sock") for name in names[1:]]
            for name in names:
                path = folder / name if durability == "fsync" else None
                run, addresses = (run_primary, (backups,)) if name == "primary" else (run_backup, ())
                process = context.Process(target=run, args=(sockets[name], *addresses, path), daemon=True)
                process.start()
                stack.callback(process.join)
                stack.callback(process.kill)
            clients = stack.enter_context(ProcessPoolExecutor(1, mp_context=context))
            yield cls(str(folder / "primary.sock"), clients)

    def run(self, inflight: int, size_bytes: int, duration_s: float) -> Round:
        """One round of a client in a process of its own."""
        asked = (self._address, inflight, size_bytes, duration_s, self._sent_bytes)
        one = self._clients.submit(run_client, *asked).result()
        self._sent_bytes += one.op_count * size_bytes
        return one


def _listening(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen()
    return listening


def _row(options: Options, durability: Durability, inflight: int, rounds: list[Round]) -> Row:
    return Row(
        bench="floor",
        inflight=inflight,
        size_bytes=options.size_bytes,
        replicas=_REPLICAS,
        durability=durability,
        system=f"skeleton R{_REPLICAS}, {durability}",
        **summary(rounds),
    )
