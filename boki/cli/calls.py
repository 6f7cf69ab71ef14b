"""`boki calls`: look at logged calls, fetch their results, cancel them, run those again that have failed."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from boki.cli.connection import AsJson, Token, Url, connect
from boki.cli.help import Commands, examples
from boki.cli.invoke import print_answer
from boki.cli.terminal import errors, print_json, print_table, printable_lines, results, time_cell, time_text
from boki.errors import BokiError, InvalidArgument
from boki.log.checks import check_seconds
from boki.protocol.calls import CallStatus

if TYPE_CHECKING:
    from boki.client import BlockingClient, Invocation

app = Commands("List, show, cancel and retry logged calls.")

PAGE_CALLS = 100
STATES: tuple[CallStatus, ...] = get_args(CallStatus)

Id = Annotated[str, typer.Argument(metavar="ID", help="The invocation id.", show_default=False)]
Ids = Annotated[list[str], typer.Argument(metavar="ID...", help="Invocation ids.", show_default=False)]


@app.command("list")
@examples("boki calls list", "boki calls list --state failed --since-s 3600", "boki calls list --function report")
def list_calls(
    function: Annotated[str, typer.Option(help="Only calls of this function.")] = "",
    states: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help=f"Only calls in it: {', '.join(STATES)}.")
    ] = None,
    since_s: Annotated[float, typer.Option(min=0, help="Only calls that changed within this many seconds.")] = 0,
    until_s: Annotated[float, typer.Option(min=0, help="Only calls that changed longer ago than this.")] = 0,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of calls.")] = PAGE_CALLS,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """List logged calls, those that changed last first.

    Unfinished ones, and ended ones while they are kept.
    """
    check_seconds(since_s, "since_s", positive=False)
    check_seconds(until_s, "until_s", positive=False)
    found: list[Invocation] = []
    now_us = int(time.time() * 1e6)
    before = 0
    with connect(url, token) as client:
        while len(found) < limit:
            page = client.calls(
                function=function,
                states=[_state(text) for text in states or ()],
                since_us=now_us - int(since_s * 1e6) if since_s else 0,
                until_us=now_us - int(until_s * 1e6) if until_s else 0,
                before=before,
                limit=min(PAGE_CALLS, limit - len(found)),
            )
            found += page.calls
            before = page.before
            if not before:
                break
    if as_json:
        for call in found:
            print_json(_as_json(call))
        return
    if found:
        columns = ["id", "function~", "state", "runs>", "about…"]
        print_table(columns, [_cells(call) for call in found])
    else:
        errors().print("no such calls", style="dim")
    if before:
        errors().print(f"there are more: a larger --limit than {limit}", style="dim")


@app.command()
@examples("boki calls show 5f0c6b1e7ac94c6f8a7b0d2f4e61c3a9")
def show(invocation: Id, as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """Print the state of a logged call, its runs, how they ended."""
    with connect(url, token) as client:
        call = client.invocation(invocation)
    _show(call, as_json=as_json)


@app.command()
@examples("boki calls result 5f0c6b1e7ac94c6f8a7b0d2f4e61c3a9 --wait-s 60")
def result(
    invocation: Id,
    wait_s: Annotated[float, typer.Option(min=0, help="Seconds to wait for its end.")] = 0,
    url: Url = "",
    token: Token = "",
) -> None:
    """Print the result of a logged call, or its failure.

    A result is printed as `boki invoke` does.
    """
    with connect(url, token) as client:
        call = client.invocation(invocation, wait_s=wait_s)
    if not call.is_over:
        what = f"call {invocation} has not ended: it is {_state_text(call)}"
        errors().print(f"{what}; wait for it with --wait-s 60", markup=False)
        raise typer.Exit(1)
    if call.error is not None:
        raise call.error
    print_answer(call.result)


@app.command()
@examples("boki calls cancel 5f0c6b1e7ac94c6f8a7b0d2f4e61c3a9")
def cancel(invocations: Ids, as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """Cancel logged calls.

    One that has not begun never runs, one that runs is ended.
    """
    with connect(url, token) as client:
        _change(client, invocations, "cancel", as_json=as_json)


@app.command()
@examples(
    "boki calls retry 5f0c6b1e7ac94c6f8a7b0d2f4e61c3a9",
    "boki calls list --state failed --json | jq -r .id | xargs boki calls retry",
)
def retry(invocations: Ids, as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """Run failed or cancelled calls again, under their ids."""
    with connect(url, token) as client:
        _change(client, invocations, "retry", as_json=as_json)


def _change(client: BlockingClient, invocations: list[str], change: str, *, as_json: bool) -> None:
    """Do it to each; a refusal is printed, and the others are still done."""
    refused: BokiError | None = None
    for invocation in invocations:
        try:
            call = client.cancel(invocation) if change == "cancel" else client.retry(invocation)
        except BokiError as error:
            if len(invocations) == 1:
                raise
            errors().print(f"{invocation}: {error.message}", markup=False)
            refused = error
            continue
        if as_json:
            print_json(_as_json(call))
        else:
            results().print(f"{call.id} {call.function} is {_state_text(call)}", markup=False)
    if refused is not None:
        raise typer.Exit(1)


def _state(text: str) -> CallStatus:
    for state in STATES:
        if text == state:
            return state
    raise InvalidArgument(f"--state must be one of {', '.join(STATES)}, not {text!r}", field="state")


def _state_text(call: Invocation) -> str:
    if call.state == "retrying":
        return f"retrying, next run at {time_text(call.next_us)[:19]} UTC"
    if call.state == "accepted" and call.due_us > time.time() * 1e6:
        return f"accepted, due at {time_text(call.due_us)[:19]} UTC"
    if call.state == "suspended":
        until = [f"until {time_text(call.next_us)[:19]} UTC"] if call.next_us else []
        until += [f"for a record of tag {on['tag']} in book {on['book']}" for on in call.wakes]
        return f"suspended, waits {' or '.join(until)}"
    return call.state


def _about(call: Invocation) -> str:
    """What is worth knowing of it in one line."""
    error = None if call.state == "done" else call.error or call.last_error
    text = " ".join(error.message.split()) if error is not None else ""
    plan = _state_text(call).partition(", ")[2]
    return "; ".join(filter(None, (call.note, plan, text)))


def _cells(call: Invocation) -> tuple[object, ...]:
    return call.id, call.function, call.state, call.attempts, _about(call)


def _show(call: Invocation, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(call))
        return
    rows: list[tuple[str, object]] = [
        ("id", call.id),
        ("function", call.function),
        ("book", call.book),
        ("state", _state_text(call)),
        ("runs", call.attempts),
    ]
    if call.note:
        rows.append(("note", call.note))
    rows += [("runs ended with", f"{name}: {count:,}") for name, count in call.errors.items()]
    for name, time_us in (
        ("accepted", call.accepted_us),
        ("due", call.due_us if call.due_us > call.accepted_us else 0),
        ("first run", call.started_us),
        ("last run", call.last_started_us),
        ("ended", call.finished_us),
    ):
        if time_us:
            rows.append((name, f"{time_cell(time_us)} UTC"))
    error = call.error or call.last_error
    if error is not None:
        rows.append(("error" if call.error else "last error", f"{error.code}: {error.message}"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        lines = _lines(str(value), results().width - width - 2)
        results().print(f"{name:<{width}}  " + f"\n{'':<{width}}  ".join(lines), markup=False)
    if call.state == "done":
        errors().print(f"boki calls result {call.id} prints its result", style="dim")


def _lines(text: str, columns: int) -> list[str]:
    """The text as a screen shows it; in a pipe its lines are whole. None looks like a line of another name."""
    lines = printable_lines(text).split("\n")
    if not results().is_terminal:
        return lines
    return [part for line in lines for part in textwrap.wrap(line, max(columns, 20)) or [""]]


def _as_json(call: Invocation) -> dict[str, Any]:
    """The call as an object, in the same form as over HTTP."""
    body = {name: getattr(call, name) for name in call.__struct_fields__ if getattr(call, name)}
    for name in ("error", "last_error"):
        if name in body:
            error: BokiError = body[name]
            body[name] = {"code": error.code, "message": error.message, "outcome": error.outcome}
    return {"attempts": 0, **body}
