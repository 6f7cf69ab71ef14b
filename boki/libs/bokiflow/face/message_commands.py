"""`boki flow signal|update|query|resolve|reject|cancel|kill|pause|resume|rewind|fork|upgrade`: speak to a workflow."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from boki.cli.connection import AsJson, Token, Url
from boki.cli.help import examples
from boki.cli.terminal import count_text, print_json, results, say
from boki.errors import ConfigError, FunctionFailed, WrongState
from boki.libs.bokiflow.face.commands import Book, Id, Name, app, check_reason
from boki.libs.bokiflow.face.requests import Flows, typed_value
from boki.libs.bokiflow.refusals import Diverged, WorkflowEnded

__all__ = ["app"]

Message = Annotated[str, typer.Argument(metavar="NAME", help="The name of the message.", show_default=False)]
Value = Annotated[
    str, typer.Argument(metavar="VALUE", help="JSON, else it is text; - reads it from stdin.", show_default=False)
]
Promise = Annotated[str, typer.Argument(metavar="PROMISE", help="The promise.", show_default=False)]
Reason = Annotated[str, typer.Option("--reason", help="Why, for people who look at it.")]
Key = Annotated[str, typer.Option("--key", help="The same key within 24 hours sends nothing again.")]


@app.command()
@examples(
    "boki flow signal travel trip-17 approve true", "boki flow signal travel trip-17 note 'by the window' --key n1"
)
def signal(
    name: Name,
    flow_id: Id,
    message: Message,
    value: Value = "",
    key: Key = "",
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Send a message to a workflow.

    It is kept until the workflow takes it, also if that is yet to be started. A workflow that has ended takes none.
    """
    body, content_type = typed_value(value, f"boki flow signal {name} {flow_id} {message}") if value else (b"", "")
    with Flows(url, token, book) as flows:
        flows.post(name, flow_id, "signal", message, body=body, content_type=content_type, key=key)
    say(f"signal {message} is in the inbox of {name} {flow_id}")


@app.command()
@examples("boki flow update travel trip-17 seat '\"12A\"'")
def update(
    name: Name,
    flow_id: Id,
    message: Message,
    value: Value = "",
    key: Key = "",
    wait_s: Annotated[float, typer.Option(min=1, max=60, help="Seconds to wait for the answer.")] = 30,
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Send a message to a workflow, and print its answer as JSON. Under a key: ask for it again."""
    body, content_type = typed_value(value, f"boki flow update {name} {flow_id} {message}") if value else (b"", "")
    with Flows(url, token, book) as flows:
        answer = flows.post(
            *(name, flow_id, "update", message),
            body=body,
            content_type=content_type,
            key=key,
            query={"wait_s": wait_s},
            wait_s=wait_s,
        )
    print_json(answer["answer"])


@app.command()
@examples("boki flow query travel trip-17 seats")
def query(
    name: Name, flow_id: Id, message: Message, value: Value = "", book: Book = "", url: Url = "", token: Token = ""
) -> None:
    """Print what a workflow answers to a query, as JSON.

    Nothing happens, and it may have ended.
    """
    body, content_type = typed_value(value, f"boki flow query {name} {flow_id} {message}") if value else (b"", "")
    with Flows(url, token, book) as flows:
        print_json(flows.post(name, flow_id, "query", message, body=body, content_type=content_type)["answer"])


@app.command()
@examples("boki flow resolve travel trip-17 payment '{\"ok\": true}'")
def resolve(
    name: Name,
    flow_id: Id,
    promise: Promise,
    value: Value = "",
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Give a promise of a workflow its value. The first one counts."""
    body, content_type = typed_value(value, f"boki flow resolve {name} {flow_id} {promise}") if value else (b"", "")
    with Flows(url, token, book) as flows:
        flows.post(name, flow_id, "promise", promise, body=body, content_type=content_type)
    say(f"promise {promise} of {name} {flow_id} has a value")


@app.command()
@examples("boki flow reject travel trip-17 payment --reason 'the card was refused'")
def reject(
    name: Name,
    flow_id: Id,
    promise: Promise,
    reason: Annotated[str, typer.Option("--reason", help="What the error says that the workflow raises.")] = "",
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Have a promise of a workflow raise an error. The first one counts."""
    with Flows(url, token, book) as flows:
        flows.post(name, flow_id, "promise", promise, "reject", query={"reason": check_reason(reason)})
    say(f"promise {promise} of {name} {flow_id} is rejected")


@app.command()
@examples("boki flow cancel travel trip-17 --reason 'the customer called'")
def cancel(
    name: Name,
    flow_id: Id,
    reason: Reason = "",
    book: Book = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Ask a workflow to end. It undoes what it has done."""
    _tell("cancel", name, flow_id, reason, book, url, token, as_json=as_json)


@app.command()
@examples("boki flow kill travel trip-17")
def kill(name: Name, flow_id: Id, book: Book = "", as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """End a workflow as it is. Nothing is undone."""
    _tell("kill", name, flow_id, "", book, url, token, as_json=as_json)


@app.command()
@examples("boki flow pause travel trip-17 --reason 'the airline is down'")
def pause(
    name: Name,
    flow_id: Id,
    reason: Reason = "",
    book: Book = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Let a workflow begin nothing more until it is resumed. Its messages are kept."""
    _tell("pause", name, flow_id, reason, book, url, token, as_json=as_json)


@app.command()
@examples("boki flow resume travel trip-17")
def resume(name: Name, flow_id: Id, book: Book = "", as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """Let a workflow continue that was paused.

    By a command, or because its code did not do what its journal says.
    """
    _tell("resume", name, flow_id, "", book, url, token, as_json=as_json)


Step = Annotated[
    int | None,
    typer.Option("--step", "--at", min=0, help="The first step that is done again, as `show` numbers it."),
]


@app.command()
@examples("boki flow rewind travel trip-17 --step 3", "boki flow rewind travel trip-17")
def rewind(
    name: Name,
    flow_id: Id,
    step: Step = None,
    book: Book = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Have a workflow continue in front of a step.

    That step and what came after it is forgotten, and done again. Without one: the last step that failed, else only the
    end is forgotten. It must have ended, or be paused.
    """
    with Flows(url, token, book) as flows:
        found = flows.post(name, flow_id, "rewind", query={"step": "" if step is None else str(step)})
    if as_json:
        print_json({"workflow": name, "id": flow_id, "said": "rewind", "step": found["step"]})
    else:
        say(f"{name} {flow_id} continues with step {found['step']}")


@app.command()
@examples("boki flow fork travel trip-17 --at 3 --id trip-18")
def fork(
    name: Name,
    flow_id: Id,
    step: Step = None,
    new_id: Annotated[str, typer.Option("--id", help="The id of the new one; else one is made.")] = "",
    book: Book = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Begin another workflow with the history of this one.

    That one may run, and continues as it is. Prints the new id.
    """
    with Flows(url, token, book) as flows:
        found = flows.post(name, flow_id, "fork", query={"step": "" if step is None else str(step), "id": new_id})
    if as_json:
        print_json(found)
    else:
        results().print(found["id"], markup=False)


@app.command()
@examples(
    "boki flow upgrade travel trip-17", "boki flow upgrade travel --dry-run", "boki flow upgrade --all --version 4"
)
def upgrade(
    name: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow.", show_default=False)] = "",
    flow_id: Annotated[str, typer.Argument(metavar="ID", help="Only the one of this id.", show_default=False)] = "",
    move_all: Annotated[bool, typer.Option("--all", help="All workflows of all names.")] = False,
    version: Annotated[int, typer.Option(min=0, help="The version; else the one that runs.", show_default=False)] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell which ones may move.")] = False,
    book: Book = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Move workflows to the version of the code that runs now.

    A workflow stays with the version that it began with. It moves if a replay of what is recorded does not diverge
    under the other one. Exit code 1 if one stays.
    """
    if bool(name) == move_all:
        raise ConfigError("name a workflow, or give --all", field="WORKFLOW")
    query = {"version": version, "dry_run": "true" if dry_run else ""}
    stay = moved = unpinned = 0
    with Flows(url, token, book) as flows:
        for one, its_id, its_book in [(name, flow_id, book)] if flow_id else _unfinished(flows, name):
            try:
                found = flows.post(one, its_id, "upgrade", query=query | {"book": its_book}, wait_s=60.0)
            except (Diverged, FunctionFailed, WrongState) as error:
                has_ended = WorkflowEnded.__name__ in (type(error).__name__, error.details.get("error_type"))
                if has_ended and flow_id:
                    raise
                if has_ended:
                    continue
                where = f"{one} {its_id}: " if isinstance(error, FunctionFailed) else ""
                found, stay = {"workflow": one, "id": its_id, "error": where + error.message}, stay + 1
            moved += found.get("before") != found.get("version")
            unpinned += found.get("version") == 0
            if as_json:
                print_json(found)
            elif "error" in found:
                results().print(found["error"], style="red", markup=False)
    if not as_json:
        what = "may move" if dry_run else "moved"
        say(f"{count_text(moved, 'workflow')} {what}, {stay:,} cannot")
        if unpinned:
            it = f"{count_text(unpinned, 'workflow')} can continue"
            say(f"{it} with the code of the functions folder: nothing is deployed here")
    if stay:
        raise typer.Exit(1)


def _unfinished(flows: Flows, name: str) -> list[tuple[str, str, str]]:
    """The workflows that have not ended, of one name or all, with their LogBooks."""
    found: list[tuple[str, str, str]] = []
    before = ""
    states = ["accepted", "running", "retrying", "suspended", "paused"]
    while True:
        page = flows.get(query={"workflow": name, "state": states, "before": before, "limit": 100})
        found += [(one["workflow"], one["id"], one["book"]) for one in page["workflows"]]
        before = page.get("before", "")
        if not before:
            return found


_SAID: Final = {
    "cancel": "is asked to end",
    "kill": "is ended",
    "pause": "is asked to pause",
    "resume": "is asked to go on",
}


def _tell(verb: str, name: str, flow_id: str, reason: str, book: str, url: str, token: str, *, as_json: bool) -> None:
    with Flows(url, token, book) as flows:
        flows.post(name, flow_id, verb, query={"reason": check_reason(reason)})
    if as_json:
        print_json({"workflow": name, "id": flow_id, "said": verb})
    else:
        say(f"{name} {flow_id} {_SAID[verb]}")
