"""`boki bench queue`: messages delivered a second, how long pushes and deliveries take, how soon the idle are woken.

As in the paper each message carries when it was sent, and there are as many shards as consumers. What is lost or
delivered twice counts as an error.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any, Final

from boki.bench.load_functions.queue_load import FillLoad, QueueLoad, QueueRound, WakeLoad
from boki.bench.rows import Row, median, quantile
from boki.bench.system import Options, Target, target

Step = Callable[[str], None]

PAIRS: Final = ((64, 64), (64, 16), (16, 64))
"""Producers and consumers."""
OFFERED_PER_S: Final = 2_000.0
MOST_WAKES: Final = 100
BATCH: Final = 100
_FIGURES: Final = ("push_p50_ms", "push_p99_ms", "delivery_p50_ms", "delivery_p99_ms")


def queue(options: Options, step: Step) -> Iterator[Row]:
    """Pushes and pops at once, at full speed and at an offered rate; idle consumers; pushes in bulk."""
    with target(options) as system:
        for producers, consumers in PAIRS:
            load = QueueLoad("", producers, consumers, consumers, options.size_bytes, options.duration_s)
            yield _flow(options, step, system, "queue", load)
        load = QueueLoad("", 64, 64, 64, options.size_bytes, options.duration_s, OFFERED_PER_S)
        yield _flow(options, step, system, "queue-offered", load)
        for is_leased in (False, True):
            yield _wake(options, step, system, is_leased=is_leased)
        yield _fill(options, step, system)


def _flow(options: Options, step: Step, system: Target, bench: str, load: QueueLoad) -> Row:
    rounds: list[QueueRound] = []
    for number in range(options.rounds + 1):
        name = f"{bench}-{load.producers}-{load.consumers}-{number}"
        step(f"{bench}, {load.producers} producers, {load.consumers} consumers, round {number}")
        own = QueueLoad(name, *(getattr(load, field) for field in QueueLoad.__struct_fields__[1:]))
        rounds.append(system.run("queue_load", own, QueueRound))
    rounds = rounds[1:]  # the first warms up
    figures = {figure: median([getattr(one, figure) for one in rounds]) for figure in _FIGURES}
    details = {"producers": load.producers, "consumers": load.consumers, "shards": load.shards, **figures}
    if load.offered_per_s:
        details["offered_per_s"] = load.offered_per_s
    return _row(
        options,
        bench,
        load.producers,
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
    return _row(options, "queue-wake", 1, ops_per_s=None, p50_ms=p50, p99_ms=p99, errors=0, details=details)


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
        ops_per_s=median([one.pushed_count / one.elapsed_s for one in rounds[1:]]),
        p50_ms=median([one.push_p50_ms for one in rounds[1:]]),
        p99_ms=median([one.push_p99_ms for one in rounds[1:]]),
        errors=0,
        details={"producers": 4, "consumers": 0, "batch_messages": BATCH},
    )


def _row(options: Options, bench: str, inflight: int, **fields: Any) -> Row:
    return Row(
        bench=bench,
        inflight=inflight,
        size_bytes=options.size_bytes,
        replicas=options.replicas,
        durability=options.durability,
        system="cluster" if options.is_cluster else "one process",
        **fields,
    )
