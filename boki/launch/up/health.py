"""What is not as it should be in a cluster, said in words, from what its nodes say of themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from boki.log.quorum import majority

_SHOWN_LAG: Final = 200
"""Metalog entries that a busy node may be behind without anybody being told."""

Status = Mapping[str, Any]


def sentences(status: Status) -> list[str]:
    """One sentence for each trouble; none if all is well. `status` is what a gateway of a cluster answers."""
    nodes = {name: told for name, told in sorted(status.get("nodes", {}).items()) if told and "error" not in told}
    return [
        *_silent(status),
        *_gone(status),
        *_controllers(nodes, status),
        *_sequencers(nodes, leader_of(status)),
        *_unled(nodes),
        *(f"degraded: {text}" for text in leader_of(status).get("degraded", ())),
        *_draining(status),
        *(text for name, told in nodes.items() for text in _node(name, told)),
    ]


def leader_of(status: Status) -> Status:
    """What the controller that leads says of itself; empty if none does."""
    for told in status.get("nodes", {}).values():
        if told and told.get("leader"):
            found: Status = told.get("controller", {})
            return found
    return {}


def drain_left(status: Status, node: str) -> int | None:
    """How many shards still need the node that is being drained; None while the leader does not know."""
    told = leader_of(status).get("repair", {}).get("draining", {}).get(node)
    if told is None:
        return None
    return 0 if told["is_complete"] else max(1, int(told["shards"]))


def _silent(status: Status) -> Iterator[str]:
    for name, told in sorted(status.get("nodes", {}).items()):
        if not told or "error" in told:
            why = (told or {}).get("error", "nothing came")
            yield f"{name} is registered and does not answer: {why}"


def _gone(status: Status) -> Iterator[str]:
    told = leader_of(status).get("sequencers", ())
    for row in status.get("gone", ()):
        if row["node"] not in told:  # those are missed in words of their own
            yield f"{row['node']} is gone: it was registered until {row['since_s']:,.0f} s ago"


def _unled(nodes: Mapping[str, Status]) -> Iterator[str]:
    """Logs that no sequencer orders, of those that engines follow."""
    leading = [told["leads"] for told in nodes.values() if told.get("role") == "sequencer" and "leads" in told]
    if not leading:
        return
    led = {str(log) for logs in leading for log in logs}
    logs = {log for told in nodes.values() if told.get("role") == "engine" for log in told.get("logs") or ()}
    for log in sorted(logs - led, key=int):
        yield f"log {log} has no primary: nothing is appended to it until a controller has begun the next term"


def _controllers(nodes: Mapping[str, Status], status: Status) -> Iterator[str]:
    leader = leader_of(status)
    if not leader:
        if not any(told.get("role") == "controller" for told in nodes.values()):
            yield "no controller is up: nothing is lost by that, but a lost sequencer would not be replaced"
        else:
            yield "no controller leads just now: a lost sequencer is replaced when one does"
        return
    if waiting := leader.get("waiting"):
        yield f"{leader.get('node')} waits: {waiting}"
    if step := leader.get("step"):
        yield f"{leader.get('node')} is changing the term: {step}"


def _sequencers(nodes: Mapping[str, Status], leader: Status) -> Iterator[str]:
    wanted = list(leader.get("sequencers", ()))
    away = [name for name in wanted if name not in nodes]
    if not away:
        return
    spare = len(wanted) - len(away) - majority(len(wanted))
    names = ", ".join(away)
    if spare < 0:
        yield f"of the sequencers {names} are away, which is a majority: nothing can be appended until one is back"
    elif spare == 0:
        yield f"of the sequencers {names} is away: if one more is lost, nothing can be appended"
    else:
        yield f"of the sequencers {names} is away"


def _draining(status: Status) -> Iterator[str]:
    for name in status.get("draining", ()):
        left = drain_left(status, name)
        if left == 0:
            yield f"{name} is drained: it can be stopped, and its data removed"
        else:
            rest = "" if left is None else f", {left:,} shards to go"
            yield f"{name} is being drained: no new shard goes there, and its records move to others{rest}"


def _node(name: str, told: Status) -> Iterator[str]:
    if told.get("zookeeper") == "suspended":
        yield f"{name} does not reach ZooKeeper: it goes on as things are, but takes no part in changes"
    disk = told.get("disk", {})
    if disk and not disk.get("has_room", True):
        yield f"{name} has no room on its disk ({_megabytes(disk.get('free_bytes', 0))} free): it refuses appends"
    if told.get("role") == "engine" and not told.get("ready", True):
        yield f"{name} is not ready: its index has not caught up yet"
    for log, row in (told.get("logs") or {}).items():
        if row.get("stalled_s"):
            yield (
                f"{name}: log {log} stands still for {row['stalled_s']:g} s: {row['lag']:,} entries are committed and "
                "none of them is applied"
            )
        elif row.get("lag", 0) > _SHOWN_LAG:
            yield f"{name} is {row['lag']:,} entries behind in log {log}"
    if told.get("applied_term") and told["applied_term"] < told.get("term", 0):
        yield f"{name} still finishes term {told['applied_term']}, and the current one is {told['term']}"
    repair = told.get("repair", {})
    if repair.get("lacking_records"):
        yield _repair_text(name, repair)


def _repair_text(name: str, repair: Status) -> str:
    rate = repair.get("bytes_per_s", 0)
    left_bytes = repair.get("lacking_bytes", 0)
    rest = f", about {left_bytes / rate:,.0f} s left" if rate and left_bytes else ""
    return (
        f"{name} lacks {repair['lacking_records']:,} records (about {_megabytes(left_bytes)}) and copies them at "
        f"{_megabytes(rate)}/s{rest}"
    )


def _megabytes(size_bytes: float) -> str:
    """A size that is large if it is worth a word.

    >>> _megabytes(12_345_678)
    '12.3 MB'
    """
    return f"{size_bytes / 1e6:,.1f} MB"
