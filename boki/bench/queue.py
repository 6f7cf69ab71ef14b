"""`boki bench queue`: messages delivered a second, how long pushes and deliveries take, how soon the idle are woken.

The queue has one shard: the fold names the consumer, so consumers do not contend. The same flow goes through Redis
Streams and NATS JetStream, if they are installed, in alternating rounds: what disturbs the machine disturbs all alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import msgspec

from boki.bench import queue_peers
from boki.bench.idle import family, usage_of
from boki.bench.load_functions.queue_load import FillLoad, WakeLoad
from boki.bench.queue_flow import QueueLoad, QueueRound
from boki.bench.rows import Row, median, quantile
from boki.bench.system import Options, Target, target

Step = Callable[[str], None]
Run = Callable[[QueueLoad], QueueRound]

PAIRS: Final = ((64, 64), (64, 16), (16, 64))
"""Producers and consumers."""
OFFERED_PER_S: Final = 2_000.0
MOST_WAKES: Final = 100
BATCH: Final = 100
_FIGURES: Final = ("push_p50_ms", "push_p99_ms", "delivery_p50_ms", "delivery_p99_ms")


def queue(options: Options, step: Step) -> Iterator[Row]:
    """Pushes and pops at once, at full speed and at an offered rate; idle consumers; pushes in bulk; then peers."""
    with target(options) as system, ExitStack() as stack:
        systems: dict[str, Run] = {_name(options): partial(_metered, system)}
        for kind in queue_peers.installed() if not options.url and options.durability == "fsync" else ():
            peer = stack.enter_context(queue_peers.running(kind, options.folder))
            systems[f"{kind.name} {peer.started.version}"] = peer.run
        for producers, consumers in PAIRS:
            load = QueueLoad("", producers, consumers, 1, options.size_bytes, options.duration_s)
            yield from _flow(options, step, systems, "queue", load)
        load = QueueLoad("", 64, 64, 1, options.size_bytes, options.duration_s, OFFERED_PER_S)
        yield from _flow(options, step, systems, "queue-offered", load)
        for is_leased in (False, True):
            yield _wake(options, step, system, is_leased=is_leased)
        yield _fill(options, step, system)


def _metered(system: Target, load: QueueLoad) -> QueueRound:
    """A round, with the processor time that all processes of the system used for one message."""
    before_s = _processor_s(system)
    found: QueueRound = system.run("queue_load", load, QueueRound)
    if system.child is None or not found.pushed_count:
        return found
    used_us = (_processor_s(system) - before_s) * 1e6
    return msgspec.structs.replace(found, processor_us=round(used_us / found.pushed_count, 1))


def _processor_s(system: Target) -> float:
    pids = family(system.child.pid) if system.child is not None else []
    return sum(one.processor_s for one in usage_of(pids).values())


def _flow(options: Options, step: Step, systems: dict[str, Run], bench: str, load: QueueLoad) -> Iterator[Row]:
    rounds: dict[str, list[QueueRound]] = {system: [] for system in systems}
    for number in range(options.rounds + 1):
        for system, run in systems.items():
            name = f"{bench}-{load.producers}-{load.consumers}-{number}"
            step(f"{system}: {bench}, {load.producers} producers, {load.consumers} consumers, round {number}")
            rounds[system].append(run(msgspec.structs.replace(load, queue=name)))
    for system in systems:
        yield _flow_row(options, system, bench, load, rounds[system][1:])  # the first warms up


def _flow_row(options: Options, system: str, bench: str, load: QueueLoad, rounds: list[QueueRound]) -> Row:
    figures = {figure: median([getattr(one, figure) for one in rounds]) for figure in _FIGURES}
    details = {"producers": load.producers, "consumers": load.consumers, "shards": load.shards, **figures}
    if any(one.processor_us for one in rounds):
        details["processor_us_per_message"] = median([one.processor_us for one in rounds])
    if load.offered_per_s:
        details["offered_per_s"] = load.offered_per_s
    return _row(
        options,
        bench,
        load.producers,
        system=system,
        ops_per_s=median([one.delivered_count / one.elapsed_s for one in rounds]),
        p50_ms=figures["delivery_p50_ms"],
        p99_ms=figures["delivery_p99_ms"],
        errors=sum(one.error_count for one in rounds),
        details=details,
    )


def _wake(options: Options, step: Step, system: Target, *, is_leased: bool) -> Row:
    how = "lease" if is_leased else "pop"
    count = min(MOST_WAKES, 10 + int(30 * options.duration_s))
    step(f"an idle consumer is woken, {how}")
    found: list[float] = system.run("wake_load", WakeLoad(f"wake-{how}", count, is_leased), list)
    p50, p99 = statistics.median(found), quantile(found, 0.99)
    details = {"producers": 1, "consumers": 1, "taken_by": how}
    return _row(
        options,
        "queue-wake",
        1,
        system=_name(options),
        ops_per_s=None,
        p50_ms=p50,
        p99_ms=p99,
        errors=0,
        details=details,
    )


def _fill(options: Options, step: Step, system: Target) -> Row:
    rounds: list[QueueRound] = []
    for number in range(options.rounds + 1):
        step(f"push_many of {BATCH}, round {number}")
        load = FillLoad(f"fill-{number}", BATCH, 4, options.size_bytes, options.duration_s)
        rounds.append(system.run("push_many_load", load, QueueRound))
    return _row(
        options,
        "queue-push-many",
        4,
        system=_name(options),
        ops_per_s=median([one.pushed_count / one.elapsed_s for one in rounds[1:]]),
        p50_ms=median([one.push_p50_ms for one in rounds[1:]]),
        p99_ms=median([one.push_p99_ms for one in rounds[1:]]),
        errors=0,
        details={"producers": 4, "consumers": 0, "batch_messages": BATCH},
    )


def _name(options: Options) -> str:
    return "cluster" if options.is_cluster else "one process"


def _row(options: Options, bench: str, inflight: int, *, system: str, **fields: Any) -> Row:
    return Row(
        bench=bench,
        inflight=inflight,
        size_bytes=options.size_bytes,
        replicas=options.replicas if system == _name(options) else 1,
        durability=options.durability,
        system=system,
        **fields,
    )
