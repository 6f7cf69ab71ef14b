"""`boki functions`: which functions there are, which versions are deployed, and going back to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from boki.cli import deploy
from boki.cli.connection import AsJson, Token, Url, connect
from boki.cli.help import Commands, examples
from boki.cli.signatures import signature_of
from boki.cli.terminal import bytes_text, print_json, print_table, results, time_cell
from boki.errors import InvalidArgument

if TYPE_CHECKING:
    from boki.deploy.versions import VersionInfo

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
    if as_json:
        for one in known if found is None else found:
            print_json(msgspec.to_builtins(one))
        return
    if known:
        print_table(["function~", "module"], [(signature_of(info), info.module) for info in known])
    if found is None:
        if not known:
            results().print("No functions yet: write some in the functions folder.")
        return
    if not found:
        results().print("Nothing deployed yet; run boki deploy DIR.")
        return
    _show_versions(found)


def _show_versions(found: list[VersionInfo]) -> None:
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
    results().print("* runs now; boki functions use N goes back to version N")


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
