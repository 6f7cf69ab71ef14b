"""What a load notices when nodes of a cluster are killed, come, go, and copy records: `boki bench --cluster`."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Final

from boki.bench.cluster import Cluster, Status
from boki.bench.load_functions.load import Fill, Watch
from boki.bench.outside_load import aim_at
from boki.bench.rows import Row
from boki.bench.system import Options, target
from boki.bench.timeline import compared, copy_rates, sample
from boki.errors import Unavailable
from boki.launch.up.health import drain_left, leader_of
from boki.log.membership import Role

Step = Callable[[str], None]
_INFLIGHT: Final = 16
_BEFORE_S: Final = 3.0
_AFTER_S: Final = 5.0
_REPAIR_INFLIGHT: Final = 4
_TRIES: Final = 5
_NODES: Final = {
    "node of the primary and the engine": (Role.SEQUENCER, True),
    "node of the primary": (Role.SEQUENCER, False),
    "node of the leading controller": (Role.CONTROLLER, False),
}
"""Which role's node is killed, and whether the engine of the load is on it."""


def failover(options: Options, step: Step) -> Iterator[Row]:
    """SIGKILL of one role after the other, under load on an engine that is left alone; then of whole nodes, under load
    from outside, at gateways of other nodes.
    """
    for layout, kinds, killed in (
        (replace(options, is_separate=True), ("storage", "backup", "primary", "controller", "engine"), _killed),
        (replace(options, is_separate=False), tuple(_NODES), _killed_node),
    ):
        with target(layout) as system, Cluster(system) as cluster:
            for kind, number in product(kinds, range(options.rounds)):
                step(f"killing: {kind}, round {number + 1}")
                yield killed(layout, cluster, kind, number)


def _killed(options: Options, cluster: Cluster, kind: str, number: int) -> Row:
    healthy = cluster.wait_healthy()
    watch = Watch(f"{kind}-{number}", _inflight(options), options.size_bytes, _BEFORE_S + _AFTER_S)
    future, engine = cluster.load(watch)
    node = _victim(leader_of(healthy), kind, number, engine)
    time.sleep(_BEFORE_S)
    at_us = cluster.kill(node)
    timeline = future.result()
    details: dict[str, Any] = {"killed": kind, "node": node, **compared(timeline, at_us)}
    if kind == "primary":
        details |= _last_change(cluster.wait_healthy(), healthy)
    return _row(options, "failover", watch.inflight, timeline, details)


def _killed_node(options: Options, cluster: Cluster, kind: str, number: int) -> Row:
    """Nothing is killed before the load goes the way that the kind of the row says; if it never does, `Unavailable`."""
    watch = Watch(f"{kind}-{number}", _inflight(options), options.size_bytes, _BEFORE_S + _AFTER_S)
    for _ in range(_TRIES):
        healthy = cluster.wait_healthy()
        leader = leader_of(healthy)
        wanted, with_engine = _NODES[kind]
        name = leader["node"] if wanted is Role.CONTROLLER else leader["primaries"][0]
        aim = aim_at(name, cluster.state.processes, leader["primaries"], with_engine=with_engine)
        future, gateways = cluster.load_from_outside(watch, aim.book, aim.roles)
        time.sleep(_BEFORE_S)
        if aim.is_met(healthy, cluster.status()):
            break
        future.result()
    else:
        raise Unavailable(f"appends to {aim.book} did not go through {aim.engine} to {aim.primary}: nothing was killed")
    at_us = cluster.kill(aim.process.node)
    timeline = future.result()
    details: dict[str, Any] = {
        "killed": kind,
        "node": aim.process.node,
        "roles": " ".join(aim.roles),
        "with_primary": aim.primary in aim.roles,
        "with_engine": aim.engine in aim.roles,
        "with_leading_controller": leader["node"] in aim.roles,
        "gateways": " ".join(gateways),
        **compared(timeline, at_us),
    }
    if aim.primary in aim.roles:
        details |= _last_change(cluster.wait_healthy(), healthy)
    return _row(options, "failover", watch.inflight, timeline, details)


def _victim(leader: Status, kind: str, number: int, engine: str) -> str:
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
    """A node more (with separate roles a storage node), a storage node drained, an engine more, under load."""
    more, engine = ("storage-4", "engine-3") if options.is_separate else ("node-4", "engine-5")
    with target(options) as system, Cluster(system) as cluster:
        for what, act in (
            ("add storage" if options.is_separate else "add node", lambda: cluster.add(more)),
            ("drain storage", lambda: cluster.boki("drain", "storage-1")),
            ("start engine", lambda: cluster.add(engine)),
        ):
            step(what)
            cluster.wait_healthy()
            watch = Watch(what, _inflight(options), options.size_bytes, _BEFORE_S + 2 * _AFTER_S)
            future, _ = cluster.load(watch)
            time.sleep(_BEFORE_S)
            at_us = time.time_ns() // 1000
            act()
            timeline = future.result()
            details = {"roles": _roles(options), "what": what, **compared(timeline, at_us)}
            if what == "drain storage":
                status = cluster.wait_for("drained", lambda status: drain_left(status, "storage-1") == 0, 120)
                details["drained_after_s"] = round(time.time() - at_us / 1e6, 1)
                details["shards_left"] = drain_left(status, "storage-1")
            yield _row(options, "scaling", watch.inflight, timeline, details)


def repair(options: Options, step: Step) -> Iterator[Row]:
    """A storage node with an empty disk fills itself again: how fast when nothing else happens, and what a load notices
    of it. As a process of its own, and with all other roles, whose disks are lost with it.
    """
    for is_separate, is_idle in product((True, False), repeat=2):
        layout = replace(options, is_separate=is_separate)
        with target(layout) as system, Cluster(system) as cluster:
            step(f"appending {options.record_count:,} records of {options.size_bytes:,} bytes")
            system.run("fill", Fill(options.record_count, options.size_bytes), int)
            cluster.wait_healthy()
            step("repairing, idle" if is_idle else "repairing under load")
            yield _repaired(layout, cluster, is_idle=is_idle)


def _repaired(options: Options, cluster: Cluster, *, is_idle: bool) -> Row:
    watch = Watch("repair", _REPAIR_INFLIGHT, options.size_bytes, 0.1 if is_idle else _BEFORE_S + 4 * _AFTER_S)
    future, engine = cluster.load(watch)
    node = "storage-3" if options.is_separate or not engine.endswith("-3") else "storage-2"
    if not is_idle:
        time.sleep(_BEFORE_S)
    names = next(row.names for row in cluster.state.processes if node in row.names)
    at_us = cluster.kill(node)
    wiped = cluster.folder / "wiped"
    wiped.mkdir()
    for name in names:
        (cluster.folder / "nodes" / name).rename(wiped / name)
    shutil.rmtree(wiped)

    def repair_of(status: Status) -> Status:
        told: Status = (status.get("nodes", {}).get(node) or {}).get("repair", {})
        return told

    wanted_bytes = options.record_count * options.size_bytes
    samples: list[tuple[int, int]] = []

    def is_repaired(status: Status) -> bool:
        told = repair_of(status)
        sample(samples, told, time.time_ns() // 1000)
        return bool(told.get("copied_bytes", 0) >= wanted_bytes and not told.get("lacking_records"))

    cluster.wait_for("copying", lambda status: repair_of(status).get("copied_bytes", 0) > 0)
    began_us = time.time_ns() // 1000
    cluster.wait_for("repaired", is_repaired, 600)
    ended_us = time.time_ns() // 1000
    timeline = future.result()
    details: dict[str, Any] = {
        "roles": _roles(options),
        "load": "none" if is_idle else f"{_REPAIR_INFLIGHT} in flight",
        "copied_mb": round(samples[-1][1] / 1e6),
    }
    if is_idle:
        details["mb_per_s"] = copy_rates(samples, ended_us)["mb_per_s"]
    else:
        details |= copy_rates(samples, timeline.until_us) | compared(timeline, at_us, ended_us)
        details["p99_copying_ms"] = compared(timeline, began_us, ended_us)["p99_ms"]
    return _row(options, "repair", watch.inflight, timeline, details)


def _roles(options: Options) -> str:
    return "separate" if options.is_separate else "all"


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
