"""`boki deploy`: let a cluster run the functions of a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from boki.cli.connection import AsJson, Token, Url, connect
from boki.cli.help import examples
from boki.cli.terminal import bytes_text, errors, print_json, results

if TYPE_CHECKING:
    from boki.protocol.deployments import Deployment


@examples("boki deploy", "boki deploy src/functions --force")
def command(
    folder: Annotated[Path, typer.Argument(help="The folder whose modules register functions.")] = Path("functions"),
    force: Annotated[bool, typer.Option("--force", help="Also if some of its modules cannot be loaded.")] = False,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
) -> None:
    """Deploy the functions of a folder to every engine.

    Calls in flight finish on the version that they began with.
    """
    from boki.books.functions.folder import overlooked_files, pack_folder

    bundle = pack_folder(folder)
    for file in overlooked_files(folder):
        errors().print(
            f"{folder / file} is not looked into: functions are registered by .py files at the top of {folder}",
            style="yellow",
            markup=False,
        )
    with connect(url, token) as client:
        show(client.deploy(bundle, is_forced=force), as_json=as_json)


def show(deployment: Deployment, *, as_json: bool) -> None:
    """Its outcome."""
    if as_json:
        print_json(msgspec.to_builtins(deployment))
        return
    version = deployment.version
    what = "runs from now on" if deployment.is_new or not version.is_active else "runs"
    if deployment.superseded_by:
        what = "is deployed and does not run"
    results().print(
        f"version {version.number} ({version.bundle_hash[:12]}, {bytes_text(version.size_bytes)}) {what}: "
        f"{', '.join(version.functions) or 'no functions'}",
        markup=False,
    )
    for module in version.broken:
        errors().print(f"module {module} cannot be loaded: boki status says why", style="red", markup=False)
    if deployment.superseded_by:
        errors().print(
            f"version {deployment.superseded_by} has been deployed or chosen since, and runs instead", style="yellow"
        )
        return
    late = sorted(engine for engine, runs in deployment.engines.items() if not runs)
    if late:
        errors().print(f"not yet at {', '.join(late)}: boki status shows how they are", style="yellow", markup=False)
