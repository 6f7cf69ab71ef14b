"""The benchmarks of a system on one machine. Each is a generator of rows, so that they show up as they are measured.

`step` is told what is being measured, for a progress bar.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from boki.bench import faults, index_memory
from boki.bench.floor import floor
from boki.bench.flow import flow
from boki.bench.flow_sleepers import flow_sleepers
from boki.bench.flow_soak import flow_soak
from boki.bench.flow_state import flow_state
from boki.bench.flow_takeover import flow_takeover
from boki.bench.http_load import Post, generator_name, post_load
from boki.bench.idle import idle
from boki.bench.load_functions.load import BATCH_RECORDS, BOOK, TAG, Fill, Load
from boki.bench.peers import peers
from boki.bench.queue import queue
from boki.bench.rows import Round, Row, measured, rate, summary
from boki.bench.spark import spark
from boki.bench.store import store
from boki.bench.system import Options, Target, target
from boki.bench.traced_appends import traced_appends
from boki.client import BlockingClient

Step = Callable[[str], None]

APPEND_INFLIGHT = (1, 16, 256)
BATCH_INFLIGHT = (1, 4)
SCAN_RECORDS = 300_000
HTTP_CALLERS = (1, 64)
COLD_STARTS = 20
COLD_MODULE = '''"""A module of its own, so that its first call finds no worker."""

from boki import Context, function


@function
async def {name}(ctx: Context, payload: None) -> None:
    """Nothing."""
'''


def append(options: Options, step: Step) -> Iterator[Row]:
    """Single appends from one function, and appends in bulk; or where the time of one goes."""
    if options.is_traced:
        yield from traced_appends(options, step)
        return
    with target(options) as system:
        for count in options.inflight or APPEND_INFLIGHT:
            load = Load(count, options.size_bytes, options.duration_s)
            rounds = list(_rounds(options, step, f"append, {count} in flight", system, "append_load", load))
            yield _row(options, "append", count, options.size_bytes, **summary(rounds))
        for count in BATCH_INFLIGHT:
            load = Load(count, 100, options.duration_s)
            rounds = list(_rounds(options, step, f"append_many, {count} in flight", system, "append_many_load", load))
            fields = summary(rounds)
            details = {"batch_records": BATCH_RECORDS, "records_per_s": round(fields["ops_per_s"] * BATCH_RECORDS)}
            yield _row(options, "append_many", count, 100, **fields, details=details)


def read(options: Options, step: Step) -> Iterator[Row]:
    """Reads that the cache serves: one after the other, anywhere, and as a stream of batches."""
    with target(options) as system:
        load = Load(1, options.size_bytes, options.duration_s)
        rounds = list(_rounds(options, step, "cached read_next", system, "read_next_load", load))
        yield _row(options, "read_next", 1, options.size_bytes, **summary(rounds))
        rounds = list(_rounds(options, step, "cached read_next anywhere", system, "read_anywhere_load", load))
        yield _row(options, "read_next_anywhere", 1, options.size_bytes, **summary(rounds))
    with target(options) as system:
        record_count = min(SCAN_RECORDS, options.record_count)
        step(f"appending {record_count:,} records to read")
        system.run("fill", Fill(record_count, 100), int)
        rounds = list(_rounds(options, step, "subscribe().batches()", system, "scan_load", record_count))
        yield _row(options, "subscribe", 1, 100, **summary(rounds))


def invoke(options: Options, step: Step) -> Iterator[Row]:
    """The empty function over HTTP."""
    with target(options) as system:
        url = f"{system.url}/function/nothing"
        for count in options.inflight or HTTP_CALLERS:
            rounds = []
            for number in range(options.rounds + 1):
                step(f"invoke, {count} callers, {_round_name(number)}")
                load = post_load(Post(url), callers=count, duration_s=options.duration_s, token=system.token)
                rounds.append(asyncio.run(load))
            yield _row(options, "invoke", count, 4, **summary(rounds[1:]), details={"generator": generator_name()})


def cold_start(options: Options, step: Step) -> Iterator[Row]:
    """The first call of a function whose module has no worker, over HTTP; each sample has a module of its own."""
    with tempfile.TemporaryDirectory() as folder:
        names = [f"cold_{number}" for number in range(COLD_STARTS + 1)]
        for name in names:
            Path(folder, f"{name}.py").write_text(COLD_MODULE.format(name=name), encoding="utf-8")
        with target(options, functions=Path(folder)) as system:
            latencies_s = []
            started = time.perf_counter()
            for name in names:
                step(f"cold start {name}")
                before = time.perf_counter()
                system.client.invoke(name, None)
                latencies_s.append(time.perf_counter() - before)
            # The first also opens the client's connection.
            one = measured(latencies_s[1:], 0, time.perf_counter() - started)
    yield _row(options, "cold-start", 1, 4, **summary([one]) | {"ops_per_s": None})


def restart(options: Options, step: Step) -> Iterator[Row]:
    """From starting the process to the first answered read, on this many records, after SIGKILL and after SIGTERM."""
    with target(options) as system:
        child = system.child
        assert child is not None, "a benchmark of restarts has a system of its own"
        record_count = options.record_count
        step(f"appending {record_count:,} records")
        last_seqnum = system.run("fill", Fill(record_count, 100, tags=2, distinct_tags=record_count // 100), int)
        for how, end in (("SIGKILL", child.kill), ("SIGTERM", child.stop)):
            samples_s = []
            for number in range(options.rounds):
                step(f"restart after {how}, round {number + 1}")
                end()
                before = time.perf_counter()
                child.start(timeout_s=120)
                with BlockingClient(child.url) as client:
                    record = client.logbook(BOOK).read_prev(f"{TAG}:0")
                samples_s.append(time.perf_counter() - before)
                assert record is not None
                assert record.seqnum <= last_seqnum
            one = measured(samples_s, 0, sum(samples_s))
            details = {"records": record_count, "after": how}
            yield _row(options, "restart", 1, 100, **summary([one]) | {"ops_per_s": None}, details=details)


def memory(options: Options, step: Step) -> Iterator[Row]:
    """Memory of the index for each record, with tags that many records share and with tags of its own."""
    for unique in (False, True):
        step(f"indexing {options.record_count:,} records with {'unique' if unique else 'shared'} tags")
        yield index_memory.row(
            options.record_count, unique=unique, replicas=options.replicas, durability=options.durability
        )


CLUSTER_BENCHMARKS: dict[str, Callable[[Options, Step], Iterator[Row]]] = {
    "failover": faults.failover,
    "scaling": faults.scaling,
    "repair": faults.repair,
    "flow-takeover": flow_takeover,
}
"""What only a whole cluster can show."""

BENCHMARKS: dict[str, Callable[[Options, Step], Iterator[Row]]] = {
    "append": append,
    "read": read,
    "invoke": invoke,
    "cold-start": cold_start,
    "restart": restart,
    "memory": memory,
    "idle": idle,
    "queue": queue,
    "flow": flow,
    "flow-state": flow_state,
    "flow-soak": flow_soak,
    "flow-sleepers": flow_sleepers,
    "store": store,
    "spark": spark,
    "peers": peers,
    "floor": floor,
    **CLUSTER_BENCHMARKS,
}


def _rounds(options: Options, step: Step, what: str, system: Target, function: str, payload: Any) -> Iterator[Round]:
    """The measured rounds, after one that warms up."""
    for number in range(options.rounds + 1):
        step(f"{what}, {_round_name(number)}")
        one: Round = system.run(function, payload, Round)
        if number:
            step(f"{what}: {rate(one):,.0f}/s")
            yield one


def _round_name(number: int) -> str:
    return f"round {number}" if number else "warming up"


def _row(options: Options, bench: str, inflight: int, size_bytes: int, **fields: Any) -> Row:
    return Row(
        bench=bench,
        inflight=inflight,
        size_bytes=size_bytes,
        replicas=options.replicas,
        durability=options.durability,
        system="cluster" if options.is_cluster else "one process",
        **fields,
    )
