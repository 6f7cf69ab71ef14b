"""`boki flow`: start workflows, list and show them, follow what they do."""

from __future__ import annotations

import asyncio
import textwrap
import time
from typing import Annotated, Any, Final, get_args

import msgspec
import typer

from boki.cli.connection import AsJson, Token, Url, connect, connect_async
from boki.cli.help import Commands, examples
from boki.cli.terminal import content_of, print_json, print_table, results, say, time_cell, time_text
from boki.errors import InvalidArgument
from boki.libs.bokiflow.face.drawing import draw
from boki.libs.bokiflow.face.requests import Flows
from boki.libs.bokiflow.handles import MAX_ID_CHARS, WorkflowStatus
from boki.libs.bokiflow.timeline import Span
from boki.libs.bokiflow.workflows import LIBRARY
from boki.libs.fold.arguments import check_key
from boki.protocol.calls import OVER

app = Commands("")  # its help is in the face

PAGE: Final = 100
SCREEN_COLUMNS: Final = 80
"""The width of pictures that go into a pipe or a file."""
_POLL_S: Final = 20.0
_LISTED: Final[tuple[WorkflowStatus, ...]] = get_args(WorkflowStatus)

Name = Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow.", show_default=False)]
Id = Annotated[str, typer.Argument(metavar="ID", help="The id that it was started under.", show_default=False)]
Attributes = Annotated[
    list[str] | None, typer.Option("--attribute", metavar="NAME=VALUE", help="An attribute; may be repeated.")
]
Book = Annotated[str, typer.Option("--book", help="Its LogBook, if it was started in another one than its own.")]


def names_of(url: str, token: str) -> list[str]:
    """The registered workflows."""
    with connect(url, token) as client:
        return sorted(info.name for info in client.functions() if info.settings_of(LIBRARY) is not None)


@app.command()
@examples('boki flow start travel \'{"to": "BOS"}\' --id trip-17', "boki flow start report --wait-s 60")
def start(
    name: Name,
    payload: Annotated[
        str, typer.Argument(help="JSON or text, as it takes it; - reads it from stdin.", show_default=False)
    ] = "",
    flow_id: Annotated[
        str | None, typer.Option("--id", help="Its id, the key of the start; else one is made.", show_default=False)
    ] = None,
    if_running: Annotated[
        str, typer.Option(metavar="use|fail|kill", help="What to do if one of that id has not ended.")
    ] = "use",
    if_ended: Annotated[
        str, typer.Option(metavar="use|fail|again|again_if_failed", help="What to do if one of that id has ended.")
    ] = "use",
    delay_s: Annotated[float, typer.Option(min=0, help="Begin only this many seconds later.")] = 0,
    attribute: Attributes = None,
    limit_key: Annotated[str, typer.Option(help="What its limit counts it by, not the payload's field.")] = "",
    priority: Annotated[int, typer.Option(help="A higher one goes first where a limit lets few begin.")] = 0,
    wait_s: Annotated[float, typer.Option(min=0, help="Wait for its end, and print the result.")] = 0,
    book: Book = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Start a workflow, and print its id once that is durable."""
    body = content_of(payload, f"boki flow start {name} ''", may_be_empty=False) if payload else b""
    query = {
        "id": "" if flow_id is None else check_key(flow_id, "--id", MAX_ID_CHARS),
        "if_running": if_running,
        "if_ended": if_ended,
        "delay_s": delay_s,
        "attribute": attribute or "",
        "limit_key": limit_key,
        "priority": priority or "",
    }
    with Flows(url, token, book) as flows:
        started = flows.post(name, body=body, query=query)
        ended = _waited(flows, name, started["id"], wait_s) if wait_s else None
    if ended is not None:
        _print_result(ended)
    elif as_json:
        print_json(started)
    else:
        results().print(started["id"], markup=False)


@app.command("list")
@examples(
    "boki flow list", "boki flow list --workflow travel --state failed --since-s 3600", "boki flow list --id trip-"
)
def list_workflows(
    name: Annotated[str, typer.Option("--workflow", help="Only this workflow.")] = "",
    states: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help=f"Only those in it: {', '.join(_LISTED)}.")
    ] = None,
    beginning: Annotated[str, typer.Option("--id", help="Only those whose ids begin so.")] = "",
    attribute: Attributes = None,
    version: Annotated[int, typer.Option(min=0, help="Only those pinned to this version of the functions.")] = 0,
    since_s: Annotated[float, typer.Option(min=0, help="Only those that changed within this many seconds.")] = 0,
    until_s: Annotated[float, typer.Option(min=0, help="Only those that changed longer ago than this.")] = 0,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of workflows.")] = PAGE,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """List workflows, those that changed last first.

    Unfinished ones, and ended ones while they are kept.
    """
    now_us = int(time.time() * 1e6)
    query = {
        "workflow": name,
        "state": states or "",
        "id": beginning,
        "attribute": attribute or "",
        "version": version or "",
        "since_us": now_us - int(since_s * 1e6) if since_s else "",
        "until_us": now_us - int(until_s * 1e6) if until_s else "",
    }
    found: list[dict[str, Any]] = []
    before = ""
    with Flows(url, token) as flows:
        while len(found) < limit:
            page = flows.get(query=query | {"before": before, "limit": min(PAGE, limit - len(found))})
            found += page["workflows"]
            before = page.get("before", "")
            if not before:
                break
    if as_json:
        for one in found:
            print_json(one)
    elif found:
        print_table(*_table(found))
    else:
        say("no such workflows", "dim")
    if before and not as_json:
        say(f"there are more: a larger --limit than {limit}", "dim")


def _table(found: list[dict[str, Any]]) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Heads and rows of a list; with versions where there are any."""
    columns: dict[str, list[Any]] = {
        "id": [one["id"] for one in found],
        "workflow~": [one["workflow"] for one in found],
        "book~": [one["book"] for one in found],
    }
    if any("version" in one for one in found):
        columns["version"] = [str(one.get("version", "")) for one in found]
    columns |= {
        "state": [one["state"] for one in found],
        "started (UTC)": [time_cell(one["accepted_us"]) for one in found],
        "about…": [_about(one) for one in found],
    }
    return list(columns), list(zip(*columns.values(), strict=True))


@app.command()
@examples("boki flow show travel trip-17", "boki flow show travel trip-17 --json | jq .spans")
def show(
    name: Name,
    flow_id: Id,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Only the last ones of what it did.")] = 200,
    book: Book = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Print the state of a workflow, and draw what it did.

    A bar of ━ is work, one of · is waiting, ╌ waits for the next attempt. ✗ ends what failed, ? what was cut off and
    will not run again, > what has not ended; ◆ is a moment, such as a message.
    """
    with Flows(url, token, book) as flows:
        seen = flows.get(name, flow_id, "history", query={"limit": limit})
    if as_json:
        print_json(seen)
        return
    workflow = seen["workflow"]
    _print_state(workflow, seen["continuations"])
    spans = [msgspec.convert(span, Span) for span in seen["spans"]]
    if len(spans) < seen["span_count"]:
        hidden = seen["span_count"] - len(spans)
        results().print(f"\n({hidden:,} earlier ones are not shown: a larger --limit than {limit})", style="dim")
    elif spans:
        results().print()
    began_us = seen["began_us"] if len(spans) == seen["span_count"] else min(span.from_us for span in spans)
    until_us = workflow.get("finished_us") or int(time.time() * 1e6)
    for line in draw(spans, began_us, until_us, _columns()):
        results().print(line.text, style=line.style or None, markup=False, soft_wrap=True)


@app.command()
@examples("boki flow tail travel trip-17")
def tail(name: Name, flow_id: Id, book: Book = "", as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """Follow what a workflow does, until it has ended."""
    from boki.libs.bokiflow.face.tailing import Tail

    async def follow(flows: Flows) -> None:
        workflow = flows.get(name, flow_id)
        async with connect_async(url, token) as client:
            following = Tail(client.logbook(workflow["book"]), workflow["invocation"])
            while True:
                state = await asyncio.to_thread(flows.get, name, flow_id)
                async for span in following.spans(0.0 if state["state"] in OVER else 1.0):
                    _print_span(span, as_json=as_json)
                if state["state"] in OVER:
                    if not as_json:
                        _print_state(state, 0)
                    return

    with Flows(url, token, book) as flows:
        asyncio.run(follow(flows))


@app.command()
@examples("boki flow result travel trip-17 --wait-s 60")
def result(
    name: Name,
    flow_id: Id,
    wait_s: Annotated[float, typer.Option(min=0, help="Seconds to wait for its end.")] = 0,
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Print what a workflow returned, or what it failed with."""
    with Flows(url, token, book) as flows:
        workflow = _waited(flows, name, flow_id, wait_s)
    _print_result(workflow)


def _waited(flows: Flows, name: str, flow_id: str, wait_s: float) -> dict[str, Any]:
    """The workflow, after waiting at most this long for its end."""
    until = time.monotonic() + wait_s
    while True:
        left_s = max(0.0, min(_POLL_S, until - time.monotonic()))
        found: dict[str, Any] = flows.get(
            name, flow_id, query={"wait_s": f"{left_s:.3f}" if left_s else ""}, wait_s=left_s
        )
        if found["state"] in OVER or time.monotonic() >= until:
            return found


def _print_result(workflow: dict[str, Any]) -> None:
    if workflow["state"] == "done":
        value = workflow.get("result_base64", workflow.get("result"))
        print(value if isinstance(value, str) else msgspec.json.encode(value).decode())
        return
    if workflow["state"] in OVER:
        error = workflow["error"]
        say(f"{workflow['state']}: {error['code']}: {error['message']}")
    else:
        what = f"workflow {workflow['id']} has not ended: it is {_state_text(workflow)}"
        say(f"{what}; wait for it with --wait-s 60")
    raise typer.Exit(1)


def _print_state(workflow: dict[str, Any], continuations: int) -> None:
    rows = [
        ("workflow", f"{workflow['workflow']} {workflow['id']}"),
        ("state", _state_text(workflow)),
        ("call", f"{workflow['invocation']} in book {workflow['book']}"),
        ("started", f"{time_cell(workflow['accepted_us'])} UTC"),
    ]
    if workflow.get("version"):
        rows.append(("version", f"{workflow['version']} of the functions"))
    if workflow.get("finished_us"):
        rows.append(("ended", f"{time_cell(workflow['finished_us'])} UTC"))
    if workflow["attempts"] > 1:
        rows.append(("runs", f"{workflow['attempts']:,}"))
    if continuations:
        rows.append(("continued", f"{continuations:,} times as new"))
    if "error" in workflow:
        rows.append(("error", f"{workflow['error']['code']}: {workflow['error']['message']}"))
    elif "result" in workflow:
        rows.append(("result", msgspec.json.encode(workflow["result"]).decode()))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        lines = textwrap.wrap(" ".join(value.split()), max(20, _columns() - width - 2)) or [""]
        text = f"\n{'':<{width}}  ".join(lines if results().is_terminal else [" ".join(lines)])
        results().print(f"{name:<{width}}  {text}", markup=False, soft_wrap=True)


def _print_span(span: Span, *, as_json: bool) -> None:
    if as_json:
        print_json({name: value for name, value in msgspec.to_builtins(span).items() if value not in ("", 0)})
        return
    number = f"#{span.n}" if span.n >= 0 else ""
    state = "" if span.is_moment else span.state
    attempts = f"({span.attempts} attempts)" if span.attempts > 1 else ""
    said = " ".join((span.error or span.value).split())
    text = " ".join(filter(None, (time_text(span.until_us)[:23], span.name + number, state, attempts, said)))
    style = "red" if span.error else "yellow" if span.is_open else None
    results().print(text, style=style, markup=False)


def _columns() -> int:
    return min(results().width, 200) if results().is_terminal else SCREEN_COLUMNS


def _state_text(workflow: dict[str, Any]) -> str:
    state: str = workflow["state"]
    if state == "paused":
        return str(workflow["note"])
    if state == "suspended":
        if workflow.get("note"):
            queue = workflow.get("queue")
            place = f" (place {queue['place']:,} of {queue['waiting']:,})" if queue else ""
            return f"suspended: {workflow['note']}{place}"
        next_us = workflow.get("next_us")
        return (
            f"suspended until {time_text(next_us)[:19]} UTC, or a message" if next_us else "suspended until a message"
        )
    return state


def _about(workflow: dict[str, Any]) -> str:
    if "error" in workflow:
        return " ".join(str(workflow["error"]["message"]).split())
    text = _state_text(workflow)
    return "" if text == workflow["state"] else text


def check_reason(reason: str) -> str:
    """A reason as it is sent. `InvalidArgument` if it is too long."""
    if len(reason) > 500:
        raise InvalidArgument(f"--reason may have 500 characters, not {len(reason):,}", field="reason")
    return reason
