"""`boki keygen`: keys with which the nodes of a cluster know each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from boki.cli.help import examples
from boki.cli.terminal import results
from boki.errors import InvalidArgument
from boki.log.membership import Role

DEFAULT_NODES = ("node-1", "node-2", "node-3")
_NODE = "node"


@examples("boki keygen keys", "boki keygen keys node-4 node-5=storage,sequencer engine-3 eu-west=engine")
def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the keys are, or will be.", show_default=False)],
    nodes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NODE...]",
            help="node-4, which may play every role; node-5=storage,sequencer, which may play these; engine-3, which "
            "is one alone; or eu-west=node, eu-west=engine for a name that does not begin like that. None: node-1, "
            "node-2 and node-3.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make keys for nodes that have none yet.

    The list of all public keys is written, too.
    Every node needs `cluster.keys` and its own `<name>.key`, in the folder that its setting `keys` names. A node's key
    is tied to its roles: only sequencers can order records, only controllers can end a term.
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


def roles_of(nodes: list[str]) -> dict[str, str]:
    """What each named node may be, as keys spell it; no names: those of a default cluster.

    `InvalidArgument` lists every problem.
    """
    from boki.net.keys import roles_text

    found: dict[str, str] = {}
    problems = []
    for text in nodes or DEFAULT_NODES:
        name, has_role, role = text.partition("=")
        role = role if has_role else text.rpartition("-")[0]
        words = list(Role) if role == _NODE else role.split(",")
        if not set(words) <= set(Role) or len(set(words)) < len(words):
            problems.append(
                f"{text}: write NAME=ROLE, with node, a role of {', '.join(Role)}, or several with commas between "
                "them; or ROLE-NUMBER"
            )
        elif name in found:
            problems.append(f"{name} is named twice")
        else:
            found[name] = roles_text(role for role in Role if role in words) if len(words) > 1 else role
    if problems:
        raise InvalidArgument("no key was made:" + "".join(f"\n  - {problem}" for problem in problems))
    return found
