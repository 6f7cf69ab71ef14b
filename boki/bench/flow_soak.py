"""`boki bench flow-soak`: whether disk and memory stay flat under short workflows.

One row a round: the rate, and the size of the system's process and of its data directory at the end of the round. The
system keeps logged calls, keys and histories for 20 seconds, and its caches and write buffers are small, so that a
steady state is reached within a minute or two: buffers of the usual size would fill for the first hour of a slow
machine, and look like growth. Five minutes are `--rounds 10 --duration-s 30`, an hour `--rounds 60 --duration-s 60`.

What a steady state holds, and what bounds it: `kept` workflows, those that have ended within the time; the record
cache and the index, 16 MiB each; `logs_mib`, what databases have not written to tables yet, as much in memory, about
twice the write buffers; 20,000 to 40,000 metalog entries; and what was deleted and no compaction has come to yet.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from boki.bench.load_functions.flow_load import KEPT_S, FlowLoad
from boki.bench.rows import Round, Row
from boki.bench.system import LOAD_FUNCTIONS, Options
from boki.bench.turns import Step, row_of
from boki.client import BlockingClient
from boki.dispatch.server.machine import resident_bytes
from boki.launch.child import Child
from boki.log.limits import MIB

CALLERS: Final = 16
_CACHE_BYTES: Final = 16 * MIB
_INDEX_BYTES: Final = 16 * MIB
_BUFFER_BYTES: Final = 4 * MIB


def flow_soak(options: Options, step: Step) -> Iterator[Row]:
    """A row a round; the last ones should be like each other."""
    with tempfile.TemporaryDirectory(prefix="boki-bench-", dir=options.folder) as folder:
        data = Path(folder, "data")
        config = options.config(data, LOAD_FUNCTIONS)
        limits = msgspec.structs.replace(config.limits, key_window_s=KEPT_S)
        config = msgspec.structs.replace(
            config,
            keep_calls_s=KEPT_S,
            limits=limits,
            cache_bytes=_CACHE_BYTES,
            index_memory_bytes=_INDEX_BYTES,
            write_buffer_bytes=_BUFFER_BYTES,
        )
        with Child(config).start() as child, BlockingClient(child.url) as client:
            callers = options.inflight[0] if options.inflight else CALLERS
            ended = 0
            for number in range(options.rounds):
                step(f"short workflows, {callers} callers, round {number + 1}")
                load = FlowLoad(callers=callers, duration_s=options.duration_s)
                one = client.invoke("flow_soak_load", load, result_type=Round, timeout_s=600)
                ended += one.op_count
                found: dict[str, Any] = {
                    "round": number + 1,
                    "workflows": ended,
                    "kept": min(ended, round(one.op_count / one.elapsed_s * KEPT_S)),
                    "engine_mib": round(_process_bytes(client) / 2**20, 1),
                    "disk_mib": round(_disk_bytes(data) / 2**20, 1),
                    "logs_mib": round(_disk_bytes(data, ".log") / 2**20, 1),
                }
                yield row_of(options, "flow-soak", callers, [one], found)


def _process_bytes(client: BlockingClient) -> int:
    """Memory of the process that has the engine: the largest one of a cluster."""
    status = client.status()
    nodes = [node["pid"] for node in status.get("nodes", {}).values() if "pid" in node]
    return max(resident_bytes(pid) for pid in nodes or [status["pid"]])


def _disk_bytes(folder: Path, suffix: str = "") -> int:
    """What the files take on the disk whose names end so; one may go while it is looked at."""
    size = 0
    for path in folder.rglob(f"*{suffix}"):
        try:
            size += path.stat().st_blocks * 512 if path.is_file() else 0
        except OSError:
            continue
    return size
