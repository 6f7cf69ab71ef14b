"""`boki bench flow-sleepers`: what workflows that are asleep take in the process of their engine.

The system is a cluster of one engine, one storage node and one sequencer, each a process of its own, so that nothing
else is in the engine's. Its record cache is small: with the usual one the figures are those of the cache. One row for
each fifth of the workflows; the last one also tells what is left half a minute later, when free pages were given back,
and how late timers among all of them are.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from boki.bench.load_functions.flow_load import Many
from boki.bench.rows import Round, Row, measured
from boki.bench.system import LOAD_FUNCTIONS, Options
from boki.bench.turns import Step, row_of
from boki.client import BlockingClient
from boki.config.up import UpConfig
from boki.dispatch.server.machine import resident_bytes
from boki.launch.child import Child
from boki.log.limits import MIB

STRETCHES: Final = 5
CACHE_BYTES: Final = 16 * MIB
ALARMS: Final = 20
_SETTLE_S: Final = 1.0
_REST_S: Final = 35.0
"""By then an engine has saved its index, and given free pages back."""


def flow_sleepers(options: Options, step: Step) -> Iterator[Row]:
    """A row a fifth: the growth of the engine's process, and how much of it the index and the record cache count."""
    options = replace(options, is_cluster=True, is_separate=True, replicas=1)
    with (
        tempfile.TemporaryDirectory(prefix="boki-bench-", dir=options.folder) as folder,
        Child(_config(options, Path(folder, "data"))).start() as child,
        BlockingClient(child.url) as client,
    ):
        yield from _stretches(options, step, client)


def _config(options: Options, data: Path) -> UpConfig:
    return UpConfig(
        data=data,
        functions=LOAD_FUNCTIONS,
        port=0,
        separate=True,
        engines=1,
        storage=1,
        sequencers=1,
        controllers=1,
        replicas=1,
        write_quorum=1,
        durability=options.durability,
        cache_bytes=CACHE_BYTES,
    )


def _stretches(options: Options, step: Step, client: BlockingClient) -> Iterator[Row]:
    client.invoke("alarms", 1, result_type=list[float])  # its worker has started, and is not measured
    before_bytes = engine_bytes(client)
    count = options.sleeper_count
    asleep = 0
    for number in range(STRETCHES):
        until = count * (number + 1) // STRETCHES
        one = fall_asleep(client, step, f"sleeper:{number}:", until - asleep)
        asleep = until
        details = {"workflows": asleep, **_memory(client, before_bytes)}
        if asleep < count:
            yield row_of(options, "flow-sleepers", asleep, [one], details)
            continue
        step("timers among them")
        late_s = lateness(client)
        step("half a minute of rest")
        time.sleep(_REST_S)
        details["rested_mib"] = _memory(client, before_bytes)["engine_mib"]
        details["latest_ms"] = round(max(late_s) * 1e3, 3)
        yield row_of(options, "flow-sleepers", asleep, [measured(late_s, 0, sum(late_s))], details)


def fall_asleep(client: BlockingClient, step: Step, prefix: str, count: int) -> Round:
    """Start this many workflows that sleep until tomorrow, and wait until all do."""
    step(f"{count:,} workflows fall asleep")
    started = time.perf_counter()
    client.invoke("start_sleepers", Many(prefix, count), timeout_s=3_600)
    while client.calls(function="sleeper", states=("accepted", "running"), limit=1).calls:
        time.sleep(_SETTLE_S)
    return Round(count, 0, time.perf_counter() - started, None, None)


def lateness(client: BlockingClient) -> list[float]:
    """Seconds that timers among them are late."""
    late_s: list[float] = client.invoke("alarms", ALARMS, result_type=list[float], timeout_s=600)
    return late_s


def engine_bytes(client: BlockingClient) -> int:
    """Memory of the process that has the engine: of a cluster the larger one of them; else it is the whole system, with
    storage, sequencer and their caches.
    """
    status = client.status()
    engines = [node["pid"] for node in _engines(status)]
    return max(resident_bytes(pid) for pid in engines or [status["pid"]])


def _engines(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [node for name, node in status.get("nodes", {}).items() if name.startswith("engine")]


def _memory(client: BlockingClient, before_bytes: int) -> dict[str, Any]:
    (engine,) = _engines(client.status())
    return {
        "engine_mib": _mib(engine_bytes(client) - before_bytes),
        "index_mib": _mib(engine["engine"]["index_bytes"]),
        "cache_mib": _mib(engine["engine"]["cache_bytes"]),
    }


def _mib(size_bytes: int) -> float:
    return round(size_bytes / MIB, 1)
