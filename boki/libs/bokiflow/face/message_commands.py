"""`boki flow signal|update|query|resolve|cancel|kill|pause|resume|rewind|fork`: speak to a workflow."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from boki.cli.connection import AsJson, Token, Url
from boki.cli.help import examples
from boki.cli.terminal import errors, print_json, results
from boki.libs.bokiflow.face.commands import Book, Id, Name, app, check_reason
from boki.libs.bokiflow.face.requests import Flows, typed_value

__all__ = ["app"]

Message = Annotated[str, typer.Argument(metavar="NAME", help="The name of the message.", show_default=False)]
Value = Annotated[
    str, typer.Argument(metavar="VALUE", help="JSON, else it is text; - reads it from stdin.", show_default=False)
]
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

    It is kept until the workflow takes it, also if that is yet to be started.
    """
    body, content_type = typed_value(value, f"boki flow signal {name} {flow_id} {message}") if value else (b"", "")
    with Flows(url, token, book) as flows:
        flows.post(name, flow_id, "signal", message, body=body, content_type=content_type, key=key)
    errors().print(f"signal {message} is in the inbox of {name} {flow_id}", markup=False)


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
    promise: Annotated[str, typer.Argument(metavar="PROMISE", help="The promise.", show_default=False)],
    value: Value = "",
    book: Book = "",
    url: Url = "",
    token: Token = "",
) -> None:
    """Give a promise of a workflow its value. The first one counts."""
    body, content_type = typed_value(value, f"boki flow resolve {name} {flow_id} {promise}") if value else (b"", "")
    with Flows(url, token, book) as flows:
        flows.post(name, flow_id, "promise", promise, body=body, content_type=content_type)
    errors().print(f"promise {promise} of {name} {flow_id} has a value", markup=False)


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
        errors().print(f"{name} {flow_id} goes on with step {found['step']}", markup=False)


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
        errors().print(f"{name} {flow_id} {_SAID[verb]}", markup=False)
