"""`boki functions`: which functions there are, which versions are deployed, and going back to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from boki.cli import deploy
from boki.cli.connection import AsJson, Token, Url, connect
from boki.cli.help import Commands, examples
from boki.cli.signatures import signature_of
from boki.cli.terminal import bytes_text, print_json, print_table, results, time_cell
from boki.errors import InvalidArgument
from boki.protocol.calls import FunctionInfo

if TYPE_CHECKING:
    from boki.protocol.deployments import VersionInfo

app = Commands("List the functions, and go back to a deployed version.", no_args_is_help=False)


@app.callback(invoke_without_command=True)
@examples("boki functions", "boki functions use previous")
def versions(context: typer.Context, as_json: AsJson = False, url: Url = "", token: Token = "") -> None:
    """List the functions with their signatures, and the deployed versions.

    A `boki dev` has no versions: it runs the modules of its folder as they are.
    """
    if context.invoked_subcommand is not None:
        return
    with connect(url, token) as client:
        known = sorted(client.functions(), key=lambda info: info.name)
        try:
            found = client.versions()
        except InvalidArgument:
            found = None
        running = _running(client.status()) if found and not as_json else {}
    if as_json:
        for one in known if found is None else found:
            print_json(msgspec.to_builtins(one))
        return
    if known:
        show_functions(known)
    if found is None:
        if not known:
            results().print("No functions yet: write some in the functions folder.")
        return
    if not found:
        results().print("Nothing deployed yet; run boki deploy DIR.")
        return
    _show_versions(found, running)


def show_functions(known: Sequence[FunctionInfo]) -> None:
    """A table of functions; with their own routes, if some have any."""
    columns = ["function~", "module"]
    rows = [[signature_of(info), info.module] for info in known]
    if any(info.http for info in known):
        columns.append("routes~")
        rows = [[*row, ", ".join(info.http)] for row, info in zip(rows, known, strict=True)]
    print_table(columns, rows)


def _running(status: Mapping[str, Any]) -> dict[str, int]:
    """The version that runs at each engine, as far as they answer; 0: none."""
    nodes = status.get("nodes", {})
    return {name: told["functions_version"] for name, told in sorted(nodes.items()) if "functions_version" in told}


def _show_versions(found: list[VersionInfo], running: Mapping[str, int]) -> None:
    rows = [
        (
            f"{info.number}{' *' if info.is_active else ''}",
            info.bundle_hash[:12],
            time_cell(info.deployed_us),
            ", ".join(info.functions),
            bytes_text(info.size_bytes),
        )
        for info in found
    ]
    print_table(["version", "hash", "deployed (UTC)", "functions~", "size>"], rows, title="Versions")
    for info in found:
        if info.broken:
            text = f"version {info.number} was deployed with broken modules: {', '.join(info.broken)}"
            results().print(text, style="yellow", markup=False)
    active = next((info.number for info in found if info.is_active), 0)
    results().print(_active_text(active, running), markup=False)


def _active_text(active: int, running: Mapping[str, int]) -> str:
    """What the star means: the version that is to run, which an engine may not be able or not be allowed to."""
    if not running:
        return "* is to run; no engine says which version it runs"
    if all(number == active for number in running.values()):
        return "* runs now; boki functions use N goes back to version N"
    if not any(running.values()):
        return (
            "* is to run, and runs at no engine: they were started with --functions-version none, or cannot run it "
            f"(boki logs says why). boki functions use {active} has them run it"
        )
    told = ", ".join(f"{name} runs {f'version {number}' if number else 'none'}" for name, number in running.items())
    return f"* is to run, and does not run everywhere (boki logs says why): {told}"


@app.command("use")
@examples("boki functions use 3", "boki functions use previous")
def use(
    version: Annotated[str, typer.Argument(help="A number, or previous for the one that ran before.")],
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Run a deployed version again."""
    with connect(url, token) as client:
        deploy.show(client.use_version(version), as_json=as_json)
