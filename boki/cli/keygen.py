"""`boki keygen`: keys with which the nodes of a cluster know each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from boki.cli.help import examples
from boki.cli.terminal import results
from boki.errors import InvalidArgument
from boki.log.membership import Role

DEFAULT_COUNTS = {Role.CONTROLLER: 2, Role.ENGINE: 2, Role.GATEWAY: 1, Role.SEQUENCER: 3, Role.STORAGE: 3}


@examples("boki keygen keys", "boki keygen keys engine-3 eu-west=engine")
def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the keys are, or will be.", show_default=False)],
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE...]",
            help="engine-3, or eu-west=engine for a name that does not begin with its role. "
            "None: those of a cluster with 1 gateway, 2 engines, 3 storage nodes, 3 sequencers and 2 controllers.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make keys for nodes that have none yet.

    The list of all public keys is written, too.
    Every node needs `cluster.keys` and its own `<name>.key`, in the folder that its setting `keys` names. A node's key
    is tied to its role: only sequencers can order records, only controllers can end a term.
    """
    from boki.net.keys import LIST_NAME, make_keys

    wanted = roles_of(nodes or [])
    made = make_keys(folder, wanted)
    kept = len(wanted) - len(made)
    if made:
        results().print(f"Made keys in {folder}: {', '.join(made)}", markup=False)
    if kept:
        results().print(f"{kept} had a key already, and keep it." if made else "All of them have keys already.")
    results().print(f"Give every node {LIST_NAME}, and each its own .key file; no other node needs that.", markup=False)


def roles_of(nodes: list[str]) -> dict[str, Role]:
    """The role of each named node; no names: those of a default cluster. `InvalidArgument` lists every problem."""
    if not nodes:
        return {f"{role}-{number}": role for role, count in DEFAULT_COUNTS.items() for number in range(1, count + 1)}
    found: dict[str, Role] = {}
    problems = []
    for text in nodes:
        name, has_role, role = text.partition("=")
        role = role if has_role else text.rpartition("-")[0]
        if role not in set(Role):
            problems.append(f"{text}: write NAME=ROLE, with a role of {', '.join(Role)}; or ROLE-NUMBER")
        elif name in found:
            problems.append(f"{name} is named twice")
        else:
            found[name] = Role(role)
    if problems:
        raise InvalidArgument("no key was made:" + "".join(f"\n  - {problem}" for problem in problems))
    return found
