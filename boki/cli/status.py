"""`boki status`: one screen that says what is up, how far the logs are, and which functions there are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from boki.cli import cluster_status
from boki.cli.connection import AsJson, Token, Url, connect, supervisor_of
from boki.cli.coordination import Data
from boki.cli.help import examples
from boki.cli.terminal import bytes_text, errors, print_json, print_table, results
from boki.errors import ConnectionLost, Unavailable

if TYPE_CHECKING:
    from boki.client import BlockingClient
    from boki.launch.up.state import SupervisorState
from boki.launch.up.health import sentences


@examples("boki status", "boki status --json", "boki status --url http://127.0.0.1:8123")
def command(as_json: AsJson = False, data: Data = None, url: Url = "", token: Token = "") -> None:
    """Show what is up, how far the logs are, and the functions.

    Of a cluster that `boki up` runs here, also what its supervisor knows; --data names its directory.
    """
    supervisor = supervisor_of(data, os.environ)
    if data is not None and supervisor is None and not url:
        raise Unavailable(f"no cluster of `boki up` runs on {data}", retryable=False, folder=str(data))
    if supervisor is not None and not url:
        url = supervisor.url
    with connect(url, token) as client:
        supervisor = supervisor if supervisor is not None and supervisor.url == client.url else None
        status = _status_of(client, supervisor)
    if not cluster_status.is_cluster(status):
        if as_json:
            print_json(status)
        else:
            show(status)
        return
    if as_json:
        known = {} if supervisor is None else {"supervisor": msgspec.to_builtins(supervisor)}
        print_json({**status, "troubles": sentences(status), **known})
    else:
        cluster_status.show(status, supervisor)


def _status_of(client: BlockingClient, supervisor: SupervisorState | None) -> dict[str, Any]:
    """What the system says of itself; of a cluster whose gateway does not answer, that there is nobody who says it."""
    try:
        return {"url": client.url, **client.status()}
    except (Unavailable, ConnectionLost) as error:
        if supervisor is None:
            raise
        errors().print(f"the gateway does not answer: {error.message}", style="red", markup=False)
        return {"url": client.url, "ready": False, "members": [], "nodes": {}}


def show(status: Mapping[str, Any]) -> None:
    """The screen. What a status does not say is left out, so that an older system can be looked at too."""
    ready = "[bold green]ready[/]" if status.get("ready") else "[bold red]not ready[/]"
    results().print(f"Boki {status.get('version', '')} at {status.get('url', '')} is {ready}")
    log: Mapping[str, Any] = status.get("log", {})
    engine: Mapping[str, Any] = log.get("engine", {})
    gateway: Mapping[str, Any] = status.get("gateway", {})
    calls: Mapping[str, Any] = status.get("calls", {})
    facts = {
        "data": status.get("data"),
        "durability": log.get("durability"),
        "term": log.get("term"),
        "replicas": f"{log.get('replicas')}, write quorum {log.get('write_quorum')}",
        "free on disk": bytes_text(log.get("free_bytes", 0)),
        "index": bytes_text(engine.get("index_bytes", 0)),
        "record cache": bytes_text(engine.get("cache_bytes", 0)),
        "records appended since the start": f"{engine.get('appended_records', 0):,}",
        "calls in flight": gateway.get("calls"),
        "logged calls": f"{calls.get('running', 0)} running, {calls.get('waiting', 0)} waiting",
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            results().print(f"  {name:<{width}}  {value}", markup=False)
    positions = log.get("metalog_entries", {})
    print_table(["log", "metalog entries>"], [(name, f"{n:,}") for name, n in sorted(positions.items())], title="Logs")
    print_table(["node", "state"], sorted(log.get("nodes", {}).items()), title="Nodes")
    broken = [module for module in status.get("modules", ()) if module.get("error")]
    results().print(f"\nFunctions: {', '.join(status.get('functions', ())) or 'none'}", markup=False)
    for module in broken:
        errors().print(f"{module['module']} is broken: {module['error']}", style="red", markup=False)
