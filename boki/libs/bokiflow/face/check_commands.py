"""`boki flow record|check`: keep what workflows did, and replay it against new code before that is deployed."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from boki.api.payloads.values import is_json
from boki.cli.connection import AsJson, Token, Url, connect_async
from boki.cli.help import examples
from boki.cli.terminal import content_of, count_text, path_text, print_json, results, say
from boki.errors import BokiError, ConfigError
from boki.libs.bokiflow.checking import check
from boki.libs.bokiflow.face.commands import Book, Id, Name, app
from boki.libs.bokiflow.face.requests import Flows
from boki.libs.bokiflow.recorded import Recorded, body_has_ended, decode, encode, record
from boki.libs.bokiflow.workflows import Workflow
from boki.protocol.calls import Payload

__all__ = ["app"]

IN_PART: Final = 3
"""Exit code of a check that has found nothing, and has not seen all."""


@app.command("record")
@examples(
    'boki flow record travel trip-17 \'{"to": "BOS"}\' > histories/trip-17.json',
    "boki flow record travel trip-17 --functions functions > histories/trip-17.json",
)
def record_history(
    name: Name,
    flow_id: Id,
    payload: Annotated[
        str, typer.Argument(help="What it was started with, JSON or text; not needed if it answers queries.")
    ] = "",
    book: Book = "",
    functions: Annotated[
        Path | None,
        typer.Option(
            "--functions", metavar="DIR", help="The functions with its code, if that reads stores or the log."
        ),
    ] = None,
    url: Url = "",
    token: Token = "",
) -> None:
    """Print the record of a workflow, for `boki flow check`.

    The record has the arguments' digests and the results of all steps, as they stand in the log. With `--functions`
    it also has what the code reads of stores and of the log, found by a replay: a check ends at such a read else.
    """
    code = None if functions is None else _workflows_of(functions).get(name)
    if functions is not None and code is None:
        raise ConfigError(f"there is no workflow {name} in {path_text(functions)}", field="functions")
    with Flows(url, token, book) as flows:
        workflow = flows.get(name, flow_id)
    given = None
    if payload:
        body = content_of(payload, "", may_be_empty=False)
        given = Payload("json" if is_json(body) else "text", body)

    async def read() -> Recorded:
        async with connect_async(url, token) as client:
            logbook = client.logbook(workflow["book"])
            has_ended = body_has_ended(workflow["state"], workflow.get("error", {}).get("code", ""))
            id_ = workflow["invocation"]
            return await record(logbook, name, flow_id, id_, has_ended=has_ended, payload=given, code=code)

    sys.stdout.write(encode(asyncio.run(read())).decode())


@app.command("check")
@examples("boki flow check --history histories", "boki flow check --history histories --functions functions")
def check_histories(
    history: Annotated[Path, typer.Option("--history", metavar="DIR", help="Folder with what `record` printed.")],
    functions: Annotated[
        Path, typer.Option("--functions", metavar="DIR", help="The functions folder with the new code.")
    ] = Path("functions"),
    as_json: AsJson = False,
) -> None:
    """Replay recorded workflows against this code. Exit code 1 if one diverges.

    No step is run, and nothing is sent: the code is given the outcomes that were recorded. Exit code 3 if none
    diverges, and one was checked in part: its code reads a store or the log, which its file does not hold.
    """
    workflows = _workflows_of(functions)
    files = sorted(history.glob("*.json"))
    if not files:
        raise ConfigError(f"{path_text(history)} has no *.json: make them by `boki flow record`", field="history")
    bad = partial = 0
    for path in files:
        found = _seen(path, workflows)
        bad += bool(found.problem)
        partial += not (found.problem or found.is_whole)
        if as_json:
            print_json({"file": str(path), **msgspec.to_builtins(found)})
        elif found.problem:
            results().print(f"{path.name}: {found.problem}", style="red", markup=False)
        elif not found.is_whole:
            results().print(f"{path.name}: {found.how_far}", style="yellow", markup=False)
    if not as_json:
        left = f", {partial:,} checked in part: record them with --functions" if partial else ""
        say(f"{count_text(len(files), 'workflow')} replayed, {bad:,} would be paused{left}")
    if bad or partial:
        raise typer.Exit(1 if bad else IN_PART)


class _Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the check of one file says."""

    problem: str
    """Why that workflow could not continue; "": nothing speaks against it."""
    is_whole: bool = False
    """Whether all that is recorded was checked."""
    replayed: int = 0
    recorded: int = 0
    """Records of the journal, and how many of them were replayed."""
    unread: str = ""
    """At what read the check ended."""

    @property
    def how_far(self) -> str:
        """How much was checked, for people."""
        return (
            f"checked in part, {self.replayed:,} of {count_text(self.recorded, 'record')}: it reads {self.unread}, "
            "which the file does not hold"
        )


def _seen(path: Path, workflows: dict[str, Workflow[Any, Any]]) -> _Seen:
    try:
        recorded = decode(path.read_bytes(), path.name)
        code = workflows.get(recorded.workflow)
        if code is None:
            return _Seen(problem=f"there is no workflow {recorded.workflow} any more")
        found = asyncio.run(check(code, recorded))
    except BokiError as error:
        return _Seen(problem=error.message)
    both = {} if found.diverged is None else found.diverged.details
    return _Seen(
        problem=f"recorded was {both['recorded']}, and the code {both['started']}" if both else "",
        is_whole=found.is_whole,
        replayed=found.replayed,
        recorded=found.recorded,
        unread=found.unread,
    )


def _workflows_of(folder: Path) -> dict[str, Workflow[Any, Any]]:
    """The workflows of a functions folder, by name. `ConfigError` if a module cannot be imported."""
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {path_text(folder)}: name the functions by --functions", field="functions"
        )
    sys.path.insert(0, str(folder.resolve()))
    found: dict[str, Workflow[Any, Any]] = {}
    for path in sorted(folder.glob("*.py")):
        try:
            module = importlib.import_module(path.stem)
        except Exception as error:
            raise ConfigError(f"{path.name} cannot be imported: {type(error).__name__}: {error}") from error
        found |= {one.name: one for one in vars(module).values() if isinstance(one, Workflow)}
    return found
