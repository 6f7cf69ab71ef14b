"""`boki bench peers`: appends to Boki, NATS JetStream and Redis Streams, in turns on this machine.

All systems run at the same time and one of them has load, so that rounds can follow each other closely. Each figure
stands beside that of NATS JetStream with three replicas and no fsync, as the median of the ratios of rounds that
followed each other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Final

from boki.bench.load_functions.load import Load
from boki.bench.log_peers import LOG_PEERS, REFERENCE, LogLoad
from boki.bench.peer_servers import is_installed
from boki.bench.rows import Round, Row, rate, summary, together
from boki.bench.system import Options, Target, target
from boki.bench.turns import Step, in_turns, ratio
from boki.config.loading import Durability
from boki.errors import ConfigError

WINDOWS: Final = ((1, 1), (1, 16), (1, 256), (2, 1_000))
"""Clients, and the appends that each has in flight."""
_OURS: Final[tuple[tuple[int, Durability], ...]] = ((1, "fsync"), (3, "fsync"), (3, "memory"))
"""Replicas and durability: one process for one replica, and three nodes with all roles for three."""


@dataclass(frozen=True, slots=True)
class System:
    """A running system, and what its rows say of it."""

    name: str
    version: str
    replicas: int
    durability: str
    run: Callable[[int, LogLoad], Round]


def peers(options: Options, step: Step) -> Iterator[Row]:
    """Single appends from one client with 1, 16 and 256 in flight, and from two with 1,000 each."""
    if not is_installed(REFERENCE.server):
        raise ConfigError("boki bench peers compares with NATS: pip install 'boki[peers]'")
    windows = [(1, inflight) for inflight in options.inflight] or WINDOWS
    most_clients = max(clients for clients, _ in windows)
    with contextlib.ExitStack() as stack:
        systems = [stack.enter_context(_ours(options, step, *which)) for which in _OURS]
        for peer in LOG_PEERS:
            if is_installed(peer.server):
                step(f"starting {peer.name}")
                other = stack.enter_context(peer.running(options.folder, most_clients))
                kind = peer.server
                systems.append(System(peer.name, other.started.version, kind.replicas, kind.durability, other.run))
        for clients, inflight in windows:
            load = LogLoad(inflight, options.size_bytes, options.duration_s)
            runs = {system.name: partial(system.run, clients, load) for system in systems}
            rounds = in_turns(options, step, f"appends, {clients} x {inflight} in flight", runs)
            for system in systems:
                yield compared(system, clients, load, rounds)


@contextlib.contextmanager
def _ours(options: Options, step: Step, replicas: int, durability: Durability) -> Iterator[System]:
    name = f"Boki R{replicas}, {durability}"
    step(f"starting {name}")
    own = replace(options, is_cluster=replicas > 1, is_separate=False, replicas=replicas, durability=durability)
    with target(own) as running, ThreadPoolExecutor() as threads:
        yield System(name, version("boki"), replicas, durability, partial(_append, running, threads))


def _append(running: Target, threads: ThreadPoolExecutor, clients: int, load: LogLoad) -> Round:
    """Each client is a call of its own, which has a worker process."""
    one = Load(load.inflight, load.size_bytes, load.duration_s)
    calls = [threads.submit(running.run, "append_load", one, Round) for _ in range(clients)]
    return together([call.result() for call in calls])


def compared(system: System, clients: int, load: LogLoad, rounds: Mapping[str, list[Round]]) -> Row:
    """The row of a system: its medians, and its ratios to the reference."""
    ours, reference = rounds[system.name], rounds[REFERENCE.name]
    return Row(
        bench="peers",
        inflight=clients * load.inflight,
        size_bytes=load.size_bytes,
        replicas=system.replicas,
        durability=system.durability,
        system=system.name,
        **summary(ours),
        details={
            "version": system.version,
            "clients": clients,
            "rate_to_nats_r3": ratio(ours, reference, rate),
            "p50_to_nats_r3": ratio(ours, reference, lambda one: one.p50_ms or 0.0),
        },
    )
