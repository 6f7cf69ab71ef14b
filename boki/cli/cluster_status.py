"""The screen of `boki status` for a cluster: who is there, how far the logs are, and what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from boki.cli.terminal import bytes_text, print_table, results
from boki.launch.up.health import leader_of, sentences
from boki.launch.up.identity import resident_bytes
from boki.launch.up.state import ProcessState, SupervisorState

Status = Mapping[str, Any]


def is_cluster(status: Status) -> bool:
    """Whether that is what a gateway of a cluster says, and not a `boki dev`."""
    return "members" in status


def show(status: Status, supervisor: SupervisorState | None) -> None:
    """Tables for people, and a sentence for each trouble."""
    ready = "[bold green]ready[/]" if status.get("ready") else "[bold red]not ready[/]"
    leader = leader_of(status)
    term = f", term {leader['term']}" if leader.get("term") else ""
    results().print(f"Boki {status.get('version', '')} at {status.get('url', '')} is {ready}{term}")
    columns = ["role", "node", "state~", "pid>"]
    if supervisor is not None:
        columns += ["restarts>", "memory>"]
    print_table(columns, _nodes(status, supervisor), title="Nodes")
    print_table(["log", "primary", "entries>", "committed>", "behind~"], _logs(status), title="Logs")
    columns = ["storage", "shards>", "open>", "lacking records>", "repair>", "free on disk>"]
    print_table(columns, _storage(status), title="Storage")
    columns = ["engine", "running>", "waiting>", "index>", "record cache>", "appended>"]
    print_table(columns, _engines(status), title="Engines")
    results().print(f"\nFunctions: {_functions_text(status)}", markup=False)
    for module in status.get("modules", ()):
        if module.get("error"):
            results().print(f"{module['module']} is broken: {module['error']}", style="red", markup=False)
    troubles = sentences(status)
    for text in troubles:
        results().print(text, style="yellow", markup=False)
    if not troubles:
        results().print("All is well.", style="green")


def _functions_text(status: Status) -> str:
    """Their names, and which engines were told to run none: an operator may have forgotten it."""
    names = ", ".join(status.get("functions", ())) or "none"
    held = [name for name, told in _of_role(status, "engine") if told.get("functions_held_back")]
    if not held:
        return names
    ran = f"{', '.join(held)} {'run' if len(held) > 1 else 'runs'} none, by --functions-version none"
    return f"{names}; {ran}: `boki functions use` ends that"


def _nodes(status: Status, supervisor: SupervisorState | None) -> Iterator[tuple[object, ...]]:
    processes = {row.node: row for row in supervisor.processes} if supervisor is not None else {}
    told = {**status.get("nodes", {}), status.get("node", ""): {"pid": status.get("pid"), "zookeeper": "connected"}}
    members = {member["node"]: member for member in status.get("members", ())}
    roles = {**{name: row.role for name, row in processes.items()}, **{n: m["role"] for n, m in members.items()}}
    for name, role in sorted(roles.items(), key=lambda item: (item[1], len(item[0]), item[0])):
        process = processes.get(name)
        says = told.get(name) or {}
        state = _state(name, says, name in members, status, process)
        pid = says.get("pid") or (process.pid if process is not None and process.pid else "")
        row: tuple[object, ...] = (role, name, state, pid)
        if supervisor is not None:
            memory = bytes_text(resident_bytes(process.pid)) if process is not None and process.pid else ""
            row += (process.restarts if process is not None else "", memory)
        yield row


def _state(name: str, says: Status, is_member: bool, status: Status, process: ProcessState | None) -> str:
    if process is not None and not process.pid:
        return process.state
    if process is not None and process.role not in _ROLES:
        return process.state
    if not is_member:
        if process is None:
            return "not there"
        return "gone" if name in {row["node"] for row in status.get("gone", ())} else "starting"
    if not says or "error" in says:
        return "silent"
    words = ["draining" if name in status.get("draining", ()) else "up"]
    if says.get("leader"):
        words.append("leads")
    if says.get("leads"):
        words.append(f"primary of {', '.join(map(str, says['leads']))}")
    return ", ".join(words)


_ROLES = frozenset({"gateway", "engine", "storage", "sequencer", "controller"})


def _logs(status: Status) -> Iterator[tuple[object, ...]]:
    nodes: Mapping[str, Status] = {name: told for name, told in status.get("nodes", {}).items() if told}
    primaries = leader_of(status).get("primaries", [])
    leading = {str(log): name for name, told in nodes.items() for log in told.get("leads") or ()}
    found: dict[str, dict[str, Any]] = {}
    for name, told in sorted(nodes.items()):
        for log, row in (told.get("logs") or {}).items():
            here = found.setdefault(log, {"entries": 0, "committed": 0, "behind": []})
            if told.get("role") == "sequencer":
                here["entries"] = max(here["entries"], row.get("entries", 0))
                here["committed"] = max(here["committed"], row.get("committed", 0))
            elif row.get("lag"):
                here["behind"].append(f"{name} {row['lag']:,}")
    for log, here in sorted(found.items(), key=lambda item: int(item[0])):
        primary = primaries[int(log)] if int(log) < len(primaries) else leading.get(log, "")
        yield log, primary, f"{here['entries']:,}", f"{here['committed']:,}", ", ".join(here["behind"]) or "nobody"


def _of_role(status: Status, role: str) -> Iterator[tuple[str, Status]]:
    for name, told in sorted(status.get("nodes", {}).items(), key=lambda item: (len(item[0]), item[0])):
        if told and told.get("role") == role:
            yield name, told


def _storage(status: Status) -> Iterator[tuple[object, ...]]:
    for name, told in _of_role(status, "storage"):
        repair = told.get("repair", {})
        rate = f"{bytes_text(repair.get('bytes_per_s', 0))}/s" if repair.get("lacking_records") else ""
        free = bytes_text(told.get("disk", {}).get("free_bytes", 0))
        lacking = f"{repair.get('lacking_records', 0):,}"
        yield name, f"{told.get('shards') or 0:,}", told.get("open_shards"), lacking, rate, free


def _engines(status: Status) -> Iterator[tuple[object, ...]]:
    for name, told in _of_role(status, "engine"):
        engine, calls = told.get("engine", {}), told.get("calls", {})
        index, cache = bytes_text(engine.get("index_bytes", 0)), bytes_text(engine.get("cache_bytes", 0))
        appended = f"{engine.get('appended_records', 0):,}"
        yield name, calls.get("running"), calls.get("waiting"), index, cache, appended
