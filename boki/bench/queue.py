"""`boki bench queue`: messages delivered a second, how long pushes and deliveries take, how soon the idle are woken.

There are as many shards as consumers, as in the paper. The same flow then goes through Redis Streams and NATS
JetStream, if they are installed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import msgspec

from boki.bench import peers
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
    with target(options) as system:
        yield from _flows(options, step, partial(system.run, "queue_load", kind=QueueRound), _name(options))
        for is_leased in (False, True):
            yield _wake(options, step, system, is_leased=is_leased)
        yield _fill(options, step, system)
    if not options.url and options.durability == "fsync":
        for kind in peers.installed():
            with peers.running(kind, options.folder) as peer:
                yield from _flows(options, step, peer.run, f"{kind.name} {peer.version}")


def _flows(options: Options, step: Step, run: Run, system: str) -> Iterator[Row]:
    for producers, consumers in PAIRS:
        load = QueueLoad("", producers, consumers, consumers, options.size_bytes, options.duration_s)
        yield _flow(options, step, run, system, "queue", load)
    load = QueueLoad("", 64, 64, 64, options.size_bytes, options.duration_s, OFFERED_PER_S)
    yield _flow(options, step, run, system, "queue-offered", load)


def _flow(options: Options, step: Step, run: Run, system: str, bench: str, load: QueueLoad) -> Row:
    rounds: list[QueueRound] = []
    for number in range(options.rounds + 1):
        name = f"{bench}-{load.producers}-{load.consumers}-{number}"
        step(f"{system}: {bench}, {load.producers} producers, {load.consumers} consumers, round {number}")
        rounds.append(run(msgspec.structs.replace(load, queue=name)))
    rounds = rounds[1:]  # the first warms up
    figures = {figure: median([getattr(one, figure) for one in rounds]) for figure in _FIGURES}
    details = {"producers": load.producers, "consumers": load.consumers, "shards": load.shards, **figures}
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
