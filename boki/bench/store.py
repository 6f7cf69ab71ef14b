"""`boki bench store`: counters, reads, transactions, conflicts and forks of BokiStore, Retwis, and what it holds in
memory.

What is compared is measured in turns, a round of each, so that a machine that slows down does so for all of them: with
`--peers` the counters of Restate and Redis, and always the single append beside the transaction that costs one.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

import msgspec

from boki.bench import store_memory
from boki.bench.http_load import Post, generator_name, post_load
from boki.bench.load_functions.load import Load
from boki.bench.load_functions.store_load import BUCKETS, READ_TOGETHER, Conflicts, Growth, StoreLoad
from boki.bench.retwis import retwis
from boki.bench.rows import Round, Row, median, rate
from boki.bench.store_peers import STORE_PEERS
from boki.bench.system import Options, Target, target
from boki.bench.turns import Run, Step, in_turns, ratio, row_of, wanted_peers

CALLERS: Final = (1, 64)
TRANSFERRING: Final = (1, 64, 256)
CONFLICTING: Final = 16
_APPENDED_BYTES: Final = 100


_TARGETS: Final = {
    ("store-increment", 1): "p50 <= 1.5 ms",
    ("store-increment", 64): ">= 8 x Restate",
    ("store-read", 1): "p50 <= 0.12 ms",
    ("store-read-only", 1): "p50 <= 0.5 ms",
    ("store-two-objects", 1): "p50 <= 1.5 x an append",
    ("store-conflicts", CONFLICTING): "aborted share <= 0.02",
    ("store-open", 1): "p50 <= 10 ms",
    ("store-fork", 1): "p50 <= 10 ms",
    ("store-memory", 1): "reported",
    ("store-retwis", 64): "reported; paper, 15 machines: 7,585/s, p50 1.0, 0.7, 1.9 and 4.2 ms",
}
"""By benchmark and callers, what is wanted of it with records of the size that is the default."""
_CLUSTER_TARGETS: Final = {
    ("store-increment", 1): "reported",
    ("store-increment", 64): ">= 5 x Restate",
    ("store-two-objects", 64): ">= 4,000/s",
}


def store(options: Options, step: Step) -> Iterator[Row]:
    """Counters (with the peers in turns), reads, transactions, conflicts, Retwis, memory: each with its target."""
    targets = _TARGETS | (_CLUSTER_TARGETS if options.is_cluster else {})
    for row in _rows(options, step):
        wanted = targets.get((row.bench, row.inflight)) if row.system in ("one process", "cluster") else None
        yield row if wanted is None else msgspec.structs.replace(row, details=row.details | {"target": wanted})


def _rows(options: Options, step: Step) -> Iterator[Row]:
    peers = wanted_peers(options, STORE_PEERS)
    with contextlib.ExitStack() as stack:
        system = stack.enter_context(target(options))
        counts = {peer.name: stack.enter_context(peer.running(options.folder)) for peer in peers}
        for callers in options.inflight or CALLERS:
            runs = {
                "store-increment": partial(_run, system, "increment_load", options, callers),
                "store-increment-http": partial(_increment_over_http, system, options, callers),
                **{name: partial(count, callers, options.duration_s) for name, count in counts.items()},
            }
            yield from _counters(options, step, callers, runs)
        yield _reads(options, step, system, "store-read", "object_read_load", {})
        yield _reads(options, step, system, "store-read-only", "read_together_load", {"objects": READ_TOGETHER})
        for callers in options.inflight or TRANSFERRING:
            yield _transfers(options, step, system, callers)
        yield _conflicts(options, step, system)
        yield _opened(options, step, system)
        yield _forked(options, step, system)
    yield from retwis(options, step)
    step(f"{options.record_count:,} objects in memory")
    yield row_of(options, "store-memory", 1, None, store_memory.measure(options.record_count))


def _counters(options: Options, step: Step, callers: int, runs: Mapping[str, Run]) -> Iterator[Row]:
    rounds = in_turns(options, step, f"increments, {callers} callers", runs)
    ours = rounds["store-increment"]
    for name, found in rounds.items():
        if name.startswith("store-"):
            yield row_of(options, name, callers, found, {"generator": generator_name()} if "http" in name else {})
        else:
            details = {
                "rate_of_boki": ratio(ours, found, rate),
                "rate_of_boki_over_http": ratio(rounds["store-increment-http"], found, rate),
                "generator": generator_name() if name == "Restate" else "asyncio",
            }
            yield row_of(options, "store-increment", callers, found, details, system=name)


def _transfers(options: Options, step: Step, system: Target, callers: int) -> Row:
    load = Load(callers, _APPENDED_BYTES, options.duration_s)
    runs: dict[str, Run] = {
        "transfer": partial(_run, system, "transfer_load", options, callers),
        "append": lambda: system.run("append_load", load, Round),
    }
    rounds = in_turns(options, step, f"transactions over two objects, {callers} callers", runs)
    details = {
        "append_p50_ms": median([one.p50_ms for one in rounds["append"]]),
        "p50_of_an_append": ratio(rounds["transfer"], rounds["append"], lambda one: one.p50_ms or 0.0),
    }
    return row_of(options, "store-two-objects", callers, rounds["transfer"], details)


def _reads(options: Options, step: Step, system: Target, bench: str, function: str, details: Mapping[str, Any]) -> Row:
    rounds = in_turns(options, step, bench, {bench: partial(_run, system, function, options, 1)})
    return row_of(options, bench, 1, rounds[bench], details)


def _conflicts(options: Options, step: Step, system: Target) -> Row:
    found: list[Conflicts] = []
    for number in range(options.rounds + 1):
        step(f"2 reads and 1 write of a map of {BUCKETS:,}, {CONFLICTING} writers, round {number}")
        load = StoreLoad(f"bucket-{number}", CONFLICTING, options.duration_s)
        found.append(system.run("conflict_load", load, Conflicts))
    shares = [one.aborted / max(1, one.aborted + one.committed.op_count) for one in found[1:]]
    details = {"items": BUCKETS, "aborted_share": round(statistics.median(shares), 4)}
    return row_of(options, "store-conflicts", CONFLICTING, [one.committed for one in found[1:]], details)


def _opened(options: Options, step: Step, system: Target) -> Row:
    grown = Growth("grown", options.record_count, options.duration_s)
    step(f"{grown.updates:,} updates of an object")
    number = system.run("grow", grown, int)
    assert number == grown.updates, f"{grown.updates:,} increments come to {number:,}"
    rounds = in_turns(options, step, "opening it", {"open": lambda: system.run("open_load", grown, Round)})
    return row_of(options, "store-open", 1, rounds["open"], {"updates": grown.updates})


def _forked(options: Options, step: Step, system: Target) -> Row:
    """Forks of the book with the updates that `_opened` has appended."""
    rounds = in_turns(options, step, "forking it", {"fork": partial(_run, system, "fork_load", options, 1)})
    return row_of(options, "store-fork", 1, rounds["fork"], {"records": f"{options.record_count:,}"})


def _run(system: Target, function: str, options: Options, callers: int) -> Round:
    """A round on objects that are new: on a cluster another node had the round before, and what a node reads of what
    others have written is not what is measured here.
    """
    prefix = f"{function}-{callers}-{uuid4().hex[:12]}"
    one: Round = system.run(function, StoreLoad(prefix, callers, options.duration_s), Round)
    return one


def _increment_over_http(system: Target, options: Options, callers: int) -> Round:
    posts = [Post(f"{system.url}/function/increment", f'"http:{caller}"') for caller in range(callers)]
    return asyncio.run(post_load(*posts, callers=callers, duration_s=options.duration_s, token=system.token))
