"""`boki bench peers`: Boki, NATS JetStream and Redis Streams as logs and as queues, in turns on this machine.

All systems run at the same time and one of them has load, so that rounds can follow each other closely. Each figure
stands beside that of NATS JetStream with three replicas and no fsync, as the median of the ratios of rounds that
followed each other.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from typing import Final

from msgspec.structs import replace as replaced

from boki.bench.load_functions.load import BATCH_RECORDS, Load
from boki.bench.log_peers import LOG_PEERS, REFERENCE, LogLoad
from boki.bench.peer_servers import is_installed
from boki.bench.queue_flow import QueueLoad, QueueRound
from boki.bench.rows import Round, Row, rate, summary, together
from boki.bench.system import Options, Target, target
from boki.bench.turns import Step, in_turns, ratio
from boki.config.loading import Durability
from boki.errors import ConfigError

WINDOWS: Final = ((1, 1), (1, 16), (1, 256), (2, 1_000))
"""Clients, and the appends that each has in flight."""
BATCHES_INFLIGHT: Final = (1, 4)
BATCH_RECORD_BYTES: Final = 100
QUEUE_CALLERS: Final = 64
"""Producers, and as many consumers."""
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
    deliver: Callable[[QueueLoad], QueueRound]
    batch_is: str
    """What an append of many records is there."""


def peers(options: Options, step: Step) -> Iterator[Row]:
    """Single appends from one client with 1, 16 and 256 in flight, and from two with 1,000 each; then appends of 1,000
    records, and a queue.
    """
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
                told = (peer.name, other.started.version, peer.server.replicas, peer.server.durability)
                systems.append(System(*told, other.run, other.deliver, peer.batch_is))
        for clients, inflight in windows:
            load = LogLoad(inflight, options.size_bytes, options.duration_s)
            runs = {system.name: partial(system.run, clients, load) for system in systems}
            rounds = in_turns(options, step, f"appends, {clients} x {inflight} in flight", runs)
            for system in systems:
                yield compared(system, clients, load, rounds)
        yield from _batches(options, step, systems)
        yield from _queues(options, step, systems)


def _batches(options: Options, step: Step, systems: Sequence[System]) -> Iterator[Row]:
    """Appends of many small records, each system in its own way."""
    for inflight in BATCHES_INFLIGHT:
        load = LogLoad(inflight, BATCH_RECORD_BYTES, options.duration_s, BATCH_RECORDS)
        runs = {system.name: partial(system.run, 1, load) for system in systems}
        rounds = in_turns(options, step, f"appends of {BATCH_RECORDS:,} records, {inflight} in flight", runs)
        for system in systems:
            row = compared(system, 1, load, rounds)
            rate_of_records = round((row.ops_per_s or 0.0) * BATCH_RECORDS)
            details = {"batch_records": BATCH_RECORDS, "records_per_s": rate_of_records, "batch_is": system.batch_is}
            yield replaced(row, bench="peers-append-many", details={**row.details, **details})


def _queues(options: Options, step: Step, systems: Sequence[System]) -> Iterator[Row]:
    """Messages through a queue; the latencies are those of deliveries, which begin when their pushes do."""
    load = LogLoad(QUEUE_CALLERS, options.size_bytes, options.duration_s)
    runs = {system.name: partial(_delivered, system, load) for system in systems}
    rounds = in_turns(options, step, f"queue, {QUEUE_CALLERS} producers and as many consumers", runs)
    for system in systems:
        row = compared(system, 1, load, rounds)
        yield replaced(row, bench="peers-queue", details={**row.details, "consumers": QUEUE_CALLERS})


def _delivered(system: System, load: LogLoad) -> Round:
    name = f"peers-{uuid.uuid4().hex}"
    one = system.deliver(QueueLoad(name, load.inflight, load.inflight, 1, load.size_bytes, load.duration_s))
    return Round(one.delivered_count, one.error_count, one.elapsed_s, one.delivery_p50_ms, one.delivery_p99_ms)


@contextlib.contextmanager
def _ours(options: Options, step: Step, replicas: int, durability: Durability) -> Iterator[System]:
    name = f"Boki R{replicas}, {durability}"
    step(f"starting {name}")
    own = replace(options, is_cluster=replicas > 1, is_separate=False, replicas=replicas, durability=durability)
    with target(own) as running, ThreadPoolExecutor() as threads:
        append, deliver = partial(_append, running, threads), partial(_deliver, running)
        yield System(name, version("boki"), replicas, durability, append, deliver, "append_many, all or none")


def _append(running: Target, threads: ThreadPoolExecutor, clients: int, load: LogLoad) -> Round:
    """Each client is a call of its own, which has a worker process."""
    one = Load(load.inflight, load.size_bytes, load.duration_s)
    function = "append_load" if load.batch_records == 1 else "append_many_load"
    calls = [threads.submit(running.run, function, one, Round) for _ in range(clients)]
    return together([call.result() for call in calls])


def _deliver(running: Target, load: QueueLoad) -> QueueRound:
    found: QueueRound = running.run("queue_load", load, QueueRound)
    return found


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
