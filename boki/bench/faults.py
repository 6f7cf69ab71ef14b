"""What a load notices when nodes of a cluster are killed, come, go, and copy records: `boki bench --cluster`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from boki.bench.cluster import Cluster, Status
from boki.bench.load_functions.load import Fill, Watch
from boki.bench.rows import Row
from boki.bench.system import Options, target
from boki.bench.timeline import compared
from boki.errors import ConnectionLost
from boki.launch.up.health import drain_left, leader_of
from boki.log.membership import Role

Step = Callable[[str], None]
_INFLIGHT: Final = 16
_BEFORE_S: Final = 3.0
_AFTER_S: Final = 5.0
_REPAIR_INFLIGHT: Final = 4
_ATTEMPTS: Final = 4


def failover(options: Options, step: Step) -> Iterator[Row]:
    """SIGKILL of one role after the other, then of whole nodes, under load on an engine that is left alone."""
    for layout, kinds in (
        (replace(options, is_separate=True), ("storage", "backup", "primary", "controller", "engine")),
        (replace(options, is_separate=False), ("node",)),
    ):
        with target(layout) as system, Cluster(system) as cluster:
            for kind in kinds:
                for number in range(options.rounds):
                    step(f"killing: {kind}, round {number + 1}")
                    yield _killed_elsewhere(layout, cluster, kind, number)


def _killed_elsewhere(options: Options, cluster: Cluster, kind: str, number: int) -> Row:
    """Gateways share an address: if the load's own request went through the node that is killed, try again."""
    for attempt in range(_ATTEMPTS - 1):
        with suppress(ConnectionLost):
            return _killed(options, cluster, kind, number, attempt)
    return _killed(options, cluster, kind, number, _ATTEMPTS - 1)


def _killed(options: Options, cluster: Cluster, kind: str, number: int, attempt: int) -> Row:
    healthy = cluster.wait_healthy()
    watch = Watch(f"{kind}-{number}-{attempt}", _inflight(options), options.size_bytes, _BEFORE_S + _AFTER_S)
    future, engine = cluster.load(watch)
    node = _other_node(cluster, healthy, engine) if kind == "node" else _victim(healthy, kind, number, engine)
    has_primary = cluster.pid(node) == cluster.pid(leader_of(healthy)["primaries"][0])
    time.sleep(_BEFORE_S)
    at_us = cluster.kill(node)
    timeline = future.result()
    details: dict[str, Any] = {"killed": kind, "node": node, **compared(timeline, at_us)}
    if kind == "node":
        details["with_primary"] = has_primary
    if has_primary:
        details |= _last_change(cluster.wait_healthy(), healthy)
    return _row(options, "failover", watch.inflight, timeline, details)


def _other_node(cluster: Cluster, status: Status, engine: str) -> str:
    """A node that the load does not run on: that of the primary, if it may be."""
    primary = leader_of(status)["primaries"][0]
    others = [row for row in cluster.state.processes if row.plays and engine not in row.plays]
    return next((row.node for row in others if primary in row.plays), others[0].node)


def _victim(status: Status, kind: str, number: int, engine: str) -> str:
    leader = leader_of(status)
    match kind:
        case "primary":
            return str(leader["primaries"][0])
        case "backup":
            return next(str(name) for name in leader["sequencers"] if name not in leader["primaries"])
        case "controller":
            return str(leader["node"])
        case "engine":
            return "engine-2" if engine == "engine-1" else "engine-1"
    return f"{kind}-{number % 3 + 1}"


def _last_change(status: Status, before: Status) -> dict[str, Any]:
    """How long the change of terms took from the seal to the installed view, as the controller measured it."""
    found = [
        change
        for told in status.get("nodes", {}).values()
        for change in (told or {}).get("controller", {}).get("changes", ())
        if change["term"] > leader_of(before).get("term", 0)
    ]
    if not found:
        return {}
    last = max(found, key=lambda change: int(change["term"]))
    return {"seal_to_install_ms": round(last["duration_ms"], 1), "reason": last["reason"]}


def scaling(options: Options, step: Step) -> Iterator[Row]:
    """A storage node more, one drained, an engine more, under load; each role is a process."""
    options = replace(options, is_separate=True)
    with target(options) as system, Cluster(system) as cluster:
        for what, act in (
            ("add storage", lambda: cluster.add(Role.STORAGE, "storage-4")),
            ("drain storage", lambda: cluster.boki("drain", "storage-1")),
            ("start engine", lambda: cluster.add(Role.ENGINE, "engine-3")),
        ):
            step(what)
            cluster.wait_healthy()
            watch = Watch(what, _inflight(options), options.size_bytes, _BEFORE_S + 2 * _AFTER_S)
            future, _ = cluster.load(watch)
            time.sleep(_BEFORE_S)
            at_us = time.time_ns() // 1000
            act()
            timeline = future.result()
            details = {"what": what, **compared(timeline, at_us)}
            if what == "drain storage":
                status = cluster.wait_for("drained", lambda status: drain_left(status, "storage-1") == 0, 120)
                details["drained_after_s"] = round(time.time() - at_us / 1e6, 1)
                details["shards_left"] = drain_left(status, "storage-1")
            yield _row(options, "scaling", watch.inflight, timeline, details)


def repair(options: Options, step: Step) -> Iterator[Row]:
    """A wiped storage node fills itself again: how fast when nothing else happens, and what a load notices of it."""
    options = replace(options, is_separate=True)
    for is_idle in (True, False):
        with target(options) as system, Cluster(system) as cluster:
            step(f"appending {options.record_count:,} records of {options.size_bytes:,} bytes")
            system.run("fill", Fill(options.record_count, options.size_bytes), int)
            cluster.wait_healthy()
            step("repairing, idle" if is_idle else "repairing under load")
            yield _repaired(options, cluster, is_idle=is_idle)


def _repaired(options: Options, cluster: Cluster, *, is_idle: bool) -> Row:
    node = "storage-3"
    watch = Watch("repair", _REPAIR_INFLIGHT, options.size_bytes, 0.1 if is_idle else _BEFORE_S + 4 * _AFTER_S)
    future, _ = cluster.load(watch)
    if not is_idle:
        time.sleep(_BEFORE_S)
    at_us = cluster.kill(node)
    (cluster.folder / "nodes" / node).rename(cluster.folder / "wiped")
    shutil.rmtree(cluster.folder / "wiped")

    def repair_of(status: Status) -> Status:
        told: Status = (status.get("nodes", {}).get(node) or {}).get("repair", {})
        return told

    wanted_bytes = options.record_count * options.size_bytes
    cluster.wait_for("copying", lambda status: repair_of(status).get("copied_bytes", 0) > 0)
    began = time.monotonic()
    done = cluster.wait_for(
        "repaired",
        lambda status: (
            repair_of(status).get("copied_bytes", 0) >= wanted_bytes and not repair_of(status).get("lacking_records")
        ),
        600,
    )
    took_s = time.monotonic() - began
    ended_us = time.time_ns() // 1000
    timeline = future.result()
    copied_bytes = repair_of(done)["copied_bytes"]
    details: dict[str, Any] = {
        "load": "none" if is_idle else f"{_REPAIR_INFLIGHT} in flight",
        "copied_mb": round(copied_bytes / 1e6),
        "mb_per_s": round(copied_bytes / 1e6 / took_s, 1),
    }
    if not is_idle:
        details |= compared(timeline, at_us, ended_us)
    return _row(options, "repair", watch.inflight, timeline, details)


def _inflight(options: Options) -> int:
    return options.inflight[0] if options.inflight else _INFLIGHT


def _row(options: Options, bench: str, inflight: int, timeline: Any, details: dict[str, Any]) -> Row:
    return Row(
        bench=bench,
        inflight=inflight,
        size_bytes=options.size_bytes,
        replicas=options.replicas,
        durability=options.durability,
        system="cluster",
        ops_per_s=None,
        p50_ms=details.get("p50_before_ms"),
        p99_ms=details.get("p99_ms"),
        errors=len(timeline.errors),
        details=details,
    )
